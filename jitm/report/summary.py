"""The best validation metrics of each group, and rsum by epoch."""

import collections
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jitm.pages.tables import mean_and_deviation, table
from jitm.report.groups import Group

RECALLS = {
    'i2t/recall@1': 'R@1 i2t',
    'i2t/recall@5': 'R@5',
    'i2t/recall@10': 'R@10',
    't2i/recall@1': 'R@1 t2i',
    't2i/recall@5': 'R@5',
    't2i/recall@10': 'R@10',
    'rsum': 'rsum',
}
DISTANCE = 'mean_distance'


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
    lines = []
    evaluated = []
    for group in groups:
        lines.append([run.best_validation() for run in group.runs])
        evaluated.append([line for line in lines[-1] if line.get('rsum') is not None])
    have_distance = all(DISTANCE in line for line in itertools.chain(*evaluated))
    metrics = [*RECALLS, DISTANCE] if have_distance else [*RECALLS]
    validations = []
    for group, evaluations in zip(lines, evaluated, strict=True):
        values = {metric: [line[metric] for line in evaluations] for metric in metrics}
        cells = {key: mean_and_deviation(row, '.3g' if key == DISTANCE else '.1f') for key, row in values.items()}
        validations.append(Best(values, cells, ', '.join(f'{line["epoch"]:g}' for line in group)))
    return validations


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


def summary(groups: Sequence[Group]) -> str:
    """Returns Markdown tables of the best validation of each group, and of rsum by epoch.

    Returns:
      Markdown: recalls and rsum in percent, the difference of rsum from the first group for groups on its data, and the
      mean distance (MD) if all runs log it; mean and sample standard deviation over seeds.

    Raises:
      UserError: If a run has no validation yet.
    """
    best = best_validations(groups)
    header = ['group', *(RECALLS.get(metric, 'MD') for metric in best[0].cells), 'best epoch', 'runs']
    best_rows = []
    for group, validation in zip(groups, best, strict=True):
        best_rows.append([group.name, *validation.cells.values(), validation.epochs, group.run_names])
    if len(groups) > 1:
        place = header.index(RECALLS['rsum']) + 1
        header.insert(place, 'difference')
        for group, row in zip(groups, best_rows, strict=True):
            differences = [] if group is groups[0] else seed_differences(group, groups[0])
            row.insert(place, mean_and_deviation(differences, '+.1f'))
    other_data = [group.name for group in groups if not group.runs[0].has_data_of(groups[0].runs[0])]
    note = f'\n\nno difference from {groups[0].name}, which has other data: {"; ".join(other_data)}'
    by_group = [rsums_by_epoch(group) for group in groups]
    epochs = sorted(set().union(*by_group))
    epoch_rows = []
    for group, rsums in zip(groups, by_group, strict=True):
        epoch_rows.append([group.name, *(mean_and_deviation(rsums.get(epoch, [])) for epoch in epochs)])
    epoch_header = ['rsum after epoch', *(f'{epoch:g}' for epoch in epochs)]
    return f'{table(header, best_rows)}{note if other_data else ""}\n\n{table(epoch_header, epoch_rows)}'
