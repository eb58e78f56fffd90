"""Paired bootstrap of rsum over images (Efron and Tibshirani, 1993, chapter 16; Berg-Kirkpatrick et al., 2012)."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from jitm.metrics import RECALLS_AT, ranks
from jitm.report.matrices import Matrix

RESAMPLES = 1000
LEVEL = 0.95  # of the intervals


@dataclasses.dataclass(frozen=True)
class Difference:
    """How much the rsum of one setting exceeds that of another.

    Attributes:
      rsum: the difference on all images, in percentage points.
      low: the lower end of its interval.
      high: the upper end.
      ahead: the share of resamples in which the first setting has the higher rsum, from 0 to 1; ties do not count.
    """

    rsum: float
    low: float
    high: float
    ahead: float


@dataclasses.dataclass(frozen=True)
class Hits:
    """How much each image, with its captions, contributes to rsum.

    Attributes:
      i2t: float64 [I], 100 for each K of 1, 5 and 10 at which the image retrieves one of its captions.
      t2i: float64 [I], the sum over its captions of 100 for each K at which the caption retrieves the image.
      texts: int [I], the number of its captions.
    """

    i2t: np.ndarray
    t2i: np.ndarray
    texts: np.ndarray

    def rsum(self, counts: np.ndarray | None = None) -> np.ndarray:
        """Returns rsum, float64 [...], where each image occurs `counts` times, [..., I]; once if None."""
        counts = np.ones(len(self.texts)) if counts is None else counts
        return counts @ self.i2t / np.sum(counts, axis=-1) + counts @ self.t2i / (counts @ self.texts)


def hits(matrices: Sequence[Matrix]) -> Hits:
    """Returns the mean hits of the runs of a setting.

    Raises:
      ValueError: as `jitm.metrics.ranks`.
    """
    image_of_text = matrices[0].image_of_text
    i2t, t2i = (
        100 * np.mean([np.sum(np.less.outer(ranked, RECALLS_AT), axis=1) for ranked in way], axis=0)
        for way in zip(*(ranks(matrix.sims, image_of_text) for matrix in matrices), strict=True)
    )
    return Hits(i2t, np.bincount(image_of_text, t2i), np.bincount(image_of_text))


def resample(images: int, resamples: int = RESAMPLES, seed: int = 0) -> np.ndarray:
    """Samples images with replacement, as many as there are.

    Args:
      images: I, the number of images.
      resamples: R, the number of samples.
      seed: of the random numbers.

    Returns:
      float64 [R, I]: how often each image is in each sample.
    """
    rng = np.random.default_rng(seed)
    return rng.multinomial(images, np.full(images, 1 / images), size=resamples).astype(np.float64)


def difference(first: Hits, second: Hits, counts: np.ndarray) -> Difference:
    """Compares two settings on the same resamples of the images.

    The gallery is fixed: a sampled image or caption keeps the rank that it has among all candidates of the split, and
    only the queries are resampled. The images that a query competes with are thus not varied, nor are the seeds of
    training, so the interval is that of other queries, not of other runs.

    Args:
      first: the hits of the first setting.
      second: those of the second, on the same images.
      counts: [R, I], see `resample`.
    """
    whole = first.rsum() - second.rsum()
    differences = np.round(first.rsum(counts) - second.rsum(counts), 9)  # equal settings are not ahead by an ulp
    low, high = np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(float(whole), float(low), float(high), float(np.mean(differences > 0)))
