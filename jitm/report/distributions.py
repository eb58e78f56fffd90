"""Distributions of pairs: similarities of positives and negatives (DBL: Diao et al., 2024, figures 6 and 7).

And of the cross-retrieval ranks of positives (AOQ: Chen et al., 2020, section 4.3 and figure 5).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitm.errors import UserError
from jitm.evaluation.saved import names_of
from jitm.evaluation.tables import table
from jitm.metrics import cross_retrieval_ranks
from jitm.report.matrices import Matrix
from jitm.report.saving import new_figure

KINDS = ('positives', 'negatives')
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BINS = 2**16  # over the range of all matrices; quantiles are exact to half a bin
CURVE_BINS = 2**7  # of the drawn densities
PAIRS_PER_CHUNK = 2**20
LAST_RANKS = (1, 5, 10, 50, 200)  # upper ends of all intervals but the last; the paper names only two intervals
INTERVALS = ('1', '2-5', '6-10', '11-50', '51-200', '>200')


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
    figure = new_figure(6.5, 5, 'vertical lines: means')
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
    figure.legend(*panels[0].get_legend_handles_labels(), loc='outside upper center', ncols=2, frameon=False)
    return figure


def frequencies(matrix: Matrix) -> np.ndarray:
    """Counts the positive pairs by the interval of their cross-retrieval rank: int [6].

    Raises:
      UserError: If some images have more texts than others.
    """
    texts = np.bincount(matrix.image_of_text)
    if texts.min() < texts.max():
        raise UserError(
            f'{matrix.path} has images with {texts.min()} and with {texts.max()} texts, but cross-retrieval ranks need '
            'the same number; leave the file out'
        )
    ranks = cross_retrieval_ranks(matrix.sims, matrix.image_of_text)
    return np.bincount(np.searchsorted(LAST_RANKS, ranks), minlength=len(INTERVALS))


def cross_retrieval(matrices: Sequence[Matrix]) -> str:
    """Returns a Markdown table of the number of positive pairs per interval and matrix."""
    columns = [[f'{count} ({count / sum(counts):.1%})' for count in counts] for counts in map(frequencies, matrices)]
    return table(['cross-retrieval rank', *names_of(matrices)], list(zip(INTERVALS, *columns, strict=True)))


def draw_cross_retrieval(matrices: Sequence[Matrix]) -> Any:
    """Returns a matplotlib figure of the numbers of positive pairs per interval as grouped bars."""
    import matplotlib as mpl

    figure = new_figure(max(6.5, 2 + 2.4 * len(matrices)), 3.6)
    panel = figure.subplots()
    width = 0.8 / len(matrices)
    panel.set_prop_cycle(color=mpl.color_sequences['petroff10'])
    for n, (name, matrix) in enumerate(zip(names_of(matrices), matrices, strict=True)):
        positions = np.arange(len(INTERVALS)) + (n - (len(matrices) - 1) / 2) * width
        panel.bar_label(panel.bar(positions, frequencies(matrix), width, label=name), fontsize='x-small')
    panel.set_xticks(range(len(INTERVALS)), INTERVALS)
    panel.set_xlabel('cross-retrieval rank')
    panel.set_ylabel('positive pairs')
    panel.grid(axis='y', alpha=0.3)
    panel.set_axisbelow(True)
    figure.legend(loc='outside upper center', ncols=2, frameon=False)
    return figure
