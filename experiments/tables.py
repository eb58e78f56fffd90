"""Rewrites the tables, verdicts and figures of docs/results and of the other pages of `experiments.comments`.

    python -m experiments tables

`experiments.comments` describes the comments above the tables. Differences are tested by paired t-tests over the seeds;
q is p adjusted for all tests of the pages (Benjamini and Hochberg, 1995). `<!-- verdicts -->` lists the verdicts of all
pages, and the tables of commands that train nothing follow a comment that names theirs: `<!-- experiments cca ... -->`.
"""

import argparse
import functools
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.results import DOCS, Row
from experiments import catalog, comments, figures, intervals
from experiments.comments import MARK, PAGES, PAPERS, VERDICT, VERDICTS, Line, Runs, Table
from jitm.files import replacing
from jitm.pages.tables import mean_and_deviation
from jitm.report.significance import MIN_SEEDS, adjust, detectable, p_value, probability

SECTION = re.compile(r'^#{2,3} (.*?)$', re.MULTILINE)
COLUMNS = {
    'mean_distance': 'MD',
    'last': 'rsum, last epoch',
    'rsum_among_false': 'rsum among false',
    'i2t/recall@10': 'R@10 i2t',
    't2i/recall@10': 'R@10 t2i',
}
BOTH_WAYS = 'i2t/recall@1', 't2i/recall@1'

Test = tuple[str, str, str, tuple[int, ...]]  # the file of rows, the epoch, a pair, and seeds
Stored = Mapping[tuple, Mapping[str, Any]]  # the rows of `experiments.intervals` by their keys


def value(row: Mapping[str, Any], column: str) -> float:
    """Returns a metric of a run at its best epoch, or rsum after the epoch that the column names, or the last."""
    by_epoch = {f'{epoch:g}': rsum for epoch, rsum in row['rsum_by_epoch']}
    if column == 'last':
        return by_epoch[f'{row["epochs"]:g}']
    return by_epoch[column] if column in by_epoch else row['metrics'][column]


def differences(table: Table, line: Line, runs: Runs) -> list[float]:
    """Returns the differences of a line in rsum, by seed."""
    pairs = [(runs[line.name, seed], runs[line.control, seed]) for seed in table.seeds(runs)]
    return [round(value(treatment, table.at) - value(control, table.at), 9) for treatment, control in pairs]


def _test(table: Table, line: Line, runs: Runs) -> Test:
    return table.size, table.at, line.pair, table.seeds(runs)


def adjusted(tables: Iterable[Table], read: Callable[[str], Runs]) -> dict[Test, float]:
    """Returns the q of each test of some tables; differences with fewer seeds than `MIN_SEEDS` are not tested."""
    found = {
        _test(table, line, read(table.size)): p_value(differences(table, line, read(table.size)))
        for table in tables
        for line in table.lines
        if line.pair and len(table.seeds(read(table.size))) >= MIN_SEEDS
    }
    return adjust(found)


def seeds_of(count: int) -> str:
    """Returns a number of seeds as text."""
    return f'{count} seed{"s" * (count > 1)}'


def result(table: Table, line: Line, runs: Runs, q: Mapping[Test, float]) -> Row:
    """Returns a line of a table: means and deviations over the seeds, and the difference with its test."""
    seeds = table.seeds(runs)

    def cell(column: str) -> str:
        found = [value(runs[line.name, seed], column) for seed in seeds]
        return mean_and_deviation(found, '.2f' if column == 'mean_distance' else '.1f')

    recalls = (statistics.mean(value(runs[line.name, seed], way) for seed in seeds) for way in BOTH_WAYS)
    row = {'': line.label, 'R@1 i2t / t2i': ' / '.join(f'{recall:.1f}' for recall in recalls)}
    row |= {COLUMNS.get(column, f'rsum, epoch {column}'): cell(column) for column in table.columns}
    row[f'rsum, {seeds_of(len(seeds))}'] = cell('rsum')
    if any(other.pair for other in table.lines):
        found = differences(table, line, runs) if line.pair else []
        row['difference'] = mean_and_deviation(found, '+.1f') if found else ''
        if len(seeds) >= MIN_SEEDS:
            row['p'] = probability(p_value(found) if found else None)
            row['q'] = probability(q.get(_test(table, line, runs)))
    return row


def by_seed(table: Table, line: Line, runs: Runs, stored: Stored) -> Row:
    """Returns the differences of a line by seed, with the intervals that are stored, and the detectable difference."""
    found = dict(zip(table.seeds(runs), differences(table, line, runs), strict=True))
    keys = {seed: (table.size, line.pair, seed, table.at) for seed in (*found, intervals.ALL)}
    ends = {
        seed: f' [{stored[key]["low"]:+.1f}, {stored[key]["high"]:+.1f}]' for seed, key in keys.items() if key in stored
    }
    row = {'': line.label} | {f'seed {seed}': f'{one:+.1f}{ends.get(seed, "")}' for seed, one in found.items()}
    if len(found) > 1:
        row['detectable'] = f'{detectable([*found.values()]):.1f}' + ends.get(intervals.ALL, '')
    return row


def verdict(table: Table, runs: Runs, q: Mapping[Test, float]) -> str:
    """Returns the verdict of a table, with the seeds and q; empty if no line decides one."""
    deciding = [line for line in table.lines if line.decides]
    found = [(differences(table, line, runs), q.get(_test(table, line, runs)), line.published) for line in deciding]
    if not (deciding or table.is_open):
        return ''
    shown = ', '.join(dict.fromkeys(probability(one) for _, one, _ in found if one is not None))
    word = 'Open' if table.is_open else intervals.verdict(found)
    return f'**{word}** ({seeds_of(len(table.seeds(runs)))}{shown and f", q {shown}"})'


def made(table: Table, runs: Runs, q: Mapping[Test, float], stored: Stored) -> Iterator[str]:
    """Yields the lines of a table, with its verdict before it and behind it the differences that decide it by seed."""
    if found := verdict(table, runs, q):
        yield from (found, '')
    yield from results.markdown(result(table, line, runs, q) for line in table.lines)
    deciding = [line for line in table.lines if line.decides] or [line for line in table.lines if line.pair]
    rows = [by_seed(table, line, runs, stored) for line in deciding]
    if rows and len(table.seeds(runs)) > 1:
        yield from ('', '<details markdown="1"><summary>By seed, with intervals of 95 % over the images</summary>', '')
        yield from results.markdown(rows)
        yield from ('', '</details>')


def verdicts(pages: Mapping[str, str]) -> Iterator[Row]:
    """Yields the line of each section with a verdict, from the texts of the pages by their name in docs/results."""
    for name, page in pages.items():
        yield {'claim': f'**{PAPERS[name]}**', 'verdict': '', 'seeds': '', 'q': ''}
        _, *parts = SECTION.split(page)
        for heading, section in zip(parts[::2], parts[1::2], strict=True):
            if found := re.search(VERDICT, section):
                word, seeds, several = found.groups(default='')
                decides = max if word in ('Confirmed', 'Contradicted') else min
                anchor = re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')
                yield {
                    'claim': f'[{heading}]({name}.md#{anchor})',
                    'verdict': word.lower().replace(' ', '\N{NO-BREAK SPACE}'),
                    'seeds': seeds,
                    'q': decides(several.split(', '), key=lambda q: float(q.strip('<') or 0)),
                }


def rewritten(page: str, read: Callable[[str], Runs], q: Mapping[Test, float], stored: Stored) -> str:
    """Returns a page with its tables made from the rows that `read` returns for a file, such as `catalog.read_runs`.

    Raises:
      UserError: If an experiment has no row, or the experiments of a table have no seed in common.
    """

    def replacement(match: re.Match) -> str:
        table = comments.read_table(match)
        return f'{match[1]}\n' + ''.join(f'{line}\n' for line in made(table, read(table.size), q, stored)) + '\n'

    return MARK.sub(replacement, page).rstrip('\n') + '\n'


def measured() -> dict[str, list[Row]]:
    """Returns the rows of the commands that train no runs, by the command in the comment above their table."""
    return results.read(DOCS / 'evaluations.jsonl')


def pages() -> Iterator[tuple[Path, str]]:
    """Yields each page and its text with new tables."""
    read, stored, commands = functools.cache(catalog.read_runs), intervals.read(intervals.PATH), measured()
    texts = {name: path.read_text(encoding='utf-8') for name, path in PAGES.items()}
    q = adjusted((table for text in texts.values() for table in comments.read_tables(text)), read)
    texts = {name: rewritten(text, read, q, stored) for name, text in texts.items()}
    texts |= {name: results.rewritten(text, commands) for name, text in texts.items() if name.startswith('results/')}
    yield from ((PAGES[name], text) for name, text in texts.items())
    rows = verdicts({name: texts[f'results/{name}'] for name in PAPERS})
    listed = ''.join(f'{line}\n' for line in results.markdown(rows))
    index, how = DOCS / 'results' / 'index.md', DOCS / 'results' / 'how.md'
    yield index, VERDICTS.sub(lambda mark: f'{mark[1]}\n{listed}\n', index.read_text(encoding='utf-8'))
    yield how, results.rewritten(how.read_text(encoding='utf-8'), commands)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds no flags."""


def run(args: argparse.Namespace) -> list[Row]:
    """Rewrites the pages and their figures."""
    del args
    results.rewrite(pages())
    for path, content in figures.drawn():
        with replacing(path) as file:
            file.write(content)
    return []
