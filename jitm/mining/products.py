"""Mining with models whose scores are inner products of vectors."""

import concurrent.futures
import itertools
from collections.abc import Iterator, Sequence

import chex
import jax
import numpy as np

from jitm import parallel
from jitm.data.splits import Split, bucket
from jitm.errors import UserError
from jitm.mining.search import group_size, rank_products
from jitm.mining.state import Lists, MiningState
from jitm.models.tiling import map_tiles
from jitm.types import Precision

MAX_QUERIES = 512  # per matrix product on each device
TILES = 8  # matrix products per block
BLOCKS_IN_FLIGHT = 2  # while one core ranks the scores of one block, the other cores multiply the next


class ProductSearch:
    """Searches both directions by inner products; each block multiplies a few queries with all candidates."""

    def __init__(self, images: np.ndarray, texts: np.ndarray, split: Split, *, memory_mb: int, precision: Precision):
        """Chooses the number of queries per block.

        Args:
          images: [I, D].
          texts: [T, D].
          split: Images and texts.
          memory_mb: The MiB for the scores of blocks; the vectors need memory on top.
          precision: The precision of the products of float32 vectors.

        Raises:
          UserError: if the memory does not hold the scores of one query per device.
        """
        self._vectors, self._split, self._precision = {'i2t': images, 't2i': texts}, split, precision
        max_queries = memory_mb * 2**20 // (BLOCKS_IN_FLIGHT * 4 * max(split.num_images, split.num_texts))
        devices = parallel.num_local_devices()
        self._tile = min(max_queries // devices, MAX_QUERIES)
        self._queries = TILES * self._tile * devices
        if not self._queries:
            raise UserError(
                f"config key 'run.memory_mb' is {memory_mb}, which does not hold the scores of {devices} queries; "
                'allow more'
            )

    def blocks(self) -> list[tuple[str, int]]:
        """Returns the direction and the first query of each block."""
        return [
            (direction, start)
            for direction, vectors in self._vectors.items()
            for start in range(0, len(vectors), self._queries)
        ]

    def pairs(self, block: tuple[str, int]) -> int:
        """Returns the number of pairs in a block."""
        direction, start = block
        queries, candidates = (len(self._vectors[d]) for d in (direction, _reverse(direction)))
        return candidates * min(self._queries, queries - start)

    def _excluded(self, direction: str, queries: np.ndarray, padded_count: int) -> np.ndarray:
        """Returns the ids int32 [N, P] that are not negatives of queries [N]: their positives, and the padding.

        `padded_count` is the number of candidates with padding.
        """
        candidates = len(self._vectors[_reverse(direction)])
        if direction == 't2i':
            positives = self._split.image_of_text[queries][:, None]
        else:
            texts, starts = self._split.texts_of_image
            positives = starts[queries][:, None] + np.arange(np.diff(starts).max())
            valid = positives < starts[queries + 1][:, None]
            positives = np.where(valid, texts[np.minimum(positives, len(texts) - 1)], padded_count)
        padding = np.arange(candidates, padded_count)
        padding = np.broadcast_to(padding, (len(queries), len(padding)))
        return np.concatenate([positives, padding], axis=1).astype(np.int32)

    def run(self, blocks: Sequence[tuple[str, int]], state: MiningState) -> Iterator[int]:
        """Searches some blocks and enters the results into the state; yields the number of pairs of each."""
        for direction in self._vectors:
            yield from self._run(direction, [start for d, start in blocks if d == direction], state)
        image_of_text = self._split.image_of_text
        for start in range(0, len(image_of_text), self._queries):
            rows = slice(start, start + self._queries)
            pairs = self._vectors['i2t'][image_of_text[rows]], self._vectors['t2i'][rows]
            images, texts = (vectors.astype(np.float32) for vectors in pairs)
            state.positives[rows] = np.einsum('nd,nd->n', images, texts)

    def _run(self, direction: str, starts: Sequence[int], state: MiningState) -> Iterator[int]:
        scores, ids = getattr(state, direction)
        vectors, top_h = self._vectors[direction], scores.shape[1]
        candidates = self._vectors[_reverse(direction)]
        group = group_size(len(candidates), top_h)
        padded_count = bucket(len(candidates), group)
        candidates = np.pad(candidates, [(0, padded_count - len(candidates)), (0, 0)])
        candidates = parallel.put_everywhere(candidates)
        ranked = parallel.map_rows(rank, top_h, group, self._tile, precision=self._precision)

        def best(start: int) -> Lists:
            queries = np.minimum(np.arange(start, start + self._queries), len(vectors) - 1)
            rows = vectors[queries], self._excluded(direction, queries, padded_count)
            return jax.device_get(ranked(parallel.put_rows(rows), candidates))

        with concurrent.futures.ThreadPoolExecutor(BLOCKS_IN_FLIGHT) as pool:
            first = map(best, starts[:1])  # compiles before the threads start
            for start, lists in zip(starts, itertools.chain(first, pool.map(best, starts[1:])), strict=True):
                count = min(self._queries, len(vectors) - start)
                for whole, part in zip((scores, ids), lists, strict=True):
                    whole[start : start + count] = part[:count]
                yield self.pairs((direction, start))


def _reverse(direction: str) -> str:
    return {'i2t': 't2i', 't2i': 'i2t'}[direction]


def rank(top_h: int, group: int, tile: int, rows: tuple[chex.Array, chex.Array], candidates: chex.Array) -> Lists:
    """Ranks the candidates for each query, `tile` queries at a time; the rows are those of `rank_products`."""
    return map_tiles(lambda tile_rows: rank_products(*tile_rows, candidates, top_h, group), rows, tile)
