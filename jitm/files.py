"""Atomic file writes, files of JSON lines and content hashes."""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

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


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Reads a JSONL file of objects.

    Args:
      path: the file; a missing one has no lines. An incomplete last line, of a process that was killed while it wrote
        it, is left out.

    Raises:
      UserError: if the file cannot be read, or a line is not an object.
    """
    if not path.exists():
        return []
    lines = []
    try:
        for line in path.read_bytes().split(b'\n')[:-1]:
            lines.append(dict(json.loads(line)))
    except (OSError, ValueError, TypeError):
        raise UserError(f'{path} is damaged in line {len(lines) + 1}; restore the file, or remove it') from None
    return lines


def hash_arrays(arrays: Iterable[np.ndarray]) -> str:
    """Returns the SHA-256 of the bytes of some arrays, as hex."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()
