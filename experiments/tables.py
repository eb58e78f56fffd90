"""Rewrites the tables of docs/results.md, recipes.md, losses.md, noise.md, choices.md and heads.md, from stored rows.

    python -m experiments tables

A table follows a comment that names the file of rows, further columns, and experiments of `experiments.catalog` or
differences of `experiments.intervals`, one a line:

    <!-- runs small mean_distance 1 2
    mean_sum: sum of hinges
    mean_max: max of hinges
    -->

    <!-- differences small i2t/recall@1
    mean_max - mean_sum: max more than sum
    -->

A column is a metric, or an epoch for the rsum after it. A table of data.md follows a comment that names its command:
`<!-- experiments cca ... -->`.
"""

import argparse
import collections
import functools
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.results import DOCS, Row
from experiments import catalog, intervals
from jitm.errors import UserError
from jitm.pages.tables import mean_and_deviation

PAGES = 'results', 'recipes', 'losses', 'noise', 'choices', 'heads'
MARK = re.compile(r'(<!-- (runs|differences) (small|full)(.*?)\n(.*?)\n-->\n)(?:\n((?:\|[^\n]*\n)*))?', re.DOTALL)
COLUMNS = {
    'i2t/recall@1': 'R@1 i2t',
    'i2t/recall@5': 'R@5 i2t',
    'i2t/recall@10': 'R@10 i2t',
    't2i/recall@1': 'R@1 t2i',
    't2i/recall@5': 'R@5 t2i',
    't2i/recall@10': 'R@10 t2i',
    'mean_distance': 'MD',
    'last': 'rsum, last epoch',
}
BOTH_WAYS = 'i2t/recall@1', 't2i/recall@1'

Runs = Mapping[tuple[str, int], Mapping[str, Any]]  # experiment and seed -> row


def value(row: Mapping[str, Any], column: str) -> float:
    """Returns a metric of a run at its best epoch, or rsum after the epoch that the column names, or the last."""
    by_epoch = {f'{epoch:g}': rsum for epoch, rsum in row['rsum_by_epoch']}
    if column == 'last':
        return by_epoch[f'{row["epochs"]:g}']
    return by_epoch[column] if column in by_epoch else row['metrics'][column]


def title(column: str) -> str:
    """Returns the heading of a column."""
    return COLUMNS.get(column) or f'rsum, epoch {column}'


def compared(runs: Runs, names: Sequence[str]) -> Runs:
    """Returns the runs of the experiments of a table; of several experiments, only for seeds that two of them have."""
    found = {(name, seed): row for (name, seed), row in runs.items() if name in names}
    shared = collections.Counter(seed for _, seed in found)
    return {(name, seed): row for (name, seed), row in found.items() if shared[seed] > 1 or len(names) == 1}


def runs_row(runs: Runs, name: str, label: str, columns: Sequence[str]) -> Row:
    """Returns the line of an experiment: means and deviations over its seeds.

    Raises:
      UserError: If it has no row.
    """
    seeds = sorted(seed for found, seed in runs if found == name)
    if not seeds:
        raise UserError(f'{name} has no row; train it with python -m experiments flickr8k {name}')
    cells = {
        title(column): mean_and_deviation(
            [value(runs[name, seed], column) for seed in seeds], '.2f' if column == 'mean_distance' else '.1f'
        )
        for column in (*BOTH_WAYS, *columns)
    }
    rsum = mean_and_deviation([runs[name, seed]['metrics']['rsum'] for seed in seeds])
    return {'': label} | cells | {'rsum': rsum, 'seeds': ', '.join(map(str, seeds))}


def differences_row(
    runs: Runs, ends: Mapping[int, tuple[float, float]], pair: intervals.Pair, label: str, columns: Sequence[str]
) -> Row:
    """Returns the line of a difference in rsum: by seed with its interval, over the seeds, and the result.

    Raises:
      UserError: If no seed has rows of both experiments.
    """
    both = sorted({seed for name, seed in runs if name == pair.control} & {s for n, s in runs if n == pair.treatment})
    if not both:
        raise UserError(f'{pair.name} has no seed with rows of both; python -m experiments flickr8k trains them')

    def differences(column: str) -> list[float]:
        return [value(runs[pair.treatment, seed], column) - value(runs[pair.control, seed], column) for seed in both]

    found = dict(zip(both, differences('rsum'), strict=True))
    line = intervals.summary(pair, found)
    return {
        'difference in rsum': label,
        'by seed (95 % over images)': '; '.join(
            f'{found[seed]:+.1f}' + (f' ({ends[seed][0]:+.1f} to {ends[seed][1]:+.1f})' if seed in ends else '')
            for seed in both
        ),
        'mean': mean_and_deviation([*found.values()], '+.1f').replace('± +', '± '),
        'detectable': line['smallest detectable'],
        **{
            title(column): f'{statistics.mean(differences(column)):+.{2 if column == "mean_distance" else 1}f}'
            for column in columns
        },
        'result': line['result'],
    }


def entries(lines: str) -> dict[str, str]:
    """Returns name -> label of the lines of a comment.

    Raises:
      UserError: If a line has another form.
    """
    split = [line.partition(': ') for line in lines.splitlines()]
    if wrong := [name for name, colon, _ in split if not colon]:
        raise UserError(f"'{wrong[0]}' in a comment above a table; write NAME: LABEL")
    return {name: label for name, _, label in split}


def names(page: str) -> set[str]:
    """Returns the experiments of the tables of a text."""
    return {name for mark in MARK.finditer(page) for entry in entries(mark[5]) for name in entry.split(' - ')}


def rewritten(page: str, read: Callable[[str], Runs], stored: Sequence[Mapping[str, Any]]) -> str:
    """Returns a page with its tables made from the rows.

    Args:
      page: The text of the page.
      read: Returns the rows of runs of a file of rows, such as `catalog.read_runs`.
      stored: The rows of `experiments.intervals`.

    Raises:
      UserError: If an experiment has no row, or a difference is none of `experiments.intervals`.
    """
    pairs = {pair.name: pair for pair in intervals.PAIRS}

    def table(match: re.Match) -> str:
        size, columns, lines = catalog.size(match[3] == 'small'), match[4].split(), entries(match[5])
        runs = read(size)
        if match[2] == 'runs':
            shown = compared(runs, [*lines])
            rows = [runs_row(shown, name, label, columns) for name, label in lines.items()]
        else:
            if unknown := lines.keys() - pairs.keys():
                raise UserError(f'{", ".join(sorted(unknown))}: not a pair of experiments/intervals.py')
            ends = {
                name: {
                    row['seed']: (row['low'], row['high'])
                    for row in stored
                    if (row['size'], row['pair'], row['metric']) == (size, name, 'rsum')
                }
                for name in lines
            }
            rows = [differences_row(runs, ends[name], pairs[name], label, columns) for name, label in lines.items()]
        behind = '' if match[6] else '\n'  # a blank line behind a new table
        return f'{match[1]}\n' + ''.join(f'{line}\n' for line in results.markdown(rows)) + behind

    return MARK.sub(table, page)


def pages() -> Iterator[tuple[Path, str]]:
    """Yields each page and its text with new tables."""
    read, stored = functools.cache(catalog.read_runs), [*intervals.read(intervals.PATH).values()]
    for page in (DOCS / f'{name}.md' for name in PAGES):
        yield page, rewritten(page.read_text(encoding='utf-8'), read, stored)
    data = DOCS / 'data.md'
    yield data, results.rewritten(data.read_text(encoding='utf-8'), results.read(DOCS / 'cca.jsonl'))


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds no flags."""


def run(args: argparse.Namespace) -> list[Row]:
    """Rewrites the pages."""
    del args
    results.rewrite(pages())
    return []
