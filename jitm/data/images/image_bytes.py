"""Reading of image files, where all threads share a bounded memory."""

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator
from typing import NamedTuple

from jitm.errors import UserError
from jitm.files import ArchiveMember, open_file, read_bytes

MAX_BYTES = 2**30  # the largest file
RAW = (
    *('.3fr', '.arw', '.cr2', '.cr3', '.dng', '.erf', '.nef', '.nrw'),
    *('.orf', '.pef', '.raf', '.rw2', '.sr2', '.srw', '.x3f'),
)


class Budget:
    """Units of memory, such as pixels, that all threads share."""

    def __init__(self, total: int):
        self._total = self._left = total
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def take(self, amount: int) -> Iterator[None]:
        """Blocks until `amount` units are free, and holds them for the block; a larger amount waits for all of them."""
        amount = min(amount, self._total)
        with self._changed:
            self._changed.wait_for(lambda: amount <= self._left)
            self._left -= amount
        try:
            yield
        finally:
            with self._changed:
                self._left += amount
                self._changed.notify_all()


_BYTES = Budget(MAX_BYTES)


class File(NamedTuple):
    """An image file as it was read.

    Attributes:
      data: Its bytes.
      size: The number of bytes of the file, or of the archive that it is in.
      time: The time of its last modification, in nanoseconds.
    """

    data: bytes
    size: int
    time: int

    @property
    def checksum(self) -> str:
        """SHA-256 of the bytes, as hex."""
        return hashlib.sha256(self.data).hexdigest()


@contextlib.contextmanager
def readable(path: str | os.PathLike) -> Iterator[None]:
    """Turns an error of reading a file within the block into a UserError."""
    try:
        yield
    except (OSError, ValueError) as error:  # a ValueError if no file can have that name
        reason = getattr(error, 'strerror', None) or error
        raise UserError(f'{path} cannot be read ({reason}): add the file, or make it readable') from None


@contextlib.contextmanager
def reading(path: str | os.PathLike) -> Iterator[File]:
    """Reads an image file once; the bytes count as memory in use until the block ends.

    Raises:
      UserError: If it cannot be read, is empty or too large, or is a RAW file.
    """
    if os.path.splitext(str(path))[1].lower() in RAW:  # Pillow would decode the small preview in some of them
        raise UserError(f'{path} is a RAW file of a camera: convert it to JPEG, or leave it out')
    with readable(path), open_file(path) as file:
        stat = os.fstat(file.fileno())
    size = path.size if isinstance(path, ArchiveMember) else stat.st_size
    if not size:
        raise UserError(f'{path} is empty: replace the file, or leave it out')
    if size > MAX_BYTES:
        raise UserError(f'{path} has {size} bytes: shrink it to at most {MAX_BYTES} bytes')
    with _BYTES.take(size):
        with readable(path):
            data = read_bytes(path)
        yield File(data, stat.st_size, stat.st_mtime_ns)
