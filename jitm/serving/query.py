"""One query to an index: the best images or captions for a caption or an image, optionally re-ranked by another run."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jitm.errors import UserError, did_you_mean
from jitm.files import hash_file
from jitm.report.pictures import thumbnail, uri
from jitm.report.render import Result, render
from jitm.serving.index import Index
from jitm.serving.inputs import SplitData
from jitm.serving.loaded_run import LoadedRun
from jitm.serving.search import Hit, VectorSearch, best_and_first, rank
from jitm.serving.sources import ImageSource, check_photos, unique_ids


@dataclasses.dataclass(frozen=True)
class Answer:
    """The results of a query.

    Attributes:
      query: The caption, or the name of the image.
      results: The results in descending order of their scores.
      finds_images: Whether they are images or captions.
      image: The image of the query: its name in the index, or a photo that is not in it; None for a caption.
      missed: The first match, with its rank, if a match is known and none is among the results.
    """

    query: str
    results: Sequence[Result]
    finds_images: bool
    image: str | None = None
    missed: Sequence[Result] = ()


def answer(
    run: LoadedRun,
    index: Index,
    source: ImageSource,
    top_k: int,
    *,
    caption: str,
    image: str | None = None,
    captions: Sequence[str] | None = None,
    data: SplitData | None = None,
    rerank: LoadedRun | None = None,
    top_m: int = 100,
) -> Answer:
    """Searches the images of an index, or captions.

    Args:
      run: The run that made the index.
      index: The images.
      source: The source of the images.
      top_k: The number of results.
      caption: The caption to search with; '' to search with an image.
      image: The name of an indexed image, or a photo; None to search with a caption.
      captions: The captions to find; None to find images.
      data: The split of the images, whose matches are marked; None for other images.
      rerank: A run that orders the best results; None for none.
      top_m: The number of results that it orders; the others are left out.

    Raises:
      UserError: if the query cannot be read, or the second run cannot read these images.
    """
    names = index.names if captions is None else captions
    count = top_k if data is None else len(names)  # of all, for the rank of the first match
    count = count if rerank is None else max(top_k, top_m)
    row = find_row(index, image) if image else None
    vector = _vector(run, index, caption, image, row)
    if captions is None:
        hits = index.top(vector, count + (row is not None))[0]
        hits = [hit for hit in hits if hit.index != row][:count]  # an image is not a result for itself
    else:
        hits = VectorSearch(run.vectors(run.encode_text(captions))).top(vector, count)[0]
    if rerank is not None:
        found = [names[hit.index] for hit in hits]
        if captions is None:
            encoded = rerank.encode_image(source.take(found, rerank.run)), rerank.encode_text([caption])
        else:
            photo = [image] if row is None else source.take([index.names[row]], rerank.run)
            encoded = rerank.encode_image(photo), rerank.encode_text(found)
        scores = rerank.similarity(*encoded).ravel()
        hits = [Hit(hits[one.index].index, one.score) for one in rank(scores, len(hits))]
    shown_image = image if row is None else index.names[row]
    matches = set()
    if data is not None:  # the names of the images, or captions, that match
        ids = unique_ids(data.split)
        if captions is None:
            matches = {ids[match] for match in data.images_with(caption)}
        elif shown_image in ids:
            matches = {*data.captions_of(ids.index(shown_image))}
    shown = best_and_first(hits, top_k, {n for n, name in enumerate(names) if name in matches})
    results = [Result(names[hit.index], hit.score, rank=n, right=names[hit.index] in matches) for n, hit in shown]
    return Answer(image or caption, results[:top_k], captions is None, shown_image, results[top_k:])


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
    if Path(image).is_file():
        check_photos(run.run, f'the photo {image}')
        return run.vectors(run.encode_image([image]))
    raise UserError(f"the index has no image '{image}'{did_you_mean(image, index.names)}")


def page(found: Answer, source: ImageSource, command: str, data: SplitData | None = None) -> str:
    """Returns the results as a self-contained HTML page, below the image of the query if it has one.

    Args:
      found: The results, followed by the first match if they lack it.
      source: The source of the images.
      command: The command that writes the page.
      data: The split of the images, whose captions are shown; None for other images.
    """
    picture = ''
    if found.image is not None:
        named = found.image in source.names
        picture = source.pictures([found.image]).get(found.image, '') if named else uri(thumbnail(found.image), 'jpeg')
    shown = [*found.results, *found.missed]
    if found.finds_images:
        pictures = source.pictures([one.text for one in shown])
        shown = [dataclasses.replace(one, picture=pictures.get(one.text, '')) for one in shown]
    if found.finds_images and data is not None:
        ids = unique_ids(data.split)
        shown = [dataclasses.replace(one, note=data.first_caption(ids.index(one.text))) for one in shown]
    return render(
        'search.html',
        title=found.query,
        picture=picture,
        results=shown,
        finds_images=found.finds_images,
        command=command,
    )
