"""HTML of retrieved images and captions, for the pages of `jitm search` and `jitm explorer`."""

import dataclasses
from collections.abc import Sequence

from jitm.report.markup import breakable, escape


@dataclasses.dataclass(frozen=True)
class Result:
    """A retrieved image or caption.

    Attributes:
      text: the caption, or the name of the image.
      score: its similarity to the query; None without a query.
      picture: address of the image's picture; '' for captions, and for images without one.
      link: address of a page about it; '' for none.
      right: whether it matches the query; None if not known.
      note: shown below it.
      rank: of an image; None for its position among those that are shown.
    """

    text: str
    score: float | None
    picture: str = ''
    link: str = ''
    right: bool | None = None
    note: str = ''
    rank: int | None = None


def format_score(score: float) -> str:
    """Returns a score as all commands and pages show it."""
    return f'{score:.4f}'


def cards(results: Sequence[Result], small: bool = False) -> str:
    """Returns retrieved images side by side, in the order of their ranks.

    Args:
      results: images.
      small: whether the pictures are small, to be enlarged without interpolation.
    """
    kind = 'cards small-pixels' if small else 'cards'
    items = '\n'.join(
        f'<article{_class(result)}>{_card(result.rank or n, result)}</article>' for n, result in enumerate(results, 1)
    )
    return f'<div class="{kind}">\n{items}\n</div>'


def ranking(results: Sequence[Result]) -> str:
    """Returns retrieved captions as a list, in the order of their ranks."""
    items = '\n'.join(
        f'<li{_class(result)}>{_linked(result, escape(result.text))} {_score(result)}</li>' for result in results
    )
    return f'<ol>\n{items}\n</ol>'


def _class(result: Result) -> str:
    return ' class="right"' if result.right else ''


def _linked(result: Result, content: str) -> str:
    return f'<a href="{escape(result.link)}">{content}</a>' if result.link else content


def _score(result: Result) -> str:
    mark = '✓ ' if result.right else ''
    note = f' {escape(result.note)}' if result.note else ''
    score = '' if result.score is None else format_score(result.score)
    return f'<small>{mark}{score}{note}</small>'


def _card(number: int, result: Result) -> str:
    name = escape(result.text)
    picture = f'<img alt="{name}" src="{escape(result.picture)}">' if result.picture else ''
    return _linked(result, f'{picture}<code>{number}. {breakable(result.text)}</code>') + _score(result)
