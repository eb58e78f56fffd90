"""R@1 of both directions and rsum of validations: by epoch (AOQ: Chen et al., 2020, figure 4), or by a config key."""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jitm.config.build import flatten
from jitm.errors import UserError
from jitm.pages.tables import mean_and_deviation, table
from jitm.report.curves import Curve, by_epoch, curve, draw_curves
from jitm.report.groups import Group, RunLog, group_runs

TITLES = {'i2t/recall@1': 'i2t R@1', 't2i/recall@1': 't2i R@1', 'rsum': 'rsum'}
NOTE = 'lines: means over seeds; bands: minimum to maximum'
NOTE_BY_KEY = 'points: means over seeds; whiskers: minimum to maximum, none with one seed'
LOG_SCALE = 8  # a log axis if positive values span this factor

# Runs that differ in a key and the seed only, and by ascending value of the key the best validation of each of them.
Dependence = tuple[Group, Mapping[float, Sequence[Mapping[str, Any]]]]


def curves(runs: Iterable[RunLog]) -> dict[str, Curve]:
    """Returns the curve of each metric over the runs of a group.

    Raises:
      UserError: If a run has no validation, or no epoch has a validation of all runs.
    """
    runs = list(runs)
    lines = [[line for line in run.require_validations() if 'rsum' in line] for run in runs]
    found = {name: by_epoch([{line['epoch']: line[name] for line in seed} for seed in lines]) for name in TITLES}
    if not found['rsum'].epochs:
        names = ', '.join(str(run.workdir) for run in runs)
        raise UserError(f'{names} have no validation of the same epoch, whose mean could be shown; leave some out')
    return found


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
        best, above = [], []
        for name, found in by_metric.items():
            points, level = list(zip(found.mean, found.epochs, strict=True)), max(by_group[0][name].mean)
            best.append('{:.1f} ({:g})'.format(*max(points, key=lambda point: point[0])))
            above.append(next((f'{epoch:g}' for value, epoch in points if value > level), '-'))
        rows.append([group.name, *best, *above, group.run_names])
    columns = [f'{title} {what}' for what in ('(epoch)', 'above the first') for title in TITLES.values()]
    return table(['group', *columns, 'runs'], rows)


def draw(groups: Sequence[Group]) -> Any:
    """Returns a matplotlib figure of the curves; raises a UserError if a run has no validation."""
    figure, panels = draw_curves(groups, [curves(group.runs) for group in groups], TITLES, NOTE)
    for row in panels.values():
        row[0].set_ylim(bottom=0)
    return figure


def dependences(runs: Iterable[RunLog], keys: Sequence[str]) -> list[Dependence]:
    """Groups runs that differ only in the seed and in some keys, by the value of the first.

    Args:
      runs: Runs, or their rows.
      keys: The key that is compared, then keys that change with it, such as `epochs` where the steps are equal.

    Raises:
      UserError: If a config lacks one of the keys, or the first is not a number in it.
    """
    runs = list(runs)
    for run in runs:
        flat = flatten(run.config)
        if missing := [key for key in keys if key not in flat]:
            raise UserError(f'the config of {run.workdir} has no {missing[0]}; leave the run out with --select')
        if not isinstance(flat[keys[0]], int | float):
            raise UserError(f'{keys[0]} is {flat[keys[0]]!r} in {run.workdir}; give the key of a number')
        if run.best_validation().get('rsum') is None:
            raise UserError(f'{run.workdir} has no validation; evaluate it, or leave it out with --select')
    found = []
    for group in group_runs(runs, keys):
        by_value = collections.defaultdict(list)
        for run in group.runs:
            by_value[flatten(run.config)[keys[0]]].append(run.best_validation())
        found.append((group, dict(sorted(by_value.items()))))
    return found


def describe_by_key(found: Sequence[Dependence], key: str) -> str:
    """Returns a Markdown table with a row for each group and value: mean and sample standard deviation over seeds."""
    rows = []
    for group, by_value in found:
        for value, best in by_value.items():
            cells = [mean_and_deviation([line[metric] for line in best]) for metric in TITLES]
            rows.append([group.name, f'{value:g}', *cells, str(len(best))])
    return table(['group', key, *TITLES.values(), 'seeds'], rows)


def draw_by_key(found: Sequence[Dependence], key: str) -> Any:
    """Returns a matplotlib figure of the curves."""
    groups, by_group = zip(*found, strict=True)
    joined = [
        {name: curve({value: [line[name] for line in best] for value, best in one.items()}) for name in TITLES}
        for one in by_group
    ]
    figure, panels = draw_curves(groups, joined, TITLES, NOTE_BY_KEY, points=True)
    values = sorted(set().union(*by_group))
    for panel in (panel for row in panels.values() for panel in row):
        if values[0] > 0 and values[-1] >= LOG_SCALE * values[0]:
            panel.set_xscale('log')
            panel.minorticks_off()
        panel.set_xticks(values, [f'{value:g}' for value in values])
        panel.autoscale(axis='x')
    for panel in next(reversed(panels.values())):
        panel.set_xlabel(key)
    return figure
