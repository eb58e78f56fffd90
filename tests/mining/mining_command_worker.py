"""`jitm mine` in many blocks, each saved, with a signal at one of them; started by test_mining.py."""

import itertools
import os
import sys
import time

from jitm.__main__ import main
from jitm.mining import resumable_job, top_h
from jitm.runs import progress

number = int(sys.argv.pop(1))
block = int(sys.argv.pop(1))
resumable_job.SAVE_EVERY = 0
top_h.MAX_QUERIES = 1


class Killer:
    """Receives the progress after each block, before that block is saved."""

    def __init__(self):
        self._calls = itertools.count(1)

    def __call__(self, progress):
        if next(self._calls) == block:
            os.kill(os.getpid(), number)
            time.sleep(1000)  # until the thread that reacts to signals ends this process


progress.ProgressPrinter = Killer
sys.exit(main(['mine', *sys.argv[1:]]))
