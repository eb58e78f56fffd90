"""Large arrays in `.npy` files, which stay on disk and are memory-mapped."""

import collections
import hashlib
import math
import os
from collections.abc import Sequence
from concurrent import futures
from typing import Any

import numpy as np

from jitm.errors import UserError
from jitm.files import open_file

FLOATS = (np.float16, np.float32)
INTEGERS = (np.int32, np.int64, np.uint8, np.int16)
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
    """Memory-maps an array of one of some dtypes; only the header is parsed, and nothing is unpickled."""
    try:
        with open_file(path) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
            lacking = math.prod(shape) * dtype.itemsize - (os.path.getsize(path) - file.tell())
    except OSError as error:
        raise UserError(f'{path} cannot be read ({error.strerror}): add the file, or make it readable') from error
    except Exception as error:  # numpy raises many kinds of errors for damaged headers
        raise UserError(f'{path} is no .npy file or its header is damaged: write it with numpy.save') from error
    if dtype not in dtypes:
        remedy = f'convert it to {" or ".join(kind.__name__ for kind in dtypes[:2])}'
        remedy = 'pad its arrays to one shape' if dtype.hasobject else remedy
        raise UserError(f'{path} has dtype {dtype}: {remedy}')
    if min(shape, default=1) < 1:
        raise UserError(f'{path} has shape {shape}, which is empty: write it again')
    if lacking > 0:
        raise UserError(f'{path} is cut off, {lacking} bytes are missing for its shape {shape}: copy it again')
    return np.load(path, mmap_mode='r', allow_pickle=False)


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
        needed = ' or '.join(map(str, shapes))
        raise UserError(f'{path} has shape {array.shape}: it needs {content}, shape {needed}')
    low, high = bounds
    if array.min() < low or array.max() > high:
        raise UserError(f'{path} has numbers from {array.min()} to {array.max()}: it needs {content}, {low} to {high}')
    return array.astype(np.int32)


def check_captioned(image_of_text: np.ndarray, images: int, path: str) -> None:
    """Raises a UserError unless the images of texts in a file are all of a number of images."""
    absent = np.setdiff1d(np.arange(images), image_of_text)
    if len(absent):
        raise UserError(f'{path} gives image {absent[0]} no caption: every image needs one')


def number_runs(array: np.ndarray) -> np.ndarray:
    """Numbers the runs of equal consecutive rows of an array [I, R, D] from 0: int32 [I], the run of each row.

    Rows are read as a whole only where their first numbers are equal.
    """
    bits = array.view(f'u{array.itemsize}')  # compares NaN as equal
    first = np.array(bits[:, 0, :64])
    differs = (first[1:] != first[:-1]).any(axis=1)
    for row in np.flatnonzero(~differs):
        differs[row] = not np.array_equal(bits[row], bits[row + 1])
    return np.cumsum([False, *differs], dtype=np.int32)


def first_equal(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the first of some rows [N] that is equal to each of them: int [N]; most are compared by 64 numbers."""
    starts = [array[row, 0, :64].tobytes() for row in rows]
    often = collections.Counter(starts)
    first: dict[bytes, int] = {}
    equal = []
    for row, start in zip(rows, starts, strict=True):
        key = start if often[start] == 1 else hashlib.sha256(array[row].tobytes()).digest()
        equal.append(first.setdefault(key, row))
    return np.array(equal)


def check_finite(array: np.ndarray, path: str) -> None:
    """Raises a UserError if the features of a file are not finite."""
    bounds = [*range(0, len(array), max(1, CHUNK_BYTES // array[0].nbytes)), len(array)]
    with futures.ThreadPoolExecutor(2) as pool:
        finite = list(pool.map(lambda start, stop: is_finite(array[start:stop]), bounds, bounds[1:]))
    if all(finite):
        return
    row = next(row for row in range(bounds[finite.index(False)], len(array)) if not is_finite(array[row]))
    raise UserError(f'{path}, row {row} has NaN or infinite features: extract the features of this image again')


def is_finite(array: np.ndarray) -> bool:
    """Returns whether all numbers are finite; for float16 several times faster than numpy.isfinite.

    The exponent bits of NaN and infinity are all ones. As integers they are therefore the largest numbers, signed ones
    if positive, unsigned ones if negative.
    """
    signed, unsigned = (array.view(f'{kind}{array.itemsize}') for kind in 'iu')
    infinities = np.array([np.inf, -np.inf], array.dtype)
    positive = infinities.view(signed.dtype)[0]
    negative = infinities.view(unsigned.dtype)[1]
    return bool(signed.max() < positive and unsigned.max() < negative)


def grid_boxes(regions: int) -> np.ndarray | None:
    """Returns the boxes of the cells of a square grid, row by row: float32 [R, 4]; None for a single vector."""
    edge = math.isqrt(regions)
    if regions == 1 or edge**2 != regions:
        return None
    row, column = np.divmod(np.arange(regions), edge)
    return (np.stack([column, row, column + 1, row + 1], axis=1) / edge).astype(np.float32)
