"""Mining with models that score pairs of encodings, such as cross-attention models."""

from collections.abc import Iterator, Sequence
from typing import Any

import chex
import jax
import numpy as np

from jitm.data.splits import Split
from jitm.inference.memory import BlockShape
from jitm.inference.scoring import Scorer
from jitm.mining.search import rank_block
from jitm.mining.state import MiningState


def _block_id(rows: np.ndarray, columns: np.ndarray) -> tuple[int, int]:
    return int(rows[0]), int(columns[0])


class PairSearch:
    """Searches both directions at once in blocks of a `Scorer`."""

    def __init__(self, scorers: Sequence[Scorer], split: Split):
        """Sets the block shapes of all scorers of the split, whose scores are averaged, to the smallest one."""
        self._scorers, self._split = scorers, split
        smallest = BlockShape(*map(min, zip(*(scorer.shape for scorer in scorers), strict=True)))
        for scorer in scorers:
            scorer.shape = smallest
        self._pairs = {_block_id(*block): len(block[0]) * len(block[1]) for block in scorers[0].blocks()}

    def blocks(self) -> list[tuple[int, int]]:
        """Returns the first image and the first text of each block."""
        return list(self._pairs)

    def pairs(self, block: tuple[int, int]) -> int:
        """Returns the number of pairs in a block."""
        return self._pairs[block]

    def run(self, blocks: Sequence[tuple[int, int]], state: MiningState) -> Iterator[int]:
        """Searches some blocks and enters the results into the state; yields the number of pairs of each."""
        selected = set(blocks)
        for rows, columns in self._scorers[0].blocks():
            if _block_id(rows, columns) in selected:
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
