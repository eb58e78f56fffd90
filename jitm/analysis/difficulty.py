"""How hard the sentences are that a model learns from and writes itself, during training (TAGS, figure 2)."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jitm.analysis.figures import save
from jitm.analysis.settings import Run, Setting
from jitm.analysis.tables import mean_and_deviation, table
from jitm.errors import UserError

THIRDS = 3
COLUMNS = 60  # of a panel, at most
PANELS_PER_ROW = 3
NOTE = 'line: mean; above 0 a wrong sentence is ahead of the true one'


class Difficulty(NamedTuple):
    """Wrong sentences over training, of a line of the log or of several together.

    Attributes:
      epochs: float [N], where each line, or part of the run, ends.
      gaps: float [N], mean of a wrong sentence's score less the true one's.
      counts: float [N], how many wrong sentences an image has, on average; where it is 0, the others are 0 for a line,
        NaN for a part.
      shares: float [N, S], of the wrong sentences by that difference, in S equal parts of [-1, 1].
    """

    epochs: np.ndarray
    gaps: np.ndarray
    counts: np.ndarray
    shares: np.ndarray


def read_difficulty(run: Run) -> Difficulty:
    """Reads what each line of training says of generated sentences.

    Raises:
      UserError: if the run has no line of training, or none of them does.
    """
    told = run.require_training()
    member = run.config['evaluation']['member']
    prefix = f'{member}/generated/'
    shares = sorted(key for key in told[0] if key.startswith(f'{prefix}share_'))
    if not shares:
        raise UserError(
            f'{run.workdir} logs no generated sentences of {member}; leave it out, or train with synthesis.generator'
        )
    lines = np.array([[line[key] for key in ('epoch', f'{prefix}gap', f'{prefix}count', *shares)] for line in told])
    return Difficulty(lines[:, 0], lines[:, 1], lines[:, 2], lines[:, 3:])


def pool(logs: Sequence[Difficulty], parts: int) -> Difficulty:
    """Puts the sentences of equal parts of training together, each sentence counting alike.

    Args:
      logs: of several seeds, by line; only what all of them have reached counts.
      parts: in how many to cut it.
    """
    end = min(log.epochs[-1] for log in logs)
    every = Difficulty(*map(np.concatenate, zip(*logs, strict=True)))
    part = np.ceil(np.round(every.epochs / end * parts, 6)).astype(int) - 1
    pooled = []
    for n in range(parts):
        gaps, counts, shares = (values[part == n] for values in every[1:])
        lines = np.ones_like(counts)
        pooled.append((end * (n + 1) / parts, _mean(gaps, counts), _mean(counts, lines), _mean(shares, counts)))
    return Difficulty(*map(np.array, zip(*pooled, strict=True)))


def _mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The mean along axis 0; NaN if nothing has a weight."""
    return np.average(values, axis=0, weights=weights) if weights.any() else np.full(values.shape[1:], np.nan)


def difficulty(settings: Sequence[Setting]) -> str:
    """A Markdown table of how hard generated sentences are, and how many there are, in each third of the run.

    Returns:
      Markdown: the mean of a wrong sentence's score less the true one's, and the mean number of an image's wrong
      sentences; mean and sample standard deviation over seeds.

    Raises:
      UserError: if a run logs no generated sentences.
    """
    rows = []
    for setting in settings:
        thirds = [pool([read_difficulty(run)], THIRDS) for run in setting.runs]
        cells = [
            mean_and_deviation([value for value in values if not math.isnan(value)], precision)
            for name, precision in (('gaps', '.3f'), ('counts', '.1f'))
            for values in zip(*(getattr(seed, name).tolist() for seed in thirds), strict=True)
        ]
        rows.append([setting.name, *cells, setting.run_names])
    columns = [f'{what}, third {n}' for what in ('gap', 'sentences') for n in range(1, THIRDS + 1)]
    return table(['setting', *columns, 'runs'], rows)


def draw(settings: Sequence[Setting], output: Path) -> None:
    """Draws a panel for each setting: difference of scores over epochs, the darker the more sentences.

    Raises:
      UserError: if a run logs no generated sentences or the figure cannot be written.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    pooled = []
    for setting in settings:
        logs = [read_difficulty(run) for run in setting.runs]
        pooled.append(pool(logs, min(COLUMNS, *(len(log.epochs) for log in logs))))
    columns = min(PANELS_PER_ROW, len(settings))
    rows = -(-len(settings) // columns)
    figure = Figure(figsize=(max(6.5, 1 + 3 * columns), 1 + 2.6 * rows), dpi=150, layout='constrained')
    every_panel = figure.subplots(rows, columns, sharey=True, squeeze=False)
    panels = [*every_panel.flat][: len(settings)]
    for panel in [*every_panel.flat][len(settings) :]:
        panel.remove()
    darkest = max(np.nanmax(one.shares, initial=1 / one.shares.shape[1]) for one in pooled)
    for panel, setting, one in zip(panels, settings, pooled, strict=True):
        edges, heights = np.concatenate([[0], one.epochs]), np.linspace(-1, 1, one.shares.shape[1] + 1)
        cells = panel.pcolormesh(edges, heights, one.shares.T, cmap='Greys', norm=PowerNorm(0.5, 0, darkest))
        panel.axhline(0, color='tab:blue', linewidth=0.8, linestyle=':')
        panel.plot((edges[:-1] + edges[1:]) / 2, one.gaps, color='tab:red', linewidth=1.5)
        panel.set_title(setting.name.replace(', ', '\n'), fontsize='medium')
        panel.set_xlabel('epochs')
        panel.set_yticks((-1, -0.5, 0, 0.5, 1))
    for panel in every_panel[:, 0]:
        panel.set_ylabel('wrong less true score')
    figure.colorbar(cells, ax=panels, label='share of the sentences')
    figure.supxlabel(NOTE, fontsize='small', color='gray')
    save(figure, output)
