"""The same as `jitm train`: python train.py --config demo --workdir runs/demo."""

import sys

from jitm.__main__ import main

if __name__ == '__main__':
    sys.exit(main(['train', *sys.argv[1:]]))
