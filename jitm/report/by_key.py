"""R@1 of both directions and rsum by the value of a config key, such as the margin or the batch size."""

import collections
import dataclasses
import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from jitm.config import flatten
from jitm.errors import UserError
from jitm.evaluation.tables import mean_and_deviation, table
from jitm.report.figures import Curve, draw_curves
from jitm.report.groups import Group, RunLog, group_runs
from jitm.report.validation import TITLES

NOTE = 'points: means over seeds; whiskers: minimum to maximum, none with one seed'
LOG_SCALE = 8  # of positive values that span as much


@dataclasses.dataclass(frozen=True)
class Dependence:
    """What depends on a key in runs that otherwise differ only in the seed.

    Attributes:
      group: The runs, with the key, and those that change with it, set to None.
      metrics: Value of the key -> the best validation of each run, in the order of the values.
    """

    group: Group
    metrics: dict[float, list[dict[str, float]]]

    def curve(self, metric: str) -> Curve:
        """Returns the mean, minimum and maximum of a metric over the seeds, by value."""
        seeds = [[run[metric] for run in runs] for runs in self.metrics.values()]
        return Curve([*self.metrics], list(map(statistics.mean, seeds)), list(map(min, seeds)), list(map(max, seeds)))


def dependences(runs: Iterable[RunLog], keys: Sequence[str]) -> list[Dependence]:
    """Groups runs that differ only in the seed and in some keys, by the value of the first.

    Args:
      runs: Runs, or their rows.
      keys: The key that is compared, then keys that change with it, such as `epochs` where the steps are equal.

    Raises:
      UserError: If a config lacks one of the keys, or the first is not a number in it.
    """
    values, metrics, masked = {}, {}, []
    for run in runs:
        flat = flatten(run.config)
        if missing := [key for key in keys if key not in flat]:
            raise UserError(f'the config of {run.workdir} has no {missing[0]}; leave the run out with --select')
        if not isinstance(flat[keys[0]], int | float):
            raise UserError(f'{keys[0]} is {flat[keys[0]]!r} in {run.workdir}; give the key of a number')
        values[run.workdir], metrics[run.workdir] = flat[keys[0]], run.best_validation()
        if metrics[run.workdir].get('rsum') is None:
            raise UserError(f'{run.workdir} has no validation; evaluate it, or leave it out with --select')
        masked.append(dataclasses.replace(run, config=_without(run.config, keys)))
    found = []
    for group in group_runs(masked):
        by_value = collections.defaultdict(list)
        for run in sorted(group.runs, key=lambda run: values[run.workdir]):
            by_value[values[run.workdir]].append(metrics[run.workdir])
        found.append(Dependence(group, dict(by_value)))
    return found


def _without(config: dict, keys: Sequence[str]) -> dict:
    copy = json.loads(json.dumps(config))
    for key in keys:
        *sections, last = key.split('.')
        part = copy
        for section in sections:
            part = part[section]
        part[last] = None
    return copy


def describe(found: Sequence[Dependence], key: str) -> str:
    """Returns a Markdown table with a row for each group and value: mean and sample standard deviation over seeds."""

    def cells(runs: Sequence[dict[str, float]]) -> list[str]:
        return [mean_and_deviation([run[metric] for run in runs]) for metric in TITLES]

    rows = [
        [one.group.name, f'{value:g}', *cells(runs), str(len(runs))]
        for one in found
        for value, runs in one.metrics.items()
    ]
    return table(['group', key, *TITLES.values(), 'seeds'], rows)


def draw(found: Sequence[Dependence], key: str) -> Any:
    """Returns a matplotlib figure of the curves."""
    groups, curves = [one.group for one in found], [{name: one.curve(name) for name in TITLES} for one in found]
    figure, panels = draw_curves(groups, curves, TITLES, NOTE, points=True)
    values = sorted({value for one in found for value in one.metrics})
    for panel in (panel for row in panels.values() for panel in row):
        if values[0] > 0 and values[-1] >= LOG_SCALE * values[0]:
            panel.set_xscale('log')
            panel.minorticks_off()
        panel.set_xticks(values, [f'{value:g}' for value in values])
        panel.autoscale(axis='x')
    for panel in next(reversed(panels.values())):
        panel.set_xlabel(key)
    return figure
