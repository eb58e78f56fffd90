"""Distributions of pairs: similarities of positives and negatives (DBL: Diao et al., 2024, figures 6 and 7).

Also the cross-retrieval ranks of positives (AOQ: Chen et al., 2020, section 4.3 and figure 5).
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jitm.errors import UserError
from jitm.evaluation.saved import names_of
from jitm.metrics import cross_retrieval_ranks
from jitm.pages.figures import new_figure
from jitm.pages.tables import table
from jitm.report.matrices import Matrix

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BINS = 2**16  # over the range of all matrices; quantiles are exact to half a bin
CURVE_BINS = 2**7  # resolution of the drawn densities
PAIRS_PER_CHUNK = 2**20
LAST_RANKS = (1, 5, 10, 50, 200)  # upper ends of all intervals but the last; the paper names only two intervals
INTERVALS = ('1', '2-5', '6-10', '11-50', '51-200', '>200')


class Distribution(NamedTuple):
    """A histogram of similarities.

    Attributes:
      counts: The number of pairs in each bin, int [BINS].
      edges: The edges of the bins, float [BINS + 1], the same for all matrices.
      mean: The mean similarity.
      deviation: The standard deviation of the similarities.
    """

    counts: np.ndarray
    edges: np.ndarray
    mean: float
    deviation: float

    def quantiles(self) -> np.ndarray:
        """Returns the `QUANTILES`, exact to half a bin."""
        bins = np.searchsorted(np.cumsum(self.counts) / np.sum(self.counts), QUANTILES)
        return (self.edges[bins] + self.edges[bins + 1]) / 2


def distributions(matrices: Sequence[Matrix]) -> list[list[Distribution]]:
    """Returns the distributions of the positive and the negative pairs of each matrix, without a copy of it.

    Args:
      matrices: Saved similarities, whose minimum and maximum are the bounds of the histograms.

    Raises:
      UserError: If there is only one image, and so no negative pair.
    """
    if alone := [matrix for matrix in matrices if len(matrix.sims) == 1]:
        raise UserError(f'{alone[0].path} has one image and so no negative pairs; give a matrix of more')
    low = min(float(np.min(matrix.sims)) for matrix in matrices)
    high = max(float(np.max(matrix.sims)) for matrix in matrices)
    bounds = (low, high) if low < high else (low - 0.5, high + 0.5)
    edges = np.linspace(*bounds, BINS + 1)
    found = []
    for matrix in matrices:
        counts, sums = np.zeros((2, BINS), np.int64), np.zeros((2, 3))
        rows = max(1, PAIRS_PER_CHUNK // matrix.sims.shape[1])
        for start in range(0, len(matrix.sims), rows):
            part = np.asarray(matrix.sims[start : start + rows], np.float64)
            own = matrix.image_of_text == np.arange(start, start + len(part))[:, None]
            for kind, sims in enumerate((part[own], part[~own])):
                counts[kind] += np.histogram(sims, BINS, bounds)[0]
                sums[kind] += len(sims), sims.sum(), np.square(sims).sum()
        number, total, squares = sums.T
        mean = total / number
        deviation = np.sqrt(np.maximum(squares / number - mean**2, 0))
        found.append([Distribution(counts[n], edges, mean[n], deviation[n]) for n in range(2)])
    return found


def summarize(matrices: Sequence[Matrix]) -> str:
    """Returns a Markdown table of mean, deviation and quantiles per matrix and kind, and the distance of the means."""
    rows = []
    for name, (positives, negatives) in zip(names_of(matrices), distributions(matrices), strict=True):
        distance = f'{positives.mean - negatives.mean:.3g}'
        for kind, one, last in (('positives', positives, distance), ('negatives', negatives, '')):
            rows.append([name, kind, *(f'{x:.4f}' for x in (one.mean, one.deviation, *one.quantiles())), last])
    return table(['', 'pairs', 'mean', 'deviation', *(f'{quantile:.0%}' for quantile in QUANTILES), 'MD'], rows)


def draw(matrices: Sequence[Matrix]) -> Any:
    """Returns a matplotlib figure of the densities of positives and negatives, and their means."""
    import matplotlib as mpl

    figure = new_figure(6.5, 5, 'vertical lines: means')
    panels = figure.subplots(2, 1, sharex=True)
    styles = itertools.cycle(itertools.product(('-', '--', ':', '-.'), mpl.color_sequences['petroff10']))
    for name, kinds, (dashes, color) in zip(names_of(matrices), distributions(matrices), styles, strict=False):
        for panel, one in zip(panels, kinds, strict=True):
            wide = one.edges[:: BINS // CURVE_BINS]
            heights, _ = np.histogram(one.edges[:-1], wide, weights=one.counts, density=True)
            panel.stairs(heights, wide, label=name, linewidth=1.5, color=color, linestyle=dashes)
            panel.axvline(one.mean, color=color, linewidth=0.8, alpha=0.6)
    for panel, kind in zip(panels, ('positives', 'negatives'), strict=True):
        panel.set_ylabel(f'density of\n{kind}')
        panel.grid(alpha=0.3)
    panels[0].margins(x=0)
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
