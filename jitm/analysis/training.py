"""How training went: loss, gradient at the image encoder and distance of scores (SelHN, figures 3, 5 and 7)."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jitm.analysis.settings import Run, Setting
from jitm.analysis.tables import mean_and_deviation, table
from jitm.errors import UserError

PLATEAU = 0.95  # of the loss at equal scores
WINDOWS_PER_EPOCH = 10
QUANTITIES = {
    'loss': 'loss / loss at\nequal scores',
    'image_fc_gradient_norm': 'gradient norm at\nimage FC layer',
    'absolute_gap': 'absolute gap\n$|s_n - s_p|$',
    'hard_share': 'share in the\nhard branch',
    'rsum': 'validation rsum',
}
NOTE = 'lines: means over seeds; bands: minimum to maximum\ntraining quantities: means over tenths of an epoch'

Points = list[tuple[float, float]]


@dataclasses.dataclass(frozen=True)
class Curve:
    """A quantity over training: epochs [N], and at each the mean, least and greatest value [N] over seeds."""

    epochs: Sequence[float]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def read_points(run: Run) -> dict[str, Points]:
    """Reads (epoch, value) of each quantity, none where the run does not log it.

    Raises:
      UserError: if the run has no line of training.
    """
    member = run.config['evaluation']['member']
    lines = [line for line in run.lines if line['part'] == 'train']
    if not lines:
        raise UserError(f'{run.workdir} has no line of training yet; leave it out, or wait for run.log_every steps')
    logged = {
        key: [(line['epoch'], line[f'{member}/{key}']) for line in lines if f'{member}/{key}' in line]
        for key in ('image_fc_gradient_norm', 'absolute_gap', 'hard_share')
    }
    pairs = [(line['epoch'], line[f'{member}/ranking_loss'], line[f'{member}/collapsed_loss']) for line in lines]
    loss = [(epoch, value / collapsed) for epoch, value, collapsed in pairs if collapsed > 0]
    return {'loss': loss, **logged, 'rsum': [(line['epoch'], line['rsum']) for line in run.validations]}


def by_window(points: Points, windows_per_epoch: int) -> dict[int, list[float]]:
    """Puts values together by the window they fall into; a step that ends a window belongs to it."""
    windows: dict[int, list[float]] = {}
    for epoch, value in points:
        windows.setdefault(math.ceil(round(epoch * windows_per_epoch, 6)) - 1, []).append(value)
    return windows


def window_means(points: Points) -> dict[float, float]:
    """The mean over each tenth of an epoch that has values, by the epoch in its middle."""
    windows = by_window(points, WINDOWS_PER_EPOCH)
    return {(window + 0.5) / WINDOWS_PER_EPOCH: statistics.mean(values) for window, values in windows.items()}


def plateau_end(loss: Points) -> str:
    """The end of the first tenth of an epoch with a mean loss below 0.95 of the loss at equal scores, '-' if none."""
    windows = by_window(loss, WINDOWS_PER_EPOCH)
    below = (window for window, values in windows.items() if statistics.mean(values) < PLATEAU)
    return next((f'{(window + 1) / WINDOWS_PER_EPOCH:.1f}' for window in below), '-')


def curve(seeds: Sequence[Mapping[float, float]]) -> Curve:
    """Joins the {epoch: value} of several seeds, at the epochs that all of them have: no jump where one seed ends."""
    epochs = sorted(set.intersection(*map(set, seeds)))
    values = [[seed[epoch] for seed in seeds] for epoch in epochs]
    return Curve(epochs, list(map(statistics.mean, values)), list(map(min, values)), list(map(max, values)))


def curves(runs: Iterable[Run]) -> dict[str, Curve]:
    """The curve of each quantity that any of a setting's runs has; of training the means over windows."""
    points = [read_points(run) for run in runs]
    joined = {}
    for quantity in QUANTITIES:
        smooth = dict if quantity == 'rsum' else window_means
        seeds = [smooth(one[quantity]) for one in points if one[quantity]]
        if seeds:
            joined[quantity] = curve(seeds)
    return joined


def training(settings: Sequence[Setting]) -> str:
    """A Markdown table of when each setting leaves the plateau of equal scores, and of what its gradients do.

    Returns:
      Markdown: `plateau_end` of each seed, the least and the last of the medians by epoch of the gradient norm at the
      image FC layer, the mean share of queries in the hard branch in the last epoch and the best rsum in percent;
      mean and sample standard deviation over seeds.

    Raises:
      UserError: if a run has no line of training.
    """
    rows = []
    for setting in settings:
        points = [read_points(run) for run in setting.runs]
        gradients = [by_window(one['image_fc_gradient_norm'], 1) for one in points if one['image_fc_gradient_norm']]
        medians = [[statistics.median(gradient[epoch]) for epoch in sorted(gradient)] for gradient in gradients]
        shares = [by_window(one['hard_share'], 1) for one in points if one['hard_share']]
        cells = [
            ', '.join(plateau_end(one['loss']) for one in points),
            mean_and_deviation([min(run) for run in medians], '.2g'),
            mean_and_deviation([run[-1] for run in medians], '.2g'),
            mean_and_deviation([statistics.mean(share[max(share)]) for share in shares], '.2f'),
            mean_and_deviation([max(rsum for _, rsum in one['rsum']) for one in points if one['rsum']]),
        ]
        rows.append([setting.name, *cells, setting.run_names])
    gradient = 'image FC gradient'
    columns = ('plateau until epoch', f'least {gradient}', f'last {gradient}', 'last hard share', 'best rsum', 'runs')
    return table(['setting', *columns], rows)


def arrange(settings: Sequence[Setting]) -> list[tuple[str, str]]:
    """Gives each setting a column of panels and a label in it.

    Where models and something else tell the settings apart, each model has a column; otherwise there is one column.
    """
    parted = [
        (
            ', '.join(word for key, word in setting.words.items() if key.startswith('model.')),
            ', '.join(word for key, word in setting.words.items() if not key.startswith('model.')),
        )
        for setting in settings
    ]
    return parted if all(map(all, parted)) else [('', setting.name) for setting in settings]


def draw(settings: Sequence[Setting], output: Path) -> None:
    """Draws a row of panels for each quantity that is logged, and a column for each model, see `arrange`.

    Raises:
      UserError: if a run has no line of training or the figure cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    drawn = [curves(setting.runs) for setting in settings]
    places = arrange(settings)
    quantities = [quantity for quantity in QUANTITIES if any(quantity in one for one in drawn)]
    columns, labels = (list(dict.fromkeys(names)) for names in zip(*places, strict=True))
    styles = itertools.product(('-', '--', ':', '-.'), mpl.color_sequences['petroff10'])
    styles = dict(zip(labels, itertools.cycle(styles), strict=False))

    width = max(6.5, 1 + 3 * len(columns))
    figure = Figure(figsize=(width, 1 + 1.8 * len(quantities)), dpi=150, layout='constrained')
    panels = figure.subplots(len(quantities), len(columns), sharex=True, sharey='row', squeeze=False)
    handles = {}
    for one, (column, label) in zip(drawn, places, strict=True):
        dashes, color = styles[label]
        for quantity, panel in zip(quantities, panels[:, columns.index(column)], strict=True):
            if joined := one.get(quantity):
                (handles[label],) = panel.plot(joined.epochs, joined.mean, dashes, color=color)
                panel.fill_between(joined.epochs, joined.low, joined.high, color=color, alpha=0.2, linewidth=0)
    for quantity, row in zip(quantities, panels, strict=True):
        _dress(row, quantity)
    for column, top, bottom in zip(columns, panels[0], panels[-1], strict=True):
        top.set_title(column)
        bottom.set_xlabel('epochs')
    figure.align_ylabels()
    figure.supxlabel(NOTE, fontsize='small', color='gray')
    fitting = int(width / (0.8 + 0.09 * max(map(len, labels))))
    figure.legend(handles.values(), handles, loc='outside upper center', ncols=max(1, fitting), frameon=False)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output, format=output.suffix[1:] or 'png')
    except (OSError, ValueError) as error:
        raise UserError(f'the figure cannot be written to {output} ({error}); choose another --output') from None


def _dress(row: Sequence[Any], quantity: str) -> None:
    """Names and scales the axes of a row of panels, which share them."""
    row[0].set_ylabel(QUANTITIES[quantity])
    if quantity == 'image_fc_gradient_norm':
        positive = any(panel.dataLim.minposy < math.inf for panel in row)
        row[0].set_yscale('log' if positive else 'linear')
    elif quantity != 'loss':
        row[0].set_ylim(bottom=0)
    for panel in row:
        panel.set_xlim(left=0)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.grid(alpha=0.3)
        if quantity == 'loss':
            panel.axhline(1, color='gray', linewidth=1, zorder=0)
