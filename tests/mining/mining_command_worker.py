"""`python -m jitm.mining` in many blocks, each kept, killed at one of them: run by test_mining.py."""

import itertools
import os
import runpy
import signal
import sys

from jitm.mining import job, products

killed_at = int(sys.argv.pop(1))
job.SAVE_EVERY = 0
products.MOST_QUERIES = 1


class Killer:
    """Is told after each block, before that block is kept."""

    def __init__(self):
        self._calls = itertools.count(1)

    def __call__(self, progress):
        if next(self._calls) == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)


progress.ProgressPrinter = Killer
runpy.run_module('jitm.commands.mine', run_name='__main__')
