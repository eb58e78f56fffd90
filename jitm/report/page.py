"""A self-contained HTML page that compares runs: settings, recalls, curves, significance and examples."""

import itertools
import shlex
import statistics
from collections.abc import Mapping, Sequence

from jitm.report import bootstrap, training
from jitm.report.examples import Shown, examples_section
from jitm.report.figures import to_svg
from jitm.report.markup import Column, breakable, document, escape, section, table
from jitm.report.matrices import saved_sims
from jitm.report.pictures import uri
from jitm.report.rows import row_of
from jitm.report.settings import ABSENT, Setting, differing_keys
from jitm.report.summary import DISTANCE, RECALLS, best_epochs, best_values, show
from jitm.report.tables import mean_and_deviation

MINUS = '\N{MINUS SIGN}'  # as wide as the plus sign


def page(
    settings: Sequence[Setting],
    found: Mapping[int, bootstrap.Hits],
    examples: Shown | None,
    *,
    different: str,
    split_name: str,
    data_root: str | None,
) -> str:
    """Returns the page.

    Args:
      settings: runs that have been validated.
      found: the hits of the settings with saved similarities, by index; empty if they cannot be compared.
      examples: see `read_examples`.
      different: which similarities are of different data; '' if they can be compared.
      split_name: the split of the similarities.
      data_root: the data folder, if it has moved since training.

    Returns:
      HTML; equal arguments give equal pages.

    Raises:
      UserError: if a run has no validation or no line of training.
    """
    runs = [run for setting in settings for run in setting.runs]
    title = f'{_number(len(settings), "setting")}, {_number(len(runs), "run")}'
    roots = {str(run.config['data'].get('root', run.config['data']['source'])): None for run in runs}
    command = shlex.join(['jitm', 'report', *(str(run.workdir) for run in runs)])
    body = [
        f'<p class="soft">Data: {escape(", ".join(roots))}. Runs that differ only in the seed are one setting; numbers '
        'are means ± sample standard deviations over its seeds.</p>',
        _settings(settings),
        _recalls(settings),
        _curves(settings),
        _significance(settings, found, different, split_name, data_root),
        examples_section(examples, len(found)),
        f'<footer class="soft">Written by <code>{escape(command)}</code></footer>',
    ]
    return document(f'Comparison of {title}', '\n'.join(body))


def _number(count: int, noun: str) -> str:
    return f'{count:,} {noun}{"" if count == 1 else "s"}'


def _settings(settings: Sequence[Setting]) -> str:
    """Returns the tables of seeds, epochs, steps and times, and of the keys in which the settings differ."""
    columns = [
        Column('setting'),
        Column('runs', text=True),
        *map(Column, ('seeds', 'epochs', 'steps', 'hours of training')),
    ]
    rows = []
    for setting in settings:
        numbers = [row_of(run) for run in setting.runs]
        epochs = [_progress(row['rsum_by_epoch'][-1][0], row['epochs']) for row in numbers]
        seconds = [row['train_seconds'] for row in numbers]
        hours = [] if None in seconds else [second / 3600 for second in seconds]
        cells = (
            setting.run_names,
            ', '.join(str(row['seed']) for row in numbers),
            ', '.join(dict.fromkeys(epochs)),
            ', '.join(dict.fromkeys(f'{row["steps"]:,}' for row in numbers)),
            mean_and_deviation(hours, '.2f'),
        )
        rows.append([breakable(cell) for cell in (setting.name, *cells)])
    parts = [table('Runs; hours without validation, as far as they were logged', columns, rows)]
    if len(settings) > 1:
        columns = [Column('key'), *(Column(setting.name, text=True) for setting in settings)]
        rows = [
            [
                f'<code>{breakable(key)}</code>',
                *('absent' if value is ABSENT else breakable(str(value)) for value in values),
            ]
            for key, values in differing_keys(settings).items()
        ]
        parts.append(table('All config keys in which the settings differ', columns, rows))
    return section('Settings', *parts)


def _progress(last: float, epochs: int) -> str:
    """Returns the number of epochs, with the last one so far if the run is not finished."""
    return f'{epochs}' if last >= epochs else f'{last:g} of {epochs}'


def _recalls(settings: Sequence[Setting]) -> str:
    """Returns the table of the best validations."""
    values = best_values(settings)
    groups = {'i2t': 'image to text', 't2i': 'text to image'}
    columns = [Column('setting')]
    for metric in values:
        direction, _, name = metric.rpartition('/')
        label = name.replace('recall@', 'R@') if direction else RECALLS.get(metric, 'MD')
        columns.append(Column(label, groups.get(direction, '')))
    columns.append(Column('best epoch'))
    best = {
        metric: round(max(map(statistics.mean, of_settings)), 1)  # as shown
        for metric, of_settings in values.items()
        if metric != DISTANCE and len(settings) > 1  # distances depend on the scale of the scores
    }
    rows = []
    for n, setting in enumerate(settings):
        cells = [breakable(setting.name)]
        for metric, of_settings in values.items():
            text = show(metric, of_settings[n])
            is_best = metric in best and round(statistics.mean(of_settings[n]), 1) == best[metric]
            cells.append(f'<span class="best">{text}</span>' if is_best else text)
        rows.append([*cells, best_epochs(setting)])
    splits = {run.config['evaluation']['split']: None for setting in settings for run in setting.runs}
    caption = f'Best validation of each run on {", ".join(splits)}, in percent'
    return section('Recalls', table(f'{caption}; bold: the best of a column' if best else caption, columns, rows))


def _curves(settings: Sequence[Setting]) -> str:
    """Returns the curves that `jitm report training` draws."""
    source = uri(to_svg(training.figure_of(settings)), 'svg+xml')
    alt = 'Loss, gap between scores, share of queries with the hardest negative, and validation rsum, by epoch'
    image = f'<img alt="{alt}" src="{source}">'
    return section('Curves', f'<div class="wide curves" role="region" tabindex="0" aria-label="Curves">{image}</div>')


def _significance(
    settings: Sequence[Setting],
    found: Mapping[int, bootstrap.Hits],
    different: str,
    split_name: str,
    data_root: str | None,
) -> str:
    """Returns the table of the paired bootstrap, and the commands that save the similarities that it lacks."""
    parts = []
    if different:
        parts.append(f'<p>The settings cannot be compared: {breakable(different)}.</p>')
    elif len(found) > 1:
        parts = [*_differences(settings, found, split_name)]
    elif len(settings) > 1:
        parts.append('<p>Two settings need saved similarities to be compared.</p>')
    else:
        parts.append('<p>There is one setting, and so nothing to compare.</p>')
    flag = '' if split_name == 'dev' else f' --split {shlex.quote(split_name)}'
    flag += f' --data_root {shlex.quote(data_root)}' if data_root else ''
    lacking = [
        f'jitm eval --workdir {shlex.quote(str(run.workdir))} --save_sims{flag}'
        for setting in settings
        for run in setting.runs
        if not saved_sims(run, split_name, data_root).exists()
    ]
    if lacking and len(settings) > 1:
        items = '\n'.join(f'<li><code>{escape(command)}</code></li>' for command in lacking)
        parts.append(f'<p>Commands that save the similarities of the other runs:</p>\n<ul>\n{items}\n</ul>')
    return section('Significance', *parts)


def _differences(settings: Sequence[Setting], found: Mapping[int, bootstrap.Hits], split_name: str) -> Sequence[str]:
    """Returns what the paired bootstrap is, and its table."""
    images = len(next(iter(found.values())).texts)
    counts = bootstrap.resample(images)
    rows = []
    for a, b in itertools.combinations(found, 2):
        result = bootstrap.difference(found[a], found[b], counts)
        names = (f'{breakable(settings[n].name)} <small>{found[n].rsum():.1f}</small>' for n in (a, b))
        text = f'{result.rsum:+.1f}'
        if result.low > 0 or result.high < 0:
            text = f'<span class="best">{text}</span>'
        cells = (text, f'{result.low:+.1f} to {result.high:+.1f}', f'{result.ahead:.1%}')
        rows.append([*names, *(cell.replace('-', MINUS) for cell in cells)])
    columns = [Column('first (rsum)'), Column('second (rsum)', text=True)]
    columns += map(Column, ('difference', f'{bootstrap.LEVEL:.0%} interval', 'first is ahead in'))
    explanation = (
        f'Paired bootstrap of rsum on {split_name}: the {images:,} images, each with its captions, are sampled with '
        f'replacement {bootstrap.RESAMPLES:,} times, the same for all settings. Each query searches the whole split, '
        'and rsum is averaged over the seeds of a setting. The intervals show how much depends on the choice of the '
        'queries; how much depends on the seed is the standard deviation in the table of recalls. The '
        'intervals are not corrected for the number of comparisons.'
    )
    caption = 'Differences of rsum; bold: the interval excludes 0'
    return f'<p>{escape(explanation)}</p>', table(caption, columns, rows)
