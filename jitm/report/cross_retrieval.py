"""Histogram of the cross-retrieval ranks of positive pairs (AOQ: Chen et al., 2020, section 4.3 and figure 5)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jitm.errors import UserError
from jitm.evaluation.saved import names_of
from jitm.evaluation.tables import table
from jitm.metrics import cross_retrieval_ranks
from jitm.report.figures import new_figure
from jitm.report.matrices import Matrix

LAST_RANKS = (1, 5, 10, 50, 200)  # upper ends of all intervals but the last; the paper names only two intervals
INTERVALS = ('1', '2-5', '6-10', '11-50', '51-200', '>200')


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


def draw(matrices: Sequence[Matrix]) -> Any:
    """Returns a matplotlib figure of the numbers of positive pairs per interval as grouped bars."""
    import matplotlib as mpl

    figure = new_figure(max(6.5, 2 + 2.4 * len(matrices)), 3.6)
    panel = figure.subplots()
    width = 0.8 / len(matrices)
    panel.set_prop_cycle(color=mpl.color_sequences['petroff10'])
    for n, (name, matrix) in enumerate(zip(names_of(matrices), matrices, strict=True)):
        positions = np.arange(len(INTERVALS)) + (n - (len(matrices) - 1) / 2) * width
        bars = panel.bar(positions, frequencies(matrix), width, label=name)
        panel.bar_label(bars, fontsize='x-small')
    panel.set_xticks(range(len(INTERVALS)), INTERVALS)
    panel.set_xlabel('cross-retrieval rank')
    panel.set_ylabel('positive pairs')
    panel.grid(axis='y', alpha=0.3)
    panel.set_axisbelow(True)
    figure.legend(loc='outside upper center', ncols=2, frameon=False)
    return figure
