"""Queries whose first candidate is a match in one similarity matrix and not in another."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.metrics import Retrieved, evenly_spaced, ranks, retrieve
from jitm.report.bootstrap import Hits
from jitm.report.groups import Group
from jitm.report.matrices import Matrix
from jitm.report.panels import load_split_of
from jitm.report.pictures import NO_PICTURES, are_small, pictures_of, recorded_photos
from jitm.report.render import Column, Table

DIRECTIONS = {'i2t': ('Image to text', 'images'), 't2i': ('Text to image', 'captions')}


@dataclasses.dataclass(frozen=True)
class Example:
    """A query and what two matrices retrieve for it.

    Attributes:
      query: An image or a text.
      retrieved: The first candidate, and the rank of the first match, in each of the two matrices.
    """

    query: int
    retrieved: tuple[Retrieved, Retrieved]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The queries of one direction by the matrices that are right, i.e. whose first candidate is a match.

    Attributes:
      counts: The number of queries by whether the first matrix and whether the second is right (1), int [2, 2].
      examples: Some of the queries for which only the first matrix is right, and some for which only the second is.
    """

    counts: np.ndarray
    examples: tuple[Sequence[Example], Sequence[Example]]


def compare(first: Matrix, second: Matrix, count: int) -> dict[str, Comparison]:
    """Compares the first candidates of two matrices; ties count against the query.

    Args:
      first: Similarities of a split.
      second: Similarities of the same split.
      count: Examples of each kind, evenly spaced over all queries of this kind.

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


@dataclasses.dataclass(frozen=True)
class Shown:
    """Examples of two groups, with the data to show them.

    Attributes:
      names: The names of the two groups.
      runs: The name of the run of each group from which the examples are.
      comparisons: The comparison of each direction.
      split: Images and captions.
      pictures: Data URIs of images; empty to show their ids.
      hint: What to do if there are no pictures; '' if there are.
    """

    names: tuple[str, str]
    runs: tuple[str, str]
    comparisons: Mapping[str, Comparison]
    split: Split
    pictures: Mapping[int, str]
    hint: str

    @property
    def small(self) -> bool:
        """Whether the pictures are small pixels, to be enlarged without interpolation."""
        return are_small(self.split)

    def first_caption(self, image: int) -> str:
        """Returns the first caption of an image."""
        return self.split.captions[int(np.argmax(self.split.image_of_text == image))]


def _load_split(matrix: Matrix, sections: Sequence[Mapping[str, Any]], split_name: str, data_root: str | None) -> Split:
    """Loads the split of a matrix by the first of some sections `data` that have its images and captions."""
    problems = []
    for data, root in itertools.product(sections, dict.fromkeys((data_root, None))):
        try:
            return load_split_of(matrix, data, split_name, root)
        except UserError as error:
            problems.append(error)
    raise UserError(f'{problems[0]}; --queries 0 leaves out the examples, which need the captions') from None


def read_examples(
    groups: Sequence[Group],
    evaluated: Mapping[int, Sequence[Matrix]],
    found: Mapping[int, Hits],
    split_name: str,
    count: int,
    *,
    data_root: str | None = None,
    photos: Path | None = None,
) -> Shown | None:
    """Compares the group of the highest rsum with the first of the others, by the first run of each.

    Args:
      groups: All groups.
      evaluated: The similarities of some of them, by index.
      found: Their hits, by index.
      split_name: The split of the similarities, such as 'dev'.
      count: Examples of each kind.
      data_root: The data folder, if it has moved since training.
      photos: A folder with photographs, see `pictures_of`; None for the one that the data were encoded from.

    Returns:
      The examples; None if there are not two groups with similarities, or `count` is 0.

    Raises:
      UserError: If the data or a photograph cannot be read.
    """
    if len(evaluated) < 2 or not count:
        return None
    best = max(found, key=lambda n: found[n].rsum())
    other = next(n for n in found if n != best)
    (first, *_), (second, *_) = evaluated[best], evaluated[other]
    run = groups[best].runs[0]
    split = _load_split(first, [run.config['data'], groups[other].runs[0].config['data']], split_name, data_root)
    comparisons = compare(first, second, count)
    examples = {direction: itertools.chain(*one.examples) for direction, one in comparisons.items()}
    images = {example.query for example in examples['i2t']}
    images |= {image for example in examples['t2i'] for one in example.retrieved for image in one.top}
    roots = [data_root, *(groups[n].runs[0].config['data'].get('root') for n in (best, other))]
    if split.pixels is None:
        photos = next(filter(None, (photos, *(recorded_photos(split, root) for root in roots))), None)
    return Shown(
        (groups[best].name, groups[other].name),
        (run.workdir.name, groups[other].runs[0].workdir.name),
        comparisons,
        split,
        pictures_of(split, images, photos),
        NO_PICTURES if split.pixels is None and photos is None else '',
    )


def outcomes(shown: Shown) -> Table:
    """Returns the numbers of queries for which both groups are right, one of them, or none."""
    first, second = shown.names
    rows = [
        (name, *(f'{one.counts[outcome]:,}' for one in shown.comparisons.values()))
        for name, outcome in (('both', (1, 1)), (f'only {first}', (1, 0)), (f'only {second}', (0, 1)), ('none', (0, 0)))
    ]
    columns = [Column('right'), *(Column(DIRECTIONS[direction][1]) for direction in shown.comparisons)]
    return Table('Number of queries by the groups that are right', columns, rows)
