"""Figures of matplotlib: new ones, SVG in the colors of a page, and files."""

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jitm.errors import UserError, require
from jitm.files.outputs import MARK, check_own, replacing_own

# Suffix of a figure -> the arguments of `savefig` that write MARK into the file.
FORMATS = {
    'png': {'metadata': {'Software': MARK.decode()}},
    **{suffix: {'pil_kwargs': {'comment': MARK}} for suffix in ('jpg', 'jpeg')},
    **{suffix: {'metadata': {'Creator': MARK.decode()}} for suffix in ('svg', 'pdf', 'eps', 'ps')},
}
INK = '#333333'


def new_figure(width: float, height: float, note: str = '') -> Any:
    """Returns an empty matplotlib figure of a size in inches, with a note at the bottom."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout='constrained')
    if note:
        figure.supxlabel(note, fontsize='small', color='gray')
    return figure


@contextlib.contextmanager
def drawing_in_ink() -> Iterator[None]:
    """Draws text and axes in `INK` on no background, for `svg`."""
    import matplotlib as mpl

    inked = ('text.color', 'axes.edgecolor', 'axes.labelcolor', 'xtick.color', 'ytick.color')
    parameters = dict.fromkeys(inked, INK) | dict.fromkeys(('axes.facecolor', 'savefig.facecolor'), 'none')
    with mpl.rc_context(parameters | {'svg.hashsalt': 'jitm'}):
        yield


def svg(figure: Any) -> str:
    """Returns a figure, drawn `drawing_in_ink`, as an element that takes the color of its page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format='svg', metadata={'Date': None})
    _, start, element = buffer.getvalue().partition('<svg')
    return re.sub(r'<g id="\w+">', '<g>', start + element).replace(INK, 'currentColor')


def check_output(output: Path) -> str:
    """Returns the format of a figure's file from its suffix, PNG without one.

    Raises:
      UserError: If matplotlib is missing, or a figure cannot be written to the file.
    """
    require('matplotlib', extra='report')
    kind = output.suffix[1:].lower() or 'png'
    if kind not in FORMATS:
        raise UserError(f'{output} has the suffix {output.suffix}; give --output one of {", ".join(FORMATS)}')
    check_own(output)
    return kind


def save(figure: Any, output: Path) -> None:
    """Saves a matplotlib figure in the format of the file's suffix.

    Raises:
      UserError: If jitm did not write the existing file, or it cannot be written.
    """
    kind = check_output(output)
    try:
        with replacing_own(output) as file:
            figure.savefig(file, format=kind, **FORMATS[kind])
    except ValueError as error:  # the figure is too large
        raise UserError(f'{output} cannot be drawn ({error}); compare fewer files') from None
