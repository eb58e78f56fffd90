"""`jitm mine` in many blocks, each saved, killed at one of them; started by test_mining.py."""

import itertools
import os
import signal
import sys

from jitm.commands import cli
from jitm.mining import job, products
from jitm.runs import progress

killed_at = int(sys.argv.pop(1))
job.SAVE_EVERY = 0
products.MAX_QUERIES = 1


class Killer:
    """Receives the progress after each block, before that block is saved."""

    def __init__(self):
        self._calls = itertools.count(1)

    def __call__(self, progress):
        if next(self._calls) == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)


progress.ProgressPrinter = Killer
sys.exit(cli.main(['mine', *sys.argv[1:]]))
