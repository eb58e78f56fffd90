"""Batches of trees with the item on axis 0, padded to few sizes, so that calls reuse what was compiled."""

import chex
import jax
import numpy as np

from jitm import parallel
from jitm.data.pipeline import bucket

COUNT_FACTOR = 4  # numbers of items are padded to powers of this


def _padded_count(count: int) -> int:
    """Returns the next power of `COUNT_FACTOR`, or the next multiple of the number of devices if that is more."""
    padded = 1
    while padded < count:
        padded *= COUNT_FACTOR
    return bucket(padded, parallel.num_local_devices())


def take(tree: chex.ArrayTree, start: int, size: int) -> tuple[chex.ArrayTree, int]:
    """Returns up to `size` items of a tree from `start` on, padded with its first item, and how many are valid."""
    count = min(size, num_items(tree) - start)
    index = np.arange(start, start + count)
    index = np.concatenate([index, np.zeros(_padded_count(count) - count, int)])
    return jax.tree.map(lambda x: np.asarray(x)[index], tree), count


def num_items(tree: chex.ArrayTree) -> int:
    """Returns N, the number of items of a tree with leaves [N, ...]."""
    return len(jax.tree.leaves(tree)[0])


def starts(tree: chex.ArrayTree, size: int) -> range:
    """Returns the first item of each batch of a size."""
    return range(0, num_items(tree), size)


def concatenate(parts: list[chex.ArrayTree]) -> chex.ArrayTree:
    """Concatenates the items of several trees."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
