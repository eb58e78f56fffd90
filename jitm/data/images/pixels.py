"""Photos that are decoded when they are indexed, and checked once."""

import contextlib
import dataclasses
import functools
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import tqdm

from jitm.data.images.image_bytes import readable
from jitm.data.images.transforms import Photo, Transform, check_image, decode
from jitm.errors import UserError
from jitm.files import cache_home, hash_arrays, replacing

PART = 1024  # files that are checked between two updates of the progress bar
# The number of cores that this process may use.
NUM_THREADS = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1


def in_threads(function: Callable[[int], Any], count: int) -> list[Any]:
    """Returns function(0) to function(count - 1), computed on all cores."""
    with futures.ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(pool.map(function, range(count)))


class BrokenPhotos(UserError):
    """Some of the indexed photos cannot be decoded; the message is that of the first one.

    Attributes:
      errors: The errors by their position in the index.
    """

    def __init__(self, errors: Mapping[int, UserError]):
        super().__init__(str(next(iter(errors.values()))))
        self.errors = errors


@dataclasses.dataclass(frozen=True, repr=False)
class Photos:
    """The photos of a split; indexed like an array uint8 [I, H, W, 3], it decodes only the indexed photos.

    Attributes:
      files: I paths, the bytes of I image files, or I photos of Pillow.
      transform: The way in which a photo becomes pixels.
      content_hash: SHA-256 of the bytes of all files, as hex; '' if not known.
      broken: See `jitm.data.images.photos.load`.
      left_out: The errors of the photos that were left out, see `leave_out`.
    """

    files: Sequence[Photo]
    transform: Transform
    content_hash: str = ''
    broken: str = 'check'
    left_out: set[str] = dataclasses.field(default_factory=set, compare=False)

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
        return self._decode(rows, [self.transform.evaluate] * len(rows)) if rows.ndim else self[[int(rows)]][0]

    def take(self, rows: np.ndarray) -> 'Photos':
        """Returns some of the photos, of the rows int [N]."""
        selection = self.content_hash and hash_arrays([np.frombuffer(self.content_hash.encode(), np.uint8), rows])
        return dataclasses.replace(self, files=[self.files[row] for row in rows], content_hash=selection)

    def sample(self, index: np.ndarray, generators: Sequence[np.random.Generator]) -> np.ndarray:
        """Decodes photos as training examples.

        Args:
          index: int [N].
          generators: The N random generators of the examples.

        Returns:
          uint8 [N, H, W, 3].
        """
        return self._decode(index, [functools.partial(self.transform.sample, rng=rng) for rng in generators])

    def crops(self, index: np.ndarray) -> np.ndarray:
        """Decodes the ten crops of photos: uint8 [N, 10, H, W, 3], see `Transform.evaluate_crops`."""
        return self._decode(index, [self.transform.evaluate_crops] * len(index))

    def leave_out(self, errors: Iterable[UserError]) -> None:
        """Counts photos that cannot be decoded, and logs the first one and those at which their number has doubled."""
        for message in {*map(str, errors)} - self.left_out:
            self.left_out.add(message)
            count = len(self.left_out)
            if count & (count - 1) == 0:
                logging.warning('broken photos that are left out so far: %d, the last one: %s', count, message)

    def _decode(self, index: np.ndarray, views: Sequence[Callable]) -> np.ndarray:
        def read(n: int) -> np.ndarray | UserError:
            try:
                return decode(self.files[index[n]], views[n], f'image {index[n]}')
            except UserError as error:
                return error

        photos = in_threads(read, len(index))
        errors = {n: photo for n, photo in enumerate(photos) if isinstance(photo, UserError)}
        if errors:
            raise BrokenPhotos(errors)
        return np.stack(photos)


def check_files(files: Sequence[str]) -> str:
    """Decodes every image file once, on a terminal with a progress bar.

    Files that have been checked before, and whose sizes and times have not changed, are not read again.

    Returns:
      SHA-256 of the bytes of all files, as hex.

    Raises:
      UserError: If a file is missing, or no image.
    """

    def check() -> str:
        digest = hashlib.sha256()
        terminal = {'disable': None, 'dynamic_ncols': True, 'leave': False}
        with tqdm.tqdm(desc='checking', total=len(files), unit=' photos', **terminal) as progress:
            for start in range(0, len(files), PART):
                part = files[start : start + PART]
                hashes = in_threads(lambda n, part=part: check_image(part[n]), len(part))
                digest.update(''.join(hashes).encode())
                progress.update(len(part))
        return digest.hexdigest()

    return remember(files, check)


def cached_path(files: Sequence[str], name: str = '') -> Path:
    """Returns where the result of a check of files is kept; another path once their sizes or times change.

    Args:
      files: The paths of the files.
      name: The name of the check, for several checks of the same files.

    Raises:
      UserError: If a file is missing.
    """
    digest = hashlib.sha256(name.encode())
    for path in files:
        with readable(path):
            stat = os.stat(path)
        line = f'{os.path.abspath(str(path))} {stat.st_size} {stat.st_mtime_ns}\n'
        digest.update(line.encode(errors='surrogateescape'))
    return cache_home() / 'checked_photos' / digest.hexdigest()


def keep(path: Path, content: bytes) -> None:
    """Writes a file of `cached_path`; without a writable cache the files are checked again."""
    with contextlib.suppress(OSError, UserError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)


def remember(files: Sequence[str], check: Callable[[], str], name: str = '') -> str:
    """Returns the result of a check of files, which is kept until their sizes or times change.

    Args:
      files: The paths of the files.
      check: A function that reads the files and returns a text.
      name: See `cached_path`.

    Raises:
      UserError: If a file is missing.
    """
    checked = cached_path(files, name)
    with contextlib.suppress(OSError):
        result = checked.read_text()
        if result:
            return result
    result = check()
    keep(checked, result.encode())
    return result
