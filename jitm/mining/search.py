"""The highest-scoring candidates of streamed scores; ties are ordered by ascending id, as in a full stable sort.

Lists are pairs of scores float32 [N, h] and ids int32 [N, h], in descending order of the scores; unfilled entries have
the score -inf and the id `NO_CANDIDATE`.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jitm.layers.linear import product

NO_CANDIDATE = np.iinfo(np.int32).max  # sorts after every id
MAX_GROUP = 16  # candidates per group, of which only the highest score is compared at first


def empty_lists(count: int, top_h: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns unfilled lists [count, top_h]."""
    return np.full((count, top_h), -np.inf, np.float32), np.full((count, top_h), NO_CANDIDATE, np.int32)


def merge(best: tuple[chex.Array, chex.Array], scores: chex.Array, ids: chex.Array) -> tuple[chex.Array, chex.Array]:
    """Merges M candidates into each of N lists.

    Args:
      best: The lists [N, h].
      scores: float32 [N, M], -inf for ids that are not candidates.
      ids: int32 [M], ascending, the same for all lists; or [N, M] in any order.
    """
    top_h = best[0].shape[1]
    if ids.ndim == 1:
        scores, positions = lax.top_k(scores, min(top_h, len(ids)))
        ids = ids[positions]
    ids = jnp.where(scores > -jnp.inf, ids, NO_CANDIDATE)
    negated, ids = lax.sort(
        (jnp.concatenate([-best[0], -scores], axis=1), jnp.concatenate([best[1], ids], axis=1)), num_keys=2
    )
    return -negated[:, :top_h], ids[:, :top_h]


@jax.jit
def rank_block(
    images: tuple[chex.Array, chex.Array],
    texts: tuple[chex.Array, chex.Array],
    block: chex.Array,
    rows: chex.Array,
    columns: chex.Array,
    image_of_text: chex.Array,
) -> tuple[tuple, tuple, chex.Array]:
    """Merges a block of scores into the lists of both sides.

    Args:
      images: The lists [I, h] of the block's images.
      texts: The lists [T, h'] of its texts.
      block: float32 [I, T].
      rows: int32 [I], ascending ids of the images; negative for padding.
      columns: int32 [T], ascending ids of the texts; negative for padding.
      image_of_text: The image of each text, int32 [T].

    Returns:
      The lists of the images, the lists of the texts, and the score of each text with its own image [T], -inf if that
      image is not in the block.
    """
    valid = (rows >= 0)[:, None] & (columns >= 0)
    match = image_of_text == rows[:, None]
    positives = jnp.max(jnp.where(match & valid, block, -jnp.inf), axis=0)
    negatives = jnp.where(match | ~valid, -jnp.inf, block)
    return merge(images, negatives, columns), merge(texts, negatives.T, rows), positives


def group_size(count: int, top_h: int) -> int:
    """Returns the size of groups of candidates, such that there are at least four times as many groups as `top_h`."""
    return int(np.clip(count // (4 * top_h), 1, MAX_GROUP))


def rank_products(
    queries: chex.Array, excluded: chex.Array, candidates: chex.Array, top_h: int, group: int
) -> tuple[chex.Array, chex.Array]:
    """Finds the candidates with the highest inner products: lists [N, h].

    Only the groups of consecutive candidates with the highest maxima can contain the highest scores, so few candidates
    are sorted. The excluded ones are ranked too and then left out: they are few, and the scores are many.

    Args:
      queries: [N, D].
      excluded: int32 [N, P], ids that are not candidates; ids from K on are ignored.
      candidates: [K, D].
      top_h: h, at most K.
      group: The size of the groups, a divisor of K.
    """
    scores = product('nd,kd->nk', queries, candidates)
    groups = scores.reshape(len(queries), -1, group)
    with_excluded = min(top_h + excluded.shape[1], scores.shape[1])
    _, best_groups = lax.top_k(jnp.max(groups, axis=2), min(with_excluded, groups.shape[1]))
    best_groups = jnp.sort(best_groups, axis=1)  # keeps ids ascending, so that top_k breaks ties by id
    remaining = jnp.take_along_axis(groups, best_groups[:, :, None], axis=1).reshape(len(queries), -1)
    best, positions = lax.top_k(remaining, with_excluded)
    ids = jnp.take_along_axis(best_groups, positions // group, axis=1) * group + positions % group
    best, positions = lax.top_k(jnp.where((ids[:, :, None] == excluded[:, None]).any(axis=2), -jnp.inf, best), top_h)
    return best, jnp.take_along_axis(ids, positions, axis=1).astype(jnp.int32)
