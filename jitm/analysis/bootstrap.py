"""Paired bootstrap of rsum over images (Efron and Tibshirani, 1993, chapter 16; Berg-Kirkpatrick et al., 2012)."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from jitm.analysis.matrices import Matrix
from jitm.metrics import RECALLS_AT, ranks

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


def rsum_by_image(sims: np.ndarray, image_of_text: np.ndarray) -> np.ndarray:
    """Returns the share of each image, with its captions, in rsum; their mean is rsum.

    An image counts 100 for each K of 1, 5 and 10 at which it retrieves one of its captions, and 100 / C for each K and
    each of its C captions that retrieves it.

    Args:
      sims: [I, T], every image with every caption.
      image_of_text: int [T], the image of each caption; every image has the same number.

    Returns:
      float64 [I], in percentage points; at most 600.

    Raises:
      ValueError: as `jitm.metrics.ranks`.
    """
    i2t, t2i = (np.sum(np.less.outer(way, RECALLS_AT), axis=1) for way in ranks(sims, image_of_text))
    return 100 * (i2t + np.bincount(image_of_text, t2i) / np.bincount(image_of_text))


def mean_rsums(evaluated: Mapping[int, Sequence[Matrix]]) -> dict[int, np.ndarray]:
    """Returns the share of each image in rsum, float64 [I], the mean over the runs of each setting."""
    return {
        n: np.mean([rsum_by_image(matrix.sims, matrix.image_of_text) for matrix in matrices], axis=0)
        for n, matrices in evaluated.items()
    }


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


def difference(first: np.ndarray, second: np.ndarray, counts: np.ndarray) -> Difference:
    """Compares two settings on the same resamples of the images.

    The gallery is fixed: a sampled image or caption keeps the rank that it has among all candidates of the split, and
    only the queries are resampled. The images that a query competes with are thus not varied, nor are the seeds of
    training, so the interval is that of other queries, not of other runs.

    Args:
      first: [I], `rsum_by_image` of the first setting, the mean over its seeds.
      second: [I], that of the second.
      counts: [R, I], see `resample`.
    """
    by_image = first - second
    differences = np.round(counts @ by_image / len(by_image), 9)  # equal settings are equal, not ahead by an ulp
    low, high = np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(float(np.mean(by_image)), float(low), float(high), float(np.mean(differences > 0)))
