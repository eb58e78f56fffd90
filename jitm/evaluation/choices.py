"""How often a model scores what belongs together above what does not, in the choices of `jitm.data.choices`."""

import collections
import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from jitm.data.choices import Choice, Cut
from jitm.data.photo_files import SUFFIXES
from jitm.data.pixels import Photos
from jitm.data.splits import Split
from jitm.data.transforms import Transform
from jitm.errors import UserError
from jitm.evaluation import tables
from jitm.evaluation.published import Row
from jitm.inference.pair_scorer import PairScorer
from jitm.runs.run import read_tokens

SCORES = ('text', 'image', 'group')
ALL, MEAN = 'all', 'mean of categories'  # rows of a group with several categories
LEVEL = 0.95  # of the intervals


def find_images(
    choices: Sequence[Choice],
    split: Split | None,
    pictures: Mapping[str, bytes],
    transform: Transform | None,
    name: str,
) -> tuple[Split, list[tuple[Choice, list[int]]], list[str]]:
    """Finds the images of choices by their names, with or without folders, suffix, `COCO_val2014_` and leading zeros.

    Args:
      choices: The choices.
      split: Images with names; None if all are `pictures`.
      pictures: Name -> image file, of images that a file of choices contains.
      transform: How photos become pixels; None for those of the split.
      name: The name of the new split in messages.

    Returns:
      A split of the images with all captions, the choices that have their images, each with their rows in the split,
      and the names of the images that are missing.

    Raises:
      UserError: If none of the choices has its images, or if boxes or photos come with images
        that are not files.
    """
    ids, photos = (split.image_ids, split.pixels) if split else ((), Photos((), transform))
    cut = isinstance(photos, Photos)  # a box is of a photo; features are of whole images
    known = {_short(image): row for row, image in enumerate(ids)} | {image: row for row, image in enumerate(ids)}
    known |= {image: image for image in pictures}
    if not cut and (pictures or any(choice.box for choice in choices)):
        raise UserError(
            f'{name} has boxes or photos, but the images of {split.name} are not files: give the folder of the photos '
            'as --photos, with a model of photos'
        )
    used, kept, missing = {}, [], {}
    for choice in choices:
        sources = {image: known.get(image, known.get(_short(image))) for image in choice.images}
        absent = [image for image, source in sources.items() if source is None]
        missing |= dict.fromkeys(absent)
        if not absent:
            kept.append((choice, [used.setdefault((sources[i], choice.box), len(used)) for i in choice.images]))
    if not kept:
        raise UserError(f'{name} has no choice whose images are given: give the folder of its photos as --photos')
    captions = tuple(dict.fromkeys(caption for choice, _ in kept for caption in choice.captions))
    texts = {'name': name, 'captions': captions, 'image_of_text': np.zeros(len(captions), np.int32)}
    if not cut:
        taken = split.take(np.array([row for row, _ in used]))
        return dataclasses.replace(taken, token_vectors=None, **texts), kept, [*missing]
    files = Cut((pictures[s] if isinstance(s, str) else photos.files[s], box) for s, box in used)
    pixels = Photos(files, transform or photos.transform)
    return Split(regions=None, counts=None, image_ids=tuple(map(str, used)), pixels=pixels, **texts), kept, [*missing]


def _short(name: str) -> str:
    path = PurePath(name)
    stem = path.stem if path.suffix.lower() in SUFFIXES else path.name
    return re.sub(r'^(COCO_(train|val|test)\d{4}_)?0*(?=\d+$)', '', stem)


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
    pairs, places = {}, []
    for choice, images in choices:
        texts = [rows[caption] for caption in choice.captions]
        places.append([[pairs.setdefault((n, keys[t]), (len(pairs), n, t))[0] for t in texts] for n in images])
    _, images, texts = np.array([*pairs.values()]).T
    scores = scorer.score(images, tokens.take(texts))
    if not np.isfinite(scores).all():
        raise UserError('scores of the choices are not finite: the model is broken')
    return [scores[np.array(place)] for place in places]


def decide(scores: np.ndarray, matches: Iterable[tuple[int, int]]) -> dict[str, bool]:
    """Returns what a model gets right of one choice; equal scores count against it.

    Args:
      scores: float [I, C].
      matches: The images and captions that belong together.

    Returns:
      `text`, whether every match scores above all captions of its image that do not match; `image`, whether it does
      above all such images of its caption; `group`, both (Thrush et al., 2022); and `ties`, whether a match scores as
      high as one of them. Without what nothing is compared with.
    """
    belong = np.zeros(scores.shape, bool)
    belong[tuple(np.array([*matches]).T)] = True
    right, ties = {}, False
    for name, rows, match in (('text', scores, belong), ('image', scores.T, belong.T)):
        compared = [(row[m], row[~m]) for row, m in zip(rows, match, strict=True) if m.any() and not m.all()]
        ties |= any(np.isin(positives, others).any() for positives, others in compared)
        if compared:
            right[name] = all(positives.min() > others.max() for positives, others in compared)
    return right | ({'group': all(right.values())} if len(right) == 2 else {}) | {'ties': ties}


def evaluate(choices: Sequence[Choice], scores: Sequence[np.ndarray], min_count: int = 1) -> list[dict[str, Any]]:
    """Evaluates scored choices.

    Args:
      choices: The choices.
      scores: The scores of each, [I, C].
      min_count: The choices that a category has at least; smaller ones have no row and are not in the mean.

    Returns:
      A row for each category, and unless a group has one, for all its choices and for the mean of its categories: the
      group as `test`, the `category`, the number of `choices`, and in percent `SCORES`, with intervals, and `ties`.
    """
    decided = collections.defaultdict(lambda: collections.defaultdict(list))
    for choice, one in zip(choices, scores, strict=True):
        decided[choice.group][choice.category].append(decide(one, choice.matches))
    report = []
    for group, categories in decided.items():
        rows = [_summarize(group, name, of) for name, of in sorted(categories.items()) if len(of) >= min_count]
        report += rows
        if len(rows) != 1:
            report.append(_summarize(group, ALL, [one for of in categories.values() for one in of]))
            names = [name for name in SCORES if rows and all(name in row for row in rows)]
            means = {name: float(np.mean([row[name] for row in rows])) for name in names}
            report.append({'test': group, 'category': MEAN} | means)
    return report


def _summarize(group: str, category: str, decided: Sequence[Mapping[str, bool]]) -> dict[str, Any]:
    """Returns the row of some choices, with Wilson's intervals."""
    from scipy.stats import binomtest

    row = {'test': group, 'category': category, 'choices': len(decided)}
    for name in (*SCORES, 'ties'):
        if len(right := [one[name] for one in decided if name in one]) == len(decided):
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
    cells = [
        [*(str(row.get(name, '')) for name in names), *(cell(row, name) for name in (*SCORES, 'ties'))]
        for row in report
    ]
    return tables.table([*names, *SCORES, 'ties'], cells)


def _number(value: float | None) -> str:
    return '-' if value is None else f'{value:.1f}'


def compare(report: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> str:
    """Returns tables of the published numbers of the tests in a report, with its own; '' if there are none.

    A number of `ARO relation` is the mean of its categories, one of `Winoground` that of all choices.
    """
    ours = collections.defaultdict(dict)
    for row in report:
        test, _, part = row['test'].partition(' ')
        whole = {MEAN: f'{part}/'} if part else {ALL: ''}
        prefix = whole.get(row['category'], f'{row["category"]}/')
        ours[test.lower()] |= {f'{prefix}{name}': row[name] for name in SCORES if name in row}
    parts = []
    for test, metrics in ours.items():
        published = [row for row in rows if row.dataset == test and row.metrics.keys() & metrics.keys()]
        keys = [key for key in metrics if any(key in row.metrics for row in published)]
        lines = [('ours', metrics), *((f'{row.system} {row.backbone}'.strip(), row.metrics) for row in published)]
        cells = [[name, *(_number(numbers.get(key)) for key in keys)] for name, numbers in lines]
        parts += [tables.table([test, *keys], cells)] if published else []
    return '\n\n'.join(parts)
