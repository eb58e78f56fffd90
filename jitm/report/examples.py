"""Queries whose first candidate is a match in one similarity matrix and not in another."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.metrics import Retrieved, evenly_spaced, ranks
from jitm.pages.pictures import NO_PICTURES, are_small, pictures_of, recorded_photos
from jitm.pages.render import Column, Table
from jitm.report.bootstrap import Hits
from jitm.report.groups import Group
from jitm.report.matrices import Matrix, load_split_of, retrieved

DIRECTIONS = {'i2t': ('Image to text', 'images'), 't2i': ('Text to image', 'captions')}


class Comparison(NamedTuple):
    """The queries of one direction by the matrices that are right, i.e. whose first candidate is a match.

    Attributes:
      counts: The number of queries by whether the first matrix and whether the second is right (1), int [2, 2].
      examples: Some of the queries for which only the first matrix is right, and some for which only the second is, as
        {query: the first candidate, and the rank of the first match, in each of the two matrices}.
    """

    counts: np.ndarray
    examples: tuple[Mapping[int, Sequence[Retrieved]], Mapping[int, Sequence[Retrieved]]]


def compare(first: Matrix, second: Matrix, count: int) -> dict[str, Comparison]:
    """Compares the first candidates of two matrices; ties count against the query.

    Args:
      first: Similarities of a split.
      second: Similarities of the same split.
      count: Examples of each kind, evenly spaced over all queries of this kind.

    Returns:
      The comparison of each direction, i2t and t2i.
    """
    matrices = (first, second)
    comparisons = {}
    by_matrix = [ranks(matrix.sims, matrix.image_of_text) for matrix in matrices]
    for direction, ranked in zip(DIRECTIONS, zip(*by_matrix, strict=True), strict=True):
        first_right, second_right = np.equal(ranked, 0)
        counts = np.zeros((2, 2), int)
        np.add.at(counts, (first_right.astype(int), second_right.astype(int)), 1)
        examples = []
        for kind in (first_right & ~second_right, second_right & ~first_right):
            queries = np.flatnonzero(kind).tolist()
            chosen = [queries[n] for n in evenly_spaced(count, len(queries))]
            examples.append({query: retrieved(matrices, direction, query, 1) for query in chosen})
        comparisons[direction] = Comparison(counts, tuple(examples))
    return comparisons


class Shown(NamedTuple):
    """Examples of two groups, with the data to show them.

    Attributes:
      groups: The indices of the two groups.
      names: Their names.
      runs: The name of the run in each group that the examples come from.
      comparisons: The comparison of each direction.
      split: Images and captions.
      pictures: Data URIs of images; empty to show their ids and captions.
      captions: The first caption of each image that is shown.
      small: Whether the pictures are small pixels, to be enlarged without interpolation.
      hint: A hint how to get pictures if there are none; '' if there are.
    """

    groups: tuple[int, int]
    names: tuple[str, str]
    runs: tuple[str, str]
    comparisons: Mapping[str, Comparison]
    split: Split
    pictures: Mapping[int, str]
    captions: Mapping[int, str]
    small: bool
    hint: str


def read_examples(
    groups: Sequence[Group],
    evaluated: Mapping[int, Sequence[Matrix]],
    hits_of: Mapping[int, Hits],
    split_name: str,
    count: int,
    *,
    data_root: str | None = None,
    photos: Path | None = None,
) -> Shown | None:
    """Compares the group of the highest rsum with the first other group, by the first run of each.

    Args:
      groups: All groups.
      evaluated: The similarities of some of them, by index.
      hits_of: Their hits, by index.
      split_name: The split of the similarities, such as 'dev'.
      count: Examples of each kind.
      data_root: The data folder, if it has moved since training.
      photos: A folder with photographs, see `pictures_of`; None for the folder from which the data were encoded.

    Returns:
      The examples; None if there are not two groups with similarities, or `count` is 0.

    Raises:
      UserError: If the data or a photograph cannot be read.
    """
    if len(evaluated) < 2 or not count:
        return None
    best = max(hits_of, key=lambda n: hits_of[n].rsum())
    pair = best, next(n for n in hits_of if n != best)
    first, second = (evaluated[n][0] for n in pair)
    runs = [groups[n].runs[0] for n in pair]
    problems = []
    for run, root in itertools.product(runs, dict.fromkeys((data_root, None))):
        try:
            split = load_split_of(first, run.config['data'], split_name, root)
            break
        except UserError as error:
            problems.append(error)
    else:
        raise UserError(f'{problems[0]}; --queries 0 leaves out the examples, which need the captions')
    comparisons = compare(first, second, count)
    images = set().union(*comparisons['i2t'].examples)
    for example in comparisons['t2i'].examples:
        images |= {hit.top[0] for hit in itertools.chain(*example.values())}
    if split.pixels is None and photos is None:
        roots = [data_root, *(run.config['data'].get('root') for run in runs)]
        photos = next(filter(None, (recorded_photos(split, root) for root in roots)), None)
    return Shown(
        groups=pair,
        names=tuple(groups[n].name for n in pair),
        runs=tuple(run.workdir.name for run in runs),
        comparisons=comparisons,
        split=split,
        pictures=pictures_of(split, images, photos),
        captions={image: split.captions[np.argmax(split.image_of_text == image)] for image in images},
        small=are_small(split),
        hint=NO_PICTURES if split.pixels is None and photos is None else '',
    )


def outcomes(shown: Shown) -> Table:
    """Returns the numbers of queries for which both groups are right, one of them, or none."""
    first, second = shown.names
    names = {'both': (1, 1), f'only {first}': (1, 0), f'only {second}': (0, 1), 'none': (0, 0)}
    rows = []
    for name, outcome in names.items():
        counts = [comparison.counts[outcome] for comparison in shown.comparisons.values()]
        rows.append((name, *(f'{count:,}' for count in counts)))
    columns = [Column('right'), *(Column(DIRECTIONS[direction][1]) for direction in shown.comparisons)]
    return Table('Number of queries by the groups that are right', columns, rows)
