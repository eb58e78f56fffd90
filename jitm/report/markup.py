"""HTML of self-contained pages: the document, tables and pictures."""

import dataclasses
import html
import re
from collections.abc import Sequence

from jitm.errors import printable
from jitm.outputs import MARK

STYLE = """
:root { color-scheme: light; --line: #d4d4d8; --soft: #5b5b66; --right: #17692f; --wrong: #a3201c; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: #18181b; background: #fff; max-width: 72rem; margin: 0 auto;
  padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
p { max-width: 46rem; margin: 0 0 .75rem; }
ul { margin: 0 0 .75rem; padding-left: 1.25rem; }
code { font: .875em ui-monospace, monospace; }
article code, li code, p code, footer code { overflow-wrap: anywhere; }
.soft, small { color: var(--soft); font-size: .85em; }
.wide { overflow-x: auto; margin: 0 0 1rem; }
.wide:focus-visible { outline: 2px solid #2563eb; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; }
caption { text-align: left; padding-bottom: .35rem; }
caption span { display: block; position: sticky; left: 0; max-width: min(46rem, calc(100vw - 2rem)); color: var(--soft);
  font-size: .85rem; }
th, td { padding: .3rem .5rem; text-align: right; vertical-align: baseline; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
thead th { font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 500; }
thead th[colspan] { text-align: center; }
.text, tbody th { text-align: left; white-space: normal; min-width: 7rem; }
.best { font-weight: 700; }
img { max-width: 100%; height: auto; }
.curves img { display: block; min-width: 30rem; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 14.5rem), 1fr)); gap: 1rem; }
article { border: 1px solid var(--line); border-radius: 6px; padding: .75rem; break-inside: avoid; font-size: .9rem; }
article p { margin: 0 0 .5rem; overflow-wrap: anywhere; }
article p:last-child { margin: 0; }
article small, .caption { display: block; }
article img { display: block; flex: none; width: 7rem; align-self: start; border-radius: 4px; margin-bottom: .5rem; }
.cards > article > img, .cards > article > a > img { width: 100%; aspect-ratio: 1; object-fit: cover; }
.query { display: block; width: 15rem; border-radius: 4px; margin-bottom: 1rem; }
.small-pixels { image-rendering: pixelated; }
.pair { display: flex; gap: .75rem; }
.pair > div { flex: 1; min-width: 0; }
.words { display: flex; flex-wrap: wrap; gap: .35rem; }
.word { display: inline-flex; flex-direction: column; text-align: center; }
.word b { font-weight: inherit; padding: .1rem .35rem; border-radius: 4px; background: rgb(225 40 40 / var(--shade)); }
.word ins { font-size: .85rem; text-decoration: none; }
.word small { font-size: .7rem; }
article a, li a { color: inherit; text-decoration: none; }
article a:hover, li a:hover { text-decoration: underline; }
article.right, img.right { border: 2px solid var(--right); }
li.right { font-weight: 600; }
form { display: flex; gap: .5rem; margin: 0 0 1rem; }
input[type=text] { flex: 1; font: inherit; padding: .4rem .6rem; border: 1px solid var(--line); border-radius: 6px; }
button { font: inherit; padding: .4rem 1rem; }
.pair .cards { grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); }
li small a { text-decoration: underline; }
.right { color: var(--right); }
.wrong { color: var(--wrong); }
footer { margin-top: 2.5rem; }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  .wide { overflow: visible; }
  .curves img { min-width: 0; }
  table { font-size: 8pt; }
  .cards { grid-template-columns: repeat(4, 1fr); gap: .5rem; }
  article { font-size: 8pt; padding: .5rem; }
  h2, h3 { break-after: avoid; }
}
"""


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
      name: its header, not escaped.
      group: the header above it, which it shares with its neighbours of the same group; '' for none.
      text: whether its cells are text; numbers are aligned on the right.
    """

    name: str
    group: str = ''
    text: bool = False


def document(title: str, body: str) -> str:
    """Returns an HTML document without external resources.

    Args:
      title: of the document and its first heading, not escaped.
      body: HTML below the heading.
    """
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="generator" content="{MARK.decode()}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f'<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n'
    )


def escape(text: str) -> str:
    """Returns text as HTML, without characters that cannot be shown, see `printable`."""
    return html.escape(printable(text))


def breakable(text: str) -> str:
    """Returns escaped text that may be broken after slashes, commas and equals signs, and after dots before letters."""
    return re.sub(r'(?<=[/,=])(?=\w)|(?<=\.)(?=[^\W\d])', '<wbr>', escape(text))


def section(heading: str, *parts: str) -> str:
    """Returns a section with a heading, not escaped, above HTML."""
    return '\n'.join([f'<section>\n<h2>{escape(heading)}</h2>', *parts, '</section>'])


def table(caption: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table that scrolls horizontally where it is wider than the page.

    Args:
      caption: not escaped.
      columns: not escaped; the first is that of the row headers.
      rows: HTML of the cells.
    """
    lines = [f'<div class="wide" role="region" tabindex="0" aria-label="{escape(caption)}">', '<table>']
    lines += [f'<caption><span>{escape(caption)}</span></caption>', '<thead>', *_header(columns), '</thead>', '<tbody>']
    for head, *cells in rows:
        columns_of_cells = zip(columns[1:], cells, strict=True)
        texts = (
            f'<td class="text">{cell}</td>' if column.text else f'<td>{cell}</td>' for column, cell in columns_of_cells
        )
        lines.append(f'<tr><th scope="row">{head}</th>{"".join(texts)}</tr>')
    return '\n'.join([*lines, '</tbody>', '</table>', '</div>'])


def _header(columns: Sequence[Column]) -> list[str]:
    """Returns one row of headers, below a row of the groups if there are any."""

    def cell(column: Column, extra: str = '') -> str:
        kind = ' class="text"' if column.text or column is columns[0] else ''
        return f'<th scope="col"{kind}{extra}>{breakable(column.name)}</th>'

    if not any(column.group for column in columns):
        return [f'<tr>{"".join(map(cell, columns))}</tr>']
    groups, below = [], []
    for n, column in enumerate(columns):
        if not column.group:
            groups.append(cell(column, ' rowspan="2"'))
            continue
        below.append(cell(column))
        if columns[n - 1].group != column.group:
            size = sum(other.group == column.group for other in columns)
            groups.append(f'<th scope="colgroup" colspan="{size}">{escape(column.group)}</th>')
    return [f'<tr>{"".join(groups)}</tr>', f'<tr>{"".join(below)}</tr>']
