"""`python -m jitm COMMAND`, the same as `jitm COMMAND`."""

import sys

from jitm.commands import cli

if __name__ == '__main__':
    sys.exit(cli.main())
