"""Reports from the logs of runs, never from a model.

python -m jitm.analysis summary runs/vsepp_s0 runs/vsepp_s1 runs/vse0_s0 runs/vse0_s1
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jitm.config import differences
from jitm.errors import EXIT_USER_ERROR, UserError


def read_run(workdir: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Reads a run's config and the lines of its `metrics.jsonl`.

    Raises:
      UserError: if the directory holds no run.
    """
    try:
        config = json.loads((workdir / 'config.json').read_text())
        lines = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise UserError(f'{workdir} is not a run directory with config.json and metrics.jsonl ({error})') from None
    return config, lines


def group_by_setting(workdirs: Sequence[Path]) -> list[list[Path]]:
    """Puts runs together whose configs differ in nothing but the seed, in the order of the first of each."""
    groups: list[tuple[Mapping[str, Any], list[Path]]] = []
    for workdir in workdirs:
        config = read_run(workdir)[0] | {'seed': 0}
        group = next((group for other, group in groups if not differences(other, config)), None)
        if group is None:
            groups.append((config, [workdir]))
        else:
            group.append(workdir)
    return [group for _, group in groups]


def mean_and_deviation(values: Sequence[float]) -> str:
    """`mean +- sample standard deviation`, or the value alone if there is one."""
    mean = f'{statistics.mean(values):.1f}'
    return mean if len(values) == 1 else f'{mean} ± {statistics.stdev(values):.1f}'


def summary(workdirs: Sequence[Path]) -> str:
    """A Markdown table of the best validation of each setting, over its seeds, and one of rsum by epoch.

    Args:
      workdirs: run directories; those that differ only in the seed make one row.

    Returns:
      Markdown: recalls and rsum in percent, mean and sample standard deviation over seeds.

    Raises:
      UserError: if a directory holds no run or no validation.
    """
    columns = ('i2t/recall@1', 'i2t/recall@5', 'i2t/recall@10', 't2i/recall@1', 't2i/recall@5', 't2i/recall@10', 'rsum')
    best_rows, epoch_rows, epochs = [], [], []
    for group in group_by_setting(workdirs):
        runs = []
        for workdir in group:
            config, lines = read_run(workdir)
            validations = [line for line in lines if line['part'] == config['evaluation']['split']]
            if not validations:
                raise UserError(f'{workdir} has no validation yet')
            runs.append(validations)
        name = ', '.join(workdir.name for workdir in group)
        best = [max(run, key=lambda line: line['rsum']) for run in runs]
        cells = [mean_and_deviation([line[column] for line in best]) for column in columns]
        best_rows.append([name, *cells, ', '.join(f'{line["epoch"]:g}' for line in best)])
        by_epoch = [{line['epoch']: line['rsum'] for line in run} for run in runs]
        epochs = sorted({*epochs, *by_epoch[0]})
        epoch_rows.append((name, by_epoch))
    by_epoch_table = [
        [
            name,
            *(
                mean_and_deviation(values) if (values := [run[epoch] for run in runs if epoch in run]) else ''
                for epoch in epochs
            ),
        ]
        for name, runs in epoch_rows
    ]
    best_table = _table(['run', *columns, 'best epoch'], best_rows)
    return f'{best_table}\n\n{_table(["rsum after epoch", *(f"{epoch:g}" for epoch in epochs)], by_epoch_table)}'


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ['---'] * len(header), *rows]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def main(argv: Sequence[str]) -> int:
    """Prints a report."""
    parser = argparse.ArgumentParser(prog='python -m jitm.analysis', description=__doc__.splitlines()[0])
    reports = parser.add_subparsers(dest='report', required=True)
    summary_parser = reports.add_parser('summary', help='best validation and rsum by epoch, averaged over seeds')
    summary_parser.add_argument('workdirs', nargs='+', type=Path)
    args = parser.parse_args(argv)
    try:
        print(summary(args.workdirs))
    except UserError as error:
        print(f'error: {error}', file=sys.stderr)
        return EXIT_USER_ERROR
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
