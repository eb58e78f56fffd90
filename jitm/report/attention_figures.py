"""Figures of the attention between the words of a caption and the regions of an image."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jitm.data.arrays import grid_boxes

TITLES = {
    't2i': 'each word attends to regions (t2i): its weights add up to 1 over the regions',
    'i2t': 'each region attends to words (i2t): its weights add up to 1 over the words',
}
COLUMNS = 7
TITLE_WIDTH = 18  # characters in the title of a panel
MAX_BOXES = 3  # per word
MIN_RELATIVE_WEIGHT = 0.5  # regions below this share of the word's largest weight get no box
COLORS = 'viridis'  # heat maps: perceptually uniform, also for colour-blind readers


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
    """Returns the retrieved images of a pair in `explain.json`, and the right one, with its `rank`, if they lack it."""
    if 'true_image' not in pair or any(hit['right'] for hit in pair['retrieved']):
        return pair['retrieved']
    right = {'image': pair['true_image'], 'image_id': pair['true_image_id'], 'right': True, 'rank': pair['rank']}
    return [*pair['retrieved'], right]


def draw(pair: Mapping[str, Any], pixels: Sequence[np.ndarray] | None) -> Any:
    """Draws the images of a pair in `explain.json`, and the attention of its words in the first of them.

    With pixels and boxes, each word has a panel: the image with the boxes of its top regions, or with a heat map of all
    cells if the regions are a grid, and the largest weights below. Otherwise the figure is a heat map with a row per
    word and a column per region.

    Args:
      pair: One of the `pairs`.
      pixels: The pixels of its N images, see `shown_images`, each uint8 [H, W, 3]; or None.

    Returns:
      A matplotlib figure.
    """
    from matplotlib.figure import Figure

    words = pair['words']
    attention = pair['attention']
    draws_panels = pixels is not None and pair['boxes'] is not None
    draws_images = pixels is not None and len(pixels) > 1
    row_height = 0 if pixels is None else 0.42 + 1.4 * pixels[0].shape[0] / pixels[0].shape[1]
    if draws_panels:
        rows = math.ceil(len(words) / COLUMNS)
        width = 1.5 * COLUMNS
        height = 0.4 + rows * row_height
    else:
        regions = len(next(iter(attention.values()))[0])
        width = max(1.5 * COLUMNS, 2.5 + 0.24 * regions)
        height = 1.1 + 0.22 * len(words)
    heights = [*([row_height] if draws_images else []), *[height] * len(attention)]
    figure = Figure(figsize=(width, 1 + sum(heights)), dpi=120, layout='constrained')
    heading = '\n'.join(textwrap.fill(line, int(12 * width)) for line in (pair['caption'], pair['verdict']))
    figure.suptitle(heading, fontsize=10, parse_math=False)
    parts = list(figure.subfigures(len(heights), squeeze=False, height_ratios=heights)[:, 0])
    if draws_images:
        _draw_images(parts.pop(0), shown_images(pair), pixels)
    for part, (name, weights) in zip(parts, attention.items(), strict=True):
        part.suptitle(TITLES.get(name, name), fontsize=9, color='gray')
        if draws_panels:
            _draw_panels(part, words, np.array(weights), np.array(pair['boxes']), pixels[0])
        else:
            _draw_map(part, words, weights)
    return figure


def _panels(part: Any, count: int) -> np.ndarray:
    """Returns panels without ticks, in rows of `COLUMNS`."""
    panels = part.subplots(math.ceil(count / COLUMNS), COLUMNS, squeeze=False).ravel()
    for panel in panels[:count]:
        panel.set(xticks=[], yticks=[])
    for panel in panels[count:]:
        panel.set_axis_off()
    return panels[:count]


def _draw_images(part: Any, images: Sequence[Mapping[str, Any]], pixels: Sequence[np.ndarray]) -> None:
    """Draws images in a row, with a green frame around matches of the caption."""
    for number, (panel, hit, image) in enumerate(zip(_panels(part, len(images)), images, pixels, strict=True), 1):
        panel.imshow(image)
        title = f'{hit.get("rank", number)}. {hit["image_id"]}'
        panel.set_title(textwrap.fill(title, TITLE_WIDTH), fontsize=9, parse_math=False)
        panel.set_xlabel(f'{hit["score"]:.3g}' if 'score' in hit else 'the right image', fontsize=7, color='gray')
        if hit['right']:
            for spine in panel.spines.values():
                spine.set(color='green', linewidth=3)


def is_grid(boxes: np.ndarray) -> bool:
    """Returns whether boxes [R, 4] are the cells of a square grid, row by row."""
    cells = grid_boxes(len(boxes))
    return cells is not None and np.allclose(boxes, cells, atol=1e-3)


def heat(row: np.ndarray, largest: float) -> np.ndarray:
    """Returns the opacities of a word's weights [R] in a heat map; 0 where it has at most the mean of its weights.

    Args:
      row: The weights.
      largest: The largest weight of all words, which is as opaque as can be.
    """
    return 0.8 * np.clip((row - row.mean()) / max(largest - row.mean(), 1e-3 * largest, 1e-9), 0, 1)


def _draw_panels(part: Any, words: Sequence[str], weights: np.ndarray, boxes: np.ndarray, pixels: np.ndarray) -> None:
    """Draws the image once for each word, with the word's weights [W, R] on its regions."""
    panels = _panels(part, len(words))
    largest = weights.max()
    height, width = pixels.shape[:2]
    for panel, word, row in zip(panels, words, weights, strict=True):
        panel.imshow(pixels, extent=(0, width, height, 0))
        panel.set_title(word, fontsize=9, parse_math=False)
        top = top_regions(row)
        panel.set_xlabel('  '.join(f'{row[region]:.2f}' for region in top) or 'none', fontsize=7, color='gray')
        if is_grid(boxes):
            cells, alpha = (values.reshape(math.isqrt(len(row)), -1) for values in (row, heat(row, largest)))
            panel.imshow(cells, cmap=COLORS, vmin=0, vmax=largest, alpha=alpha, extent=(0, width, height, 0))
        else:
            _draw_boxes(panel, boxes[top] * [width, height, width, height], row[top])
    if is_grid(boxes):
        part.colorbar(panels[0].images[-1], ax=panels, pad=0.01, shrink=0.8).ax.tick_params(labelsize=7)


def _draw_boxes(panel: Any, boxes: np.ndarray, weights: np.ndarray) -> None:
    """Draws the frames of boxes [N, 4] in pixels, thinner for smaller weights [N]."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    for (x1, y1, x2, y2), weight in zip(boxes, weights, strict=True):
        line = 1.2 * weight / weights[0]
        halo = withStroke(linewidth=line + 1, foreground='black')
        panel.add_patch(
            Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor='white', linewidth=line, path_effects=[halo])
        )


def _draw_map(part: Any, words: Sequence[str], weights: Sequence[Sequence[float]]) -> None:
    panel = part.subplots()
    image = panel.imshow(weights, vmin=0, cmap=COLORS, aspect='auto', interpolation='nearest')
    panel.set_yticks(range(len(words)), words, fontsize=8, parse_math=False)
    panel.set_xticks(range(len(weights[0])), range(len(weights[0])), fontsize=7)
    panel.set_xlabel('region', fontsize=8)
    part.colorbar(image, ax=panel, pad=0.01).ax.tick_params(labelsize=7)
