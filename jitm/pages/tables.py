"""Tables as Markdown, LaTeX and CSV, and number formats."""

import csv
import io
import re
import statistics
from collections.abc import Sequence

LATEX = str.maketrans(
    {character: f'\\{character}' for character in '&%$#_{}'}
    | {'\\': r'\textbackslash{}', '~': r'\textasciitilde{}', '^': r'\textasciicircum{}'}
    | {'<': '$<$', '>': '$>$', '±': r'$\pm$'}
)


def mean_and_deviation(values: Sequence[float], precision: str = '.1f') -> str:
    """Returns `mean ± sample standard deviation`; the value alone if there is one, '-' if there is none."""
    if not values:
        return '-'
    mean = format(statistics.mean(values), precision)
    return mean if len(values) == 1 else f'{mean} ± {format(statistics.stdev(values), precision.lstrip("+"))}'


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    lines = [header, ['---'] * len(header), *rows]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def latex(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a LaTeX table, which needs the package booktabs."""
    titles, *lines = (' & '.join(map(_latex_cell, line)) + r' \\' for line in (header, *rows))
    columns = 'l' + 'r' * (len(header) - 1)
    lines = [rf'\begin{{tabular}}{{{columns}}}', r'\toprule', titles, r'\midrule', *lines, r'\bottomrule']
    return '\n'.join([*lines, r'\end{tabular}'])


def _latex_cell(text: str) -> str:
    return re.sub(r'(?<!\w)-(?=\d)', '$-$', text.translate(LATEX))


def csv_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table as comma-separated values."""
    text = io.StringIO()
    csv.writer(text, lineterminator='\n').writerows([header, *rows])
    return text.getvalue().rstrip('\n')


FORMATS = {'markdown': table, 'latex': latex, 'csv': csv_table}
