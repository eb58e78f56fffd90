"""Reports from the logs of runs, never from a model.

python -m jitm.analysis summary runs/vsepp_s0 runs/vsepp_s1 runs/vse0_s0 runs/vse0_s1
python -m jitm.analysis training runs/vsepp_s0 runs/vsepp_s1 runs/vse0_s0 runs/vse0_s1 --output training.png
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jitm.analysis.settings import read_settings
from jitm.analysis.summary import summary
from jitm.analysis.training import draw, training
from jitm.errors import EXIT_USER_ERROR, UserError


def main(argv: Sequence[str]) -> int:
    """Prints a report, and draws its figure."""
    parser = argparse.ArgumentParser(prog='python -m jitm.analysis', description=__doc__.splitlines()[0])
    reports = parser.add_subparsers(dest='report', required=True)
    runs = argparse.ArgumentParser(add_help=False)
    runs.add_argument(
        'workdirs', nargs='+', type=Path, help='run directories; those that differ only in the seed are one'
    )
    reports.add_parser('summary', parents=[runs], help='best validation and rsum by epoch, averaged over seeds')
    figure = reports.add_parser('training', parents=[runs], help='loss, gradient and gap of scores during training')
    figure.add_argument('--output', type=Path, default=Path('training.png'), help='the figure (training.png)')
    args = parser.parse_args(argv)
    try:
        settings = read_settings(args.workdirs)
        if args.report == 'summary':
            print(summary(settings))
        else:
            print(training(settings))
            draw(settings, args.output)
            print(f'\nfigure written to {args.output}')
    except UserError as error:
        print(f'error: {error}', file=sys.stderr)
        return EXIT_USER_ERROR
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
