"""Paired bootstrap of rsum over images (Efron and Tibshirani, 1993, chapter 16; Berg-Kirkpatrick et al., 2012)."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from jitm.errors import UserError
from jitm.metrics import RECALLS_AT, ranks
from jitm.report.matrices import Matrix

RESAMPLES = 1000
BATCH = 50  # resamples at a time: 6 MB for 5,000 images
LEVEL = 0.95  # confidence level of the intervals
DECIMALS = 9  # equal groups do not differ by the last bit


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference in rsum between two groups.

    Attributes:
      rsum: The difference on all images, in percentage points.
      low: The lower end of its interval.
      high: The upper end.
      ahead: The share of resamples in which the first group has the higher rsum, from 0 to 1; ties do not count.
    """

    rsum: float
    low: float
    high: float
    ahead: float


@dataclasses.dataclass(frozen=True)
class Hits:
    """The contribution of each image, with its captions, to rsum.

    Attributes:
      i2t: 100 for each K of 1, 5 and 10 at which the image retrieves one of its captions, float64 [I].
      t2i: The sum over its captions of 100 for each K at which the caption retrieves the image, float64 [I].
      texts: The number of its captions, int [I].
    """

    i2t: np.ndarray
    t2i: np.ndarray
    texts: np.ndarray

    def rsum(self) -> float:
        """Returns rsum, in percent."""
        return float(rsum(self.i2t, self.t2i, self.texts))


def rsum(i2t: np.ndarray, t2i: np.ndarray, texts: np.ndarray, axis: int = -1) -> np.ndarray:
    """Returns the rsum of images from their `Hits`, or its difference from differences of hits, in percent."""
    return np.mean(i2t, axis) + np.sum(t2i, axis) / np.sum(texts, axis)


def hits(matrices: Sequence[Matrix], recalls_at: Sequence[int] = RECALLS_AT) -> Hits:
    """Returns the mean hits of the runs of a group.

    Args:
      matrices: The similarities of each run.
      recalls_at: The values of K; with other values than the default, the sum of these recalls replaces rsum.

    Raises:
      UserError: If there is one image only.
      ValueError: As `jitm.metrics.ranks`.
    """
    image_of_text = matrices[0].image_of_text
    if len(matrices[0].sims) == 1:
        raise UserError(f'{matrices[0].path} has one image, and so none to compare runs on; give a matrix of more')

    def mean_hits(ranked: Sequence[np.ndarray]) -> np.ndarray:
        return 100 * np.less.outer(np.stack(ranked), recalls_at).sum(axis=2).mean(axis=0)

    i2t, t2i = map(mean_hits, zip(*(ranks(matrix.sims, image_of_text) for matrix in matrices), strict=True))
    return Hits(i2t, np.bincount(image_of_text, t2i), np.bincount(image_of_text))


def difference(first: Hits, second: Hits) -> Difference:
    """Compares two groups on the same resamples of the images, which are the same in each call.

    The gallery is fixed: a sampled image or caption keeps the rank that it has among all candidates of the split, and
    only the queries are resampled. Neither the candidates of a query nor the seeds of training vary, so the interval
    covers other queries, not other runs.

    Args:
      first: The hits of the first group.
      second: The hits of the second group, on the same images.
    """
    from scipy.stats import bootstrap

    per_image = first.i2t - second.i2t, first.t2i - second.t2i, first.texts
    result = bootstrap(
        per_image,
        lambda *resampled, axis: np.round(rsum(*resampled, axis=axis), DECIMALS),
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=BATCH,
        confidence_level=LEVEL,
        method='percentile',
        rng=np.random.default_rng(0),
    )
    low, high = result.confidence_interval
    ahead = np.mean(result.bootstrap_distribution > 0)
    return Difference(float(rsum(*per_image)), float(low), float(high), float(ahead))
