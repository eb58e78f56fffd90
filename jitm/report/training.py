"""Curves of training: loss, gradient and score gap (SelHN: Li et al., 2023, figures 3, 5, 7), and recalls."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from jitm.config.build import trained_member
from jitm.pages.tables import mean_and_deviation, table
from jitm.report.curves import QUANTITIES, VALIDATED, Curve, by_epoch
from jitm.report.groups import Group, RunLog

PLATEAU = 0.95  # relative to the loss of a collapsed model, i.e. for constant scores
WINDOWS_PER_EPOCH = 10
NOISE = ('noise/i2t/gradient', 'noise/i2t/separation')

Points = list[tuple[float, float]]


def read_points(run: RunLog) -> dict[str, Points]:
    """Reads (epoch, value) of each quantity; empty for quantities that the run does not log.

    Raises:
      UserError: If the run has no line of training.
    """
    member = trained_member(run.config)
    lines = run.require_training()
    logged = {
        key: points_of(lines, f'{member}/{key}')
        for key in ('image_fc_gradient_norm', 'absolute_gap', 'hard_share', *NOISE)
    }
    pairs = [(line['epoch'], line[f'{member}/ranking_loss'], line[f'{member}/collapsed_loss']) for line in lines]
    loss = [(epoch, value / collapsed) for epoch, value, collapsed in pairs if collapsed > 0]
    validated = {key: points_of(run.validations, key) for key in VALIDATED}
    return {'loss': loss, **logged, **validated}


def points_of(lines: Iterable[Mapping[str, float]], key: str) -> Points:
    """Returns (epoch, value) of each line that has a key."""
    return [(line['epoch'], line[key]) for line in lines if key in line]


def by_window(points: Points, windows_per_epoch: int) -> dict[int, list[float]]:
    """Groups values by window; a step at the end of a window belongs to it."""
    windows: dict[int, list[float]] = {}
    for epoch, value in points:
        windows.setdefault(math.ceil(round(epoch * windows_per_epoch, 6)) - 1, []).append(value)
    return windows


def smooth(points: Points) -> dict[float, float]:
    """Returns {epoch at the middle of a window: mean over the window}, for tenths of an epoch."""
    windows = by_window(points, WINDOWS_PER_EPOCH)
    return {(window + 0.5) / WINDOWS_PER_EPOCH: statistics.mean(values) for window, values in windows.items()}


def plateau_end(loss: Points) -> str:
    """Returns the end of the first tenth of an epoch with a mean loss below `PLATEAU`, '-' if there is none."""
    below = (epoch + 0.5 / WINDOWS_PER_EPOCH for epoch, mean in smooth(loss).items() if mean < PLATEAU)
    return next((f'{end:.1f}' for end in below), '-')


def curves(runs: Iterable[RunLog]) -> dict[str, Curve]:
    """Returns the curve of each quantity that any of the runs logs; training quantities are means over windows."""
    points = [read_points(run) for run in runs]
    curve_of = {}
    for quantity in QUANTITIES:
        reduce = dict if quantity in VALIDATED else smooth
        seeds = [reduce(log[quantity]) for log in points if log[quantity]]
        if seeds:
            curve_of[quantity] = by_epoch(seeds)
    return curve_of


def training(groups: Sequence[Group]) -> str:
    """Returns a Markdown table of the end of the collapsed phase and of the gradients of each group.

    Returns:
      Markdown: `plateau_end` of each seed; the minimum and the last of the medians by epoch of the gradient norm at the
      image FC layer; the mean share of queries that use the hardest negative in the last epoch; and the best rsum in
      percent. Mean and sample standard deviation over seeds.

    Raises:
      UserError: If a run has no line of training.
    """
    rows = []
    for group in groups:
        points = [read_points(run) for run in group.runs]
        gradients = [by_window(log['image_fc_gradient_norm'], 1) for log in points if log['image_fc_gradient_norm']]
        medians = []
        for gradient in gradients:
            medians.append([statistics.median(gradient[epoch]) for epoch in sorted(gradient)])
        shares = [by_window(log['hard_share'], 1) for log in points if log['hard_share']]
        cells = [
            ', '.join(plateau_end(log['loss']) for log in points),
            mean_and_deviation([min(run) for run in medians], '.2g'),
            mean_and_deviation([run[-1] for run in medians], '.2g'),
            mean_and_deviation([statistics.mean(share[max(share)]) for share in shares], '.2f'),
            mean_and_deviation([max(dict(log['rsum']).values()) for log in points if log['rsum']]),
        ]
        rows.append([group.name, *cells, group.run_names])
    gradient = 'image FC gradient'
    columns = ('plateau until epoch', f'min {gradient}', f'last {gradient}', 'last hard share', 'best rsum', 'runs')
    return table(['group', *columns], rows)
