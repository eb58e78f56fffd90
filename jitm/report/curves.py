"""Curves of several groups in one figure."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jitm.pages.figures import new_figure
from jitm.report.groups import Group


class Curve(NamedTuple):
    """A quantity by epoch, [N]: its mean, minimum and maximum over seeds, [N]."""

    epochs: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def by_epoch(seeds: Sequence[Mapping[float, float]]) -> Curve:
    """Joins the {epoch: value} of several seeds, at the epochs common to all, so that no mean jumps."""
    epochs = sorted(set.intersection(*map(set, seeds)))
    values = [[seed[epoch] for seed in seeds] for epoch in epochs]
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


def draw_curves(
    groups: Sequence[Group],
    curves: Sequence[Mapping[str, Curve]],
    titles: Mapping[str, str],
    note: str,
) -> tuple[Any, dict[str, Any]]:
    """Draws a row of panels per quantity and a column per model, see `arrange`.

    Args:
      groups: S groups.
      curves: [S], the curves of each group by quantity.
      titles: Axis label of each quantity, from top to bottom.
      note: A line below the panels.

    Returns:
      A matplotlib figure, and the panels of each quantity, from left to right.
    """
    import matplotlib as mpl

    arranged = arrange(groups)
    drawn = set().union(*curves)
    quantities = [quantity for quantity in titles if quantity in drawn]
    columns, labels = (list(dict.fromkeys(names)) for names in zip(*arranged, strict=True))
    styles = itertools.product(('-', '--', ':', '-.'), mpl.color_sequences['petroff10'])
    styles = dict(zip(labels, itertools.cycle(styles), strict=False))

    width = max(6.5, 1 + 3 * len(columns))
    figure = new_figure(width, 1 + 1.8 * len(quantities), note)
    panels = figure.subplots(len(quantities), len(columns), sharex=True, sharey='row', squeeze=False)
    handles = {}
    for by_quantity, (column, label) in zip(curves, arranged, strict=True):
        dashes, color = styles[label]
        for quantity, panel in zip(quantities, panels[:, columns.index(column)], strict=True):
            joined = by_quantity.get(quantity)
            if joined:
                (handles[label],) = panel.plot(joined.epochs, joined.mean, linestyle=dashes, color=color)
                panel.fill_between(joined.epochs, joined.low, joined.high, color=color, alpha=0.2, linewidth=0)
    for quantity, row in zip(quantities, panels, strict=True):
        row[0].set_ylabel(titles[quantity])
    for panel in panels.flat:
        panel.set_xlim(left=0)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid(alpha=0.3)
    for column, top, bottom in zip(columns, panels[0], panels[-1], strict=True):
        top.set_title(column)
        bottom.set_xlabel('epochs')
    figure.align_ylabels()
    if len(labels) > 1:
        max_columns = int(width / (0.8 + 0.09 * max(map(len, labels))))
        figure.legend(handles.values(), handles, loc='outside upper center', ncols=max(1, max_columns), frameon=False)
    return figure, dict(zip(quantities, panels, strict=True))
