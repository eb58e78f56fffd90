"""The answer to one query, a caption or an image, from an index, and its page."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jitm.data.splits import Split
from jitm.errors import UserError, did_you_mean
from jitm.files import hash_file
from jitm.pages.pictures import are_small, pictures_of, thumbnail, uri
from jitm.pages.render import Result, render
from jitm.serving.images import check_photos, photo_files
from jitm.serving.index import Index
from jitm.serving.loaded_run import LoadedRun
from jitm.serving.search import Hit, VectorSearch, best_and_first, rank


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
    run: LoadedRun,
    index: Index,
    images: Split,
    top_k: int,
    *,
    caption: str,
    image: str | None = None,
    captions: Sequence[str] | None = None,
    rerank: LoadedRun | None = None,
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
    finds_images = captions is None
    names = index.names if finds_images else captions
    row = find_row(index, image) if image else None
    shown_image = image if row is None else index.names[row]
    row_of = {name: number for number, name in enumerate(images.names)}
    # The best images or captions.
    count = len(names) if images.captions else top_k  # all of them, for the rank of the first match
    if rerank is not None:
        count = top_m
    vector = _vector(run, index, caption, image, row)
    if finds_images:
        hits = index.top(vector, count + 1)[0]
        hits = [hit for hit in hits if hit.index != row][:count]  # an image is not a result for itself
    else:
        hits = VectorSearch(run.vectors(run.encode_text(captions))).top(vector, count)[0]
    # In the order of the second run.
    if rerank is not None:
        best = [names[hit.index] for hit in hits]
        texts = [caption] if finds_images else best
        compared = best if finds_images else [shown_image]
        if finds_images or row is not None:
            part = images.take(np.array([row_of[name] for name in compared]))
            compared = photo_files(part, rerank.run) or part
        scores = rerank.similarity(rerank.encode_image(compared), rerank.encode_text(texts)).ravel()
        if add:
            scores += np.array([hit.score for hit in hits], np.float32)
        hits = [Hit(hits[reranked.index].index, reranked.score) for reranked in rank(scores, len(hits))]
    # Those that match by the captions of the images.
    matches = set()
    if finds_images:
        matches = {images.names[match] for match in images.images_with(caption)}
    elif shown_image in row_of:
        matches = set(images.captions_of(row_of[shown_image]))
    right = {number for number, name in enumerate(names) if name in matches}
    results = [
        Result(names[hit.index], hit.score, rank=number, right=hit.index in right)
        for number, hit in best_and_first(hits, top_k, right)
    ]
    return Answer(image or caption, results[:top_k], finds_images, shown_image, results[top_k:])


def check_image(image: str, names: Sequence[str]) -> None:
    """Raises a UserError unless an image is a file, or has one of the names of an index."""
    if image not in names and not Path(image).is_file():
        raise UserError(f"the index has no image '{image}'{did_you_mean(image, names)}")


def find_row(index: Index, image: str) -> int | None:
    """Returns the position of an image, given by its name or as a file; None if it is not in the index."""
    if image in index.names:
        return index.names.index(image)
    checksum = hash_file(Path(image)) if Path(image).is_file() else None
    return next((row for row, entry in enumerate(index.entries) if entry.checksum == checksum), None)


def _vector(run: LoadedRun, index: Index, caption: str, image: str | None, row: int | None) -> np.ndarray:
    """Returns the vector of a query: [1, D]; `row` is the position of its image in the index, or None."""
    if not image:
        return run.vectors(run.encode_text([caption]))
    if row is not None:
        return index.vectors[row : row + 1]
    check_image(image, index.names)
    check_photos(run.run, f'the photo {image}')
    return run.vectors(run.encode_image([image]))


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
        small=photos is None and are_small(images),
        command=command,
    )
