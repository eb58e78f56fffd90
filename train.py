"""The same as `jitm train`: python train.py --config configs/demo.py --workdir runs/demo."""

import sys

from jitm.commands import cli

if __name__ == '__main__':
    sys.exit(cli.main(['train', *sys.argv[1:]]))
