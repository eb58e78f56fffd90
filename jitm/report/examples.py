"""Queries whose first candidate is a match in one similarity matrix and not in another."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.metrics import ranks
from jitm.report.bootstrap import Hits
from jitm.report.markup import Column, breakable, escape, section, table
from jitm.report.matrices import Matrix
from jitm.report.panels import load_split_of
from jitm.report.pictures import are_small, pictures_of
from jitm.report.retrieval import Retrieved, evenly_spaced, retrieve
from jitm.report.settings import Setting

DIRECTIONS = {'i2t': ('Image to text', 'images'), 't2i': ('Text to image', 'captions')}


@dataclasses.dataclass(frozen=True)
class Example:
    """A query and what two matrices retrieve for it.

    Attributes:
      query: an image or a text.
      retrieved: the first candidate, and the rank of the first match, in each of the two matrices.
    """

    query: int
    retrieved: tuple[Retrieved, Retrieved]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The queries of one direction by the matrices that are right, i.e. whose first candidate is a match.

    Attributes:
      counts: int [2, 2], the number of queries by whether the first matrix and whether the second is right (1).
      examples: some of the queries for which only the first matrix is right, and some for which only the second is.
    """

    counts: np.ndarray
    examples: tuple[Sequence[Example], Sequence[Example]]


def compare(first: Matrix, second: Matrix, count: int) -> dict[str, Comparison]:
    """Compares the first candidates of two matrices; ties count against the query.

    Args:
      first: similarities of a split.
      second: similarities of the same split.
      count: examples of each kind, evenly spaced over all queries of this kind.

    Returns:
      The comparison of each direction, i2t and t2i.
    """
    image_of_text, images = first.image_of_text, np.arange(len(first.sims))
    right = [[rank == 0 for rank in ranks(matrix.sims, matrix.image_of_text)] for matrix in (first, second)]

    def example(direction: str, query: int) -> Example:
        if direction == 'i2t':
            axis, matches = (query, slice(None)), image_of_text == query
        else:
            axis, matches = (slice(None), query), images == image_of_text[query]
        a, b = (retrieve(np.asarray(matrix.sims[axis]), matches, 1) for matrix in (first, second))
        return Example(query, (a, b))

    comparisons = {}
    for direction, a, b in zip(('i2t', 't2i'), *right, strict=True):
        counts = np.array([[np.sum((a == x) & (b == y)) for y in (False, True)] for x in (False, True)])
        kinds = [np.flatnonzero(kind) for kind in (a & ~b, ~a & b)]
        chosen = [[int(kind[n]) for n in evenly_spaced(count, len(kind))] for kind in kinds]
        only_first, only_second = ([example(direction, query) for query in queries] for queries in chosen)
        comparisons[direction] = Comparison(counts, (only_first, only_second))
    return comparisons


def _images_of(comparisons: Mapping[str, Comparison]) -> set[int]:
    """Returns the images that are queries or first candidates of the examples."""
    shown = set()
    for direction, comparison in comparisons.items():
        for example in (example for kind in comparison.examples for example in kind):
            retrieved = {image for one in example.retrieved for image in one.top}
            shown |= {example.query} if direction == 'i2t' else retrieved
    return shown


@dataclasses.dataclass(frozen=True)
class Shown:
    """Examples of two settings, with the data to show them.

    Attributes:
      names: of the two settings.
      runs: names of the run of each from which the examples are.
      comparisons: by direction.
      split: images and captions.
      pictures: data URIs of images; empty to show their ids.
    """

    names: tuple[str, str]
    runs: tuple[str, str]
    comparisons: Mapping[str, Comparison]
    split: Split
    pictures: Mapping[int, str]


def read_examples(
    settings: Sequence[Setting],
    evaluated: Mapping[int, Sequence[Matrix]],
    found: Mapping[int, Hits],
    split_name: str,
    count: int,
    *,
    data_root: str | None = None,
    photos: Path | None = None,
) -> Shown | None:
    """Compares the setting of the highest rsum with the first of the others, by the first run of each.

    Args:
      settings: all settings.
      evaluated: the similarities of some of them, by index.
      found: their hits, by index.
      split_name: the split of the similarities, such as 'dev'.
      count: examples of each kind.
      data_root: the data folder, if it has moved since training.
      photos: a folder with photographs, see `pictures_of`.

    Returns:
      The examples; None if there are not two settings with similarities, or `count` is 0.

    Raises:
      UserError: if the data or a photograph cannot be read.
    """
    if len(evaluated) < 2 or not count:
        return None
    best = max(found, key=lambda n: found[n].rsum())
    other = next(n for n in found if n != best)
    (first, *_), (second, *_) = evaluated[best], evaluated[other]
    run = settings[best].runs[0]
    try:
        split = load_split_of(first, run.config['data'], split_name, data_root)
    except UserError as error:
        raise UserError(f'{error}; --queries 0 leaves out the examples, which need the captions') from None
    comparisons = compare(first, second, count)
    return Shown(
        (settings[best].name, settings[other].name),
        (run.workdir.name, settings[other].runs[0].workdir.name),
        comparisons,
        split,
        pictures_of(split, _images_of(comparisons), photos),
    )


def examples_section(shown: Shown | None, num_evaluated: int) -> str:
    """Returns the numbers of queries for which one, both or none of two settings is right, and examples."""
    if shown is None:
        needed = 'Two settings need saved similarities of the same images and captions.'
        reason = 'None were asked for.' if num_evaluated > 1 else needed
        return section('Examples', f'<p>{reason}</p>')
    a, b = map(breakable, shown.names)
    intro = (
        f'<p>{a} ({escape(shown.runs[0])}) and {b} ({escape(shown.runs[1])}) on {escape(shown.split.name)}. A setting '
        'is right if its first candidate matches the query. The examples are evenly spaced over all queries of their '
        'kind.</p>'
    )
    outcomes = {'both': (1, 1), f'only {shown.names[0]}': (1, 0), f'only {shown.names[1]}': (0, 1), 'none': (0, 0)}
    columns = [Column('right'), *(Column(DIRECTIONS[direction][1]) for direction in shown.comparisons)]
    rows = [
        [breakable(name), *(f'{one.counts[outcome]:,}' for one in shown.comparisons.values())]
        for name, outcome in outcomes.items()
    ]
    parts = [intro, table('Number of queries by the settings that are right', columns, rows)]
    for direction, comparison in shown.comparisons.items():
        for right, examples in enumerate(comparison.examples):
            if examples:
                total = comparison.counts[1 - right, right]
                title, noun = DIRECTIONS[direction]
                heading = f'{title}: only {shown.names[right]} is right ({len(examples)} of {total:,} {noun})'
                card = _image_query if direction == 'i2t' else _text_query
                cards = '\n'.join(card(shown, example) for example in examples)
                parts.append(f'<h3>{breakable(heading)}</h3>\n<div class="cards">\n{cards}\n</div>')
    return section('Examples', *parts)


def _verdict(name: str, rank: int) -> str:
    """Returns whether a setting is right, with the rank of the first match."""
    if rank == 1:
        return f'<span class="right">✓ {breakable(name)}</span>'
    return f'<span class="wrong">✗ {breakable(name)}</span> <small>first match at rank {rank:,}</small>'


def _image_query(shown: Shown, example: Example) -> str:
    """Returns an image and the first caption that each setting retrieves for it."""
    retrieved = ''.join(
        f'<p>{_verdict(name, one.rank)} <span class="caption">{escape(shown.split.captions[one.top[0]])}</span></p>'
        for name, one in zip(shown.names, example.retrieved, strict=True)
    )
    return f'<article>\n{_image(shown, example.query)}\n{retrieved}\n</article>'


def _text_query(shown: Shown, example: Example) -> str:
    """Returns a caption and the first image that each setting retrieves for it."""
    retrieved = ''.join(
        f'<div>{_image(shown, one.top[0])}<p>{_verdict(name, one.rank)}</p></div>'
        for name, one in zip(shown.names, example.retrieved, strict=True)
    )
    caption = escape(shown.split.captions[example.query])
    return f'<article>\n<p><strong>{caption}</strong></p>\n<div class="pair">{retrieved}</div>\n</article>'


def _image(shown: Shown, image: int) -> str:
    """Returns an image; without pictures its id and its first caption."""
    name = escape(shown.split.image_ids[image])
    if image in shown.pictures:
        kind = ' class="small-pixels"' if are_small(shown.split) else ''
        return f'<img{kind} alt="{name}" src="{shown.pictures[image]}">'
    caption = shown.split.captions[int(np.argmax(shown.split.image_of_text == image))]
    return f'<p><code>{name}</code> <small>{escape(caption)}</small></p>'
