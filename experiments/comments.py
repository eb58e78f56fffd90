"""The comments of docs/*.md and docs/results/*.md that state which experiments a table shows, and their tables.

A comment names the file of rows, further columns, and one experiment of `experiments.catalog`, or the difference
between one and its control, a line:

    <!-- runs small mean_distance 1
    mean_sum: sum of hinges
    * mean_max - mean_sum: max of hinges
    -->

A column is a metric, an epoch for the rsum after it, or `last`, with which differences are those after the last epoch.
All lines are means over the seeds that all of them have; with `each`, a line has the seeds of its own runs, and may
start with the file of its rows, as in `full mean_selhn - mean_sum: label`. Lines with a star decide the verdict of the
claim, which is that the differences are above 0, below 0 with `less` beside the columns, or absent with `equal`;
`open` overrides it, where a control is missing. The difference that a paper states may follow the names, as in
`* rvse_selhn - rvse_max (14.0): label`. With `evidence`, lines show their runs, the split, and the interval of the
difference over the seeds with its p.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import results
from benchmarks.results import DOCS
from experiments import catalog
from jitm.errors import UserError

PAPERS = {
    'vsepp': 'Faghri et al. 2018',
    'selhn': 'Li et al. 2023',
    'aoq': 'Chen et al. 2020',
    'dbl': 'Diao et al. 2024',
    'tags': 'Fan et al. 2022',
    'questions': 'Our questions',
}
PAGES = {
    name: DOCS / f'{name}.md'
    for name in (
        *(f'results/{paper}' for paper in (*PAPERS, 'networks', 'index')),
        'recipes',
        'noise',
        'choices',
        'pixels',
        'finetuning',
    )
}
LINE = re.compile(r'(\* )?(?:(small|full) )?(\w+)(?: - (\w+))?(?: \(([\d.]+)\))?: (.*)')
VERDICT = r'\*\*(?:Confirmed|Contradicted|No difference|Open)\*\*[^\n]*\)'
TABLE = r'(?:\|[^\n]*\n)+'
MADE = rf'(?:\n(?:{VERDICT}\n\n)?{TABLE})?\n*'
FLAGS = 'open', 'equal', 'less', 'each', 'evidence'
MARK = re.compile(rf'(<!-- runs (small|full)([^\n]*)\n(.*?)\n-->\n){MADE}', re.DOTALL)
VERDICTS = re.compile(rf'(<!-- verdicts -->\n)(?:\n{TABLE})?\n*')

Runs = Mapping[tuple[str, int], Mapping[str, Any]]  # experiment and seed -> row


@dataclass(frozen=True)
class Line:
    """A line of a table.

    Attributes:
      name: The experiment.
      control: Its control; empty if the line has no difference.
      published: The difference in rsum that the paper states, if it does.
      label: The text.
      decides: Whether the verdict depends on the difference.
      size: The file of its rows, that of the table if it names none.
    """

    name: str
    control: str
    published: float | None
    label: str
    decides: bool
    size: str

    @property
    def names(self) -> tuple[str, ...]:
        """The experiment, and its control if it has one."""
        return (self.name, self.control) if self.control else (self.name,)

    @property
    def pair(self) -> str:
        """The name of the difference."""
        return f'{self.name} - {self.control}' if self.control else ''


@dataclass(frozen=True)
class Table:
    """A comment: its columns, its flags (`FLAGS`), and its lines."""

    columns: Sequence[str]
    flags: Collection[str]
    lines: Sequence[Line]

    @property
    def at(self) -> str:
        """What differences are taken of: `rsum`, at the best epoch, or `last`, rsum after the last one."""
        return 'last' if 'last' in self.columns else 'rsum'

    @property
    def names(self) -> set[str]:
        """The experiments."""
        return {name for line in self.lines for name in line.names}

    def seeds(self, line: Line, runs: Runs) -> tuple[int, ...]:
        """Returns the seeds of a line: those that all experiments of the table have, or with `each` those of the line.

        Args:
          line: The line.
          runs: The rows of its file.

        Raises:
          UserError: If an experiment has no row, or no seed is common.
        """
        names = {*line.names} if 'each' in self.flags else self.names
        untrained = min(names - {name for name, _ in runs}, default='')
        if untrained:
            raise UserError(f'{untrained} has no row; train it with python -m experiments flickr8k {untrained}')
        common = set.intersection(*({seed for name, seed in runs if name == experiment} for experiment in names))
        if not common:
            raise UserError(f'{", ".join(sorted(names))} have no seed in common; train one')
        return tuple(sorted(common))


def read_line(text: str, size: str) -> Line:
    """Returns a line of a comment.

    Args:
      text: The line.
      size: The file of the table's rows.

    Raises:
      UserError: If it has another form.
    """
    if not (match := LINE.fullmatch(text)):
        raise UserError(f"'{text}' in a comment above a table; write NAME: LABEL or NAME - CONTROL: LABEL")
    star, file, name, control, published, label = match.groups()
    size = catalog.size(file == 'small') if file else size
    return Line(name, control or '', float(published) if published else None, label, bool(star), size)


def read_table(match: re.Match) -> Table:
    """Returns the table of a match of MARK; raises a UserError if a line has another form."""
    words, size = match[3].split(), catalog.size(match[2] == 'small')
    lines = [read_line(line, size) for line in match[4].splitlines()]
    return Table([word for word in words if word not in FLAGS], {*words} & {*FLAGS}, lines)


def read_tables(page: str) -> list[Table]:
    """Returns the tables of a text; raises a UserError if a line of a comment has another form."""
    return [read_table(mark) for mark in MARK.finditer(page)]


def names(page: str) -> set[str]:
    """Returns the experiments of the tables of a text."""
    return {name for table in read_tables(page) for name in table.names}


def differences(size: str) -> Iterator[tuple[str, str]]:
    """Yields each experiment and its control whose difference a page shows, by the file of their rows."""
    tables = (table for path in PAGES.values() for table in read_tables(path.read_text(encoding='utf-8')))
    lines = (line for table in tables for line in table.lines if line.control and line.size == size)
    yield from dict.fromkeys((line.name, line.control) for line in lines)


def prose(page: str) -> str:
    """Returns a text without the comments above tables and what is made from them."""
    return results.MARK.sub('', VERDICTS.sub('', MARK.sub('', page)))
