"""Atomic writes, locks, names within a folder, lines of text and JSON, and content hashes."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path, PurePosixPath
from typing import IO, Any

import filelock
import numpy as np

from jitm.errors import UserError

LOCK = '.lock'
PARTIAL = '.jitm_partial'
PART_BYTES = 16 * 2**20  # large arrays are hashed in parts of this size
PART_VALUES = 2**16  # long lists likewise
RESUMES = 'make room and repeat the command, which resumes the run'


def _reason(error: Exception) -> str | None:
    """Returns why the file system could not write; None for an error of another kind."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    match = re.search(r"os_error_code='(\d+)'", str(error))  # in the ValueError of tensorstore, which Orbax uses
    return os.strerror(int(match[1])) if match else None


def cache_home() -> Path:
    """Returns the cache folder, kept between runs: `jitm` in XDG_CACHE_HOME, by default `~/.cache`."""
    home = os.environ.get('XDG_CACHE_HOME') or os.path.join(os.path.expanduser('~'), '.cache')
    return Path(home) / 'jitm'


def expand(value: Any) -> Any:
    """Returns a path, or a list or a dict of values, with the home folder in place of a leading ~."""
    if isinstance(value, Mapping):
        return {key: expand(item) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item) for item in value]
    return os.path.expanduser(value) if isinstance(value, str) else value


def check_local(path: str, name: str) -> None:
    """Raises a UserError if a path is an address, such as gs://bucket/run.

    Args:
      path: The path.
      name: The flag or key with the path, for the message.
    """
    if re.match(r'[a-zA-Z][\w+.-]+:/', path):  # pathlib makes one slash of two
        problem = 'but jitm reads and writes files of this machine only'
        raise UserError(f"{name} is '{path}', {problem}: mount the bucket and give the path of its folder")


def leads_out(name: str) -> bool:
    """Returns whether a name in a file of data is not a path within its folder: empty, absolute, or with `..` or NUL.

    Links in the folder may lead anywhere: they are its owner's, and not in the data.
    """
    path = PurePosixPath(name)
    return not path.parts or path.is_absolute() or '..' in path.parts or '\0' in name


def check_within(name: str, where: str) -> None:
    """Raises a UserError if a name leads out of its folder.

    Args:
      name: See `leads_out`.
      where: The file and the line or entry with the name, for the message.
    """
    if leads_out(name):
        problem = 'an absolute path' if PurePosixPath(name).is_absolute() else 'not a path within its folder'
        remedy = 'put or link the file into the folder, and give its path in it'
        raise UserError(f'{where} names {name!r}, which is {problem}: {remedy}')


def describe_unread(paths: Iterable[Path], remedies: Mapping[str, str]) -> str:
    """Returns what to do with files in formats that are not read, to be added to a message; '' without such files.

    Args:
      paths: Files, of which the first one with each remedy is named.
      remedies: What to do with a file, by its suffix.
    """
    named: dict[str, Path] = {}
    for path in sorted(path for path in paths if path.suffix.lower() in remedies):
        named.setdefault(remedies[path.suffix.lower()], path)
    return ''.join(f'; {path} is not read: {remedy}' for remedy, path in named.items())


@contextlib.contextmanager
def writing(path: Path, remedy: str = 'make room, or choose another folder') -> Iterator[None]:
    """Turns an error of the file system within the block into a UserError.

    Args:
      path: The file or folder that the block writes.
      remedy: The end of the message.

    Raises:
      UserError: If it cannot be written, for example on a full disk.
    """
    try:
        yield
    except Exception as error:
        reason = _reason(error)
        if reason is None:
            raise
        raise UserError(f'{path} cannot be written: {reason}; {remedy}') from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Opens a temporary file that replaces the one at a path when the block ends without an error.

    Processes that replace the same file do so in turn. Remains of a killed process are overwritten.

    Args:
      path: The file; its folder is created if needed.

    Yields:
      The open file, in binary mode.

    Raises:
      UserError: If it cannot be written, for example on a full disk; the old file is then left unchanged.
    """
    partial = partial_path(path)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _open_locked(partial) as file:
            try:
                yield file
                file.truncate()  # a killed process may have written more
                partial.replace(path)
            except Exception:
                with contextlib.suppress(OSError):
                    partial.unlink()
                raise


def partial_path(path: Path) -> Path:
    """Returns the path of the temporary file that replaces the file at a path, see `replacing`."""
    return path.with_name(f'.{path.name}{PARTIAL}')


def _open_locked(path: Path) -> IO[bytes]:
    """Opens a file that no other process or thread has open by this function, and waits for the others."""
    while True:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), 'wb')
        filelock.lock_descriptor(file.fileno(), poll_interval=0.01)  # closing the file releases it
        with contextlib.suppress(FileNotFoundError):  # it was renamed or removed meanwhile
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        file.close()


@contextlib.contextmanager
def locked(folder: Path, message: str) -> Iterator[None]:
    """Creates a folder and excludes other processes from it; leaves it as it was if nothing is written there.

    Args:
      folder: The folder; it holds the file of the lock, which the end of the process, also by a signal, releases.
      message: The message of the error.

    Raises:
      UserError: If another process has locked the folder, or it cannot be written.
    """
    with contextlib.ExitStack() as stack:
        with writing(folder):
            new = not folder.exists()
            unlocked = not (folder / LOCK).exists()
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((folder / LOCK).open('a'))  # the file of another program keeps its content
            free = filelock.lock_descriptor(file.fileno(), blocking=False)
        if not free:
            raise UserError(message)
        try:
            yield
        finally:
            if unlocked and os.listdir(folder) == [LOCK]:
                (folder / LOCK).unlink()
                if new:
                    folder.rmdir()


def open_file(path: str | os.PathLike, mode: str = 'rb', **options: Any) -> IO:
    """Opens a file as `open` does.

    Raises:
      OSError: If it cannot be opened, or is a pipe or a device, whose reading may never end.
    """
    if not (os.path.isfile(path) or os.path.isdir(path)) and os.path.exists(path):
        raise OSError(errno.EINVAL, 'it is not a regular file', str(path))
    return open(path, mode, **options)


@dataclasses.dataclass(frozen=True, slots=True)
class ArchiveMember(os.PathLike):
    """A file in an uncompressed tar archive; its path is the archive's.

    Attributes:
      archive: The path of the archive.
      name: The name of the file as the archive states it.
      start: The first byte of the file in the archive.
      size: The number of bytes of the file.
    """

    archive: str
    name: str
    start: int
    size: int

    def __fspath__(self) -> str:
        return self.archive

    def __str__(self) -> str:
        return f'{self.archive}/{os.path.normpath(self.name)}'


def read_bytes(path: str | os.PathLike) -> bytes:
    """Reads a file, or a `ArchiveMember` of an archive.

    Raises:
      OSError: As `open_file`.
    """
    with open_file(path) as file:
        if isinstance(path, ArchiveMember):
            file.seek(path.start)
            return file.read(path.size)
        return file.read()


def read_text(path: str | os.PathLike, remedy: str = 'add the file, or make it readable') -> str:
    """Reads a file of UTF-8 text, without a byte order mark.

    Args:
      path: The file.
      remedy: The end of the message if it cannot be read.

    Raises:
      UserError: If it cannot be read, or is not UTF-8.
    """
    try:
        content = read_bytes(path)
        return content.decode('utf-8-sig')
    except OSError as error:
        raise UserError(f'{path} cannot be read ({error.strerror}): {remedy}') from error
    except UnicodeDecodeError as error:
        line = content.count(b'\n', 0, error.start) + 1
        raise UserError(f'{path}, line {line} is not UTF-8: convert the file to UTF-8') from error


def split_lines(text: str) -> list[str]:
    r"""Splits a text at `\n` and `\r\n` only; captions may have U+2028, at which `splitlines` splits, too."""
    lines = [line.removesuffix('\r') for line in text.split('\n')]
    return lines if lines[-1] else lines[:-1]


def parse_json(text: str | bytes) -> Any:
    """Parses JSON as `json.loads` does; deeply nested brackets are a ValueError too."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError('it is nested too deeply') from None


def describe(value: Any) -> str:
    """Returns the text of a value; of a dataclass, the fields that are not at their default.

    A field that a later version adds, with a default, does not change the texts that are stored.
    """
    if not dataclasses.is_dataclass(value):
        return repr(value)
    shown = [field for field in dataclasses.fields(value) if field.repr and getattr(value, field.name) != field.default]
    arguments = (f'{field.name}={describe(getattr(value, field.name))}' for field in shown)
    return f'{type(value).__name__}({", ".join(arguments)})'


def hash_arrays(arrays: Iterable[np.ndarray]) -> str:
    """Returns the SHA-256 of the bytes of some arrays, as hex."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()


def hash_rows(array: np.ndarray) -> str:
    """Returns a SHA-256 of a large array, which may be memory-mapped, as hex: the hash of the hashes of its parts.

    The parts are read and hashed in threads, which takes as long as the disk, or 1 to 2 GB/s for each core.
    """
    rows = max(1, PART_BYTES // array[0].nbytes)
    with futures.ThreadPoolExecutor() as pool:
        digests = list(pool.map(lambda start: hash_arrays([array[start : start + rows]]), range(0, len(array), rows)))
    return hashlib.sha256(''.join(digests).encode()).hexdigest()


def hash_json(value: Any) -> str:
    """Returns the SHA-256 of a JSON value, as hex."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def json_parts(lists: Sequence[Sequence[Any] | np.ndarray]) -> Iterator[bytes]:
    """Yields the JSON of some long lists in parts, so that memory holds one of them at a time."""
    for number, values in enumerate(lists):
        yield b', [' if number else b'[['
        for start in range(0, len(values), PART_VALUES):
            part = values[start : start + PART_VALUES]
            text = json.dumps(part.tolist() if isinstance(part, np.ndarray) else part)
            yield (', ' if start else '').encode() + text[1:-1].encode()
        yield b']'
    yield b']'


def hash_lists(lists: Sequence[Sequence[Any] | np.ndarray]) -> str:
    """Returns `hash_json` of some long lists, of which memory holds a part at a time."""
    digest = hashlib.sha256()
    for part in json_parts(lists):
        digest.update(part)
    return digest.hexdigest()


def hash_file(path: str | Path) -> str:
    """Returns the SHA-256 of a file, as hex."""
    with open_file(path) as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()
