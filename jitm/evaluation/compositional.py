"""Accuracy on sets of minimally different choices (SugarCrepe, ARO, Winoground, BiVLC)."""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from jitm.data.images.photo_files import SUFFIXES
from jitm.data.images.pixels import Photos
from jitm.data.images.transforms import Transform
from jitm.data.pairs.compositionality import Choice, Cut
from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.evaluation.published import Row
from jitm.inference.pairs import PairScorer
from jitm.pages import tables
from jitm.runs.run import read_tokens

SCORES = ('text', 'image', 'group')
ALL, MEAN = 'all', 'mean of categories'  # rows of a group with several categories
LEVEL = 0.95  # confidence level of the intervals


def find_images(
    choices: Sequence[Choice],
    split: Split | None,
    pictures: Mapping[str, bytes],
    transform: Transform | None,
    name: str,
) -> tuple[Split, list[tuple[Choice, list[int]]], list[str]]:
    """Finds the images of choices by their names, see `_row_of`.

    Args:
      choices: The choices.
      split: Images with names; None if all are `pictures`.
      pictures: Name -> image file, for images that a file of choices contains.
      transform: The conversion of photos to pixels; None for the split's.
      name: The name of the new split in messages.

    Returns:
      A split of the images with all captions, the choices that have their images, each with their rows in the split,
      and the names of the images that are missing.

    Raises:
      UserError: If none of the choices has its images, a name is ambiguous, or boxes or photos come with images that
        are not files.
    """
    ids, texts, photos = (split.image_ids, split.num_texts, split.pixels) if split else ((), 0, Photos((), transform))
    cut = isinstance(photos, Photos)  # boxes need photos; features describe whole images
    rows_of = collections.defaultdict(list)
    numbered = all(image.isdecimal() and int(image) < max(len(ids), texts) for image in ids)
    for row, image in enumerate(() if numbered else ids):  # numbers of images or captions name no file
        rows_of[_short(image)].append(row)
    if not cut and (pictures or any(choice.box for choice in choices)):
        raise UserError(
            f'{name} has boxes or photos, but the images of {split.name} are not files: give the folder of the photos '
            'as --photos, with a model of photos'
        )
    used = {}
    found_choices = []
    not_found = {}
    for choice in choices:
        sources = {name: name if name in pictures else _row_of(name, split, rows_of) for name in choice.images}
        absent = [image for image, source in sources.items() if source is None]
        not_found |= dict.fromkeys(absent)
        if not absent:
            where = f"{name}, entry '{choice.id}'"
            rows = [used.setdefault((sources[i], choice.box), (len(used), where))[0] for i in choice.images]
            found_choices.append((choice, rows))
    if not found_choices:
        raise UserError(
            f'{name} has no choice whose images are given: give the folder of its photos as --photos, or a split with '
            'the file names of its images as ids'
        )
    captions = {}
    for choice, _ in found_choices:
        captions |= dict.fromkeys(choice.captions)
    captions = tuple(captions)
    new = {'name': name, 'captions': captions, 'image_of_text': np.zeros(len(captions), np.int32)}
    if not cut:
        rows = split.take(np.array([row for row, _ in used]))
        return dataclasses.replace(rows, token_vectors=None, **new), found_choices, [*not_found]
    files = Cut(
        (pictures[s], box, s) if isinstance(s, str) else (photos.files[s], box, where)
        for (s, box), (_, where) in used.items()
    )
    pixels = Photos(files, transform or photos.transform)
    return (
        Split(regions=None, counts=None, image_ids=tuple(map(str, used)), pixels=pixels, **new),
        found_choices,
        [*not_found],
    )


def _stem(name: str) -> str:
    path = PurePath(name)
    return path.stem if path.suffix.lower() in SUFFIXES else path.name


def _short(name: str) -> str:
    return re.sub(r'^(COCO_(train|val|test)\d{4}_)?0*(?=\d+$)', '', _stem(name))


def _row_of(name: str, split: Split | None, rows_of: Mapping[str, Sequence[int]]) -> int | None:
    """Returns the image with a name, with or without folders and suffix; None if there is none.

    `COCO_val2014_` and leading zeros need not be the same in a split of COCO, nor if the name is one of COCO and the id
    more than a number. Between several images, the whole name, or else the file's name in the same folders, decides.

    Raises:
      UserError: If they do not.
    """
    stem = _stem(name)
    ids = {row: split.image_ids[row] for row in rows_of.get(_short(name), ())}
    coco = re.fullmatch(r'COCO_.*|\d{12}', stem)
    ids = {n: i for n, i in ids.items() if _stem(i) == stem or split.dataset == 'coco' or (coco and not i.isdecimal())}
    if len(ids) < 2:
        return next(iter(ids), None)
    parts = PurePath(name).parts[::-1]
    # The same file, suffix included, and the same folders, as far as both have some.
    alike = []
    for row, path in ids.items():
        shared = zip(PurePath(path).parts[::-1], parts, strict=False)
        if all(part == part_of_name for part, part_of_name in shared):
            alike.append(row)
    named = [row for row in ids if ids[row] == name] or [*alike]
    if len(named) != 1:
        listed = ' or '.join(ids.values())
        raise UserError(f"'{name}' may be {listed} of {split.name}: give images where only one has this name")
    return named[0]


def score(scorer: PairScorer, split: Split, choices: Sequence[tuple[Choice, Sequence[int]]]) -> list[np.ndarray]:
    """Scores choices: for each float32 [I, C]. Pairs with equal tokens are scored once.

    Args:
      scorer: The scorer of the split.
      split: The images and captions, as `find_images` returns them.
      choices: The choices with the rows of their images.

    Raises:
      UserError: If a score is not finite.
    """
    tokens = read_tokens(scorer.run, split)
    rows = {caption: row for row, caption in enumerate(split.captions)}
    keys = [tuple(tokens.ids[start:stop]) for start, stop in itertools.pairwise(tokens.starts)]
    numbers = {}  # image and tokens -> number of the pair
    pairs = []
    places = []
    for choice, images in choices:
        texts = [rows[caption] for caption in choice.captions]
        of_choice = np.zeros((len(images), len(texts)), int)
        for (row, image), (column, text) in itertools.product(enumerate(images), enumerate(texts)):
            key = image, keys[text]
            if key not in numbers:
                numbers[key] = len(pairs)
                pairs.append((image, text))
            of_choice[row, column] = numbers[key]
        places.append(of_choice)
    images, texts = np.array(pairs).T
    scores = scorer.score(images, tokens.take(texts))
    if not np.isfinite(scores).all():
        raise UserError('scores of the choices are not finite: the model is broken')
    return [scores[place] for place in places]


def decide(scores: np.ndarray, matches: Iterable[tuple[int, int]]) -> dict[str, bool]:
    """Returns which tests of one choice a model passes; equal scores count against it.

    Args:
      scores: float [I, C].
      matches: The matching images and captions.

    Returns:
      `text`, whether every match scores above all captions of its image that do not match; `image`, whether it does
      above all such images of its caption; `group`, both (Thrush et al., 2022); and `ties`, whether a match scores as
      high as one of them. Tests without a comparison are left out.
    """
    belong = np.zeros(scores.shape, bool)
    belong[tuple(np.array([*matches]).T)] = True
    right = {}
    ties = False
    for name, rows, match in (('text', scores, belong), ('image', scores.T, belong.T)):
        compared = [(row[m], row[~m]) for row, m in zip(rows, match, strict=True) if m.any() and not m.all()]
        ties |= any(np.isin(positives, negatives).any() for positives, negatives in compared)
        if compared:
            right[name] = all(positives.min() > negatives.max() for positives, negatives in compared)
    return right | ({'group': all(right.values())} if len(right) == 2 else {}) | {'ties': ties}


def evaluate(choices: Sequence[Choice], scores: Sequence[np.ndarray], min_count: int = 1) -> list[dict[str, Any]]:
    """Evaluates scored choices.

    Args:
      choices: The choices.
      scores: The scores of each, [I, C].
      min_count: The minimum number of choices in a category; smaller ones have no row and are not in the mean.

    Returns:
      A row for each category that is large enough, and unless this is all of a group, for all its choices and for the
      mean of these categories: the group as `test`, the `category`, the number of `choices`, and in percent `SCORES`,
      with intervals, and `ties`.
    """
    decided = collections.defaultdict(lambda: collections.defaultdict(list))
    for choice, scores_of_choice in zip(choices, scores, strict=True):
        decided[choice.group][choice.category].append(decide(scores_of_choice, choice.matches))
    report = []
    for group, categories in decided.items():
        large = {name: members for name, members in sorted(categories.items()) if len(members) >= min_count}
        rows = [_summarize(group, name, members) for name, members in large.items()]
        report += rows
        if len(categories) > 1 or not rows:
            report.append(_summarize(group, ALL, [*itertools.chain(*categories.values())]))
        if len(categories) > 1 and rows:
            report.append({'test': group, 'category': MEAN} | _means(rows))
    return report


def _means(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the means of the scores that all rows have."""
    means = {}
    for name in SCORES:
        values = [row[name] for row in rows if name in row]
        if len(values) == len(rows):
            means[name] = float(np.mean(values))
    return means


def _summarize(group: str, category: str, decided: Sequence[Mapping[str, bool]]) -> dict[str, Any]:
    """Returns the row of some choices, with Wilson's intervals."""
    from scipy.stats import binomtest

    row = {'test': group, 'category': category, 'choices': len(decided)}
    for name in (*SCORES, 'ties'):
        right = [decision[name] for decision in decided if name in decision]
        if len(right) == len(decided):
            row[name] = 100 * float(np.mean(right))
            ends = binomtest(sum(right), len(right)).proportion_ci(LEVEL, method='wilson')
            row[f'{name}_interval'] = [100 * float(end) for end in ends]
    return row


def table(report: Sequence[Mapping[str, Any]]) -> str:
    """Returns the rows of `evaluate` as a Markdown table."""

    def cell(row: Mapping[str, Any], name: str) -> str:
        ends = row.get(f'{name}_interval') if name in SCORES else None
        return _number(row.get(name)) + (' ({:.1f} to {:.1f})'.format(*ends) if ends else '')

    names = ('test', 'category', 'choices')
    cells = []
    for row in report:
        scores = [cell(row, name) for name in (*SCORES, 'ties')]
        cells.append([*(str(row.get(name, '')) for name in names), *scores])
    return tables.table([*names, *SCORES, 'ties'], cells)


def _number(value: float | None) -> str:
    return '-' if value is None else f'{value:.1f}'


def compare(report: Sequence[Mapping[str, Any]], rows: Sequence[Row], part: bool = False) -> str:
    """Returns tables of the published numbers of the tests in a report, with its own; '' if there are none.

    A number for `ARO relation` is the mean of its categories, for `Winoground` the mean of all choices. A mean
    that lacks a published category is left out.

    Args:
      report: The rows of `evaluate`.
      rows: Published rows.
      part: Whether the report covers only a part of the tests.
    """
    ours = collections.defaultdict(dict)
    for row in report:
        test, _, group = row['test'].partition(' ')
        prefixes = {MEAN: f'{group}/'} if group else {ALL: ''}
        prefix = prefixes.get(row['category'], f'{row["category"]}/')
        ours[test.lower()] |= {f'{prefix}{name}': row[name] for name in SCORES if name in row}
    tested = []
    for test, metrics in ours.items():
        published = [row for row in rows if row.dataset == test]
        printed = set().union(*(row.metrics for row in published))
        lacking = tuple(key.partition('_')[0] + '/' for key in printed - metrics.keys() if '_' in key)
        keys = [key for key in metrics if key in printed and not key.startswith(lacking)]
        cells = [['ours (part)' if part else 'ours', *(_number(metrics[key]) for key in keys), '']]
        for row in (row for row in published if row.metrics.keys() & {*keys}):
            numbers = [_number(row.metrics.get(key)) for key in keys]
            cells.append([f'{row.system} {row.backbone}'.strip(), *numbers, row.cited])
        tested += [tables.table([test, *keys, 'source'], cells)] if keys else []
    return '\n\n'.join(tested)
