"""Self-contained HTML pages, made from the templates of this package with Jinja2.

Templates escape all values: names, captions, paths and messages are passed to them unescaped.
"""

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jitm.errors import printable, require
from jitm.files.outputs import MARK

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


class Column(NamedTuple):
    """A column of a table.

    Attributes:
      name: The header.
      above: The header above it, shared with its neighbours; '' for none.
      text: Whether its cells are text; numbers are aligned on the right.
    """

    name: str
    above: str = ''
    text: bool = False


class Cell(NamedTuple):
    """A cell of a table that is more than a text: in bold, as code, or with a note behind it."""

    text: str
    best: bool = False
    code: bool = False
    note: str = ''


class Table(NamedTuple):
    """A table: its caption, its columns, and in each row a cell per column; the first cell is the row's header."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Cell]]


@dataclasses.dataclass(frozen=True)
class Result:
    """A retrieved image or caption as pages show it.

    Attributes:
      text: The caption, or the name of the image.
      score: Its similarity to the query; None without a query.
      picture: The address of the image's picture; '' for captions, and for images without one.
      link: The address of a page about it; '' for none.
      right: Whether it matches the query, as far as is known.
      note: A text below an image, such as one of its captions.
      rank: Its rank; None for its position among the shown results.
    """

    text: str
    score: float | None
    picture: str = ''
    link: str = ''
    right: bool = False
    note: str = ''
    rank: int | None = None


def format_score(score: float) -> str:
    """Returns a score as all commands and pages show it."""
    return f'{score:.4f}'


def render(template: str, **values: Any) -> str:
    """Returns a page, equal for equal arguments.

    Args:
      template: The name of a template, such as 'report.html'.
      **values: The values in the template.

    Raises:
      UserError: If Jinja2 is not installed.
    """
    return environment().get_template(template).render(**values)


def breakable(text: str) -> 'Markup':
    """Returns escaped text that may be broken after any of / , = _ and after dots before letters."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r'(?<=[/,=_])(?=\w)|(?<=\.)(?=[^\W\d])', '<wbr>', str(escape(printable(text)))))


@functools.cache
def environment() -> 'Environment':
    """Returns the templates with their filters; raises a UserError if Jinja2 is not installed."""
    jinja2 = require('jinja2', extra='report')

    def show(value: Any) -> Any:
        return printable(value) if isinstance(value, str) and not hasattr(value, '__html__') else value

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader('jitm.pages'),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=show,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(breakable=breakable, score=format_score)
    environment.globals['mark'] = MARK.decode()
    return environment
