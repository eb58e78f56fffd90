"""The highest of many scores, found without sorting most of them."""

import chex
import jax.numpy as jnp
import numpy as np
from jax import lax

MAX_GROUP = 16  # scores per group; at first only the highest one of each is compared


def group_size(count: int, top_k: int) -> int:
    """Returns the size of groups of scores, such that there are at least four times as many groups as `top_k`."""
    return int(np.clip(count // (4 * top_k), 1, MAX_GROUP))


def highest(scores: chex.Array, top_k: int, group: int) -> tuple[chex.Array, chex.Array]:
    """Finds the highest scores of each row, equal ones by ascending column.

    Only the groups of consecutive scores with the highest maxima can contain them, so few scores are sorted.

    Args:
      scores: float32 [N, K]; padded with -inf, unless `group` divides K.
      top_k: The number of scores of a row, at most K.
      group: See `group_size`.

    Returns:
      The scores, in descending order, and their columns, int32, both [N, top_k].
    """
    padded = jnp.pad(scores, ((0, 0), (0, -scores.shape[1] % group)), constant_values=-jnp.inf)
    groups = padded.reshape(len(scores), -1, group)
    _, best_groups = lax.top_k(jnp.max(groups, axis=2), min(top_k, groups.shape[1]))
    best_groups = jnp.sort(best_groups, axis=1)  # keeps columns ascending, so that top_k breaks ties by column
    remaining = jnp.take_along_axis(groups, best_groups[:, :, None], axis=1).reshape(len(scores), -1)
    best, positions = lax.top_k(remaining, top_k)
    return best, jnp.take_along_axis(best_groups, positions // group, axis=1) * group + positions % group
