"""Line charts for the template `charts.html`: coordinates only; pages colour them for light and dark screens."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jitm.report import training
from jitm.report.groups import Group

WIDTH, HEIGHT = 320, 170
LEFT, RIGHT, TOP, BOTTOM = 38, WIDTH - 6, 10, HEIGHT - 20  # the edges of the axes
LOG = 'image_fc_gradient_norm'  # on a log axis unless it is 0 somewhere
ORDER = dict.fromkeys(('rsum', *training.VALIDATED, *training.QUANTITIES))  # results before what led to them

Ticks = Sequence[tuple[float, str]]  # positions and labels


class Chart(NamedTuple):
    """A chart of one quantity by epoch.

    Attributes:
      title: The quantity.
      lines: {index of a group: the path of its mean over seeds, and the outline from its minimum to its maximum}.
      x_ticks: The ticks of the epochs.
      y_ticks: The ticks of the quantity.
    """

    title: str
    lines: Mapping[int, tuple[str, str]]
    x_ticks: Ticks
    y_ticks: Ticks


def charts(groups: Sequence[Group]) -> list[Chart]:
    """Returns the charts of all quantities of `training.curves` that a group logs; groups without epochs have no line.

    Raises:
      UserError: If a run has no line of training.
    """
    curves = {n: training.curves(group.runs) for n, group in enumerate(groups) if group.runs[0].config['epochs']}
    drawn = itertools.chain(*(curves_of_group.values() for curves_of_group in curves.values()))
    last = max((max(curve.epochs, default=0) for curve in drawn), default=0)
    figures = []
    for quantity in ORDER:
        lines = {n: curves_of_group.get(quantity) for n, curves_of_group in curves.items()}
        lines = {n: curve for n, curve in lines.items() if curve and curve.epochs}
        if lines:
            lowest = min(min(line.low) for line in lines.values())
            highest = max(max(x.high) for x in lines.values())
            log = quantity == LOG and lowest > 0
            x, x_ticks = _axis(0, last, LEFT, RIGHT)
            y, y_ticks = _axis(lowest if log else min(lowest, 0), highest, BOTTOM, TOP, log)
            paths = {
                n: (
                    f'M{_points(x(line.epochs), y(line.mean))}h0',  # a dot for a single epoch
                    f'M{_points(x(line.epochs), y(line.high))}L{_points(x(line.epochs[::-1]), y(line.low[::-1]))}Z',
                )
                for n, line in lines.items()
            }
            title = training.QUANTITIES[quantity].replace('\n', ' ').replace('$', '')
            figures.append(Chart(title, paths, x_ticks, y_ticks))
    return figures


def _axis(low: float, high: float, start: float, end: float, log: bool = False) -> tuple[Callable[..., Any], Ticks]:
    """Returns the function of values to positions from `start` to `end`, and the ticks."""
    from matplotlib import ticker

    locator = ticker.LogLocator(subs=(1, 2, 5)) if log else ticker.MaxNLocator(4, steps=[1, 2, 5, 10])
    scale = np.log10 if log else np.asarray
    length = float(scale(high) - scale(low)) or math.inf

    def place(values: Any) -> np.ndarray:
        return start + (end - start) * (scale(values) - scale(low)) / length

    ticks = [value for value in locator.tick_values(low, high) if low <= value <= high]
    return place, [(round(float(place(value)), 1), f'{value:g}') for value in ticks]


def _points(x: np.ndarray, y: np.ndarray) -> str:
    return ' '.join(f'{left:.1f},{top:.1f}' for left, top in zip(x, y, strict=True))
