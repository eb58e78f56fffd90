"""Functions of all pairs of images and texts, computed tile by tile."""

import functools
import math
from collections.abc import Callable
from typing import Any

import chex
import einops
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jitm import parallel
from jitm.types import Elements

# (variables, images [i, ...], texts [t, ...]) -> leaves [i, t, ...]
Block = Callable[[Any, chex.ArrayTree, chex.ArrayTree], chex.ArrayTree]

CUT_LENGTHS = (3 / 8, 4 / 8, 5 / 8, 1)  # lengths that texts of a tile are cut to, as fractions of the padded length
LENGTH_MULTIPLE = 4  # cut lengths are rounded up to a multiple of this


def tile_edge(floats_per_pair: float) -> int:
    """Returns the number of images, and of texts, to score at once: the nearest power of two."""
    return 2 ** round(math.log2(max(1, parallel.tile_floats() / floats_per_pair)) / 2)


def map_tiles(function: Callable[[Any], chex.ArrayTree], items: chex.ArrayTree, size: int) -> chex.ArrayTree:
    """Applies a function to tiles of items and concatenates the results.

    For the gradient only the items of a tile are kept; everything else is recomputed.

    Args:
      function: maps leaves [size, ...] to leaves [size, ...].
      items: leaves [N, ...].
      size: number of items in a tile; the last tile is filled up with the first items.

    Returns:
      Leaves [N, ...].
    """
    count = len(jax.tree.leaves(items)[0])
    size = min(size, count)
    if count % size:
        index = np.arange(-(-count // size) * size) % count
        items = jax.tree.map(lambda x: x[index], items)
    tiles = jax.tree.map(lambda x: einops.rearrange(x, '(n s) ... -> n s ...', s=size), items)
    results = lax.map(jax.checkpoint(function), tiles)
    return jax.tree.map(lambda x: einops.rearrange(x, 'n s ... -> (n s) ...')[:count], results)


def map_pairs(
    block: Block, variables: Any, images: chex.ArrayTree, texts: chex.ArrayTree, image_tile: int, text_tile: int
) -> chex.ArrayTree:
    """Applies a block to every image with every text.

    Args:
      block: maps variables and leaves [i, ...] and [t, ...] to leaves [i, t, ...].
      variables: the first argument of the block.
      images: leaves [I, ...].
      texts: leaves [T, ...].
      image_tile: i.
      text_tile: t.

    Returns:
      Leaves [I, T, ...].
    """

    def swapped(tree):
        return jax.tree.map(lambda x: x.swapaxes(0, 1), tree)

    def rows(images):
        return swapped(map_tiles(lambda texts: swapped(block(variables, images, texts)), texts, text_tile))

    return map_tiles(rows, images, image_tile)


def longest_first(texts: Elements) -> tuple[Elements, chex.Array]:
    """Sorts texts by length, the longest first; also returns the index [T] that restores the order of results."""
    order = jnp.argsort(jnp.sum(texts.mask, axis=1), descending=True)
    return jax.tree.map(lambda x: x[order], texts), jnp.argsort(order)


def over_pairs(block: Block) -> Block:
    """Returns a function of variables, images [N, ...] and texts [N, ...] that pairs image n with text n: [N, ...]."""

    def pairs(variables: Any, images: chex.ArrayTree, texts: chex.ArrayTree) -> chex.ArrayTree:
        def pair(*sides):
            return jax.tree.map(lambda x: x[0, 0], block(variables, *jax.tree.map(lambda x: x[None], sides)))

        return jax.vmap(pair)(images, texts)

    return pairs


def at_own_length(block: Block) -> Block:
    """Returns a block that cuts the padding of its texts, to the smallest of a few lengths that holds all words.

    The gradient is computed at this length too, from the arguments alone. Results that have an axis of words are padded
    with 0 to the full length.
    """
    # All lengths are compiled and `lax.switch` takes one of them at run time, so that shapes stay static. The custom
    # gradient switches as well: JAX would keep the residuals for every length.

    def lengths(texts: Elements) -> list[int]:
        padded = texts.mask.shape[1]
        rounded = (LENGTH_MULTIPLE * math.ceil(part * padded / LENGTH_MULTIPLE) for part in CUT_LENGTHS)
        return sorted({min(padded, length) for length in rounded})

    def switch(branches: list[Callable], texts: Elements, *args: Any) -> chex.ArrayTree:
        longest = jnp.max(jnp.sum(texts.mask, axis=1))
        return lax.switch(jnp.searchsorted(jnp.asarray(lengths(texts)), longest), branches, *args)

    def cut(length: int, variables: Any, images: chex.ArrayTree, texts: Elements) -> chex.ArrayTree:
        full = jax.eval_shape(block, variables, images, texts)
        results = block(variables, images, texts.first(length))
        return jax.tree.map(
            lambda x, like: jnp.pad(x, [(0, b - a) for a, b in zip(x.shape, like.shape, strict=True)]), results, full
        )

    def pull(length: int, cotangents: chex.ArrayTree, *args: Any) -> tuple:
        gradients = jax.vjp(functools.partial(cut, length), *args)[1](cotangents)
        return jax.tree.map(lambda x: None if x.dtype == jax.dtypes.float0 else x, gradients)

    @jax.custom_vjp
    def call(variables: Any, images: chex.ArrayTree, texts: Elements) -> chex.ArrayTree:
        branches = [functools.partial(cut, length) for length in lengths(texts)]
        return switch(branches, texts, variables, images, texts)

    def backward(args: tuple, cotangents: chex.ArrayTree) -> tuple:
        branches = [functools.partial(pull, length) for length in lengths(args[-1])]
        return switch(branches, args[-1], cotangents, *args)

    call.defvjp(lambda *args: (call(*args), args), backward)
    return call
