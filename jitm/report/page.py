"""A self-contained HTML page that compares runs: their configs, recalls, curves, significance and examples."""

import itertools
import shlex
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from jitm.pages.render import Cell, Column, Table, render
from jitm.pages.tables import mean_and_deviation
from jitm.report import bootstrap, significance, training
from jitm.report.curves import charts
from jitm.report.examples import DIRECTIONS, Shown, outcomes
from jitm.report.group_names import ABSENT, differing_keys
from jitm.report.groups import Group, RunLog, config_keys, runs_of
from jitm.report.matrices import Matrix, saved_sims
from jitm.report.rows import row_of
from jitm.report.summary import DISTANCE, RECALLS, best_validations

MINUS = '\N{MINUS SIGN}'  # as wide as the plus sign
HEADERS = {'i2t': 'image to text', 't2i': 'text to image'}


def page(
    groups: Sequence[Group],
    hits: Mapping[int, bootstrap.Hits],
    seeds: Mapping[int, Mapping[int, bootstrap.Hits]],
    examples: Shown | None,
    *,
    incomparable: Sequence[Matrix],
    split_name: str,
    data_root: str | None,
    command: str,
) -> str:
    """Returns the page.

    Args:
      groups: Runs that have been validated.
      hits: The mean hits of the groups whose saved similarities are compared, by index.
      seeds: The hits of these groups, by index and seed.
      examples: See `read_examples`.
      incomparable: Saved similarities of other data, whose groups are not compared.
      split_name: The split of the similarities.
      data_root: The data folder, if it has moved since training.
      command: The command that writes the page.

    Returns:
      HTML, equal for equal arguments.

    Raises:
      UserError: If a run has no validation or no line of training.
    """
    hits = dict(sorted(hits.items(), key=lambda item: -item[1].rsum()))
    seeds = {n: seeds[n] for n in hits}
    runs = runs_of(groups)
    counts = (len(groups), 'group'), (len(runs), 'run')
    counted = (f'{count:,} {noun}{"s" * (count > 1)}' for count, noun in counts)
    trained = {n: group for n, group in enumerate(groups) if group.runs[0].config['epochs']}
    roots = {str(run.config['data'].get('root', run.config['data']['source'])): None for run in runs}
    return render(
        'report.html',
        title='Comparison of ' + ', '.join(counted),
        data=', '.join(roots),
        num_groups=len(groups),
        names=[group.name for group in groups],
        lead=_lead(groups, hits),
        standings=_standings(groups),
        validated_on=_validated_on(runs),
        runs=_runs(groups),
        keys=_keys(groups),
        recalls=_recalls(groups),
        charts=charts({n: training.curves(group.runs) for n, group in trained.items()}),
        left_out=', '.join(f'{matrix.path} of {matrix.protocol["data"]}' for matrix in incomparable),
        split=split_name,
        images=len(next(iter(hits.values())).texts) if hits else 0,
        resamples=bootstrap.RESAMPLES,
        differences=_differences(groups, hits),
        tests=_tests(groups, seeds),
        commands=_lacking(runs, split_name, data_root),
        examples=examples,
        directions=DIRECTIONS,
        outcomes=outcomes(examples) if examples else None,
        command=command,
    )


def headline(groups: Sequence[Group], hits: Mapping[int, bootstrap.Hits], split_name: str) -> list[str]:
    """Returns lines for a terminal: the differences of rsum from the first group that has similarities."""
    first, *more = hits or [0]
    lines = []
    for n in more:
        result = bootstrap.difference(hits[n], hits[first])
        interval = f'{bootstrap.LEVEL:.0%} interval over the images {result.low:+.1f} to {result.high:+.1f}'
        change = f'{result.rsum:+.1f} from {groups[first].name} ({hits[first].rsum():.1f}; {interval})'
        lines.append(f'{groups[n].name}: rsum {hits[n].rsum():.1f} on {split_name}, {change}')
    if more and any(len(groups[n].runs) == 1 for n in hits):
        lines.append('a group has one seed: how much other seeds differ is not known')
    return lines


def _runs(groups: Sequence[Group]) -> Table:
    """Returns the seeds, epochs, steps and times of the runs."""
    columns = [Column('group'), Column('runs', text=True)]
    columns += map(Column, ('random seed', 'epochs', 'steps', 'minutes of training'))
    rows = []
    for group in groups:
        numbers = [row_of(run) for run in group.runs]
        last = [(row['rsum_by_epoch'][-1][0], row['epochs']) for row in numbers]
        epochs = [f'{total}' if done >= total else f'{done:g} of {total}' for done, total in last]
        seconds = [row['train_seconds'] for row in numbers]
        minutes = mean_and_deviation([] if None in seconds else [second / 60 for second in seconds], '.1f')
        seeds = [str(row['seed']) for row in numbers]
        steps = [f'{row["steps"]:,}' for row in numbers]
        several = ', '.join(seeds), ', '.join(dict.fromkeys(epochs)), ', '.join(dict.fromkeys(steps))
        rows.append((group.name, group.run_names, *several, minutes))
    return Table('Runs; minutes without validation, as far as they were logged', columns, rows)


def _keys(groups: Sequence[Group]) -> Table:
    """Returns the config keys in which the groups differ."""
    columns = [Column('key'), *(Column(group.name, text=True) for group in groups)]
    rows = []
    for key, values in differing_keys([config_keys(group.runs[0].config) for group in groups]).items():
        rows.append((Cell(key, code=True), *('absent' if value is ABSENT else str(value) for value in values)))
    return Table('All config keys in which the groups differ', columns, rows)


def _recalls(groups: Sequence[Group]) -> Table:
    """Returns the best validations."""
    validations = best_validations(groups)
    columns = [Column('group')]
    cells = [[group.name] for group in groups]
    for metric in validations[0].values:
        direction, _, name = metric.rpartition('/')
        label = name.replace('recall@', 'R@') if direction else RECALLS.get(metric, 'MD')
        columns.append(Column(label, HEADERS.get(direction, '')))
        means = [round(statistics.mean(validation.values[metric] or [0]), 1) for validation in validations]  # as shown
        best = max(means) if len(groups) > 1 and metric != DISTANCE else 0  # distances depend on the scale of scores
        for row, validation, mean in zip(cells, validations, means, strict=True):
            text = validation.cells[metric]
            row.append(Cell(text, best=True) if mean == best > 0 else text)
    columns.append(Column('best epoch'))
    rows = [(*row, validation.epochs) for row, validation in zip(cells, validations, strict=True)]
    splits = _validated_on(runs_of(groups))
    caption = f'Best validation of each run on {splits}, in percent'
    return Table(f'{caption}; bold: the best of a column' if len(groups) > 1 else caption, columns, rows)


def _lacking(runs: Sequence[RunLog], split_name: str, data_root: str | None) -> list[str]:
    """Returns the commands that save the similarities of the runs that have none."""
    flags = [] if split_name == 'dev' else ['--split', split_name]
    if data_root:
        flags += ['--data_root', data_root]
    lacking = [run for run in runs if not saved_sims(run, split_name, data_root).exists()]
    return [shlex.join(['jitm', 'eval', '--workdir', str(run.workdir), '--save_sims', *flags]) for run in lacking]


def _differences(groups: Sequence[Group], hits: Mapping[int, bootstrap.Hits]) -> Table:
    """Returns the paired bootstrap of each two groups that have similarities."""
    rows = []
    for pair in itertools.combinations(hits, 2):
        result = bootstrap.difference(*(hits[n] for n in pair))
        names = (Cell(groups[n].name, note=f'{hits[n].rsum():.1f}{_one_seed(groups[n])}') for n in pair)
        several = all(len(groups[n].runs) > 1 for n in pair)
        difference = Cell(_signed(result.rsum), best=several and _excludes_0(result))
        rows.append((*names, difference, _interval(result), f'{result.ahead:.1%}'))
    columns = [Column('first (rsum)'), Column('second (rsum)', text=True)]
    columns += map(Column, ('difference', f'{bootstrap.LEVEL:.0%} interval', 'first is ahead in'))
    caption = 'Differences of rsum, the higher first; bold: the interval excludes 0, and both groups have several seeds'
    return Table(caption, columns, rows)


def _tests(groups: Sequence[Group], seeds: Mapping[int, Mapping[int, bootstrap.Hits]]) -> Table:
    """Returns the tests over the seeds that two groups with similarities share."""
    pairs = {}
    for pair in itertools.combinations(seeds, 2):
        first, second = (seeds[n] for n in pair)
        differences = [first[seed].rsum() - second[seed].rsum() for seed in first if seed in second]
        pairs[pair] = significance.Compared(differences, significance.two_way(first, second))
    rows = []
    for pair, cells in significance.describe(pairs).items():
        difference = mean_and_deviation(pairs[pair].differences, '+.1f')
        rows.append([*(groups[n].name for n in pair), *(cell.replace('-', MINUS) for cell in (difference, *cells))])
    columns = [Column('first'), Column('second', text=True)]
    columns += map(Column, ('difference', *significance.COLUMNS))
    return Table('Differences of rsum over the seeds that both groups have', columns, rows)


def _lead(groups: Sequence[Group], hits: Mapping[int, bootstrap.Hits]) -> dict[str, Any] | None:
    """Returns the difference between the first two groups, those of the highest rsum; None without two groups."""
    if len(hits) < 2:
        return None
    first, second = [*hits][:2]
    result = bootstrap.difference(hits[first], hits[second])
    return {
        'first': groups[first].name,
        'second': groups[second].name,
        'difference': _signed(result.rsum),
        'interval': _interval(result),
        'decided': _excludes_0(result),
        'alone': ' and of '.join(groups[n].name for n in (first, second) if len(groups[n].runs) == 1),
    }


def _standings(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Returns the groups in descending order of the rsum of their best validations."""
    validations = best_validations(groups)
    means = [statistics.mean(validation.values['rsum'] or [0]) for validation in validations]
    cells = [validation.cells for validation in validations]
    recalls = [f'R@1 {row["i2t/recall@1"]} i2t, {row["t2i/recall@1"]} t2i' for row in cells]
    return [
        {
            'group': n,
            'name': groups[n].name,
            'rsum': validations[n].cells['rsum'],
            'share': f'{means[n] / (max(means) or 1):.3f}',
            'note': recalls[n] + _one_seed(groups[n]),
        }
        for n in sorted(range(len(groups)), key=lambda n: -means[n])
    ]


def _validated_on(runs: Sequence[RunLog]) -> str:
    return ', '.join(dict.fromkeys(run.config['evaluation']['split'] for run in runs))


def _one_seed(group: Group) -> str:
    return ', one seed' if len(group.runs) == 1 else ''


def _signed(value: float) -> str:
    return f'{value:+.1f}'.replace('-', MINUS)


def _interval(result: bootstrap.Difference) -> str:
    return f'{_signed(result.low)} to {_signed(result.high)}'


def _excludes_0(result: bootstrap.Difference) -> bool:
    return result.low > 0 or result.high < 0
