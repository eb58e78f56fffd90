"""The attention of words on an image for the template `attention.html`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jitm.pages.pictures import SMALL, png, uri
from jitm.report.attention_figures import TITLES, heat, is_grid, top_regions


def shown(pair: Mapping[str, Any], pixels: np.ndarray | None) -> dict[str, Any]:
    """Returns one pair for the template: its picture, if there are boxes of its regions, and the words by direction.

    Args:
      pair: One of the `pairs` of `explain.json`.
      pixels: Its image, uint8 [H, W, 3], or None.
    """
    boxes = None if pixels is None or pair['boxes'] is None else np.array(pair['boxes'])
    maps = [_map(pair['words'], np.array(weights), boxes, name) for name, weights in pair['attention'].items()]
    values = {'caption': pair['caption'], 'maps': maps, 'picture': ''}
    if boxes is None:
        return values
    height, width = pixels.shape[:2]
    return values | {
        'picture': uri(png(pixels), 'png'),
        'small': height < SMALL,
        'ratio': f'{width} / {height}',
    }


def _map(words: Sequence[str], weights: np.ndarray, boxes: np.ndarray | None, name: str) -> dict[str, Any]:
    """Returns the words with the weights [W, R] of one direction as CSS; special tokens and punctuation are minor."""
    peaks = weights.max(axis=1)
    last = len(words) - 1
    grid = boxes is not None and is_grid(boxes)
    minor = [n in (0, last) or not any(map(str.isalnum, word)) for n, word in enumerate(words)]
    first = max(range(len(words)), key=lambda n: (not minor[n], peaks[n]))
    largest = max(peaks[first], 1e-9)

    def regions(row: np.ndarray) -> list[str]:
        if boxes is None or grid:
            return [f'opacity: {opacity:.2f}' for opacity in (heat(row, largest) if grid else row / largest)]
        edges = ((100 * boxes[region], row[region] / largest) for region in top_regions(row))
        return [
            f'left: {x1:.1f}%; top: {y1:.1f}%; width: {x2 - x1:.1f}%; height: {y2 - y1:.1f}%; opacity: {opacity:.2f}'
            for (x1, y1, x2, y2), opacity in edges
        ]

    described = [
        {
            'text': word,
            'minor': minor[n],
            'first': n == first,
            'share': '0' if minor[n] else f'{peaks[n] / largest:.2f}',
            'weight': f'{peaks[n]:.2f}',
            'regions': regions(weights[n]),
        }
        for n, word in enumerate(words)
    ]
    columns = math.isqrt(weights.shape[1]) if grid else weights.shape[1] if boxes is None else 0
    return {'title': TITLES.get(name, name), 'words': described, 'columns': columns}
