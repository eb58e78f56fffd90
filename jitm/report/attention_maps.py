"""The attention between the words of a caption and the regions of an image, for the templates of pages."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jitm.data.arrays import grid_boxes
from jitm.pages.pictures import SMALL, png, uri
from jitm.pages.render import Result

TITLES = {
    't2i': 'each word attends to regions (t2i): its weights add up to 1 over the regions',
    'i2t': 'each region attends to words (i2t): its weights add up to 1 over the words',
}
MAX_BOXES = 3  # per word
MIN_RELATIVE_WEIGHT = 0.5  # regions below this share of the word's largest weight get no box


def top_regions(weights: Sequence[float]) -> list[int]:
    """Returns the regions with the largest weights of a word: at most 3, none below half of the largest.

    Args:
      weights: [R].

    Returns:
      Indices of regions, in descending order of their weights.
    """
    order = sorted(range(len(weights)), key=lambda region: -weights[region])[:MAX_BOXES]
    threshold = MIN_RELATIVE_WEIGHT * weights[order[0]]
    return [region for region in order if weights[region] > 0 and weights[region] >= threshold]


def shown_images(pair: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the retrieved images of a pair in `explain.json`; after the first the right one, if they lack it."""
    if 'true_image' not in pair or any(hit['right'] for hit in pair['retrieved']):
        return pair['retrieved']
    right = {'image': pair['true_image'], 'image_id': pair['true_image_id'], 'right': True, 'rank': pair['rank']}
    first, *others = pair['retrieved']
    return [first, right, *others]


def results(pair: Mapping[str, Any], pixels: Sequence[np.ndarray | None]) -> list[Result]:
    """Returns the images of a pair, see `shown_images`, with their pixels as pictures."""
    shown = []
    ranks = itertools.count(1)
    for hit, image in zip(shown_images(pair), pixels, strict=True):
        picture = '' if image is None else uri(png(image), 'png')
        rank = hit.get('rank') or next(ranks)
        shown.append(Result(hit['image_id'], hit.get('score'), picture=picture, right=hit['right'], rank=rank))
    return shown


def is_grid(boxes: np.ndarray) -> bool:
    """Returns whether boxes [R, 4] are the cells of a square grid, row by row."""
    cells = grid_boxes(len(boxes))
    return cells is not None and np.allclose(boxes, cells, atol=1e-3)


def heat(row: np.ndarray) -> np.ndarray:
    """Returns the opacities of a word's weights [R] in a heat map; 0 where it has at most the mean of its weights."""
    largest = row.max()
    return 0.8 * np.clip((row - row.mean()) / max(largest - row.mean(), 1e-3 * largest, 1e-9), 0, 1)


def shown(pair: Mapping[str, Any], pixels: np.ndarray | None) -> dict[str, Any]:
    """Returns one pair for the template: its picture, if there are boxes of its regions, and the words by direction.

    Args:
      pair: One of the `pairs` of `explain.json`.
      pixels: Its image, uint8 [H, W, 3], or None.
    """
    boxes = None if pixels is None or pair['boxes'] is None else np.array(pair['boxes'])
    maps = []
    for name, weights in pair['attention'].items():
        maps.append(_map(pair['words'][1:-1], np.array(weights)[1:-1], boxes, name))  # without the start and the end
    values = {'caption': pair['caption'], 'maps': maps, 'picture': '', 'small': False}
    if boxes is None:
        return values
    height, width = pixels.shape[:2]
    picture = uri(png(pixels), 'png')
    return values | {'picture': picture, 'small': height < SMALL, 'ratio': f'{width} / {height}'}


def _map(words: Sequence[str], weights: np.ndarray, boxes: np.ndarray | None, name: str) -> dict[str, Any]:
    """Returns the words with the weights [W, R] of a direction as CSS, each on its scale; punctuation is minor."""
    peaks = weights.max(axis=1)
    minor = [not any(map(str.isalnum, word)) for word in words]
    first = max(range(len(words)), key=lambda n: (not minor[n], peaks[n]))
    described = []
    for n, word in enumerate(words):
        share = 0 if minor[n] else peaks[n] / max(peaks[first], 1e-9)
        described.append(
            {
                'text': word,
                'minor': minor[n],
                'first': n == first,
                'share': f'{share:.2f}',
                'weight': f'{peaks[n]:.2f}',
                'regions': _regions(weights[n], boxes),
            }
        )
    columns = weights.shape[1] if boxes is None else math.isqrt(len(boxes)) if is_grid(boxes) else 0
    return {'title': TITLES.get(name, name), 'words': described, 'columns': columns}


def _regions(row: np.ndarray, boxes: np.ndarray | None) -> list[str]:
    """Returns the CSS of the regions of a word: cells of a heat map, the top boxes, or all regions without boxes."""
    shares = row / max(row.max(), 1e-9)
    if boxes is None:
        return [f'opacity: {share:.2f}' for share in shares]
    if is_grid(boxes):
        return [f'opacity: {opacity:.2f}' for opacity in heat(row)]
    styles = []
    for region in top_regions(row):
        x1, y1, x2, y2 = 100 * boxes[region]
        position = f'left: {x1:.1f}%; top: {y1:.1f}%; width: {x2 - x1:.1f}%; height: {y2 - y1:.1f}%'
        styles.append(f'{position}; opacity: {shares[region]:.2f}')
    return styles
