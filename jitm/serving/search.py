"""Exact search: the largest inner products with queries, and the answer to one query of a caption or an image.

A shortlist is selected by fast products, which are rounded differently from evaluation, and ordered by `products`, as
in evaluation. It is longer than the result, so that rounding does not change the result.
"""

import dataclasses
from collections.abc import Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jitm.data.splits import Split, bucket
from jitm.devices import parallel
from jitm.errors import UserError, did_you_mean
from jitm.files import hash_file
from jitm.inference.engine import TILE, batches, pad, padded_count, products
from jitm.layers.linear import product
from jitm.pages.pictures import pictures_of, thumbnail, uri
from jitm.pages.render import Result, render
from jitm.serving.images import check_photos, photo_files

if TYPE_CHECKING:
    from jitm.serving.index import Index
    from jitm.serving.loaded_run import LoadedRun

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
    scores = product('id,td->it', rows.vectors, queries)
    scores, positions = jax.lax.top_k(jnp.where(rows.ids[:, None] == PADDING, -jnp.inf, scores).T, top_k)
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
        parts = batches(queries, max(1, MAX_SCORES // len(self._vectors)))
        return [hits for part in parts for hits in self._top(part, top_k)]

    def _top(self, queries: np.ndarray, top_k: int) -> list[list[Hit]]:
        count = bucket(top_k + MARGIN, TILE[0])
        if count >= len(self._vectors):
            scores = _scores(self._rows.vectors, queries)[: len(self._vectors)]
            return [rank(row, top_k) for row in scores.T]
        rows, places = np.unique(self._shortlist(queries, count), return_inverse=True)
        size = padded_count(len(rows), TILE[0] * parallel.num_local_devices())
        scores = _scores(parallel.put_rows(self._vectors[pad(rows, size)]), queries)[: len(rows)]
        return [
            [Hit(int(rows[place[hit.index]]), hit.score) for hit in rank(scores[place, n], top_k)]
            for n, place in enumerate(np.sort(places, axis=1))
        ]

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


@dataclasses.dataclass(frozen=True)
class Answer:
    """The results of a query.

    Attributes:
      query: The caption, or the name of the image.
      results: The results in descending order of their scores.
      finds_images: Whether they are images or captions.
      image: The image of the query: its name in the index, or a photo that is not in it; None for a caption.
      missed: The first match, with its rank, if the results have none of the known matches.
    """

    query: str
    results: Sequence[Result]
    finds_images: bool
    image: str | None = None
    missed: Sequence[Result] = ()


def answer(
    run: 'LoadedRun',
    index: 'Index',
    images: Split,
    top_k: int,
    *,
    caption: str,
    image: str | None = None,
    captions: Sequence[str] | None = None,
    rerank: 'LoadedRun | None' = None,
    top_m: int = 100,
    add: bool = False,
) -> Answer:
    """Searches the images of an index, or captions; results that match by the captions of the images are marked.

    Args:
      run: The run that made the index.
      index: The index of the images.
      images: The images.
      top_k: The number of results.
      caption: The query caption; '' to search with an image.
      image: The name of an indexed image, or a photo; None to search with a caption.
      captions: The captions to find; None to find images.
      rerank: A run that orders the best results; None for none.
      top_m: The number of results that it orders, at least `top_k`; the others are left out.
      add: Whether the scores of the first run are added to its scores.

    Raises:
      UserError: If the query cannot be read, or the second run cannot read these images.
    """
    names = index.names if captions is None else captions
    row = find_row(index, image) if image else None
    shown_image = image if row is None else index.names[row]
    count = len(names) if images.captions else top_k  # all of them, for the rank of the first match
    count = count if rerank is None else top_m
    vector = _vector(run, index, caption, image, row)
    if captions is None:
        hits = index.top(vector, count + (row is not None))[0]
        hits = [hit for hit in hits if hit.index != row][:count]  # an image is not a result for itself
    else:
        hits = VectorSearch(run.vectors(run.encode_text(captions))).top(vector, count)[0]
    if rerank is not None:
        found_names = [names[hit.index] for hit in hits]
        compared = [shown_image]
        if captions is None or row is not None:
            row_of = {name: row for row, name in enumerate(images.names)}
            part = images.take(np.array([row_of[name] for name in (found_names if captions is None else compared)]))
            compared = photo_files(part, rerank.run) or part
        encoded = rerank.encode_image(compared), rerank.encode_text([caption] if captions is None else found_names)
        scores = rerank.similarity(*encoded).ravel()
        scores += np.array([hit.score for hit in hits], np.float32) if add else 0
        hits = [Hit(hits[reranked.index].index, reranked.score) for reranked in rank(scores, len(hits))]
    matches = set()  # the names of the images, or the captions, that match
    if captions is None:
        matches = {images.names[match] for match in images.images_with(caption)}
    elif shown_image in images.names:
        matches = {*images.captions_of(images.names.index(shown_image))}
    shown = best_and_first(hits, top_k, {n for n, name in enumerate(names) if name in matches})
    results = [Result(names[hit.index], hit.score, rank=n, right=names[hit.index] in matches) for n, hit in shown]
    return Answer(image or caption, results[:top_k], captions is None, shown_image, results[top_k:])


def find_row(index: 'Index', image: str) -> int | None:
    """Returns the position of an image, given by its name or as a file; None if it is not in the index."""
    if image in index.names:
        return index.names.index(image)
    checksum = hash_file(Path(image)) if Path(image).is_file() else None
    return next((row for row, entry in enumerate(index.entries) if entry.checksum == checksum), None)


def _vector(run: 'LoadedRun', index: 'Index', caption: str, image: str | None, row: int | None) -> np.ndarray:
    """Returns the vector of a query: [1, D]; `row` is the position of its image in the index, or None."""
    if not image:
        return run.vectors(run.encode_text([caption]))
    if row is not None:
        return index.vectors[row : row + 1]
    if Path(image).is_file():
        check_photos(run.run, f'the photo {image}')
        return run.vectors(run.encode_image([image]))
    raise UserError(f"the index has no image '{image}'{did_you_mean(image, index.names)}")


def page(result: Answer, images: Split, command: str, photos: Path | None = None) -> str:
    """Returns the results as a self-contained HTML page, below the image of the query if it has one.

    Args:
      result: The results, followed by the first match if they lack it.
      images: The images, whose captions are shown.
      command: The command that writes the page.
      photos: A folder with the pictures of the images, see `pictures_of`; None for their own pixels.
    """
    row_of = {name: row for row, name in enumerate(images.names)}
    shown = [*result.results, *result.missed]
    picture = ''
    named = [hit.text for hit in shown] if result.finds_images else []
    pictures = pictures_of(images, [row_of[name] for name in {*named, result.image} & row_of.keys()], photos)
    if result.image is not None:
        has_row = result.image in row_of
        picture = pictures.get(row_of[result.image], '') if has_row else uri(thumbnail(result.image), 'jpeg')
    if result.finds_images:
        shown = [
            dataclasses.replace(
                hit,
                picture=pictures.get(row_of[hit.text], ''),
                note=next(iter(images.captions_of(row_of[hit.text])), ''),
            )
            for hit in shown
        ]
    return render(
        'search.html',
        title=result.query,
        picture=picture,
        results=shown,
        finds_images=result.finds_images,
        command=command,
    )
