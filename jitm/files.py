"""Atomic file writes and content hashes."""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from jitm.errors import UserError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Opens a temporary file that replaces the one at a path when the block ends without an error.

    Args:
      path: the file; its folder is created if needed.

    Yields:
      The open file, in binary mode.

    Raises:
      UserError: if it cannot be written, for example on a full disk; the old file is then left unchanged.
    """
    partial = path.with_name(f'{path.name}.partial')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open('wb') as file:
            yield file
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise UserError(
            f'{path} cannot be written: {error.strerror or error}; make room, or choose another folder'
        ) from None


def hash_arrays(arrays: Iterable[np.ndarray]) -> str:
    """Returns the SHA-256 of the bytes of some arrays, as hex."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()
