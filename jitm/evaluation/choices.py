"""How often a model scores what belongs together above what does not, in the choices of `jitm.data.choices`."""

import collections
import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from jitm.data.choices import Choice, Cut
from jitm.data.photos import SUFFIXES
from jitm.data.pixels import Photos
from jitm.data.splits import Split
from jitm.data.text import join
from jitm.data.transforms import Transform
from jitm.errors import UserError
from jitm.evaluation import tables
from jitm.evaluation.published import Row
from jitm.inference.pair_scorer import PairScorer

SCORES = ('text', 'image', 'group')
LEVEL = 0.95  # of the intervals


class Found(NamedTuple):
    """Choices with their images.

    Attributes:
      split: A split with the images and all captions of the choices, for `PairScorer`.
      choices: The choices whose images exist.
      images: The rows of their images in the split.
      missing: The names of the images that do not exist, each once.
    """

    split: Split
    choices: list[Choice]
    images: list[list[int]]
    missing: list[str]


def find_images(
    choices: Sequence[Choice],
    split: Split | None,
    pictures: Mapping[str, bytes],
    transform: Transform | None,
    name: str,
) -> Found:
    """Finds the images of choices by their names, with or without folders, suffix, `COCO_val2014_` and leading zeros.

    Args:
      choices: The choices.
      split: Images with names; None if all are `pictures`.
      pictures: Name -> image file, of images that a file of choices contains.
      transform: How photos become pixels; None for a model of features.
      name: The name of the new split in messages.

    Raises:
      UserError: If none of the choices has its images.
    """
    ids, photos = (split.image_ids, split.pixels) if split else ((), None)
    exact, short = {n: row for row, n in enumerate(ids)}, {_short(n): row for row, n in enumerate(ids)}
    cut = isinstance(photos, Photos) or split is None  # a box is of a photo; features are of whole images
    used, kept, images, missing = {}, [], [], {}
    for choice in choices:
        rows = []
        for image in choice.images:
            source = image if image in pictures and transform else exact.get(image, short.get(_short(image)))
            if source is None or (choice.box and not cut):
                missing[image] = None
            else:
                rows.append(used.setdefault((source, choice.box), len(used)))
        if len(rows) == len(choice.images):
            kept.append(choice)
            images.append(rows)
    if not kept:
        boxes = ', to cut them to boxes' if any(choice.box for choice in choices) else ''
        raise UserError(f'{name} has no choice whose images are given: give a folder of photos as --photos{boxes}')
    captions = tuple(dict.fromkeys(caption for choice in kept for caption in choice.captions))
    texts = {'captions': captions, 'image_of_text': np.zeros(len(captions), np.int32)}
    sources = [source for source, _ in used]
    if cut:
        files = [pictures[source] if isinstance(source, str) else photos.files[source] for source in sources]
        pixels = Photos(Cut(files, [box for _, box in used]), transform or photos.transform)
        found = Split(name, None, None, **texts, image_ids=tuple(map(str, sources)), pixels=pixels)
    else:
        found = dataclasses.replace(split.take(np.array(sources)), name=name, **texts)
    return Found(found, kept, images, list(missing))


def _short(name: str) -> str:
    path = PurePath(name)
    stem = path.stem if path.suffix.lower() in SUFFIXES else path.name
    return re.sub(r'^(COCO_(train|val|test)\d{4}_)?0*(?=\d+$)', '', stem)


def score(scorer: PairScorer, choices: Sequence[Choice], images: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """Scores the images of each choice with its captions; equal pairs are scored once.

    Args:
      scorer: A scorer of the images.
      choices: The choices.
      images: The row of each image of each choice.

    Returns:
      For each choice float32 [I, C].

    Raises:
      UserError: If a score is not finite.
    """
    encode, pairs, places = scorer.run.vocabulary.encode, {}, []
    for choice, rows in zip(choices, images, strict=True):
        texts = [encode(caption) for caption in choice.captions]
        keys = [[(row, text.tobytes()) for text in texts] for row in rows]
        places.append(
            [
                [pairs.setdefault(key, (len(pairs), text))[0] for key, text in zip(line, texts, strict=True)]
                for line in keys
            ]
        )
    rows = np.array([row for row, _ in pairs])
    scores = scorer.score(rows, join([text for _, text in pairs.values()]))
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
      above all such images of its caption; `group`, both (Thrush et al., 2022); and `tie`, whether a match scores as
      high as one of them. Without what nothing is compared with.
    """
    belong = np.zeros(scores.shape, bool)
    belong[tuple(np.array(list(matches)).T)] = True
    right, tie = {}, False
    for name, rows, match in (('text', scores, belong), ('image', scores.T, belong.T)):
        compared = [(row[m], row[~m]) for row, m in zip(rows, match, strict=True) if m.any() and not m.all()]
        tie |= any(np.isin(positives, others).any() for positives, others in compared)
        if compared:
            right[name] = all(positives.min() > others.max() for positives, others in compared)
    if len(right) == 2:
        right['group'] = right['text'] and right['image']
    return right | {'tie': tie}


def evaluate(choices: Sequence[Choice], scores: Sequence[np.ndarray], min_count: int = 1) -> dict[str, Any]:
    """Evaluates scored choices.

    Args:
      choices: The choices.
      scores: The scores of each, [I, C].
      min_count: The choices that a category has at least; smaller ones are left out of the report and of the means.

    Returns:
      A dict for JSON: for each group of choices what `_summarize` returns of all, the mean of the `categories`, and
      each category.
    """
    decided = collections.defaultdict(lambda: collections.defaultdict(list))
    for choice, one in zip(choices, scores, strict=True):
        decided[choice.group][choice.category].append(decide(one, choice.matches))
    report = {}
    for group, categories in decided.items():
        kept = {name: _summarize(rows) for name, rows in sorted(categories.items()) if len(rows) >= min_count}
        report[group] = _summarize([row for rows in categories.values() for row in rows]) | {
            'mean': {
                name: float(np.mean([category[name] for category in kept.values()]))
                for name in SCORES
                if kept and all(name in category for category in kept.values())
            },
            'categories': kept,
        }
    return report


def _summarize(rows: Sequence[Mapping[str, bool]]) -> dict[str, Any]:
    """Returns the number of choices, the share that is right and that has ties in percent, and Wilson's intervals."""
    from scipy.stats import binomtest

    summary = {'choices': len(rows), 'ties': 100 * float(np.mean([row['tie'] for row in rows]))}
    for name in SCORES:
        right = [row[name] for row in rows if name in row]
        if len(right) == len(rows):
            interval = binomtest(sum(right), len(right)).proportion_ci(LEVEL, method='wilson')
            summary[name] = 100 * float(np.mean(right))
            summary[f'{name}_interval'] = [100 * float(interval.low), 100 * float(interval.high)]
    return summary


def table(report: Mapping[str, Any]) -> str:
    """Returns the report of `evaluate` as a Markdown table."""
    rows = []
    for group, row in report.items():
        rows += [[group, name, *_cells(category)] for name, category in row['categories'].items()]
        if len(row['categories']) != 1:
            rows.append([group, 'all', *_cells(row)])
            rows.append([group, 'mean of categories', *_cells(row['mean'])])
    return tables.table(['group', 'category', 'choices', *SCORES, 'ties'], rows)


def _cells(row: Mapping[str, Any]) -> list[str]:
    cells = [f'{row["choices"]:,}' if 'choices' in row else '']
    for name in SCORES:
        low, high = row.get(f'{name}_interval', (0, 0))
        cells.append(_number(row.get(name)) + (f' ({low:.1f} to {high:.1f})' if high else ''))
    return [*cells, _number(row.get('ties'))]


def _number(value: float | None) -> str:
    return '-' if value is None else f'{value:.1f}'


def compare(report: Mapping[str, Any], rows: Iterable[Row]) -> str:
    """Returns a table of published numbers below those of a report, '' if there are none of these tests.

    A number of a whole group is the mean of its categories for `ARO relation`, and of all choices for `Winoground`.
    """
    ours = collections.defaultdict(dict)
    for group, row in report.items():
        name, _, part = group.partition(' ')
        whole = {f'{part}/text': row['mean'].get('text')} if part else {key: row.get(key) for key in SCORES}
        of_categories = {f'{key}/text': category.get('text') for key, category in row['categories'].items()}
        ours[name.lower()] |= whole | of_categories
    parts, rows = [], list(rows)
    for dataset, metrics in ours.items():
        published = [row for row in rows if row.dataset == dataset and row.metrics.keys() & metrics.keys()]
        keys = [key for key in metrics if any(key in row.metrics for row in published)]
        lines = [('ours', metrics), *((f'{row.system} {row.backbone}'.strip(), row.metrics) for row in published)]
        cells = [[name, *(_number(numbers.get(key)) for key in keys)] for name, numbers in lines]
        parts += [tables.table([dataset, *keys], cells)] if published else []
    return '\n\n'.join(parts)
