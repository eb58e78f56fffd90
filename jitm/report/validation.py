"""Curves of validation: R@1 of both directions and rsum by epoch (AOQ: Chen et al., 2020, figure 4)."""

from collections.abc import Iterable, Sequence
from typing import Any

from jitm.errors import UserError
from jitm.evaluation.tables import table
from jitm.report.figures import Curve, curve, draw_curves
from jitm.report.groups import Group, RunLog

TITLES = {'i2t/recall@1': 'i2t R@1', 't2i/recall@1': 't2i R@1', 'rsum': 'rsum'}
NOTE = 'lines: means over seeds; bands: minimum to maximum'


def curves(runs: Iterable[RunLog]) -> dict[str, Curve]:
    """Returns the curve of each metric over the runs of a group.

    Raises:
      UserError: If a run has no validation, or there is no epoch of which all have one.
    """
    runs = list(runs)
    lines = [[line for line in run.require_validations() if 'rsum' in line] for run in runs]
    if not set.intersection(*({line['epoch'] for line in seed} for seed in lines)):
        names = ', '.join(str(run.workdir) for run in runs)
        raise UserError(f'{names} have no validation of the same epoch, whose mean could be shown; leave some out')
    return {name: curve([{line['epoch']: line[name] for line in seed} for seed in lines]) for name in TITLES}


def first_epoch_above(mean: Curve, level: float) -> str:
    """Returns the first epoch at which the mean is above a level, '-' if there is none."""
    above = (epoch for epoch, value in zip(mean.epochs, mean.mean, strict=True) if value > level)
    return next((f'{epoch:g}' for epoch in above), '-')


def validation(groups: Sequence[Group]) -> str:
    """Returns a Markdown table of the best value of each curve, and when it exceeds that of the first group.

    Returns:
      Markdown: the best value of the mean over seeds in percent and its epoch, and the first epoch above the best value
      of the first group.

    Raises:
      UserError: If a run has no validation.
    """
    by_group = [curves(group.runs) for group in groups]
    first = {name: max(best.mean) for name, best in by_group[0].items()}
    rows = []
    for group, by_metric in zip(groups, by_group, strict=True):
        best = [max(zip(c.mean, c.epochs, strict=True), key=lambda point: point[0]) for c in by_metric.values()]
        cells = [f'{value:.1f} ({epoch:g})' for value, epoch in best]
        cells += [first_epoch_above(curve, first[name]) for name, curve in by_metric.items()]
        rows.append([group.name, *cells, group.run_names])
    columns = [f'{title} (epoch)' for title in TITLES.values()]
    columns += [f'{title} above the first' for title in TITLES.values()]
    return table(['group', *columns, 'runs'], rows)


def draw(groups: Sequence[Group]) -> Any:
    """Returns a matplotlib figure of the curves; raises a UserError if a run has no validation."""
    figure, panels = draw_curves(groups, [curves(group.runs) for group in groups], TITLES, NOTE)
    for row in panels.values():
        row[0].set_ylim(bottom=0)
    return figure
