"""Curves of groups by epoch: one figure with a row for each quantity, or small charts for a page."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jitm.pages.figures import drawing_in_ink, new_figure, svg
from jitm.report.groups import Group

COLORS = ('#1f5fd0', '#c4570c', '#16794f', '#9a2f8f', '#7a6400', '#0b7285', '#b3261e', '#57534e')  # as in style.css
DASHES = ('-', '--', ':', '-.')
VALIDATED = ('rsum', 'i2t/recall@1', 't2i/recall@1')
QUANTITIES = {
    'loss': 'loss relative to\nconstant scores',
    'image_fc_gradient_norm': 'gradient norm of\nthe image layer',
    'absolute_gap': 'absolute gap\n$|s_n - s_p|$',
    'hard_share': 'share of queries\nwith hardest negative',
    'noise/i2t/gradient': 'share of mixed pairs\nin the gradient',
    'noise/i2t/separation': 'clean above mixed\n(AUC, in a batch)',
    'i2t/recall@1': 'image to text\nR@1',
    't2i/recall@1': 'text to image\nR@1',
    'rsum': 'validation rsum',
}
NOTE = 'lines: means over seeds; bands: minimum to maximum\ntraining quantities: means over tenths of an epoch'


class Curve(NamedTuple):
    """A quantity by epoch, [N]: its mean, minimum and maximum over seeds, [N]."""

    epochs: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


class Chart(NamedTuple):
    """A quantity of all groups: its title, and its curves as SVG in the colors of a page."""

    title: str
    svg: str


def by_epoch(seeds: Sequence[Mapping[float, float]]) -> Curve:
    """Joins the {epoch: value} of several seeds, at the epochs common to all, so that no mean jumps."""
    epochs = sorted(set.intersection(*map(set, seeds)))
    values = []
    for epoch in epochs:
        values.append([seed[epoch] for seed in seeds])
    return Curve(epochs, *(list(map(reduce, values)) for reduce in (statistics.mean, min, max)))


def _style(number: int) -> dict[str, str]:
    """Returns the color and the dashes of a line."""
    return {'color': COLORS[number % len(COLORS)], 'linestyle': DASHES[number // len(COLORS) % len(DASHES)]}


def _plot(panel: Any, quantity: str, curves: Mapping[int, Curve]) -> None:
    """Draws the curves of a quantity, by the number of their style, in a panel of matplotlib."""
    for number, curve in curves.items():
        style = _style(number)
        panel.plot(curve.epochs, curve.mean, **style, marker='.' if len(curve.epochs) == 1 else '')
        panel.fill_between(curve.epochs, curve.low, curve.high, color=style['color'], alpha=0.2, linewidth=0)
    if quantity == 'loss':
        panel.axhline(1, color='gray', linewidth=1, zorder=0)
    elif quantity != 'image_fc_gradient_norm':
        panel.set_ylim(bottom=0)
    elif any(max(curve.mean, default=0) > 0 for curve in curves.values()):
        panel.set_yscale('log')
    panel.set_xlim(left=0)
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.grid(alpha=0.3)


def draw(groups: Sequence[Group], curves: Sequence[Mapping[str, Curve]]) -> Any:
    """Returns a matplotlib figure with a panel per quantity.

    Args:
      groups: S groups.
      curves: [S], the curves of each group by quantity.
    """
    from matplotlib.lines import Line2D

    drawn = set().union(*curves)
    quantities = [quantity for quantity in QUANTITIES if quantity in drawn]
    figure = new_figure(6.5, 1 + 1.8 * len(quantities), NOTE)
    panels = figure.subplots(len(quantities), sharex=True, squeeze=False)[:, 0]
    for quantity, panel in zip(quantities, panels, strict=True):
        _plot(
            panel,
            quantity,
            {n: by_quantity[quantity] for n, by_quantity in enumerate(curves) if quantity in by_quantity},
        )
        panel.set_ylabel(QUANTITIES[quantity])
    panels[-1].set_xlabel('epochs')
    figure.align_ylabels()
    if len(groups) > 1:
        lines = [Line2D([], [], **_style(n)) for n in range(len(groups))]
        columns = int(6.5 / (0.8 + 0.09 * max(len(group.name) for group in groups)))
        names = [group.name for group in groups]
        figure.legend(lines, names, loc='outside upper center', ncols=max(1, columns), frameon=False)
    return figure


def charts(curves: Mapping[int, Mapping[str, Curve]]) -> list[Chart]:
    """Returns a chart of each quantity; results come before what led to them.

    Args:
      curves: The curves by quantity of the groups that trained, by the number of the group.
    """
    shown = []
    for quantity in dict.fromkeys((*VALIDATED, *QUANTITIES)):
        lines = {n: by_quantity[quantity] for n, by_quantity in curves.items() if quantity in by_quantity}
        if any(curve.epochs for curve in lines.values()):
            with drawing_in_ink():
                figure = new_figure(4.4, 2.3)
                _plot(figure.subplots(), quantity, lines)
                picture = svg(figure)
            for n, color in enumerate(COLORS):
                picture = picture.replace(color, f'var(--s{n})')
            shown.append(Chart(QUANTITIES[quantity].replace('\n', ' ').replace('$', ''), picture))
    return shown
