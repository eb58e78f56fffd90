"""Lists the numbers of README and the pages of docs that no stored row has.

    python -m experiments provenance

Every number with a decimal, and every mean with its deviation, must be one of

    a recall, rsum or mean distance of a run at its best epoch, or its rsum after another one,
    the mean of one of these over all seeds of an experiment, with its deviation,
    the same for two experiments on the seeds that both have, and their difference, also in rsum after the last epoch,
    the smallest difference in rsum that their seeds would show,
    a difference of a stored interval, or one of its ends,
    a setting of a run, such as the temperature,
    a published rsum, or `R@1 i2t / R@1 t2i` of one published row (jitm/evaluation/published.json),
    a number of a command that trains nothing, such as the linear CCA (docs/evaluations.jsonl),
    on pages that name `python -m benchmarks`, a number of a benchmark,
    a number whose source the section states: `<!-- numbers Diao et al. 2024, table II: 5.3 4.0 -->`.

What `python -m experiments tables` and `python -m benchmarks tables` make, and the numbers of sections of papers, are
left out.

In hundreds of rows a number can be found by chance. The numbers of a section must therefore belong to experiments in
its tables (`experiments.comments`), or to experiments, groups or differences that it names: `<!-- rows mean_sum
mean_max - mean_sum -->`. Numbers of other sections may be of any experiment, but not differences.
"""

import argparse
import collections
import itertools
import re
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import results
from benchmarks import tables as benchmarks
from benchmarks.results import DOCS, ROOT, Row
from experiments import catalog, comments, intervals
from experiments.tables import measured
from jitm.config.build import flatten
from jitm.errors import UserError
from jitm.evaluation import published
from jitm.report.significance import detectable

UNCHECKED = 'references', 'tutorial', 'README'  # titles, printed by the commands of the notebook, names of files
PAGES = ROOT / 'README.md', *(path for path in sorted(DOCS.rglob('*.md')) if path.stem not in UNCHECKED)
SIZES = catalog.size(small=False), catalog.size(small=True)
HEADING = re.compile(r'^(?=#+ )', re.MULTILINE)
SCOPE = re.compile(r'<!-- rows (.*?) -->', re.DOTALL)
STATED = re.compile(r'<!-- numbers [^:]+: (.*?) -->', re.DOTALL)
ROWS = re.compile(r'(\w+)(?:\s+-\s+(\w+))?')
CODE = re.compile(r'^```.*?^```|`[^`]*`|<!--.*?-->|(?<=\])\([^)]*\)|^> ', re.DOTALL | re.MULTILINE)
DECIMAL = r'\d+\.\d+'
NUMBER = re.compile(rf'(?<![\w.])(?<!section ){DECIMAL}(?: [±/] {DECIMAL})?(?![\w.]*\w)')
R_AT_1 = 'i2t/recall@1', 't2i/recall@1'
METRICS = (*published.RECALLS, 'rsum', 'mean_distance')


@dataclass(frozen=True)
class Source:
    """The rows that numbers may come from.

    Attributes:
      runs: Size, experiment and seed -> row of the run.
      intervals: The rows of `experiments.intervals`.
    """

    runs: Mapping[tuple[str, str, int], Mapping[str, Any]]
    intervals: Sequence[Mapping[str, Any]]

    def of(self, names: Collection[str]) -> 'Source':
        """Returns the rows of experiments, and the intervals of their pairs."""
        runs = {key: row for key, row in self.runs.items() if key[1] in names}
        return Source(runs, [row for row in self.intervals if {*row['pair'].split(' - ')} <= {*names}])

    @property
    def names(self) -> set[str]:
        """The experiments."""
        return {name for _, name, _ in self.runs}


def read_source() -> Source:
    """Reads the stored rows."""
    runs = {(size, *run): row for size in SIZES for run, row in catalog.read_runs(size).items()}
    return Source(runs, [*intervals.read(intervals.PATH).values()])


def _cells(values: Sequence[float], digits: int = 1) -> set[str]:
    """Formats values, their mean, and their mean with its deviation as pages do; signs are left out."""
    if not values:
        return set()
    cells = {f'{abs(value):.{digits}f}' for value in (*values, statistics.fmean(values))}
    if len(values) > 1:
        deviation = f'{np.std(values, ddof=1):.{digits}f}'
        cells |= {deviation, f'{abs(statistics.fmean(values)):.{digits}f} ± {deviation}'}
    return cells


def _digits(metric: str) -> int:
    return 2 if metric == 'mean_distance' else 1


def _both_ways(metrics: Mapping[str, float]) -> set[str]:
    """Returns `R@1 i2t / R@1 t2i` if a row has both."""
    return {' / '.join(f'{metrics[way]:.1f}' for way in R_AT_1)} if {*R_AT_1} <= metrics.keys() else set()


def of_runs(runs: Mapping[tuple[str, str, int], Mapping[str, Any]]) -> set[str]:
    """Returns the numbers of runs: metrics, rsum by epoch, and settings."""
    seeds, cells = collections.defaultdict(list), set()
    for (size, name, _), row in runs.items():
        for metric in METRICS:
            seeds[size, name, metric].append(row['metrics'][metric])
        cells |= _both_ways(row['metrics'])
        for epoch, rsum in row['rsum_by_epoch']:
            seeds[size, name, epoch].append(rsum)
        cells |= {f'{value:g}' for value in flatten(row['config']).values() if isinstance(value, float)}
    return cells.union(*(_cells(values, _digits(metric)) for (_, _, metric), values in seeds.items()))


def of_pairs(runs: Mapping[tuple[str, str, int], Mapping[str, Any]], pairs: Iterable[Sequence[str]]) -> set[str]:
    """Returns the numbers of pairs on common seeds: metrics, differences, and the smallest that they would detect."""
    cells = set()
    for size, pair, metric in itertools.product(SIZES, pairs, (*METRICS, 'last')):
        values = {
            (name, seed): row['rsum_by_epoch'][-1][1] if metric == 'last' else row['metrics'][metric]
            for (size_of_row, name, seed), row in runs.items()
            if size_of_row == size and name in pair
        }
        by_seed = intervals.differences(values, *pair)
        by_seeds = [*by_seed.values()]
        for cell in (by_seeds, *([values[name, seed] for seed in by_seed] for name in pair)):
            cells |= _cells(cell, _digits(metric))
        if metric == 'rsum' and len(by_seeds) > 1:
            cells.add(f'{detectable(by_seeds):.1f}')
    return cells


def of_intervals(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """Returns the numbers of intervals."""
    return {f'{abs(row[key]):.1f}' for row in rows for key in ('difference', 'low', 'high')}


def of_references(page: str) -> set[str]:
    """Returns the published numbers, and those of commands that train nothing; of benchmarks if a page names them."""
    rows = [row.metrics for row in published.load()]
    commands = measured() | (benchmarks.tables() if 'python -m benchmarks' in page else {})
    made = [row for rows_of_command in commands.values() for row in rows_of_command]
    cells = {results.format_cell(cell) for row in made for cell in row.values()}
    cells |= {f'{row["R@1 i2t"]} / {row["R@1 t2i"]}' for row in made if 'R@1 i2t' in row}
    return cells | {f'{row["rsum"]:.1f}' for row in rows if 'rsum' in row}.union(*map(_both_ways, rows))


def numbers(text: str) -> Iterator[str]:
    """Yields the numbers of a text with a decimal, without those in code, comments, addresses and made tables."""
    yield from NUMBER.findall(' '.join(CODE.sub('', comments.prose(text)).split()))


def scope(section: str, source: Source) -> tuple[Source, set[tuple[str, str]]]:
    """Returns the rows of the experiments that a section names, all if it names none, and its differences.

    Raises:
      UserError: If it names an experiment without a row.
    """
    lines = [line for table in comments.read_tables(section) for line in table.lines]
    listed = [(line.name, line.control) for line in lines]
    listed += [named_pair for text in SCOPE.findall(section) for named_pair in ROWS.findall(text)]
    named = {name for pair in listed for name in pair if name}
    if unknown := named - source.names - catalog.GROUPS.keys():
        raise UserError(f'{", ".join(sorted(unknown))}: neither a group nor an experiment with rows')
    experiments = {name for entry in named for name in catalog.GROUPS.get(entry, (entry,))}
    pairs = {pair for pair in listed if all(pair)}
    return (source.of(experiments), pairs) if named else (source, set())


def missing(page: str, source: Source) -> Iterator[tuple[str, str]]:
    """Yields each number of a page that no row has, with the heading of its section before it.

    Raises:
      UserError: If a section names an experiment without a row.
    """
    papers = of_references(page)
    for section in HEADING.split(page):
        rows, pairs = scope(section, source)
        from_comments = {*NUMBER.findall(' '.join(STATED.findall(section)))}
        stored = papers | from_comments | of_intervals(rows.intervals)
        quoted = [*numbers(section)]
        if not stored.issuperset(quoted):
            stored |= of_runs(rows.runs) | of_pairs(rows.runs, pairs)
        for number in quoted:
            if number not in stored:
                yield section.partition('\n')[0].strip('# '), number


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds no flags."""


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Yields the numbers without a row.

    Raises:
      UserError: If a section names an experiment without a row.
    """
    del args
    source = read_source()
    for page in PAGES:
        for section, number in missing(page.read_text(encoding='utf-8'), source):
            yield {'page': f'{page.relative_to(ROOT)}', 'section': section, 'number': number}
