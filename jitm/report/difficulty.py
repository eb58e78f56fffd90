"""Difficulty of synthetic negative captions during training (TAGS: Fan et al., 2022, figure 2)."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jitm.config.build import trained_member
from jitm.errors import UserError
from jitm.pages.figures import new_figure
from jitm.pages.tables import mean_and_deviation, table
from jitm.report.groups import Group, RunLog

THIRDS = 3
MAX_COLUMNS = 60  # per panel
PANELS_PER_ROW = 3
NOTE = 'line: mean; above 0 a synthetic caption scores higher than the true caption'


class Difficulty(NamedTuple):
    """Statistics of synthetic captions over training, for each line of the log or for parts of the run.

    Attributes:
      epochs: The end of each line, or part of the run, float [N].
      gaps: The mean score of the synthetic captions minus the true caption's, float [N].
      counts: The mean number of synthetic captions per image, float [N]. If 0, other values are 0 for a line and NaN
        for a part.
      shares: The fractions of the synthetic captions by this gap, in S equal bins of [-1, 1], float [N, S].
    """

    epochs: np.ndarray
    gaps: np.ndarray
    counts: np.ndarray
    shares: np.ndarray


def read_difficulty(run: RunLog) -> Difficulty:
    """Reads the diagnostics of synthetic captions from each line of the training log.

    Raises:
      UserError: If the run has no line of training, or was trained without synthetic captions.
    """
    log = run.require_training()
    member = trained_member(run.config)
    prefix = f'{member}/generated/'
    shares = sorted(key for key in log[0] if key.startswith(f'{prefix}share_'))
    if not shares:
        raise UserError(
            f'{run.workdir} logs no synthetic captions of {member}; leave it out, or train with synthesis.generator'
        )
    lines = np.array([[line[key] for key in ('epoch', f'{prefix}gap', f'{prefix}count', *shares)] for line in log])
    return Difficulty(lines[:, 0], lines[:, 1], lines[:, 2], lines[:, 3:])


def pool(logs: Sequence[Difficulty], parts: int) -> Difficulty:
    """Averages over equal parts of training, every synthetic caption having the same weight.

    Args:
      logs: One per seed, by line; they are cut at the end of the shortest.
      parts: N, number of parts.

    Returns:
      Statistics of each part.
    """
    end = min(log.epochs[-1] for log in logs)
    epochs, gaps, counts, shares = map(np.concatenate, zip(*logs, strict=True))
    ends = end * np.arange(1, parts + 1) / parts
    within = np.ceil(np.round(epochs / end * parts, 6)) == np.arange(1, parts + 1)[:, None]  # [parts, lines]
    with np.errstate(invalid='ignore'):  # parts without captions or lines divide 0 by 0
        captions = within * counts / (within @ counts)[:, None]
        return Difficulty(ends, captions @ gaps, within @ counts / np.sum(within, axis=1), captions @ shares)


def difficulty(groups: Sequence[Group]) -> str:
    """Returns a Markdown table of the gap and the number of synthetic captions in each third of the run.

    Returns:
      Markdown: the mean score of the synthetic captions minus the true caption's, and the mean number of
      synthetic captions per image; mean and sample standard deviation over seeds.

    Raises:
      UserError: If a run logs no synthetic captions.
    """
    rows = []
    for group in groups:
        thirds = [pool([read_difficulty(run)], THIRDS) for run in group.runs]
        cells = [
            mean_and_deviation([value for value in values if not math.isnan(value)], precision)
            for name, precision in (('gaps', '.3f'), ('counts', '.1f'))
            for values in zip(*(getattr(seed, name).tolist() for seed in thirds), strict=True)
        ]
        rows.append([group.name, *cells, group.run_names])
    columns = [f'{name}, third {n}' for name in ('gap', 'captions') for n in range(1, THIRDS + 1)]
    return table(['group', *columns, 'runs'], rows)


def draw(groups: Sequence[Group]) -> Any:
    """Returns a matplotlib figure with a panel per group: the distribution of the gap over epochs, its mean as a line.

    Raises:
      UserError: If a run logs no synthetic captions.
    """
    from matplotlib.colors import PowerNorm

    pooled = []
    for group in groups:
        logs = [read_difficulty(run) for run in group.runs]
        pooled.append(pool(logs, min(MAX_COLUMNS, *(len(log.epochs) for log in logs))))
    columns = min(PANELS_PER_ROW, len(groups))
    rows = math.ceil(len(groups) / columns)
    figure = new_figure(max(6.5, 1 + 3 * columns), 1 + 2.6 * rows, NOTE)
    panels = [figure.add_subplot(rows, columns, n) for n in range(1, len(groups) + 1)]
    max_share = max(np.nanmax(part.shares, initial=1 / part.shares.shape[1]) for part in pooled)
    for n, (panel, group, stats) in enumerate(zip(panels, groups, pooled, strict=True)):
        edges, heights = np.concatenate([[0], stats.epochs]), np.linspace(-1, 1, stats.shares.shape[1] + 1)
        cells = panel.pcolormesh(edges, heights, stats.shares.T, cmap='Greys', norm=PowerNorm(0.5, 0, max_share))
        panel.axhline(0, color='tab:blue', linewidth=0.8, linestyle=':')
        panel.plot((edges[:-1] + edges[1:]) / 2, stats.gaps, color='tab:red', linewidth=1.5)
        panel.set_title(group.name.replace(', ', '\n'), fontsize='medium')
        panel.set_xlabel('epochs')
        panel.set_yticks((-1, -0.5, 0, 0.5, 1))
        panel.set_ylabel('' if n % columns else 'gap to the true caption')
        panel.tick_params(labelleft=not n % columns)
    figure.colorbar(cells, ax=panels, label='share of the captions')
    return figure
