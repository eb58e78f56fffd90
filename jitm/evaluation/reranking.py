"""Re-ranking: cheap scores propose a few candidates for each query, expensive scores order these. numpy only.

As with LightningDOT (Sun et al., 2021): a candidate that is not proposed loses against all that are.
"""

import dataclasses

import numpy as np

from jitm import metrics


@dataclasses.dataclass(frozen=True)
class Proposed:
    """The candidates of each query. A pair that one direction proposes is no candidate of the other for that.

    Attributes:
      i2t: bool [I, T], the texts proposed for each image.
      t2i: bool [I, T], the images proposed for each text.
    """

    i2t: np.ndarray
    t2i: np.ndarray

    @property
    def pairs(self) -> np.ndarray:
        """Those of either direction, which need a score: bool [I, T]."""
        return self.i2t | self.t2i


def _highest(sims: np.ndarray, count: int, axis: int) -> np.ndarray:
    if count >= sims.shape[axis]:
        return np.ones(sims.shape, bool)
    return sims >= np.take(np.partition(sims, -count, axis), [-count], axis)


def propose(sims: np.ndarray, image_of_text: np.ndarray, top_m: int, folds: int = 1) -> Proposed:
    """Picks the candidates that score highest, and whatever ties with the last of them.

    Args:
      sims: [I, T], every image with every text.
      image_of_text: int [T], the image of each text.
      top_m: how many candidates each query gets; all, if there are fewer.
      folds: consecutive parts of the images; a query's candidates are of its own part.

    Returns:
      Masks [I, T].

    Raises:
      ValueError: if the images cannot be split evenly.
    """
    i2t, t2i = np.zeros((2, *sims.shape), bool)
    for fold, texts in metrics.split_into_folds(len(sims), image_of_text, folds):
        part = sims[fold, texts]
        i2t[fold, texts], t2i[fold, texts] = (_highest(part, top_m, axis) for axis in (1, 0))
    return Proposed(i2t, t2i)


def ranks(
    sims: np.ndarray, proposing: np.ndarray, proposed: Proposed, image_of_text: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Ranks the best true match of every query as `metrics.ranks` does, its proposals before all others.

    The others keep the order of the proposing scores: as what was proposed had the highest of these, a match that was
    not has the rank it had.

    Args:
      sims: [I, T], the scores that order the proposals; elsewhere of no effect.
      proposing: [I, T], the scores that proposed.
      proposed: by these scores.
      image_of_text: int [T], the image of each text.

    Returns:
      Those of images int [I] and of texts int [T], 0 being best.

    Raises:
      ValueError: as `metrics.ranks`.
    """
    images, texts = are_proposed(proposed, image_of_text)
    i2t_before, t2i_before = metrics.ranks(proposing, image_of_text)
    i2t, _ = metrics.ranks(np.where(proposed.i2t, sims, -np.inf), image_of_text)
    _, t2i = metrics.ranks(np.where(proposed.t2i, sims, -np.inf), image_of_text)
    return np.where(images, i2t, i2t_before), np.where(texts, t2i, t2i_before)


def are_proposed(proposed: Proposed, image_of_text: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which images [I] have a text of theirs among their proposals, and which texts [T] their image."""
    texts, images = np.arange(len(image_of_text)), len(proposed.i2t)
    own = proposed.i2t[image_of_text, texts]
    return np.bincount(image_of_text, own, images) > 0, proposed.t2i[image_of_text, texts]


def retrieval_metrics(
    sims: np.ndarray, proposing: np.ndarray, proposed: Proposed, image_of_text: np.ndarray, folds: int = 1
) -> dict[str, float]:
    """The field's table after re-ranking.

    Args:
      sims: [I, T], see `ranks`.
      proposing: [I, T].
      proposed: of so many folds.
      image_of_text: int [T], in ascending order if there are several folds.
      folds: see `metrics.retrieval_metrics`.

    Returns:
      As `metrics.retrieval_metrics`, without the mean distance, which takes all scores; and `i2t/proposed` and
      `t2i/proposed`, for how many of the queries a match was proposed, in percent: no recall can be higher.

    Raises:
      ValueError: as `metrics.retrieval_metrics`.
    """
    parts = []
    for fold, texts in metrics.split_into_folds(len(sims), image_of_text, folds):
        candidates = Proposed(proposed.i2t[fold, texts], proposed.t2i[fold, texts])
        owners = image_of_text[texts] - fold.start
        found = zip(('i2t', 't2i'), are_proposed(candidates, owners), strict=True)
        part = metrics.both_directions(*ranks(sims[fold, texts], proposing[fold, texts], candidates, owners))
        parts.append(part | {f'{way}/proposed': 100.0 * float(np.mean(queries)) for way, queries in found})
    return metrics.mean_over_folds(parts)
