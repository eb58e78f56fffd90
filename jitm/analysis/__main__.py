"""Reports from the logs of runs, never from a model.

python -m jitm.analysis summary runs/vsepp_s0 runs/vsepp_s1 runs/vse0_s0 runs/vse0_s1
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jitm.analysis.settings import read_settings
from jitm.analysis.summary import summary
from jitm.errors import EXIT_USER_ERROR, UserError


def main(argv: Sequence[str]) -> int:
    """Prints a report."""
    parser = argparse.ArgumentParser(prog='python -m jitm.analysis', description=__doc__.splitlines()[0])
    reports = parser.add_subparsers(dest='report', required=True)
    runs = argparse.ArgumentParser(add_help=False)
    runs.add_argument(
        'workdirs', nargs='+', type=Path, help='run directories; those that differ only in the seed are one'
    )
    reports.add_parser('summary', parents=[runs], help='best validation and rsum by epoch, averaged over seeds')
    args = parser.parse_args(argv)
    try:
        print(summary(read_settings(args.workdirs)))
    except UserError as error:
        print(f'error: {error}', file=sys.stderr)
        return EXIT_USER_ERROR
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
