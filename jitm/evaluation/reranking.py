"""Re-ranking: cheap scores select a shortlist of candidates per query, expensive scores order it. numpy only.

As in LightningDOT (Sun et al., 2021): every candidate outside of the shortlist ranks below all candidates in it.
"""

import dataclasses

import numpy as np

from jitm import metrics


@dataclasses.dataclass(frozen=True)
class ShortlistedPairs:
    """The shortlist of each query. A pair shortlisted in one direction is not thereby a candidate in the other.

    Attributes:
      i2t: The shortlisted texts of each image, bool [I, T].
      t2i: The shortlisted images of each text, bool [I, T].
    """

    i2t: np.ndarray
    t2i: np.ndarray

    @property
    def pairs(self) -> np.ndarray:
        """The pairs of either direction, which need a score: bool [I, T]."""
        return self.i2t | self.t2i


def select_candidates(sims: np.ndarray, image_of_text: np.ndarray, top_m: int, folds: int = 1) -> ShortlistedPairs:
    """Selects the highest-scoring candidates of each query, and all that tie with the last one.

    Args:
      sims: [I, T], every image with every text.
      image_of_text: The image of each text, int [T].
      top_m: Candidates per query; all, if there are fewer.
      folds: Consecutive parts of the images; the candidates of a query are in its own part.

    Returns:
      Masks [I, T].

    Raises:
      ValueError: If the images cannot be split evenly.
    """
    i2t, t2i = np.zeros((2, *sims.shape), bool)
    for fold, texts in metrics.split_into_folds(len(sims), image_of_text, folds):
        part = sims[fold, texts]
        for mask, axis in ((i2t, 1), (t2i, 0)):
            last = -min(top_m, part.shape[axis])
            mask[fold, texts] = part >= np.take(np.partition(part, last, axis), [last], axis)
    return ShortlistedPairs(i2t, t2i)


def ranks(
    sims: np.ndarray, first_sims: np.ndarray, candidates: ShortlistedPairs, image_of_text: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks the best true match of every query as `metrics.ranks`, the shortlist above all other candidates.

    The other candidates keep the order of `first_sims`. The shortlist has the highest of these scores, so a match
    outside of it keeps its rank.

    Args:
      sims: [I, T], the scores that order the shortlist; ignored elsewhere.
      first_sims: The scores that selected the shortlist, [I, T].
      candidates: The shortlist.
      image_of_text: The image of each text, int [T].

    Returns:
      Ranks of the images int [I] and of the texts int [T], 0 is best.

    Raises:
      ValueError: See `metrics.ranks`.
    """
    images, texts = have_match(candidates, image_of_text)
    first_i2t, first_t2i = metrics.ranks(first_sims, image_of_text)
    i2t, _ = metrics.ranks(np.where(candidates.i2t, sims, -np.inf), image_of_text)
    _, t2i = metrics.ranks(np.where(candidates.t2i, sims, -np.inf), image_of_text)
    return np.where(images, i2t, first_i2t), np.where(texts, t2i, first_t2i)


def have_match(candidates: ShortlistedPairs, image_of_text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns which queries have a true match in their shortlist.

    Args:
      candidates: The shortlist.
      image_of_text: The image of each text, int [T].

    Returns:
      bool [I] for the images and bool [T] for the texts.
    """
    texts = np.arange(len(image_of_text))
    images = len(candidates.i2t)
    matches = candidates.i2t[image_of_text, texts]
    return np.bincount(image_of_text, matches, images) > 0, candidates.t2i[image_of_text, texts]


def retrieval_metrics(
    sims: np.ndarray,
    first_sims: np.ndarray,
    candidates: ShortlistedPairs,
    image_of_text: np.ndarray,
    folds: int = 1,
) -> dict[str, float]:
    """Returns the retrieval metrics after re-ranking.

    Args:
      sims: [I, T], see `ranks`.
      first_sims: [I, T], see `ranks`.
      candidates: Selected with the same number of folds.
      image_of_text: int [T], in ascending order if there are several folds.
      folds: See `metrics.retrieval_metrics`.

    Returns:
      The metrics of `metrics.retrieval_metrics` except the mean distance, which needs all scores; and `i2t/shortlisted`
      and `t2i/shortlisted`, the percentage of queries with a match in the shortlist, an upper bound of each recall.

    Raises:
      ValueError: See `metrics.retrieval_metrics`.
    """
    parts = []
    for fold, texts in metrics.split_into_folds(len(sims), image_of_text, folds):
        part = ShortlistedPairs(candidates.i2t[fold, texts], candidates.t2i[fold, texts])
        images = image_of_text[texts] - fold.start
        shares = zip(('i2t', 't2i'), have_match(part, images), strict=True)
        values = metrics.both_directions(*ranks(sims[fold, texts], first_sims[fold, texts], part, images))
        values |= {f'{direction}/shortlisted': 100.0 * float(np.mean(queries)) for direction, queries in shares}
        parts.append(values)
    return metrics.mean_over_folds(parts)
