"""Padding of items, the leaves [N, ...] of a tree, to few sizes, so that calls reuse what was compiled."""

from collections.abc import Iterator

import chex
import jax
import numpy as np

from jitm.data.reading import bucket

COUNT_FACTOR = 4  # numbers of items are padded to powers of this


def fill(index: np.ndarray, size: int) -> np.ndarray:
    """Pads an index to a size with its first entry."""
    return np.pad(index, (0, size - len(index)), constant_values=index[0])


def padded_count(count: int, multiple: int = 1) -> int:
    """Returns the number to which `count` items are padded: the next power of `COUNT_FACTOR`, made a multiple."""
    size = 1
    while size < count:
        size *= COUNT_FACTOR
    return bucket(size, multiple)


def pad(items: chex.ArrayTree, size: int) -> chex.ArrayTree:
    """Pads items to a size with the first one."""
    return jax.tree.map(lambda x: np.asarray(x)[fill(np.arange(len(x)), size)], items)


def first(items: chex.ArrayTree, count: int) -> chex.ArrayTree:
    """Returns the first `count` items."""
    return jax.tree.map(lambda x: x[:count], items)


def num_items(items: chex.ArrayTree) -> int:
    """Returns N."""
    return len(jax.tree.leaves(items)[0])


def batches(items: chex.ArrayTree, size: int) -> Iterator[chex.ArrayTree]:
    """Yields items in batches of a size; the last one may be smaller."""
    for start in range(0, num_items(items), size):
        yield jax.tree.map(lambda x, start=start: np.asarray(x[start : start + size]), items)


def concatenate(parts: list[chex.ArrayTree]) -> chex.ArrayTree:
    """Concatenates the items of several trees."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
