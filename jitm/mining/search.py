"""The candidates that score highest, found while scores stream by: equal scores by ascending id, as a full sort has it.

Lists are pairs of scores float32 [N, h] and ids int32 [N, h], the highest score first; a place that nothing has filled
has -inf and `NOBODY`.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jitm.layers.linear import product

NOBODY = np.iinfo(np.int32).max
GROUP = 16  # candidates whose highest score decides whether they are looked at


def nothing(count: int, top_h: int) -> tuple[np.ndarray, np.ndarray]:
    """Lists [count, top_h] that are still empty."""
    return np.full((count, top_h), -np.inf, np.float32), np.full((count, top_h), NOBODY, np.int32)


def merge(best: tuple[chex.Array, chex.Array], scores: chex.Array, ids: chex.Array) -> tuple[chex.Array, chex.Array]:
    """Enters more candidates into lists.

    Args:
      best: lists [N, h].
      scores: float32 [N, M], -inf for what is no candidate.
      ids: int32 [M], ascending, the same for all lists; or [N, M] in any order.

    Returns:
      Lists [N, h].
    """
    top_h = best[0].shape[1]
    if ids.ndim == 1:
        scores, places = lax.top_k(scores, min(top_h, len(ids)))
        ids = ids[places]
    ids = jnp.where(scores > -jnp.inf, ids, NOBODY)
    falling, ids = lax.sort(
        (jnp.concatenate([-best[0], -scores], axis=1), jnp.concatenate([best[1], ids], axis=1)), num_keys=2
    )
    return -falling[:, :top_h], ids[:, :top_h]


@jax.jit
def rank_block(
    images: tuple[chex.Array, chex.Array],
    texts: tuple[chex.Array, chex.Array],
    block: chex.Array,
    rows: chex.Array,
    columns: chex.Array,
    owners: chex.Array,
) -> tuple[tuple, tuple, chex.Array]:
    """Enters a block of scores into the lists of both sides.

    Args:
      images: lists [I, h] of the block's images.
      texts: lists [T, h'] of its texts.
      block: float32 [I, T].
      rows: int32 [I], ascending ids of the images; below 0 for what is no image.
      columns: int32 [T], ascending ids of the texts; below 0 for what is no text.
      owners: int32 [T], the image that each text describes.

    Returns:
      The lists of the images and of the texts, and the score of each text with its own image [T], -inf if that is not
      in the block.
    """
    real = (rows >= 0)[:, None] & (columns >= 0)
    own = owners == rows[:, None]
    positives = jnp.max(jnp.where(own & real, block, -jnp.inf), axis=0)
    negatives = jnp.where(own | ~real, -jnp.inf, block)
    return merge(images, negatives, columns), merge(texts, negatives.T, rows), positives


def group_size(count: int, top_h: int) -> int:
    """How many consecutive candidates are a group: so few that there are many more groups than places in a list."""
    return int(np.clip(count // (4 * top_h), 1, GROUP))


def rank_products(
    queries: chex.Array, excluded: chex.Array, candidates: chex.Array, top_h: int, group: int
) -> tuple[chex.Array, chex.Array]:
    """Finds the candidates with the largest inner products.

    Of the groups of consecutive candidates only those with the `top_h` highest maxima can hold one of the `top_h`
    highest scores, so that few candidates are sorted.

    Args:
      queries: [N, D].
      excluded: int32 [N, P], ids that are no candidates; those from K on are ignored.
      candidates: [K, D].
      top_h: h, at most the number of candidates.
      group: size of the groups, a divisor of K.

    Returns:
      Lists [N, h].
    """
    rows = jnp.arange(len(queries))[:, None]
    scores = product('nd,kd->nk', queries, candidates).at[rows, excluded].set(-jnp.inf, mode='drop')
    groups = scores.reshape(len(queries), -1, group)
    _, best_groups = lax.top_k(jnp.max(groups, axis=2), min(top_h, groups.shape[1]))
    best_groups = jnp.sort(best_groups, axis=1)
    few = jnp.take_along_axis(groups, best_groups[:, :, None], axis=1).reshape(len(queries), -1)
    best, places = lax.top_k(few, top_h)
    ids = jnp.take_along_axis(best_groups, places // group, axis=1) * group + places % group
    return best, ids.astype(jnp.int32)
