"""Large arrays in `.npy` files, which stay on disk and are memory-mapped."""

import collections
import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jitm.errors import UserError
from jitm.files import open_file

FLOATS = (np.float16, np.float32)
INTEGERS = (np.int32, np.int64, np.uint8, np.int16)
BOXES = 'x1 y1 x2 y2 as fractions of width and height, in [0, 1] and with x1 <= x2 and y1 <= y2'
CHUNK_BYTES = 64 * 2**20  # bytes read at a time


class Rows:
    """Some rows of a large array, which are read when they are indexed."""

    def __init__(self, array: 'np.ndarray | Rows', rows: np.ndarray):
        """Selects rows.

        Args:
          array: An array [I, ...], possibly memory-mapped, or rows of one.
          rows: int [N].
        """
        nested = isinstance(array, Rows)
        self._array, self._rows = (array._array, array._rows[rows]) if nested else (array, rows)
        self.shape = (len(rows), *array.shape[1:])
        self.dtype = array.dtype

    def __len__(self) -> int:
        """Returns N."""
        return len(self._rows)

    def __getitem__(self, index: Any) -> np.ndarray:
        """Reads the rows of a number, a slice, or int [M]."""
        return self._array[self._rows[index]]


def open_npy(path: str, dtypes: tuple[type[np.generic], ...] = FLOATS) -> np.memmap:
    """Memory-maps an array of one of some dtypes; nothing is unpickled."""
    try:
        open_file(path).close()  # an error for a pipe
        array = np.lib.format.open_memmap(path, mode='r')
    except OSError as error:
        raise UserError(f'{path} cannot be read ({error.strerror}): add the file, or make it readable') from error
    except Exception as error:  # numpy raises many kinds of errors for damaged headers
        remedy = 'write it again by numpy.save, with arrays padded to one shape'
        raise UserError(f'{path} is no .npy file, damaged or cut off ({error}): {remedy}') from error
    if array.dtype not in dtypes:
        remedy = f'convert it to {" or ".join(kind.__name__ for kind in dtypes[:2])}'
        raise UserError(f'{path} has dtype {array.dtype}: {remedy}')
    if not array.size:
        raise UserError(f'{path} has shape {array.shape}, which is empty: write it again')
    return array


def read_integers(
    path: str, shapes: Sequence[tuple[int | None, ...]], bounds: tuple[int, int], content: str
) -> np.ndarray:
    """Reads integers from a file: int32.

    Args:
      path: The path of an array.
      shapes: The shapes that it may have; None stands for any size.
      bounds: The least and the greatest number.
      content: What the numbers are, for messages.

    Raises:
      UserError: If the file cannot be read, or the array has another shape or other numbers.
    """
    array = open_npy(path, INTEGERS)
    of_any_size = array.shape[:1] + (None,) * (array.ndim - 1)
    if array.shape not in shapes and of_any_size not in shapes:
        required = ' or '.join(map(str, shapes))
        raise UserError(f'{path} has shape {array.shape}: it needs {content}, shape {required}')
    low, high = bounds
    if array.min() < low or array.max() > high:
        raise UserError(f'{path} has numbers from {array.min()} to {array.max()}: it needs {content}, {low} to {high}')
    return array.astype(np.int32)


def check_captioned(image_of_text: np.ndarray, images: int, path: str) -> None:
    """Raises a UserError unless the images of texts in a file are all of a number of images."""
    absent = np.setdiff1d(np.arange(images), image_of_text)
    if len(absent):
        raise UserError(f'{path} gives image {absent[0]} no caption: every image needs one')


def first_equal(array: np.ndarray) -> np.ndarray:
    """Returns the first equal row of each row of an array [I, R, D]: int [I]; most are compared by 64 numbers."""
    starts = [row.tobytes() for row in array[:, 0, :64]]
    often = collections.Counter(starts)
    first: dict[bytes, int] = {}
    equal = []
    for row, start in enumerate(starts):
        key = start if often[start] == 1 else hashlib.sha256(array[row].tobytes()).digest()
        equal.append(first.setdefault(key, row))
    return np.array(equal)


def check_finite(array: np.ndarray, path: str) -> None:
    """Raises a UserError if the features of a file are not finite."""
    step = max(1, CHUNK_BYTES // array[0].nbytes)
    for start in range(0, len(array), step):
        chunk = array[start : start + step]
        if not is_finite(chunk):
            row = start + [is_finite(features) for features in chunk].index(False)
            raise UserError(f'{path}, row {row} has NaN or infinite features: extract the features of this image again')


def is_finite(array: np.ndarray) -> bool:
    """Returns whether all numbers are finite; nine times as fast as numpy.isfinite for float16.

    The exponent bits of NaN and infinity are all ones. As integers they are therefore the largest numbers, signed ones
    if positive, unsigned ones if negative.
    """
    signed = array.view(f'i{array.itemsize}')
    unsigned = array.view(f'u{array.itemsize}')
    infinity = np.array(np.inf, array.dtype)
    return bool(signed.max() < infinity.view(signed.dtype) and unsigned.max() < (-infinity).view(unsigned.dtype))


def are_boxes(boxes: np.ndarray) -> bool:
    """Returns whether numbers [..., 4] are `BOXES`."""
    return bool((boxes >= 0).all() and (boxes <= 1).all() and (boxes[..., :2] <= boxes[..., 2:]).all())


def locations(boxes: np.ndarray) -> np.ndarray:
    """Returns the locations of regions from their boxes [..., 4]: [..., 7], see `Images`."""
    size = boxes[..., 2:] - boxes[..., :2]
    return np.concatenate([boxes, size, size.prod(axis=-1, keepdims=True)], axis=-1)


def grid_boxes(regions: int) -> np.ndarray | None:
    """Returns the boxes of the cells of a square grid, row by row: float32 [R, 4]; None for a single vector."""
    edge = math.isqrt(regions)
    if regions == 1 or edge**2 != regions:
        return None
    row, column = np.divmod(np.arange(regions), edge)
    return (np.stack([column, row, column + 1, row + 1], axis=1) / edge).astype(np.float32)
