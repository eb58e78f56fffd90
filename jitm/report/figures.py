"""Curves of several groups in one figure, and saving of figures."""

import dataclasses
import io
import itertools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitm.errors import UserError, require
from jitm.outputs import MARK, check_own, replacing_own
from jitm.report.groups import Group

# Suffix of a figure -> the arguments of `savefig` that write MARK into the file.
FORMATS = {
    'png': {'metadata': {'Software': MARK.decode()}},
    **{suffix: {'pil_kwargs': {'comment': MARK}} for suffix in ('jpg', 'jpeg')},
    **{suffix: {'metadata': {'Creator': MARK.decode()}} for suffix in ('svg', 'pdf', 'eps', 'ps')},
}


@dataclasses.dataclass(frozen=True)
class Curve:
    """A quantity by epoch or by the value of a key, [N]: its mean, minimum and maximum over seeds, [N]."""

    epochs: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def curve(seeds: Sequence[Mapping[float, float]]) -> Curve:
    """Joins the {epoch: value} of several seeds, at the epochs that all of them have, so that no mean jumps."""
    epochs = sorted(set.intersection(*map(set, seeds)))
    values = [[seed[epoch] for seed in seeds] for epoch in epochs]
    return Curve(epochs, list(map(statistics.mean, values)), list(map(min, values)), list(map(max, values)))


def arrange(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Assigns each group a column of panels and a label in it.

    If the groups differ in the model and in other keys, and several have the same model, each model has a column;
    otherwise there is one column.

    Returns:
      (column, label) of each group.
    """
    split_words = [
        (
            ', '.join(word for key, word in group.words.items() if key.startswith('model.')),
            ', '.join(word for key, word in group.words.items() if not key.startswith('model.')),
        )
        for group in groups
    ]
    models = {model for model, _ in split_words}
    if all(map(all, split_words)) and len(models) < len(groups):
        return split_words
    return [('', group.name) for group in groups]


def new_figure(width: float, height: float) -> Any:
    """Returns an empty matplotlib figure of a size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout='constrained')


def draw_curves(
    groups: Sequence[Group],
    curves: Sequence[Mapping[str, Curve]],
    titles: Mapping[str, str],
    note: str,
    points: bool = False,
) -> tuple[Any, dict[str, Any]]:
    """Draws a row of panels per quantity and a column per model, see `arrange`.

    Args:
      groups: S groups.
      curves: [S], the curves of each group by quantity.
      titles: Axis label of each quantity, from top to bottom.
      note: A line below the panels.
      points: Whether the curves join single values, whose range over seeds is a whisker instead of a band.

    Returns:
      A matplotlib figure, and the panels of each quantity, from left to right.
    """
    import matplotlib as mpl

    arranged = arrange(groups)
    quantities = [quantity for quantity in titles if any(quantity in one for one in curves)]
    columns, labels = (list(dict.fromkeys(names)) for names in zip(*arranged, strict=True))
    styles = itertools.product(('-', '--', ':', '-.'), mpl.color_sequences['petroff10'])
    styles = dict(zip(labels, itertools.cycle(styles), strict=False))

    width = max(6.5, 1 + 3 * len(columns))
    figure = new_figure(width, 1 + 1.8 * len(quantities))
    panels = figure.subplots(len(quantities), len(columns), sharex=True, sharey='row', squeeze=False)
    handles = {}
    for by_quantity, (column, label) in zip(curves, arranged, strict=True):
        dashes, color = styles[label]
        for quantity, panel in zip(quantities, panels[:, columns.index(column)], strict=True):
            if joined := by_quantity.get(quantity):
                line = {'linestyle': dashes, 'color': color}
                if points:
                    handles[label], *_ = panel.errorbar(
                        joined.epochs, joined.mean, whiskers(joined), **line, marker='.', capsize=3
                    )
                else:
                    (handles[label],) = panel.plot(joined.epochs, joined.mean, **line)
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
    figure.supxlabel(note, fontsize='small', color='gray')
    if len(labels) > 1:
        max_columns = int(width / (0.8 + 0.09 * max(map(len, labels))))
        figure.legend(handles.values(), handles, loc='outside upper center', ncols=max(1, max_columns), frameon=False)
    return figure, dict(zip(quantities, panels, strict=True))


def whiskers(curve: Curve) -> np.ndarray:
    """Returns the distances of the minimum and the maximum from the mean, [2, N]; NaN for one seed, without whisker."""
    mean, low, high = map(np.asarray, (curve.mean, curve.low, curve.high))
    return np.where(high > low, [mean - low, high - mean], np.nan)


def to_svg(figure: Any) -> bytes:
    """Returns a matplotlib figure as SVG; equal figures give equal bytes."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    with mpl.rc_context({'svg.hashsalt': 'jitm'}):
        figure.savefig(buffer, format='svg', metadata={'Date': None})
    return buffer.getvalue()


def to_png(figure: Any) -> bytes:
    """Returns a matplotlib figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format='png')
    return buffer.getvalue()


def check_output(output: Path) -> None:
    """Raises a UserError if matplotlib is missing, or a figure cannot be written to the file."""
    require('matplotlib', extra='report')
    if _format(output) not in FORMATS:
        raise UserError(f'{output} has the suffix {output.suffix}; give --output one of {", ".join(FORMATS)}')
    check_own(output)


def _format(output: Path) -> str:
    return output.suffix[1:].lower() or 'png'


def save(figure: Any, output: Path) -> None:
    """Saves a matplotlib figure in the format of the file's suffix, PNG without one.

    Raises:
      UserError: If the file was written by somebody else, or cannot be written.
    """
    check_output(output)
    try:
        with replacing_own(output) as file:
            figure.savefig(file, format=_format(output), **FORMATS[_format(output)])
    except ValueError as error:  # of a figure that is too large
        raise UserError(f'{output} cannot be drawn ({error}); compare fewer files') from None
