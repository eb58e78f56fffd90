"""How similar positive and negative pairs are (DBL, figures 6 and 7)."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from jitm.analysis.figures import save
from jitm.analysis.matrices import Matrix, names_of
from jitm.analysis.tables import table
from jitm.errors import UserError

KINDS = ('positives', 'negatives')
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BINS = 2**16  # over the range of all matrices: quantiles are exact to so small a part of it
DRAWN = 2**7  # bins of the curves
PAIRS_AT_A_TIME = 2**20


@dataclasses.dataclass(frozen=True)
class Distribution:
    """Pairs in each bin, int [BINS], and the mean and deviation of their similarities."""

    counts: np.ndarray
    mean: float
    deviation: float

    def quantiles(self, low: float, high: float) -> np.ndarray:
        """The least similarities with the shares `QUANTILES` up to them, exact to half a bin from `low` to `high`."""
        shares = np.cumsum(self.counts) / np.sum(self.counts)
        return low + (np.searchsorted(shares, QUANTILES) + 0.5) * (high - low) / BINS

    def density(self, low: float, high: float) -> np.ndarray:
        """The share of the pairs per unit of similarity, in `DRAWN` bins of equal width."""
        return np.sum(self.counts.reshape(DRAWN, -1), axis=1) / np.sum(self.counts) * DRAWN / (high - low)


def bounds(matrices: Sequence[Matrix]) -> tuple[float, float]:
    """The least and the greatest similarity of all matrices; half a unit further apart on either side if equal."""
    low = min(float(np.min(matrix.sims)) for matrix in matrices)
    high = max(float(np.max(matrix.sims)) for matrix in matrices)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _parts(matrix: Matrix) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Similarities of positive and of negative pairs, float64, those of a few images at a time."""
    images, texts = matrix.sims.shape
    rows, image_of_text = max(1, PAIRS_AT_A_TIME // texts), matrix.image_of_text
    for start in range(0, images, rows):
        sims = np.asarray(matrix.sims[start : start + rows], np.float64)
        own = image_of_text == np.arange(start, start + len(sims))[:, None]
        yield sims[own], sims[~own]


def distributions(matrix: Matrix, low: float, high: float) -> list[Distribution]:
    """Counts a matrix's positive and negative pairs in bins between two similarities, without a copy of it.

    Raises:
      UserError: if there is only one image, hence no negative pair.
    """
    if len(matrix.sims) == 1:
        raise UserError(f'{matrix.path} has one image and so no negative pairs; give a matrix of more')
    counts, sums = np.zeros((2, BINS), np.int64), np.zeros((2, 3))
    for kinds in _parts(matrix):
        for kind, sims in enumerate(kinds):
            counts[kind] += np.histogram(sims, BINS, (low, high))[0]
            sums[kind] += len(sims), sims.sum(), np.square(sims).sum()
    number, total, squares = sums.T
    mean = total / number
    deviation = np.sqrt(np.maximum(squares / number - mean**2, 0))
    return [Distribution(*kind) for kind in zip(counts, mean, deviation, strict=True)]


def summarize(matrices: Sequence[Matrix]) -> str:
    """A Markdown table: of each matrix mean, deviation and quantiles of both kinds, and the distance of the means."""
    low, high = bounds(matrices)
    rows = []
    for name, matrix in zip(names_of(matrices), matrices, strict=True):
        positives, negatives = both = distributions(matrix, low, high)
        distances = f'{positives.mean - negatives.mean:.3g}', ''
        for kind, one, distance in zip(KINDS, both, distances, strict=True):
            numbers = (one.mean, one.deviation, *one.quantiles(low, high))
            rows.append([name, kind, *(f'{number:.4f}' for number in numbers), distance])
    return table(['', 'pairs', 'mean', 'deviation', *(f'{quantile:.0%}' for quantile in QUANTILES), 'MD'], rows)


def draw(matrices: Sequence[Matrix], output: Path) -> None:
    """Draws the densities, positives above negatives, and the means.

    Raises:
      UserError: if the figure cannot be written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    low, high = bounds(matrices)
    figure = Figure(figsize=(6.5, 5), dpi=150, layout='constrained')
    panels = figure.subplots(2, 1, sharex=True)
    colors = mpl.color_sequences['petroff10']
    for n, (name, matrix) in enumerate(zip(names_of(matrices), matrices, strict=True)):
        look = {'color': colors[n % len(colors)], 'linestyle': ('-', '--', ':', '-.')[n // len(colors) % 4]}
        for panel, one in zip(panels, distributions(matrix, low, high), strict=True):
            panel.stairs(one.density(low, high), np.linspace(low, high, DRAWN + 1), label=name, linewidth=1.5, **look)
            panel.axvline(one.mean, color=look['color'], linewidth=0.8, alpha=0.6)
    for panel, kind in zip(panels, KINDS, strict=True):
        panel.set_ylabel(f'density of\n{kind}')
        panel.grid(alpha=0.3)
    panels[0].set_xlim(low, high)
    panels[1].set_xlabel('similarity')
    figure.align_ylabels()
    figure.supxlabel('vertical lines: means', fontsize='small', color='gray')
    figure.legend(*panels[0].get_legend_handles_labels(), loc='outside upper center', ncols=2, frameon=False)
    save(figure, output)
