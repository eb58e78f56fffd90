"""Exact search: the candidates with the highest scores, or the largest inner products with queries."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jitm import parallel
from jitm.data.pipeline import bucket
from jitm.errors import UserError
from jitm.layers.linear import product

MAX_SCORES = 2**26  # scores of one call, i.e. queries times candidates
PADDING = -1


class Hit(NamedTuple):
    """One result of a search.

    Attributes:
      index: the position of the image, or caption, among those that were searched.
      score: its similarity to the query, higher for better matches.
    """

    index: int
    score: float


def check_top_k(top_k: int) -> None:
    """Raises a UserError unless the number of results is a positive integer."""
    if not isinstance(top_k, int | np.integer) or top_k < 1:
        raise UserError(f'top_k is {top_k}; it must be a positive integer')


def rank(scores: np.ndarray, top_k: int) -> list[Hit]:
    """Returns the candidates with the highest scores.

    Args:
      scores: [C], of all candidates.
      top_k: the number of results; all candidates if there are fewer.

    Returns:
      The hits in descending order of their scores, equal scores in the order of the candidates.
    """
    return [Hit(int(index), float(scores[index])) for index in np.argsort(-scores, kind='stable')[:top_k]]


@functools.lru_cache(maxsize=16)
def _compiled(top_k: int) -> Callable:
    """Returns `((vectors [C, D], ids [C]), (queries [Q, D],)) -> scores and ids [Q, top_k]` of each device."""

    def best(rows: tuple[chex.Array, chex.Array], shared: tuple[chex.Array]) -> tuple[chex.Array, chex.Array]:
        (vectors, ids), (queries,) = rows, shared
        scores = product('id,td->it', vectors, queries)  # as in `DualEncoder.similarity`
        scores, positions = jax.lax.top_k(jnp.where(ids[:, None] == PADDING, -jnp.inf, scores).T, top_k)
        return scores, ids[positions]

    return parallel.map_rows(best)


class VectorSearch:
    """Searches vectors by their inner products with queries; they are split over the devices of this process."""

    def __init__(self, vectors: np.ndarray):
        """Moves the vectors [C, D] to the devices."""
        self._count = len(vectors)
        padding = -self._count % parallel.num_local_devices()
        ids = np.pad(np.arange(self._count, dtype=np.int32), (0, padding), constant_values=PADDING)
        if padding:
            vectors = np.pad(vectors, [(0, padding), (0, 0)])
        self._rows = parallel.put_rows((vectors, ids))

    def top(self, queries: np.ndarray, top_k: int) -> list[list[Hit]]:
        """Returns the vectors with the largest inner products for each query.

        Args:
          queries: [Q, D].
          top_k: the number of results; all vectors if there are fewer.

        Returns:
          The hits of each query in descending order of their scores, equal scores in the order of the vectors.

        Raises:
          UserError: if `top_k` is not positive.
        """
        check_top_k(top_k)
        step = max(1, MAX_SCORES // self._count)
        return [
            hit for start in range(0, len(queries), step) for hit in self._top(queries[start : start + step], top_k)
        ]

    def _top(self, queries: np.ndarray, top_k: int) -> list[list[Hit]]:
        devices, count = parallel.num_local_devices(), min(top_k, self._count)
        of_device = min(count, bucket(self._count, devices) // devices)
        found = jax.device_get(_compiled(of_device)(self._rows, (parallel.put_everywhere(queries),)))
        # [devices Q, k] -> [Q, devices k]; a stable sort keeps equal scores in the order of the vectors.
        scores, ids = (np.concatenate(np.split(part, devices), axis=1) for part in found)
        return [
            [Hit(int(one[n]), float(row[n])) for n in np.argsort(-row, kind='stable')[:count]]
            for row, one in zip(scores, ids, strict=True)
        ]
