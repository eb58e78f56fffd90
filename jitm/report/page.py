"""A self-contained HTML page that compares runs: their configs, recalls, curves, significance and examples."""

import itertools
import shlex
import statistics
from collections.abc import Mapping, Sequence

from jitm.pages.figures import to_bytes
from jitm.pages.pictures import uri
from jitm.pages.render import Cell, Column, Table, render
from jitm.pages.tables import mean_and_deviation
from jitm.report import bootstrap, training
from jitm.report.examples import DIRECTIONS, Shown, outcomes
from jitm.report.groups import ABSENT, Group, RunLog, config_keys, differing_keys
from jitm.report.matrices import Matrix, saved_sims
from jitm.report.rows import row_of
from jitm.report.summary import DISTANCE, RECALLS, best_validations

MINUS = '\N{MINUS SIGN}'  # as wide as the plus sign
HEADERS = {'i2t': 'image to text', 't2i': 'text to image'}


def page(
    groups: Sequence[Group],
    found: Mapping[int, bootstrap.Hits],
    examples: Shown | None,
    *,
    others: Sequence[Matrix],
    split_name: str,
    data_root: str | None,
    command: str,
) -> str:
    """Returns the page.

    Args:
      groups: Runs that have been validated.
      found: The hits of the groups whose saved similarities are compared, by index.
      examples: See `read_examples`.
      others: Saved similarities of other data, whose groups are not compared.
      split_name: The split of the similarities.
      data_root: The data folder, if it has moved since training.
      command: The command that writes the page.

    Returns:
      HTML, equal for equal arguments.

    Raises:
      UserError: If a run has no validation or no line of training.
    """
    runs = [run for group in groups for run in group.runs]
    trained = [group for group in groups if group.runs[0].config['epochs']]
    counted = (f'{len(found):,} {noun}{"s" * (len(found) > 1)}' for found, noun in ((groups, 'group'), (runs, 'run')))
    roots = {str(run.config['data'].get('root', run.config['data']['source'])): None for run in runs}
    return render(
        'report.html',
        title='Comparison of ' + ', '.join(counted),
        data=', '.join(roots),
        num_groups=len(groups),
        runs=_runs(groups),
        keys=_keys(groups),
        recalls=_recalls(groups),
        curves=uri(to_bytes(training.draw(trained), 'svg'), 'svg+xml') if trained else '',
        left_out=', '.join(f'{one.path} of {one.protocol["data"]}' for one in others),
        split=split_name,
        images=len(next(iter(found.values())).texts) if found else 0,
        resamples=bootstrap.RESAMPLES,
        differences=_differences(groups, found),
        commands=_lacking(runs, split_name, data_root),
        examples=examples,
        directions=DIRECTIONS,
        outcomes=outcomes(examples) if examples else None,
        command=command,
    )


def _runs(groups: Sequence[Group]) -> Table:
    """Returns the seeds, epochs, steps and times of the runs."""
    columns = [Column('group'), Column('runs', text=True)]
    columns += map(Column, ('seeds', 'epochs', 'steps', 'minutes of training'))
    rows = []
    for group in groups:
        numbers = [row_of(run) for run in group.runs]
        last = [(row['rsum_by_epoch'][-1][0], row['epochs']) for row in numbers]
        epochs = [f'{total}' if done >= total else f'{done:g} of {total}' for done, total in last]
        seconds = [row['train_seconds'] for row in numbers]
        minutes = mean_and_deviation([] if None in seconds else [second / 60 for second in seconds], '.1f')
        seeds, steps = ([f'{row[key]:{form}}' for row in numbers] for key, form in (('seed', ''), ('steps', ',')))
        several = ', '.join(seeds), ', '.join(dict.fromkeys(epochs)), ', '.join(dict.fromkeys(steps))
        rows.append((group.name, group.run_names, *several, minutes))
    return Table('Runs; minutes without validation, as far as they were logged', columns, rows)


def _keys(groups: Sequence[Group]) -> Table:
    """Returns the config keys in which the groups differ."""
    columns = [Column('key'), *(Column(group.name, text=True) for group in groups)]
    rows = [
        (Cell(key, code=True), *('absent' if value is ABSENT else str(value) for value in values))
        for key, values in differing_keys([config_keys(group.runs[0].config) for group in groups]).items()
    ]
    return Table('All config keys in which the groups differ', columns, rows)


def _recalls(groups: Sequence[Group]) -> Table:
    """Returns the best validations."""
    found = best_validations(groups)
    columns, cells = [Column('group')], [[group.name] for group in groups]
    for metric in found[0].values:
        direction, _, name = metric.rpartition('/')
        label = name.replace('recall@', 'R@') if direction else RECALLS.get(metric, 'MD')
        columns.append(Column(label, HEADERS.get(direction, '')))
        means = [round(statistics.mean(one.values[metric] or [0]), 1) for one in found]  # as shown
        best = max(means) if len(groups) > 1 and metric != DISTANCE else 0  # distances depend on the scale of scores
        for row, one, mean in zip(cells, found, means, strict=True):
            text = one.cells[metric]
            row.append(Cell(text, best=True) if mean == best > 0 else text)
    columns.append(Column('best epoch'))
    rows = [(*row, one.epochs) for row, one in zip(cells, found, strict=True)]
    splits = {run.config['evaluation']['split']: None for group in groups for run in group.runs}
    caption = f'Best validation of each run on {", ".join(splits)}, in percent'
    return Table(f'{caption}; bold: the best of a column' if len(groups) > 1 else caption, columns, rows)


def _lacking(runs: Sequence[RunLog], split_name: str, data_root: str | None) -> list[str]:
    """Returns the commands that save the similarities of the runs that have none."""
    flags = '' if split_name == 'dev' else f' --split {shlex.quote(split_name)}'
    flags += f' --data_root {shlex.quote(data_root)}' if data_root else ''
    return [
        f'jitm eval --workdir {shlex.quote(str(run.workdir))} --save_sims{flags}'
        for run in runs
        if not saved_sims(run, split_name, data_root).exists()
    ]


def _differences(groups: Sequence[Group], found: Mapping[int, bootstrap.Hits]) -> Table:
    """Returns the paired bootstrap of each two groups that have similarities."""
    rows = []
    for pair in itertools.combinations(found, 2):
        result = bootstrap.difference(*(found[n] for n in pair))
        names = (Cell(groups[n].name, note=f'{found[n].rsum():.1f}') for n in pair)
        difference = Cell(f'{result.rsum:+.1f}'.replace('-', MINUS), best=result.low > 0 or result.high < 0)
        interval = f'{result.low:+.1f} to {result.high:+.1f}'.replace('-', MINUS)
        rows.append((*names, difference, interval, f'{result.ahead:.1%}'))
    columns = [Column('first (rsum)'), Column('second (rsum)', text=True)]
    columns += map(Column, ('difference', f'{bootstrap.LEVEL:.0%} interval', 'first is ahead in'))
    return Table('Differences of rsum; bold: the interval excludes 0', columns, rows)
