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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.results import DOCS, Row
from experiments import catalog, comments, figures, intervals
from experiments.comments import MARK, PAGES, PAPERS, VERDICTS, Line, Runs, Table
from jitm.files import replacing
from jitm.pages.tables import mean_and_deviation
from jitm.report.significance import MIN_SEEDS, adjust, ends_cell, interval, p_value, probability, two_way

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
ARROWS = {'agrees': '\N{UPWARDS ARROW}', 'disagrees': '\N{DOWNWARDS ARROW}', 'mixed': '\N{UP DOWN ARROW}', '': ''}


def value(row: Mapping[str, Any], column: str) -> float:
    """Returns a metric of a run at its best epoch, or rsum after the epoch that the column names, or the last."""
    by_epoch = {f'{epoch:g}': rsum for epoch, rsum in row['rsum_by_epoch']}
    if column == 'last':
        return by_epoch[f'{row["epochs"]:g}']
    return by_epoch[column] if column in by_epoch else row['metrics'][column]


def differences(table: Table, line: Line, runs: Runs) -> list[float]:
    """Returns the differences of a line in rsum, by seed."""
    pairs = [(runs[line.name, seed], runs[line.control, seed]) for seed in table.seeds(line, runs)]
    return [round(value(treatment, table.at) - value(control, table.at), 9) for treatment, control in pairs]


def _test(table: Table, line: Line, runs: Runs) -> Test:
    return line.size, table.at, line.pair, table.seeds(line, runs)


def adjusted(tables: Iterable[Table], read: Callable[[str], Runs]) -> dict[Test, float]:
    """Returns the q of each test of some tables; differences with fewer seeds than `MIN_SEEDS` are not tested."""
    p_values = {}
    for table in tables:
        for line in table.lines:
            runs = read(line.size)
            if line.pair and len(table.seeds(line, runs)) >= MIN_SEEDS:
                p_values[_test(table, line, runs)] = p_value(differences(table, line, runs))
    return adjust(p_values)


def seeds_of(count: int) -> str:
    """Returns a number of seeds as text."""
    return f'{count} seed{"s" * (count > 1)}'


def evidence(line: Line, gains: Sequence[float], runs: Runs) -> Row:
    """Returns what decides a finding: its runs, the split that is reported, and the test of two seeds or more."""
    tested = len(gains) > 1
    both_ways = two_way(*(intervals.hits_by_seed(name, runs) for name in line.names))
    return {
        'finding': line.label,
        'runs': f'`{line.pair}`',
        'split': catalog.EXPERIMENTS[line.name].final or 'dev',
        'seeds': len(gains),
        'difference': mean_and_deviation(gains, '+.1f'),
        '95 % over seeds': ends_cell(interval(gains) if tested else None),
        '95 % over seeds and images': ends_cell(both_ways),
        'p': probability(p_value(gains) if tested else None),
    }


def result(table: Table, line: Line, runs: Runs, q: Mapping[Test, float]) -> Row:
    """Returns a line of a table: means and deviations over the seeds, and the difference with its test."""
    seeds = table.seeds(line, runs)
    if 'evidence' in table.flags:
        tested = q.get(_test(table, line, runs))
        return evidence(line, differences(table, line, runs), runs) | {'q': probability(tested)}

    def cell(column: str) -> str:
        values = [value(runs[line.name, seed], column) for seed in seeds]
        return mean_and_deviation(values, '.2f' if column == 'mean_distance' else '.1f')

    recalls = (statistics.mean(value(runs[line.name, seed], way) for seed in seeds) for way in BOTH_WAYS)
    row = {'': line.label, 'R@1 i2t / t2i': ' / '.join(f'{recall:.1f}' for recall in recalls)}
    row |= {COLUMNS.get(column, f'rsum, epoch {column}'): cell(column) for column in table.columns}
    if 'each' in table.flags:
        row |= {'seeds': len(seeds), 'rsum': cell('rsum')}
    else:
        row[f'rsum, {seeds_of(len(seeds))}'] = cell('rsum')
    if any(shown.pair for shown in table.lines):
        gains = differences(table, line, runs) if line.pair else []
        row['difference'] = mean_and_deviation(gains, '+.1f') if gains else ''
        if 'each' in table.flags or len(seeds) >= MIN_SEEDS:
            row['q'] = probability(q.get(_test(table, line, runs)))
    return row


@dataclass(frozen=True)
class Verdict:
    """What the deciding lines of a table say of its claim.

    Attributes:
      word: A verdict of `intervals.verdict`, or Open.
      direction: Whether the differences agree with the claim; empty if the claim is that of no difference.
      differences: Those of each deciding line, by seed.
      q: The adjusted p of each, None without a test.
      seeds: The smallest number of seeds of a line.
    """

    word: str
    direction: str
    differences: Sequence[Sequence[float]]
    q: Sequence[float | None]
    seeds: int

    @property
    def arrow(self) -> str:
        """The direction as an arrow, in parentheses unless all differences are significant."""
        arrow = ARROWS[self.direction]
        return f'({arrow})' if arrow and not self.is_significant else arrow

    @property
    def is_significant(self) -> bool:
        """Whether there is a direction and all differences are significant."""
        return bool(self.direction) and all(q is not None and q < intervals.LEVEL for q in self.q)

    @property
    def ends(self) -> str:
        """The interval of each difference, which is shown where no difference was found."""
        ends = map(interval, self.differences)
        return ', '.join(f'[{low:+.1f}, {high:+.1f}]' for low, high in ends)


def _negated(values: Iterable[float]) -> list[float]:
    return [-value for value in values]


def decide(table: Table, read: Callable[[str], Runs], q: Mapping[Test, float]) -> Verdict | None:
    """Returns the verdict of a table; None if no line decides one and it is not left open."""
    deciding = [(line, read(line.size)) for line in table.lines if line.decides]
    if not deciding:
        seeds = min(len(table.seeds(line, read(line.size))) for line in table.lines)
        return Verdict('Open', '', (), (), seeds) if 'open' in table.flags else None
    gains = [differences(table, line, runs) for line, runs in deciding]
    claimed = [*map(_negated, gains)] if 'less' in table.flags else gains
    tested = [q.get(_test(table, line, runs)) for line, runs in deciding]
    compared = zip(claimed, tested, [line.published for line, _ in deciding], strict=True)
    word = 'Open' if 'open' in table.flags else intervals.verdict([*compared])
    above = [statistics.mean(values) > 0 for values in claimed]
    direction = 'agrees' if all(above) else 'mixed' if any(above) else 'disagrees'
    direction = '' if 'equal' in table.flags else direction
    return Verdict(word, direction, gains, tested, min(map(len, gains)))


def made(table: Table, read: Callable[[str], Runs], q: Mapping[Test, float]) -> Iterator[str]:
    """Yields the lines of a table, with its verdict before it."""
    decided = decide(table, read, q)
    if decided:
        word = f'**{decided.word}**'
        if decided.word == 'Open' and decided.is_significant:
            word += f', {decided.direction}'
        notes = [seeds_of(decided.seeds)]
        tested = [probability(q_value) for q_value in decided.q if q_value is not None]
        if decided.word == 'No difference':
            notes.append(f'95 % interval {decided.ends}')
        elif tested:
            notes.append(f'q {", ".join(dict.fromkeys(tested))}')
        yield from (f'{word} ({", ".join(notes)})', '')
    yield from results.markdown(result(table, line, read(line.size), q) for line in table.lines)


def verdicts(pages: Mapping[str, str], read: Callable[[str], Runs], q: Mapping[Test, float]) -> Iterator[Row]:
    """Yields the line of each section with a verdict, from the texts of the pages by their name in docs/results."""
    for name, page in pages.items():
        _, *parts = SECTION.split(page)
        rows = []
        for heading, section in zip(parts[::2], parts[1::2], strict=True):
            decisions = (decide(table, read, q) for table in comments.read_tables(section))
            decision = next(filter(None, decisions), None)
            if decision:
                anchor = re.sub(r'[^\w\- ]', '', heading.lower()).replace(' ', '-')
                shown = ', '.join(mean_and_deviation(values, '+.1f') for values in decision.differences)
                equal = f' {decision.ends}' if decision.word == 'No difference' else ''
                rows.append(
                    {
                        'claim': f'[{heading}]({name}.md#{anchor})',
                        'verdict': decision.word.lower().replace(' ', '\N{NO-BREAK SPACE}'),
                        'direction': decision.arrow,
                        'difference': shown + equal,
                        'seeds': decision.seeds,
                        'q': ', '.join(probability(q_value) for q_value in decision.q if q_value is not None),
                    }
                )
        title = f'**[{PAPERS[name]}]({name}.md)**'
        tested = '' if rows else 'not tested at this size'
        yield {'claim': title, 'verdict': tested, 'direction': '', 'difference': '', 'seeds': '', 'q': ''}
        yield from rows


def rewritten(page: str, read: Callable[[str], Runs], q: Mapping[Test, float]) -> str:
    """Returns a page with its tables made from the rows that `read` returns for a file, such as `catalog.read_runs`.

    Raises:
      UserError: If an experiment has no row, or the experiments of a table have no seed in common.
    """

    def replacement(match: re.Match) -> str:
        lines = made(comments.read_table(match), read, q)
        return f'{match[1]}\n' + ''.join(f'{line}\n' for line in lines) + '\n'

    return MARK.sub(replacement, page).rstrip('\n') + '\n'


def measured() -> dict[str, list[Row]]:
    """Returns the rows of the commands that train no runs, by the command in the comment above their table."""
    return results.read(DOCS / 'evaluations.jsonl')


def pages() -> Iterator[tuple[Path, str]]:
    """Yields each page and its text with new tables."""
    read, commands = functools.cache(catalog.read_runs), measured()
    texts = {name: path.read_text(encoding='utf-8') for name, path in PAGES.items()}
    q = adjusted((table for text in texts.values() for table in comments.read_tables(text)), read)
    texts = {name: rewritten(text, read, q) for name, text in texts.items()}
    texts |= {name: results.rewritten(text, commands) for name, text in texts.items() if name.startswith('results/')}
    yield from ((PAGES[name], text) for name, text in texts.items() if name != 'results/index')
    rows = verdicts({name: texts[f'results/{name}'] for name in PAPERS}, read, q)
    listed = ''.join(f'{line}\n' for line in results.markdown(rows))
    index, how = PAGES['results/index'], DOCS / 'results' / 'how.md'
    yield index, VERDICTS.sub(lambda mark: f'{mark[1]}\n{listed}\n', texts['results/index'])
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
