"""Paired bootstrap of rsum over images (Efron and Tibshirani, 1993, chapter 16; Berg-Kirkpatrick et al., 2012)."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from jitm.errors import UserError
from jitm.metrics import RECALLS_AT, ranks
from jitm.report.groups import Group
from jitm.report.matrices import Matrix

RESAMPLES = 1000
BATCH = 50  # resamples at a time: 6 MB for 5,000 images
LEVEL = 0.95  # confidence level of the intervals
DECIMALS = 9  # equal groups do not differ by the last bit


class Difference(NamedTuple):
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


class Hits(NamedTuple):
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
        return float(rsum(*self))


def rsum(i2t: np.ndarray, t2i: np.ndarray, texts: np.ndarray, axis: int = -1) -> np.ndarray:
    """Returns the rsum of images from their `Hits`, or its difference from differences of hits, in percent."""
    return np.mean(i2t, axis) + np.sum(t2i, axis) / np.sum(texts, axis)


def hits(matrix: Matrix) -> Hits:
    """Returns the hits of a run's similarities; raises a UserError if there is one image only."""
    if len(matrix.sims) == 1:
        raise UserError(f'{matrix.path} has one image, and so none to compare runs on; give a matrix of more')
    image_of_text = matrix.image_of_text
    i2t, t2i = (100 * np.less.outer(ranked, RECALLS_AT).sum(axis=1) for ranked in ranks(matrix.sims, image_of_text))
    return Hits(i2t, np.bincount(image_of_text, t2i), np.bincount(image_of_text))


def hits_by_seed(group: Group, matrices: Sequence[Matrix]) -> dict[int, Hits]:
    """Returns the hits of the runs of a group by their seeds.

    Args:
      group: The group.
      matrices: The similarities of each run.
    """
    return {run.config['seed']: hits(matrix) for run, matrix in zip(group.runs, matrices, strict=True)}


def mean_hits(seeds: Collection[Hits]) -> Hits:
    """Returns the mean hits of runs on the same images."""
    i2t, t2i, texts = zip(*seeds, strict=True)
    return Hits(np.mean(i2t, axis=0), np.mean(t2i, axis=0), texts[0])


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


def over_seeds_and_images(first: Sequence[Hits], second: Sequence[Hits]) -> tuple[float, float]:
    """Returns the interval of the mean difference in rsum over seeds and images, both of which are resampled.

    Each resample draws seeds and images independently, with replacement (the pigeonhole bootstrap: Owen, 2007). With
    three seeds it can be too narrow; the t-test over the seeds is reported beside it.

    Args:
      first: The hits of a group by seed.
      second: The hits of another group for the same seeds and images.
    """
    texts = first[0].texts
    i2t = np.stack([a.i2t - b.i2t for a, b in zip(first, second, strict=True)])  # [seeds, images]
    t2i = np.stack([a.t2i - b.t2i for a, b in zip(first, second, strict=True)])
    rng = np.random.default_rng(0)
    seeds = rng.integers(len(first), size=(RESAMPLES, len(first)))
    images = rng.integers(len(texts), size=(RESAMPLES, len(texts)))
    means = []
    for s, n in zip(seeds, images, strict=True):
        means.append(rsum(i2t[s][:, n].mean(axis=0), t2i[s][:, n].mean(axis=0), texts[n]))
    low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
