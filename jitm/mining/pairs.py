"""Mining pair by pair, by the scoring engine."""

from collections.abc import Iterator, Sequence
from typing import Any

import chex
import jax
import numpy as np

from jitm.data.splits import Split
from jitm.evaluation.scoring import Scorer
from jitm.mining.found import Found
from jitm.mining.search import rank_block


def _name(rows: np.ndarray, columns: np.ndarray) -> tuple[int, int]:
    return int(rows[0]), int(columns[0])


class PairSearch:
    """Both directions at once by the scoring engine, for models that compare pair by pair."""

    def __init__(self, scorers: Sequence[Scorer], split: Split):
        """Gives all scorers blocks of one shape."""
        self._scorers, self._split = scorers, split
        for scorer in scorers:
            scorer.images, scorer.texts = (min(getattr(s, side) for s in scorers) for side in ('images', 'texts'))
        self._pairs = {_name(*block): len(block[0]) * len(block[1]) for block in scorers[0].blocks()}

    def blocks(self) -> list[tuple[int, int]]:
        """The first image and the first text of each block."""
        return list(self._pairs)

    def pairs(self, block: tuple[int, int]) -> int:
        """How many pairs a block scores."""
        return self._pairs[block]

    def run(self, blocks: Sequence[tuple[int, int]], found: Found) -> Iterator[int]:
        """Goes through blocks, entering into `found`; yields the pairs of each."""
        mine = set(blocks)
        for rows, columns in self._scorers[0].blocks():
            if _name(rows, columns) in mine:
                block = sum(scorer.score_block(rows, columns) for scorer in self._scorers) / len(self._scorers)
                self._enter(block, rows, columns, found)
                yield len(rows) * len(columns)

    def _enter(self, block: chex.Array, rows: np.ndarray, columns: np.ndarray, found: Found) -> None:
        def padded(array: np.ndarray, axis: int, value: Any) -> np.ndarray:
            missing = block.shape[axis] - len(array)
            return np.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1), constant_values=value)

        before = [
            tuple(padded(array[index], axis, 0) for array in lists)
            for axis, (lists, index) in enumerate(((found.i2t, rows), (found.t2i, columns)))
        ]
        owners = padded(self._split.image_of_text[columns], 1, -2)
        ids = padded(rows.astype(np.int32), 0, -1), padded(columns.astype(np.int32), 1, -1)
        images, texts, positives = jax.device_get(rank_block(*before, block, *ids, owners))
        for lists, index, new in ((found.i2t, rows, images), (found.t2i, columns, texts)):
            for whole, part in zip(lists, new, strict=True):
                whole[index] = part[: len(index)]
        found.positives[columns] = np.maximum(found.positives[columns], positives[: len(columns)])
