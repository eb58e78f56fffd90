"""All pairs of images and texts, few images and few texts at a time."""

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

SHARES = (3 / 8, 4 / 8, 5 / 8, 1)  # of the padded length: what texts of a tile may be cut to
MULTIPLE = 4  # and then rounded up to


def tile_edge(floats_per_pair: float) -> int:
    """How many images and how many texts are scored at once, the nearest power of two."""
    return 2 ** round(math.log2(max(1, parallel.tile_floats() / floats_per_pair)) / 2)


def map_tiles(function: Callable[[Any], chex.ArrayTree], items: chex.ArrayTree, size: int) -> chex.ArrayTree:
    """Applies a function to so many items at a time, and puts the results together.

    The gradient keeps nothing of a tile but its items.

    Args:
      function: leaves [size, ...] to leaves [size, ...].
      items: leaves [N, ...].
      size: of a tile; the last one is filled up with the first items.

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
      block: from leaves [i, ...] and [t, ...] to leaves [i, t, ...].
      variables: its first argument.
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
    """Sorts texts by the number of their words, and tells how to sort results [T] back."""
    order = jnp.argsort(jnp.sum(texts.mask, axis=1), descending=True)
    return jax.tree.map(lambda x: x[order], texts), jnp.argsort(order)


def over_pairs(block: Block) -> Block:
    """From a block to `(variables, images [N, ...], texts [N, ...]) -> leaves [N, ...]`, of image n with text n."""

    def pairs(variables: Any, images: chex.ArrayTree, texts: chex.ArrayTree) -> chex.ArrayTree:
        def pair(*sides):
            return jax.tree.map(lambda x: x[0, 0], block(variables, *jax.tree.map(lambda x: x[None], sides)))

        return jax.vmap(pair)(images, texts)

    return pairs


def at_own_length(block: Block) -> Block:
    """A block that cuts the padding of its texts, to the least of a few compiled lengths that holds all their words.

    The gradient is taken at this length too, from nothing but the arguments. Where results have a place for each word,
    those cut off are 0.
    """

    def lengths(texts: Elements) -> list[int]:
        padded = texts.mask.shape[1]
        return sorted({min(padded, MULTIPLE * math.ceil(share * padded / MULTIPLE)) for share in SHARES})

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
