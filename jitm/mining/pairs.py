"""Mining with models that score pairs of encodings, such as cross-attention models."""

from collections.abc import Iterator, Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jitm.data.splits import Split
from jitm.inference.block_shape import BlockShape
from jitm.inference.scoring import Scorer
from jitm.mining.state import MiningState, merge


class PairSearch:
    """Searches both directions at once in blocks of a `Scorer`."""

    def __init__(self, scorers: Sequence[Scorer], split: Split):
        """Sets the block shapes of all scorers of the split, whose scores are averaged, to the smallest one."""
        self._scorers, self._split = scorers, split
        smallest = BlockShape(*map(min, zip(*(scorer.shape for scorer in scorers), strict=True)))
        for scorer in scorers:
            scorer.shape = smallest

    def blocks(self) -> dict[tuple[int, int], int]:
        """Returns the first image and the first text of each block -> the number of its pairs."""
        blocks = self._scorers[0].blocks()
        return {(int(rows[0]), int(columns[0])): len(rows) * len(columns) for rows, columns in blocks}

    def run(self, blocks: Sequence[tuple[int, int]], state: MiningState) -> Iterator[int]:
        """Searches some blocks and enters the results into the state; yields the number of pairs of each."""
        selected = set(blocks)
        for rows, columns in self._scorers[0].blocks():
            if (rows[0], columns[0]) in selected:
                block = sum(scorer.score_block(rows, columns) for scorer in self._scorers) / len(self._scorers)
                self._enter(block, rows, columns, state)
                yield len(rows) * len(columns)

    def _enter(self, block: chex.Array, rows: np.ndarray, columns: np.ndarray, state: MiningState) -> None:
        """Merges a block of scores into the lists of its images and texts."""

        def padded(array: np.ndarray, axis: int, value: Any) -> np.ndarray:
            missing = block.shape[axis] - len(array)
            return np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1), constant_values=value)

        before = [
            tuple(padded(array[index], axis, 0) for array in lists)
            for axis, (lists, index) in enumerate(((state.i2t, rows), (state.t2i, columns)))
        ]
        image_of_text = padded(self._split.image_of_text[columns], 1, -2)
        ids = padded(rows.astype(np.int32), 0, -1), padded(columns.astype(np.int32), 1, -1)
        images, texts, positives = jax.device_get(rank_block(*before, block, *ids, image_of_text))
        for lists, index, new in ((state.i2t, rows, images), (state.t2i, columns, texts)):
            for whole, part in zip(lists, new, strict=True):
                whole[index] = part[: len(index)]
        state.positives[columns] = np.maximum(state.positives[columns], positives[: len(columns)])


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
