"""The searches for the highest-scoring candidates of all queries of a split, in both directions."""

import concurrent.futures
import itertools
from collections.abc import Iterator, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jitm.data.splits import Split, bucket
from jitm.devices import parallel
from jitm.errors import UserError
from jitm.inference.memory import BlockShape
from jitm.inference.scoring import Scorer
from jitm.inference.top_k import group_size, highest
from jitm.layers.linear import product
from jitm.mining.state import Lists, MiningState, merge
from jitm.models.tiling import map_tiles
from jitm.types import Precision

MAX_QUERIES = 512  # per matrix product on each device
TILES = 8  # matrix products per block
BLOCKS_IN_FLIGHT = 2  # while one core ranks the scores of one block, the other cores multiply the next


class PairSearch:
    """Searches with models that score pairs of encodings: both directions at once, in blocks of a `Scorer`."""

    def __init__(self, scorers: Sequence[Scorer], split: Split):
        """Sets the block shapes of all scorers of the split, whose scores are averaged, to the smallest one."""
        self._scorers = scorers
        self._split = split
        images = min(scorer.shape.images for scorer in scorers)
        texts = min(scorer.shape.texts for scorer in scorers)
        for scorer in scorers:
            scorer.shape = BlockShape(images, texts)

    def blocks(self) -> dict[tuple[int, int], int]:
        """Returns the first image and the first text of each block -> the number of its pairs."""
        return {
            (int(rows[0]), int(columns[0])): rows.size * columns.size for rows, columns in self._scorers[0].blocks()
        }

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
        block = block[: len(rows), : len(columns)]
        of_images = tuple(array[rows] for array in state.i2t)
        of_texts = tuple(array[columns] for array in state.t2i)
        ids = rows.astype(np.int32), columns.astype(np.int32)
        image_of_text = self._split.image_of_text[columns]
        images, texts, positives = jax.device_get(rank_block(of_images, of_texts, block, *ids, image_of_text))
        for lists, index, new in ((state.i2t, rows, images), (state.t2i, columns, texts)):
            for merged, part in zip(lists, new, strict=True):
                merged[index] = part
        state.positives[columns] = np.maximum(state.positives[columns], positives)


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
      rows: int32 [I], ascending ids of the images.
      columns: int32 [T], ascending ids of the texts.
      image_of_text: The image of each text, int32 [T].

    Returns:
      The lists of the images, the lists of the texts, and the score of each text with its own image [T], -inf if that
      image is not in the block.
    """
    match = image_of_text == rows[:, None]
    positives = jnp.max(jnp.where(match, block, -jnp.inf), axis=0)
    negatives = jnp.where(match, -jnp.inf, block)
    return merge(images, negatives, columns), merge(texts, negatives.T, rows), positives


class ProductSearch:
    """Searches with models of inner products; each block multiplies a few queries with all candidates."""

    def __init__(self, images: np.ndarray, texts: np.ndarray, split: Split, *, memory_mb: int, precision: Precision):
        """Chooses the number of queries per block.

        Args:
          images: [I, D].
          texts: [T, D].
          split: Images and texts.
          memory_mb: The MiB for the scores of blocks; the vectors need memory on top.
          precision: The precision of the products of float32 vectors.

        Raises:
          UserError: If the memory does not hold the scores of one query per device.
        """
        self._sides = {'i2t': (images, texts), 't2i': (texts, images)}  # direction -> queries and candidates
        self._split = split
        self._precision = precision
        max_queries = memory_mb * 2**20 // (BLOCKS_IN_FLIGHT * 4 * max(split.num_images, split.num_texts))
        devices = parallel.num_local_devices()
        self._tile = min(max_queries // devices, MAX_QUERIES)
        self._queries = TILES * self._tile * devices
        if not self._queries:
            raise UserError(
                f"config key 'run.memory_mb' is {memory_mb}, which does not hold the scores of {devices} queries; "
                'allow more'
            )

    def blocks(self) -> dict[tuple[str, int], int]:
        """Returns the direction and the first query of each block -> the number of its pairs."""
        blocks = {}
        for direction, (queries, candidates) in self._sides.items():
            for start in range(0, len(queries), self._queries):
                blocks[direction, start] = len(candidates) * min(self._queries, len(queries) - start)
        return blocks

    def _excluded(self, direction: str, queries: np.ndarray, padded_count: int) -> np.ndarray:
        """Returns the ids int32 [N, P] that are not negatives of queries [N]: their positives, and the padding.

        `padded_count` is the number of candidates with padding.
        """
        if direction == 't2i':
            positives = self._split.image_of_text[queries][:, None]
        else:
            texts, starts = self._split.texts_of_image
            positives = starts[queries][:, None] + np.arange(np.diff(starts).max())
            valid = positives < starts[queries + 1][:, None]
            positives = np.where(valid, texts[np.minimum(positives, len(texts) - 1)], padded_count)
        padding = np.arange(len(self._sides[direction][1]), padded_count)
        padding = np.broadcast_to(padding, (len(queries), len(padding)))
        return np.concatenate([positives, padding], axis=1).astype(np.int32)

    def run(self, blocks: Sequence[tuple[str, int]], state: MiningState) -> Iterator[int]:
        """Searches some blocks and enters the results into the state; yields the number of pairs of each."""
        for direction in self._sides:
            yield from self._run(direction, [start for d, start in blocks if d == direction], state)
        image_of_text = self._split.image_of_text
        images, texts = self._sides['i2t']
        for start in range(0, len(texts), self._queries):
            rows = slice(start, start + self._queries)
            matches = images[image_of_text[rows]].astype(np.float32)
            state.positives[rows] = np.einsum('nd,nd->n', matches, texts[rows].astype(np.float32))

    def _run(self, direction: str, starts: Sequence[int], state: MiningState) -> Iterator[int]:
        scores, ids = getattr(state, direction)
        vectors, candidates = self._sides[direction]
        top_h = scores.shape[1]
        group = group_size(len(candidates), top_h)
        padded_count = bucket(len(candidates), group)
        padded = parallel.put_everywhere(np.pad(candidates, [(0, padded_count - len(candidates)), (0, 0)]))
        ranked = parallel.map_rows(rank, top_h, group, self._tile, precision=self._precision)

        def best(start: int) -> Lists:
            queries = np.minimum(np.arange(start, start + self._queries), len(vectors) - 1)
            rows = vectors[queries], self._excluded(direction, queries, padded_count)
            return jax.device_get(ranked(parallel.put_rows(rows), padded))

        with concurrent.futures.ThreadPoolExecutor(BLOCKS_IN_FLIGHT) as pool:
            first = map(best, starts[:1])  # compiles before the threads start
            for start, lists in zip(starts, itertools.chain(first, pool.map(best, starts[1:])), strict=True):
                count = min(self._queries, len(vectors) - start)
                for merged, part in zip((scores, ids), lists, strict=True):
                    merged[start : start + count] = part[:count]
                yield count * len(candidates)


def rank(top_h: int, group: int, tile: int, rows: tuple[chex.Array, chex.Array], candidates: chex.Array) -> Lists:
    """Ranks the candidates for each query, `tile` queries at a time; for the rows see `rank_products`."""
    return map_tiles(lambda tile_rows: rank_products(*tile_rows, candidates, top_h, group), rows, tile)


def rank_products(
    queries: chex.Array, excluded: chex.Array, candidates: chex.Array, top_h: int, group: int
) -> tuple[chex.Array, chex.Array]:
    """Finds the candidates with the highest inner products: lists [N, h].

    The excluded ones are ranked too and then left out: they are few, and the scores are many.

    Args:
      queries: [N, D].
      excluded: int32 [N, P], ids that are not candidates; ids from K on are ignored.
      candidates: [K, D].
      top_h: h, at most K.
      group: The size of the groups of `highest`, a divisor of K.
    """
    scores = product('nd,kd->nk', queries, candidates)
    best, ids = highest(scores, min(top_h + excluded.shape[1], scores.shape[1]), group)
    best, positions = lax.top_k(jnp.where((ids[:, :, None] == excluded[:, None]).any(axis=2), -jnp.inf, best), top_h)
    return best, jnp.take_along_axis(ids, positions, axis=1)
