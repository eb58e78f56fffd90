"""The best validation metrics of each group, tests of the differences in rsum, and rsum by epoch."""

import collections
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from jitm.pages.tables import FORMATS, mean_and_deviation
from jitm.report.bootstrap import Hits
from jitm.report.groups import Group, runs_of
from jitm.report.significance import COLUMNS, Compared, describe, two_way

RECALLS = {
    'i2t/recall@1': 'R@1 i2t',
    'i2t/recall@5': 'R@5 i2t',
    'i2t/recall@10': 'R@10 i2t',
    't2i/recall@1': 'R@1 t2i',
    't2i/recall@5': 'R@5 t2i',
    't2i/recall@10': 'R@10 t2i',
    'rsum': 'rsum',
}
DISTANCE = 'mean_distance'
LOGGED = 'MD', 'best epoch', 'runs'  # columns that tables of papers lack

Table = tuple[list[str], list[list[str]]]  # header and rows


class Best(NamedTuple):
    """The best validations of the runs of a group.

    Attributes:
      values: Metric -> its value in each run, in percent but for the distance; none in a converted run that was not
        evaluated.
      cells: Metric -> the mean and sample standard deviation over the seeds as text.
      epochs: The epochs of these validations as text.
    """

    values: Mapping[str, Sequence[float]]
    cells: Mapping[str, str]
    epochs: str


def best_validations(groups: Sequence[Group]) -> list[Best]:
    """Returns the best validations of each group: the recalls, rsum, and the mean distance if all runs log it.

    Raises:
      UserError: If a run has no validation yet.
    """
    by_group = []
    for group in groups:
        by_group.append([run.best_validation() for run in group.runs])
    metrics = _metrics(itertools.chain(*by_group))
    validations = []
    for lines in by_group:
        evaluations = [line for line in lines if line.get('rsum') is not None]
        values = {}
        for metric in metrics:
            values[metric] = [line[metric] for line in evaluations]
        cells = {key: mean_and_deviation(row, '.3g' if key == DISTANCE else '.1f') for key, row in values.items()}
        validations.append(Best(values, cells, ', '.join(f'{line["epoch"]:g}' for line in lines)))
    return validations


def _metrics(lines: Iterable[Mapping[str, float]]) -> list[str]:
    """Returns the metrics that validations are compared by: the mean distance if all with rsum have it."""
    evaluated = [line for line in lines if line.get('rsum') is not None]
    return [*RECALLS, DISTANCE] if all(DISTANCE in line for line in evaluated) else [*RECALLS]


def rsums_by_epoch(group: Group) -> dict[float, list[float]]:
    """Returns the rsum of each run after each epoch in which it was validated."""
    rsums = collections.defaultdict(list)
    for run in group.runs:
        for line in run.validations:
            if line.get('rsum') is not None:
                rsums[line['epoch']].append(line['rsum'])
    return rsums


def _rsums(group: Group) -> dict[int, float | None]:
    """Returns the best rsum of each seed."""
    return {run.config['seed']: run.best_validation().get('rsum') for run in group.runs}


def seed_differences(group: Group, baseline: Group) -> list[float]:
    """Returns how much the best validation rsum of a group exceeds another's on the same data, for common seeds."""
    if not group.runs[0].has_data_of(baseline.runs[0]):
        return []
    rsums, baseline_rsums = map(_rsums, (group, baseline))
    return [rsums[seed] - baseline_rsums[seed] for seed in rsums if None not in (rsums[seed], baseline_rsums.get(seed))]


def summary(
    groups: Sequence[Group],
    hits: Mapping[int, Mapping[int, Hits]] = MappingProxyType({}),
    form: str = 'markdown',
) -> str:
    """Returns tables of the best validation of each group, of the differences in rsum, and of rsum by epoch.

    Args:
      groups: The groups; others are compared with the first.
      hits: The hits of the groups whose similarities are saved, by index and seed.
      form: One of `FORMATS`; CSV is one table, and LaTeX lacks the columns `LOGGED`.

    Returns:
      Recalls and rsum in percent, the difference of rsum from the first group for groups on its data, and the mean
      distance (MD) if all runs log it, as mean and sample standard deviation over seeds. If two groups share two seeds,
      the columns of `significance`. If a run has several validations, rsum by epoch.

    Raises:
      UserError: If a run has no validation yet.
    """
    first = groups[0]
    tables = [_best_table(groups)]
    pairs = {}
    for n, group in enumerate(groups[1:], 1):
        interval = two_way(hits[n], hits[0]) if {0, n} <= hits.keys() else None
        pairs[n] = Compared(seed_differences(group, first), interval)
    tests = describe(pairs)
    if tests:
        rows = [[group.name, *tests.get(n, ['-'] * len(COLUMNS))] for n, group in enumerate(groups)]
        tables.append(([f'difference from {first.name}', *COLUMNS], rows))
    if any(len(run.validations) > 1 for run in runs_of(groups)):
        tables.append(_epoch_table(groups))
    if form == 'csv':
        tables = [_side_by_side(tables)]
    if form == 'latex':
        tables[0] = _without(tables[0], LOGGED)
    texts = [FORMATS[form](*table) for table in tables]
    other_data = [group.name for group in groups if not group.runs[0].has_data_of(first.runs[0])]
    if other_data and form == 'markdown':
        texts.insert(1, f'no difference from {first.name}, which has other data: {"; ".join(other_data)}')
    return '\n\n'.join(texts)


def _best_table(groups: Sequence[Group]) -> Table:
    best = best_validations(groups)
    header = ['group', *(RECALLS.get(metric, 'MD') for metric in best[0].cells), 'best epoch', 'runs']
    rows = []
    for group, validation in zip(groups, best, strict=True):
        rows.append([group.name, *validation.cells.values(), validation.epochs, group.run_names])
    if len(groups) > 1:
        place = header.index(RECALLS['rsum']) + 1
        header.insert(place, 'difference')
        for group, row in zip(groups, rows, strict=True):
            differences = [] if group is groups[0] else seed_differences(group, groups[0])
            row.insert(place, mean_and_deviation(differences, '+.1f'))
    return header, rows


def _without(table: Table, columns: Collection[str]) -> Table:
    header, rows = table
    kept = [n for n, column in enumerate(header) if column not in columns]
    return [header[n] for n in kept], [[row[n] for n in kept] for row in rows]


def _epoch_table(groups: Sequence[Group]) -> Table:
    by_group = [rsums_by_epoch(group) for group in groups]
    epochs = sorted(set().union(*by_group))
    rows = []
    for group, rsums in zip(groups, by_group, strict=True):
        rows.append([group.name, *(mean_and_deviation(rsums.get(epoch, [])) for epoch in epochs)])
    return ['rsum after epoch', *(f'{epoch:g}' for epoch in epochs)], rows


def _side_by_side(tables: Sequence[Table]) -> Table:
    """Joins tables with the same groups, whose names are in the first column."""
    header, rows = tables[0]
    for more_header, more_rows in tables[1:]:
        header = [*header, *more_header[1:]]
        rows = [[*row, *more[1:]] for row, more in zip(rows, more_rows, strict=True)]
    return header, rows
