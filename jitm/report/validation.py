"""R@1 of both directions and rsum of validations by epoch (AOQ: Chen et al., 2020, figure 4)."""

from collections.abc import Sequence

from jitm.errors import UserError
from jitm.pages.tables import table
from jitm.report.curves import Curve, by_epoch
from jitm.report.groups import Group, RunLog
from jitm.report.training import points_of

TITLES = {'i2t/recall@1': 'i2t R@1', 't2i/recall@1': 't2i R@1', 'rsum': 'rsum'}


def curves(runs: Sequence[RunLog]) -> dict[str, Curve]:
    """Returns the curve of each metric over the runs of a group.

    Raises:
      UserError: If a run has no validation, or no epoch has a validation of all runs.
    """
    curves_of = {}
    for name in TITLES:
        curves_of[name] = by_epoch([dict(points_of(run.require_validations(), name)) for run in runs])
    if not curves_of['rsum'].epochs:
        names = ', '.join(str(run.workdir) for run in runs)
        raise UserError(f'{names} have no validation of the same epoch, whose mean could be shown; leave some out')
    return curves_of


def validation(groups: Sequence[Group]) -> str:
    """Returns a Markdown table of the best value of each curve, and when it exceeds the first group's.

    Returns:
      Markdown: the best value of the mean over seeds in percent and its epoch, and the first epoch above the best value
      of the first group.

    Raises:
      UserError: If a run has no validation.
    """
    by_group = [curves(group.runs) for group in groups]
    rows = []
    for group, by_metric in zip(groups, by_group, strict=True):
        best = []
        above = []
        for name, curve in by_metric.items():
            points = list(zip(curve.mean, curve.epochs, strict=True))
            level = max(by_group[0][name].mean)
            best.append('{:.1f} ({:g})'.format(*max(points, key=lambda point: point[0])))
            above.append(next((f'{epoch:g}' for value, epoch in points if value > level), '-'))
        rows.append([group.name, *best, *above, group.run_names])
    columns = [f'{title} (epoch)' for title in TITLES.values()]
    columns += [f'{title} above the first' for title in TITLES.values()]
    return table(['group', *columns, 'runs'], rows)
