"""The same as `jitm eval`: python eval.py --workdir runs/demo --split test."""

import sys

from jitm.commands import cli

if __name__ == '__main__':
    sys.exit(cli.main(['eval', *sys.argv[1:]]))
