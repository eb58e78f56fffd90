"""Mining by inner products."""

import concurrent.futures
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import chex
import jax
import numpy as np

from jitm import parallel
from jitm.data.pipeline import bucket
from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.mining.found import Found, Lists
from jitm.mining.search import group_size, rank_products
from jitm.models.tiling import map_tiles

MOST_QUERIES = 512  # multiplied at a time on each device
TILES = 8  # such multiplications in a block
ALIVE = 2  # blocks: the scores of one are ranked, on one core, while those of the other are multiplied


class ProductSearch:
    """Both directions by inner products of all encodings, which are kept; few queries meet all candidates at a time."""

    def __init__(self, images: np.ndarray, texts: np.ndarray, split: Split, *, memory_mb: int):
        """Decides how many queries a block has.

        Args:
          images: [I, D].
          texts: [T, D].
          split: which text describes which image.
          memory_mb: MiB for blocks of scores; the vectors come on top.

        Raises:
          UserError: if not even one query fits.
        """
        self._vectors, self._split = {'i2t': images, 't2i': texts}, split
        most = memory_mb * 2**20 // (ALIVE * 4 * max(split.num_images, split.num_texts))
        devices = parallel.num_local_devices()
        self._tile = min(most // devices, MOST_QUERIES)
        self._queries = TILES * self._tile * devices
        if not self._queries:
            raise UserError(f'{memory_mb} MiB (run.memory_mb) do not hold the scores of {devices} queries; allow more')

    def blocks(self) -> list[tuple[str, int]]:
        """Direction and first query of each block."""
        return [
            (direction, start)
            for direction, vectors in self._vectors.items()
            for start in range(0, len(vectors), self._queries)
        ]

    def pairs(self, block: tuple[str, int]) -> int:
        """How many pairs a block scores."""
        direction, start = block
        queries, candidates = (len(self._vectors[d]) for d in (direction, _other(direction)))
        return candidates * min(self._queries, queries - start)

    def _excluded(self, direction: str, queries: np.ndarray, beyond: int) -> np.ndarray:
        """Ids [N, P] that are no candidates of some queries: what corresponds, and those from the last to `beyond`."""
        candidates = len(self._vectors[_other(direction)])
        if direction == 't2i':
            own = self._split.image_of_text[queries][:, None]
        else:
            texts, starts = self._split.texts_of_image
            own = starts[queries][:, None] + np.arange(np.diff(starts).max())
            own = np.where(own < starts[queries + 1][:, None], texts[np.minimum(own, len(texts) - 1)], beyond)
        filled_up = np.broadcast_to(np.arange(candidates, beyond), (len(queries), beyond - candidates))
        return np.concatenate([own, filled_up], axis=1).astype(np.int32)

    def run(self, blocks: Sequence[tuple[str, int]], found: Found) -> Iterator[int]:
        """Goes through blocks, entering into `found`; yields the pairs of each."""
        for direction in self._vectors:
            yield from self._run(direction, [start for d, start in blocks if d == direction], found)
        own = self._split.image_of_text
        for start in range(0, len(own), self._queries):
            some = slice(start, start + self._queries)
            images, texts = (
                x.astype(np.float32) for x in (self._vectors['i2t'][own[some]], self._vectors['t2i'][some])
            )
            found.positives[some] = np.einsum('nd,nd->n', images, texts)

    def _run(self, direction: str, starts: Sequence[int], found: Found) -> Iterator[int]:
        scores, ids = getattr(found, direction)
        vectors, top_h = self._vectors[direction], scores.shape[1]
        candidates = self._vectors[_other(direction)]
        group = group_size(len(candidates), top_h)
        beyond = bucket(len(candidates), group)
        candidates = np.pad(candidates, [(0, beyond - len(candidates)), (0, 0)])
        candidates = parallel.put_everywhere(candidates)
        rank = _rank_products(top_h, group, self._tile)

        def best(start: int) -> Lists:
            queries = np.minimum(np.arange(start, start + self._queries), len(vectors) - 1)
            rows = vectors[queries], self._excluded(direction, queries, beyond)
            return jax.device_get(rank(parallel.put_rows(rows), candidates))

        with concurrent.futures.ThreadPoolExecutor(ALIVE) as pool:
            first = map(best, starts[:1])  # compiles
            for start, lists in zip(starts, itertools.chain(first, pool.map(best, starts[1:])), strict=True):
                count = min(self._queries, len(vectors) - start)
                for whole, part in zip((scores, ids), lists, strict=True):
                    whole[start : start + count] = part[:count]
                yield self.pairs((direction, start))


def _other(direction: str) -> str:
    return {'i2t': 't2i', 't2i': 'i2t'}[direction]


@functools.lru_cache(maxsize=4)
def _rank_products(top_h: int, group: int, tile: int) -> Callable:
    def rank(rows: tuple[chex.Array, chex.Array], candidates: chex.Array) -> tuple[chex.Array, chex.Array]:
        return map_tiles(lambda some: rank_products(*some, candidates, top_h, group), rows, tile)

    return parallel.map_rows(rank)
