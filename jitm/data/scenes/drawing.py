"""Pictures of scenes: locations of objects, pixels and region features."""

import functools
from collections.abc import Sequence

import numpy as np

from jitm.data.scenes.graphs import Object

PIXELS = 64
PATCH = 8
REGION_FEATURES = PATCH * PATCH * 3 + 8
PALETTE = {
    'red': (215, 35, 35),
    'green': (35, 165, 60),
    'blue': (40, 75, 220),
    'yellow': (240, 225, 50),
    'purple': (145, 45, 175),
    'orange': (245, 135, 25),
    'white': (245, 245, 245),
    'black': (15, 15, 15),
}

_GRID = 3
_CELL = PIXELS // _GRID
_EDGE = {'small': (8, 10), 'large': (14, 18)}  # pixels, the upper end excluded
_BACKGROUND = (90, 165)  # distinct from white and black
_COLOUR_JITTER = 12
_NOISE = 8


def place(objects: Sequence[Object], rng: np.random.Generator) -> np.ndarray:
    """Places objects without overlap, each at a random location in its own cell of a 3x3 grid.

    Args:
      objects: N objects, at most nine.
      rng: The random generator.

    Returns:
      int [N, 4], square boxes as x1 y1 x2 y2 in pixels.
    """
    cells = rng.permutation(_GRID * _GRID)[: len(objects)]
    corners = np.stack([cells % _GRID, cells // _GRID], axis=1) * _CELL
    low, high = np.array([_EDGE[thing.size] for thing in objects]).T
    edges = rng.integers(low, high)[:, None]
    corners += rng.integers(0, _CELL - edges + 1, size=corners.shape)
    return np.concatenate([corners, corners + edges], axis=1)


def paint(objects: Sequence[Object], boxes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Paints objects onto a gray background of random brightness, with some noise.

    Args:
      objects: N objects.
      boxes: int [N, 4], square boxes in pixels; each is filled to its edges.
      rng: The random generator.

    Returns:
      uint8 [64, 64, 3].
    """
    picture = np.full((PIXELS, PIXELS, 3), rng.integers(*_BACKGROUND), np.int16)
    for thing, (x1, y1, x2, y2) in zip(objects, boxes.tolist(), strict=True):
        colour = PALETTE[thing.colour] + rng.integers(-_COLOUR_JITTER, _COLOUR_JITTER + 1, size=3)
        picture[y1:y2, x1:x2][silhouette(thing.shape, x2 - x1)] = colour
    picture += rng.integers(-_NOISE, _NOISE + 1, size=picture.shape, dtype=np.int8)
    return picture.clip(0, 255).astype(np.uint8)


@functools.cache
def silhouette(shape: str, edge: int) -> np.ndarray:
    """Draws a shape that touches all four sides of its box.

    Args:
      shape: One of `SHAPES`.
      edge: The edge of the square box, in pixels.

    Returns:
      bool [edge, edge], True inside of the shape.
    """
    line = (2 * np.arange(edge) + 1) / edge - 1
    x = line[None, :]
    y = line[:, None]
    radius = x**2 + y**2
    half_pixel = 1 / edge  # for an even edge the tips are between two pixels; extends them to the side of the box
    return {
        'circle': radius <= 1,
        'square': radius >= 0,
        'triangle': abs(x) <= (y + 1) / 2 + half_pixel,
        'diamond': abs(x) + abs(y) <= 1 + half_pixel / 2,
        'cross': np.minimum(abs(x), abs(y)) <= 1 / 3,
        'ring': (radius <= 1) & (radius >= 0.36),
    }[shape]


def region_features(picture: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Returns the features of each box, its content and its location.

    Args:
      picture: uint8 [64, 64, 3].
      boxes: int [N, 4], in pixels.

    Returns:
      float32 [N, 200]: the box resized to 8x8x3 (nearest pixel), then x1 y1 x2 y2, centre x y, width, height; all in
      [0, 1].
    """
    lows = boxes[:, :2]
    highs = boxes[:, 2:]
    steps = (np.arange(PATCH) + 0.5) / PATCH
    columns, rows = (lows[..., None] + (highs - lows)[..., None] * steps).astype(int).transpose(1, 0, 2)
    patches = picture[rows[:, :, None], columns[:, None, :]].reshape(len(boxes), -1) / 255
    geometry = np.concatenate([boxes, (lows + highs) / 2, highs - lows], axis=1) / PIXELS
    return np.concatenate([patches, geometry], axis=1).astype(np.float32)
