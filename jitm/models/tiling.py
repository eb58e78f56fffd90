"""Functions of all pairs of images and texts, computed tile by tile."""

import math
from collections.abc import Callable
from typing import Any

import einops
import jax
import jax.numpy as jnp
import numpy as np
from chex import Array, ArrayTree
from jax import lax

from jitm.devices import policy
from jitm.devices.recompute import keep_within, recompute

# (variables, images [i, ...], texts [t, ...]) -> leaves [i, t, ...]
Block = Callable[[Any, ArrayTree, ArrayTree], ArrayTree]

SPARSE = 1 / 8  # if at most this share of the pairs has a gradient, only these are scored again
PAIRS = 128  # scored again at once by accelerators; a published batch has as many hardest negatives in a direction


def pairs_at_once(floats_per_pair: float) -> int:
    """Returns the number of pairs to score at once: the nearest power of two."""
    return 2 ** max(0, round(math.log2(policy.tile_floats() / floats_per_pair)))


def floats_of_pair(images: ArrayTree, texts: ArrayTree) -> int:
    """Returns the size of one encoded image and one encoded text."""
    return sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves((images, texts)))


def tile_edges(floats_per_pair: float) -> tuple[int, int]:
    """Returns the numbers of images and of texts to score at once: powers of two."""
    pairs = pairs_at_once(floats_per_pair)
    num_texts = 2 ** (int(math.log2(pairs)) // 2)
    return pairs // num_texts, num_texts


def sparse_plan(floats_per_pair: float, images: ArrayTree, texts: ArrayTree) -> tuple[int, float]:
    """Returns `tile` and `share` of `with_sparse_gradient`.

    For an accelerator only one of the two gradients is compiled: the gradient of all pairs where they are cheap, as in
    SCAN, so that copying the images and texts of a few takes longer.
    """
    copied = floats_of_pair(images, texts)
    tile = pairs_at_once(floats_per_pair + copied)
    if policy.one_gradient():
        return min(tile, PAIRS), float(SPARSE * copied < floats_per_pair)
    return tile, SPARSE


def map_tiles(function: Callable[[Any], ArrayTree], items: ArrayTree, size: int) -> ArrayTree:
    """Applies a function to tiles of items and concatenates the results.

    For the gradient of several tiles, what does not fit into the memory is recomputed, see `recompute`.

    Args:
      function: Maps leaves [n, ...] of n items to leaves [n r, ...], r rows of each item one after the other; r is the
        same for all items, mostly 1.
      items: Leaves [N, ...].
      size: The maximum number n of items of a tile. The tiles have one size, and the last of them is filled up with the
        first items, whose results are dropped.

    Returns:
      Leaves [N r, ...].
    """
    count = len(jax.tree.leaves(items)[0])
    if count <= size:
        return function(items)
    number = -(-count // size)
    size = -(-count // number)
    if count % size:
        index = np.arange(number * size) % count
        items = jax.tree.map(lambda x: x[index], items)
    tiles = jax.tree.map(lambda x: einops.rearrange(x, '(n s) ... -> n s ...', s=size), items)
    first = jax.tree.map(lambda x: x[0], tiles)
    results = lax.map(recompute(function, number, first), tiles)
    return jax.tree.map(lambda x: einops.rearrange(x, 'n s ... -> (n s) ...')[: count * x.shape[1] // size], results)


def map_pairs(
    block: Block, variables: Any, images: ArrayTree, texts: ArrayTree, image_tile: int, text_tile: int
) -> ArrayTree:
    """Applies a block to every image with every text, `image_tile` and `text_tile` at a time: leaves [I, T, ...]."""

    def swapped(tree):
        return jax.tree.map(lambda x: x.swapaxes(0, 1), tree)

    def rows(images):
        return swapped(map_tiles(lambda texts: swapped(block(variables, images, texts)), texts, text_tile))

    return map_tiles(rows, images, image_tile)


def over_pairs(block: Block) -> Block:
    """Returns a function of variables, images [N, ...] and texts [N, ...] that pairs image n with text n: [N, ...]."""

    def pairs(variables, images, texts):
        def pair(*sides):
            return jax.tree.map(lambda x: x[0, 0], block(variables, *jax.tree.map(lambda x: x[None], sides)))

        return jax.vmap(pair)(images, texts)

    return pairs


def with_sparse_gradient(
    scores: Block, pairs: Block, tile: int, share: float, precomputed: Block | None = None
) -> Block:
    """Returns a function of all scores whose gradient scores again only the pairs that the loss depends on.

    A hardest negative is one pair of its row. No score may depend on another pair, as through statistics of the batch.

    Args:
      scores: A function of variables, images and texts that returns the scores [I, T].
      pairs: A function of variables, N images and N texts that returns the scores [N] of image n with text n.
      tile: The number of pairs to score at once.
      share: The maximum share of pairs that are scored again by themselves; if more have a gradient, all scores are
        computed again. 0 and 1 compile only one of the two.
      precomputed: A function that returns the same scores without computing them; None for none.
    """

    # If many pairs have a gradient, all are scored again, once: to keep more than the tiles saves no product here.
    def pull_all(cotangents, *args):
        return _without_integers(jax.vjp(keep_within(0, scores), *args)[1](cotangents))

    # If few have one, these are collected and scored in tiles, whose gradients are added to their images and texts.
    def pull_pairs(cotangents, *args):
        variables, images, texts = args
        size = min(tile, math.ceil(share * cotangents.size))
        flat = cotangents.T.ravel()
        counts = jnp.cumsum(flat != 0)

        def add_tile(n, sums):
            numbers = 1 + n * size + jnp.arange(size)
            index = jnp.searchsorted(counts, numbers, method='compare_all')  # flat index of these pairs
            column, row = jnp.divmod(jnp.minimum(index, flat.size - 1), len(cotangents))
            weights = jnp.where(numbers <= counts[-1], cotangents[row, column], 0)
            sides = jax.tree.map(lambda x: x[row], images), jax.tree.map(lambda x: x[column], texts)
            gradients = _without_integers(jax.vjp(pairs, variables, *sides)[1](weights))
            return (
                jax.tree.map(jnp.add, sums[0], gradients[0]),
                jax.tree.map(lambda total, x: total.at[row].add(x), sums[1], gradients[1]),
                jax.tree.map(lambda total, x: total.at[column].add(x), sums[2], gradients[2]),
            )

        sums = lax.fori_loop(0, -(-counts[-1] // size), add_tile, jax.tree.map(_zeros_to_sum, args))
        return jax.tree.map(lambda x, total: None if total is None else total.astype(x.dtype), args, sums)

    # The cotangents decide between the two.
    @jax.custom_vjp
    def call(*args):
        return (precomputed or scores)(*args)

    def backward(args, cotangents):
        if share in (0, 1):
            return (pull_pairs if share else pull_all)(cotangents, *args)
        few = jnp.count_nonzero(cotangents) <= math.ceil(share * cotangents.size)
        return lax.cond(few, pull_pairs, pull_all, cotangents, *args)

    call.defvjp(lambda *args: (call(*args), args), backward)
    return call


def _zeros_to_sum(x: Array) -> Array | None:
    """Returns zeros in at least float32 like an array; None if it is not floating-point."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return None
    return jnp.zeros(x.shape, jnp.promote_types(x.dtype, jnp.float32))


def _without_integers(cotangents: ArrayTree) -> ArrayTree:
    """Replaces the cotangents of arrays that are not floating-point by None, as custom gradients return them."""
    return jax.tree.map(lambda x: None if x.dtype == jax.dtypes.float0 else x, cotangents)
