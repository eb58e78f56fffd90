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
    'loss': 'loss / loss for\nconstant scores',
    'image_fc_gradient_norm': 'gradient norm at\nimage FC layer',
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


def arrange(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Assigns each group a column of panels and a label in it.

    If the groups differ in the model and in other keys, and several have the same model, each model has a column;
    otherwise there is one column.

    Returns:
      (column, label) of each group.
    """
    split_words = []
    for group in groups:
        of_model = [word for key, word in group.words.items() if key.startswith('model.')]
        remaining = [word for key, word in group.words.items() if not key.startswith('model.')]
        split_words.append((', '.join(of_model), ', '.join(remaining)))
    models = {model for model, _ in split_words}
    if all(map(all, split_words)) and len(models) < len(groups):
        return split_words
    return [('', group.name) for group in groups]


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
    """Returns a matplotlib figure with a row of panels per quantity and a column per model, see `arrange`.

    Args:
      groups: S groups.
      curves: [S], the curves of each group by quantity.
    """
    from matplotlib.lines import Line2D

    arranged = arrange(groups)
    columns, labels = (list(dict.fromkeys(names)) for names in zip(*arranged, strict=True))
    drawn = set().union(*curves)
    quantities = [quantity for quantity in QUANTITIES if quantity in drawn]
    width = max(6.5, 1 + 3 * len(columns))
    figure = new_figure(width, 1 + 1.8 * len(quantities), NOTE)
    panels = figure.subplots(len(quantities), len(columns), sharex=True, sharey='row', squeeze=False)
    for quantity, row in zip(quantities, panels, strict=True):
        for column, panel in zip(columns, row, strict=True):
            shown = {}
            for by_quantity, (place, label) in zip(curves, arranged, strict=True):
                if place == column and quantity in by_quantity:
                    shown[labels.index(label)] = by_quantity[quantity]
            _plot(panel, quantity, shown)
        row[0].set_ylabel(QUANTITIES[quantity])
    for column, top, bottom in zip(columns, panels[0], panels[-1], strict=True):
        top.set_title(column)
        bottom.set_xlabel('epochs')
    figure.align_ylabels()
    if len(labels) > 1:
        lines = [Line2D([], [], **_style(number)) for number in range(len(labels))]
        max_columns = int(width / (0.8 + 0.09 * max(map(len, labels))))
        figure.legend(lines, labels, loc='outside upper center', ncols=max(1, max_columns), frameon=False)
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
