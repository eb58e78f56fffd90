"""The same as `jitm eval`: python eval.py --workdir runs/demo --split test."""

import sys

from jitm.__main__ import main

if __name__ == '__main__':
    sys.exit(main(['eval', *sys.argv[1:]]))
