"""Exact search: the largest inner products with queries.

A shortlist is selected by fast products, which are rounded differently from evaluation, and ordered by `products`, as
in evaluation. It is longer than the result, so that rounding does not change the result.
"""

from collections.abc import Container, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jitm.data.splits import bucket
from jitm.devices import parallel
from jitm.errors import UserError
from jitm.inference.engine import TILE, batches, pad, padded_count, products
from jitm.inference.top_k import group_size, highest
from jitm.layers.linear import product

MAX_SCORES = 2**26  # scores of one call, i.e. queries times candidates
MARGIN = 64  # candidates of a shortlist beyond the requested number
PADDING = -1
PRECISION = 'highest'  # few queries read all vectors, which takes longer than their products


class Hit(NamedTuple):
    """One result of a search.

    Attributes:
      index: The position of the image, or caption, among those that were searched.
      score: Its similarity to the query, higher for better matches.
      name: The name of the image in an index; '' where names are not known.
    """

    index: int
    score: float
    name: str = ''


def check_count(count: int, name: str) -> None:
    """Raises a UserError unless an argument is a positive integer."""
    if not isinstance(count, int | np.integer) or count < 1:
        raise UserError(f'{name} is {count!r}; it must be a positive integer')


def rank(scores: np.ndarray, top_k: int) -> list[Hit]:
    """Returns the candidates with the highest scores.

    Args:
      scores: [C], of all candidates.
      top_k: The number of results; all candidates if there are fewer.

    Returns:
      The hits in descending order of their scores, equal scores in the order of the candidates.
    """
    return [Hit(int(index), float(scores[index])) for index in np.argsort(-scores, kind='stable')[:top_k]]


class _Vectors(NamedTuple):
    """Vectors [C, D], and their numbers int32 [C], `PADDING` for padded ones."""

    vectors: chex.Array
    ids: chex.Array


def _best(top_k: int, rows: _Vectors, queries: chex.Array) -> tuple[chex.Array, chex.Array]:
    """Returns the scores and numbers of the `top_k` vectors of a device for each of the queries [Q, D]: [Q, top_k]."""
    scores = product('qd,cd->qc', queries, rows.vectors)
    scores = jnp.where(rows.ids == PADDING, -jnp.inf, scores)
    scores, positions = highest(scores, top_k, group_size(len(rows.ids), top_k))
    return scores, rows.ids[positions]


def _score(vectors: chex.Array, queries: chex.Array) -> chex.Array:
    """Scores vectors [C, D] with queries [Q, D] as the evaluation does: float32 [C, Q]."""
    dtype = min((vectors.dtype, queries.dtype), key=lambda dtype: dtype.itemsize)  # an index is float32
    return products(vectors, queries.astype(dtype))


def best_and_first(hits: Sequence[Hit], count: int, matches: Container[int]) -> list[tuple[int, Hit]]:
    """Returns the best hits, and the first match if it is not one of them, each with its rank.

    Args:
      hits: All hits in descending order of their scores.
      count: The number of best hits.
      matches: The rows that match the query.
    """
    ranked = list(enumerate(hits, 1))
    first = next((rank for rank, hit in ranked if hit.index in matches), 0)
    return ranked[:count] + ([ranked[first - 1]] if first > count else [])


class VectorSearch:
    """Searches vectors by their inner products with queries; they are split over the devices of this process."""

    def __init__(self, vectors: np.ndarray):
        """Moves the vectors [C, D] to the devices."""
        self._vectors = vectors
        padding = -len(vectors) % parallel.num_local_devices()
        ids = np.pad(np.arange(len(vectors), dtype=np.int32), (0, padding), constant_values=PADDING)
        if padding:
            vectors = np.pad(vectors, [(0, padding), (0, 0)])
        self._rows = parallel.put_rows(_Vectors(vectors, ids))

    def top(self, queries: np.ndarray, top_k: int) -> list[list[Hit]]:
        """Returns the vectors with the largest inner products for each query.

        Args:
          queries: [Q, D].
          top_k: The number of results; all vectors if there are fewer.

        Returns:
          The hits of each query in descending order of their scores, equal scores in the order of the vectors.

        Raises:
          UserError: If `top_k` is not positive.
        """
        check_count(top_k, 'top_k')
        results = []
        for part in batches(queries, max(1, MAX_SCORES // len(self._vectors))):
            results += self._top(part, top_k)
        return results

    def _top(self, queries: np.ndarray, top_k: int) -> list[list[Hit]]:
        count = bucket(top_k + MARGIN, TILE[0])
        if count >= len(self._vectors):
            scores = _scores(self._rows.vectors, queries)[: len(self._vectors)]
            return [rank(row, top_k) for row in scores.T]
        rows, places = np.unique(self._shortlist(queries, count), return_inverse=True)
        size = padded_count(len(rows), TILE[0] * parallel.num_local_devices())
        scores = _scores(parallel.put_rows(self._vectors[pad(rows, size)]), queries)[: len(rows)]
        results = []
        for query, place in enumerate(np.sort(places, axis=1)):
            hits = rank(scores[place, query], top_k)
            results.append([Hit(int(rows[place[hit.index]]), hit.score) for hit in hits])
        return results

    def _shortlist(self, queries: np.ndarray, count: int) -> np.ndarray:
        """Returns the numbers of the `count` vectors with the largest products for each query: [Q, count].

        Ties are broken by the lower number.
        """
        devices = parallel.num_local_devices()
        best = parallel.map_rows(_best, min(count, len(self._rows.ids) // devices), precision=PRECISION)
        shortlists = jax.device_get(best(self._rows, parallel.put_everywhere(queries)))
        # [devices Q, k] -> [Q, devices k]
        scores, ids = (np.concatenate(np.split(part, devices), axis=1) for part in shortlists)
        return np.take_along_axis(ids, np.lexsort((ids, -scores))[:, :count], axis=1)


def _scores(vectors: chex.Array, queries: np.ndarray) -> np.ndarray:
    """Scores vectors on the devices with queries: float32 [C, Q] in host memory."""
    return jax.device_get(parallel.map_rows(_score, precision=PRECISION)(vectors, parallel.put_everywhere(queries)))
