"""Atomic file writes, locks of folders, files of JSON lines and content hashes."""

import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from jitm.errors import UserError

LOCK = '.lock'
RESUMES = 'make room and repeat the command, which resumes the run'


def _reason(error: Exception) -> str | None:
    """Returns why the file system refused to write; None for an error of another kind."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    found = re.search(r"os_error_code='(\d+)'", str(error))  # in the ValueError of tensorstore, which Orbax uses
    return os.strerror(int(found[1])) if found else None


def cache_home() -> Path:
    """Returns the folder of what is kept between runs: `jitm` in XDG_CACHE_HOME, by default `~/.cache`."""
    home = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
    return Path(home) / 'jitm'


@contextlib.contextmanager
def writing(path: Path, remedy: str = 'make room, or choose another folder') -> Iterator[None]:
    """Turns an error of the file system within the block into a UserError.

    Args:
      path: the file or folder that the block writes.
      remedy: the end of the message.

    Raises:
      UserError: if it cannot be written, for example on a full disk.
    """
    try:
        yield
    except Exception as error:
        if (reason := _reason(error)) is None:
            raise
        raise UserError(f'{path} cannot be written: {reason}; {remedy}') from None


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
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open('wb') as file:
                yield file
            partial.replace(path)
        except Exception:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise


@contextlib.contextmanager
def locked(folder: Path, message: str) -> Iterator[None]:
    """Creates a folder and excludes other processes from it; leaves nothing if nothing is written there.

    Args:
      folder: it holds the file of the lock, which the end of the process releases.
      message: of the error.

    Raises:
      UserError: if another process has locked the folder, or it cannot be written.
    """
    with contextlib.ExitStack() as stack:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((folder / LOCK).open('w'))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(message) from None
        try:
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):  # it may have been removed meanwhile
                if [entry.name for entry in folder.iterdir()] == [LOCK]:
                    (folder / LOCK).unlink()
                    folder.rmdir()


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
    except (OSError, ValueError, TypeError, RecursionError):  # the last of nested brackets
        raise UserError(f'{path} is damaged in line {len(lines) + 1}; restore the file, or remove it') from None
    return lines


def hash_arrays(arrays: Iterable[np.ndarray]) -> str:
    """Returns the SHA-256 of the bytes of some arrays, as hex."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()


def hash_file(path: Path) -> str:
    """Returns the SHA-256 of a file, as hex."""
    with path.open('rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()
