"""Similarity distributions of positive and negative pairs (DBL: Diao et al., 2024, figures 6 and 7)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitm.errors import UserError
from jitm.evaluation.saved import names_of
from jitm.evaluation.tables import table
from jitm.report.figures import new_figure
from jitm.report.matrices import Matrix

KINDS = ('positives', 'negatives')
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BINS = 2**16  # over the range of all matrices; quantiles are exact to half a bin
CURVE_BINS = 2**7  # of the drawn densities
PAIRS_PER_CHUNK = 2**20


@dataclasses.dataclass(frozen=True)
class Distribution:
    """A histogram of similarities.

    Attributes:
      counts: The number of pairs in each bin, int [BINS].
      mean: The mean similarity.
      deviation: The standard deviation of the similarities.
    """

    counts: np.ndarray
    mean: float
    deviation: float

    def quantiles(self, low: float, high: float) -> np.ndarray:
        """Returns the `QUANTILES`, exact to half a bin; `low` and `high` are the bounds of the histogram."""
        cumulative = np.cumsum(self.counts) / np.sum(self.counts)
        return low + (np.searchsorted(cumulative, QUANTILES) + 0.5) * (high - low) / BINS

    def density(self, low: float, high: float) -> np.ndarray:
        """Returns the density of the pairs per unit of similarity, float [CURVE_BINS]."""
        return np.sum(self.counts.reshape(CURVE_BINS, -1), axis=1) / np.sum(self.counts) * CURVE_BINS / (high - low)


def bounds(matrices: Sequence[Matrix]) -> tuple[float, float]:
    """Returns the minimum and the maximum similarity over all matrices, extended by 0.5 on both sides if equal."""
    low = min(float(np.min(matrix.sims)) for matrix in matrices)
    high = max(float(np.max(matrix.sims)) for matrix in matrices)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def distributions(matrix: Matrix, low: float, high: float) -> list[Distribution]:
    """Returns the distributions of a matrix's positive and negative pairs, without a copy of the matrix.

    Args:
      matrix: Saved similarities.
      low: The lower bound of the histograms.
      high: The upper bound.

    Raises:
      UserError: If there is only one image, and so no negative pair.
    """
    if len(matrix.sims) == 1:
        raise UserError(f'{matrix.path} has one image and so no negative pairs; give a matrix of more')
    counts, sums = np.zeros((2, BINS), np.int64), np.zeros((2, 3))
    images, texts = matrix.sims.shape
    rows = max(1, PAIRS_PER_CHUNK // texts)
    for start in range(0, images, rows):
        part = np.asarray(matrix.sims[start : start + rows], np.float64)
        own = matrix.image_of_text == np.arange(start, start + len(part))[:, None]
        for kind, sims in enumerate((part[own], part[~own])):
            counts[kind] += np.histogram(sims, BINS, (low, high))[0]
            sums[kind] += len(sims), sims.sum(), np.square(sims).sum()
    number, total, squares = sums.T
    mean = total / number
    deviation = np.sqrt(np.maximum(squares / number - mean**2, 0))
    return [Distribution(*kind) for kind in zip(counts, mean, deviation, strict=True)]


def summarize(matrices: Sequence[Matrix]) -> str:
    """Returns a Markdown table of mean, deviation and quantiles per matrix and kind, and the distance of the means."""
    low, high = bounds(matrices)
    rows = []
    for name, matrix in zip(names_of(matrices), matrices, strict=True):
        positives, negatives = kinds = distributions(matrix, low, high)
        distances = f'{positives.mean - negatives.mean:.3g}', ''
        for kind, distribution, distance in zip(KINDS, kinds, distances, strict=True):
            numbers = (distribution.mean, distribution.deviation, *distribution.quantiles(low, high))
            rows.append([name, kind, *(f'{number:.4f}' for number in numbers), distance])
    return table(['', 'pairs', 'mean', 'deviation', *(f'{quantile:.0%}' for quantile in QUANTILES), 'MD'], rows)


def draw(matrices: Sequence[Matrix]) -> Any:
    """Returns a matplotlib figure of the densities of positives and negatives, and their means."""
    import matplotlib as mpl

    low, high = bounds(matrices)
    figure = new_figure(6.5, 5)
    panels = figure.subplots(2, 1, sharex=True)
    colors = mpl.color_sequences['petroff10']
    for n, (name, matrix) in enumerate(zip(names_of(matrices), matrices, strict=True)):
        style = {'color': colors[n % len(colors)], 'linestyle': ('-', '--', ':', '-.')[n // len(colors) % 4]}
        for panel, distribution in zip(panels, distributions(matrix, low, high), strict=True):
            edges = np.linspace(low, high, CURVE_BINS + 1)
            panel.stairs(distribution.density(low, high), edges, label=name, linewidth=1.5, **style)
            panel.axvline(distribution.mean, color=style['color'], linewidth=0.8, alpha=0.6)
    for panel, kind in zip(panels, KINDS, strict=True):
        panel.set_ylabel(f'density of\n{kind}')
        panel.grid(alpha=0.3)
    panels[0].set_xlim(low, high)
    panels[1].set_xlabel('similarity')
    figure.align_ylabels()
    figure.supxlabel('vertical lines: means', fontsize='small', color='gray')
    figure.legend(*panels[0].get_legend_handles_labels(), loc='outside upper center', ncols=2, frameon=False)
    return figure
