"""Photos that are decoded when they are indexed."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from jitm.data.transforms import Photo, Transform, View, decode
from jitm.files import hash_arrays


def num_threads() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def in_threads(function: Callable[[int], Any], count: int) -> list[Any]:
    """Returns function(0) to function(count - 1), computed on all cores."""
    with futures.ThreadPoolExecutor(num_threads()) as pool:
        return list(pool.map(function, range(count)))


@dataclasses.dataclass(frozen=True)
class Photos:
    """The photos of a split; indexed like an array uint8 [I, H, W, 3], it decodes those that are asked for.

    Attributes:
      files: I paths, the bytes of I image files, or I photos of Pillow.
      transform: The way in which a photo becomes pixels.
      content_hash: SHA-256 of the bytes of all files, as hex; '' if not known.
    """

    files: Sequence[Photo]
    transform: Transform
    content_hash: str = ''

    dtype = np.dtype(np.uint8)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """I, H, W, 3."""
        return len(self.files), self.transform.image_size, self.transform.image_size, 3

    def __len__(self) -> int:
        """Returns I."""
        return len(self.files)

    def __getitem__(self, index: Any) -> np.ndarray:
        """Decodes photos as in evaluation.

        Args:
          index: A number, a slice, or int [N].

        Returns:
          uint8 [H, W, 3] for a number, otherwise [N, H, W, 3].
        """
        rows = np.arange(len(self))[index]
        return self._decode(rows, self.transform.evaluate) if rows.ndim else self[[int(rows)]][0]

    def __repr__(self) -> str:
        return f'<{len(self)} photos of {self.transform.image_size} x {self.transform.image_size} pixels>'

    def take(self, rows: np.ndarray) -> 'Photos':
        """Returns some of the photos, of the rows int [N]."""
        known = self.content_hash and hash_arrays([np.frombuffer(self.content_hash.encode(), np.uint8), rows])
        return dataclasses.replace(self, files=[self.files[row] for row in rows], content_hash=known)

    def sample(self, index: np.ndarray, make_generator: Callable[[int], np.random.Generator]) -> np.ndarray:
        """Decodes photos as training examples.

        Args:
          index: int [N].
          make_generator: A function that returns the random generator of the example at a position.

        Returns:
          uint8 [N, H, W, 3].
        """

        def sample(position: int) -> np.ndarray:
            generator = make_generator(position)
            return decode(self.files[index[position]], lambda photo: self.transform.sample(photo, generator))

        return np.stack(in_threads(sample, len(index)))

    def crops(self, index: np.ndarray) -> np.ndarray:
        """Decodes the ten crops of photos: uint8 [N, 10, H, W, 3], see `Transform.evaluate_crops`."""
        return self._decode(index, self.transform.evaluate_crops)

    def _decode(self, index: np.ndarray, view: View) -> np.ndarray:
        return np.stack(in_threads(lambda n: decode(self.files[index[n]], view, f'image {index[n]}'), len(index)))
