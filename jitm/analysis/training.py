"""How training went: loss, gradient at the image encoder and distance of scores (SelHN, figures 3, 5 and 7)."""

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from jitm.analysis.figures import Curve, curve, draw_curves, save
from jitm.analysis.settings import Run, Setting
from jitm.analysis.tables import mean_and_deviation, table

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


def read_points(run: Run) -> dict[str, Points]:
    """Reads (epoch, value) of each quantity, none where the run does not log it.

    Raises:
      UserError: if the run has no line of training.
    """
    member = run.config['evaluation']['member']
    lines = run.require_training()
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


def draw(settings: Sequence[Setting], output: Path) -> None:
    """Draws the curves of each quantity that is logged.

    Raises:
      UserError: if a run has no line of training or the figure cannot be written.
    """
    figure, panels = draw_curves(settings, [curves(setting.runs) for setting in settings], QUANTITIES, NOTE)
    for quantity, row in panels.items():
        if quantity == 'loss':
            for panel in row:
                panel.axhline(1, color='gray', linewidth=1, zorder=0)
        elif quantity == 'image_fc_gradient_norm':
            positive = any(panel.dataLim.minposy < math.inf for panel in row)
            row[0].set_yscale('log' if positive else 'linear')
        else:
            row[0].set_ylim(bottom=0)
    save(figure, output)
