"""Output folders and files that belong to jitm: nothing is replaced or removed that jitm did not write."""

import contextlib
import hashlib
import io
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from jitm.errors import UserError
from jitm.files import LOCK, PARTIAL, hash_json, leads_out, parse_json, partial_path, read_bytes, replacing, writing

OWNED = '.jitm'  # in an output folder: its kind, and the files that jitm wrote to it
UNFINISHED = 'unfinished'  # in an output folder: the parts of jobs
CHECKSUM_BYTES = 32  # SHA-256
MARK = b'written by jitm, which may replace this file'  # near an end of a single output file
MARK_WITHIN = 2**16  # bytes from either end


class OutputFolder:
    """A folder that belongs to jitm: a manifest in it names the files that jitm wrote.

    The folder is new, empty, or has output of the same kind. Files that its manifest does not name belong to the user
    and are neither replaced nor removed.

    Attributes:
      path: The path of the folder.
    """

    def __init__(self, path: Path, kind: str):
        """Checks that the folder may be used; the first file that is written claims it.

        Args:
          path: The folder, which need not exist.
          kind: The name of its content, with its article, such as 'an index'.

        Raises:
          UserError: If it has files that jitm did not write, or output of another kind.
        """
        self.path = path
        self._kind = kind
        self._jobs = []
        self.check([])

    @property
    def names(self) -> list[str]:
        """The files that jitm wrote, or was about to write, relative to the folder."""
        try:
            owned = parse_json((self.path / OWNED).read_bytes())
            kind = str(owned['kind'])
            names = list(map(str, owned['files']))
            if any(map(leads_out, names)):
                raise ValueError('a file lies outside of the folder')
        except FileNotFoundError:
            kind = self._kind
            names = []
            present = _names_in(self.path)
            if OWNED in present:  # another process has just claimed the folder
                return self.names
            if any(name != LOCK and not name.endswith(PARTIAL) for name in present):
                raise UserError(
                    f'{self.path} is not empty and is not {kind} of jitm; choose a new or empty folder'
                ) from None
        except NotADirectoryError:
            if not self.path.exists():  # a parent is a file, which reading or writing will report
                return []
            raise UserError(f'{self.path} is not a folder; choose a new or empty folder') from None
        except (OSError, ValueError, TypeError, KeyError):
            raise UserError(f'{self.path} has a damaged file {OWNED}; choose a new or empty folder') from None
        if kind != self._kind:
            raise UserError(f'{self.path} is {kind} of jitm, not {self._kind}; choose another folder')
        return names

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[str]]:
        """Yields the names of the files, which the block may change, while other processes wait."""
        with replacing(self.path / OWNED) as file:
            names = self.names
            yield names
            file.write((json.dumps({'kind': self._kind, 'files': sorted(names)}) + '\n').encode())

    def claim(self, names: Iterable[str]) -> None:
        """Registers files before they are written.

        Args:
          names: The files, relative to the folder.

        Raises:
          UserError: If one exists that jitm did not write, or the folder cannot be written.
        """
        with self._changing() as claimed:
            claimed += self._unknown(names, claimed)

    def check(self, names: Iterable[str]) -> None:
        """Raises a UserError if one of some files exists that jitm did not write; writes nothing."""
        self._unknown(names, self.names)

    def _unknown(self, names: Iterable[str], claimed: Iterable[str]) -> list[str]:
        """Returns the unknown names; a UserError if one of these files exists."""
        new = sorted(set(names) - set(claimed))
        for name in new:
            if os.path.lexists(self.path / name):
                raise UserError(f'{self.path / name} was not written by jitm; move it, or choose another folder')
        return new

    @contextlib.contextmanager
    def replacing(self, name: str) -> Iterator[IO[bytes]]:
        """Claims a file and replaces it as `replacing` does."""
        self.claim([name])
        with replacing(self.path / name) as file:
            yield file

    def write(self, name: str, content: bytes | str) -> None:
        """Claims a file and replaces it by bytes, or by text in UTF-8."""
        with self.replacing(name) as file:
            file.write(content.encode() if isinstance(content, str) else content)

    def remove(self, names: Iterable[str]) -> None:
        """Removes files that jitm wrote, and the folders within this one that they leave empty.

        Args:
          names: The files, relative to the folder.

        Raises:
          UserError: If the folder cannot be written.
        """
        removed = set(names).intersection(self.names)
        if not removed:
            return
        with self._changing() as claimed:
            for name in removed:
                (self.path / name).unlink(missing_ok=True)
                partial_path(self.path / name).unlink(missing_ok=True)  # left by a killed process
                for folder in Path(name).parents[:-1]:
                    with contextlib.suppress(OSError):  # it is not empty, or gone
                        (self.path / folder).rmdir()
            claimed[:] = [name for name in claimed if name not in removed]

    def begin(self, inputs: Any) -> 'Job':
        """Begins a job, or resumes it.

        Args:
          inputs: All inputs of the job, as JSON.
        """
        self._jobs.append(Job(self, inputs))
        return self._jobs[-1]

    def end_jobs(self) -> None:
        """Removes the parts of the jobs that were begun here; those of other jobs stay."""
        for job in self._jobs:
            self.remove(job.names)


class Job:
    """A job that writes its parts to an output folder as they are finished, so that a process that is killed loses one.

    Each part is a file of arrays behind their checksum. A hash of all inputs names the folder of the parts, so no other
    job reads them.

    Attributes:
      path: The folder of the parts.
    """

    def __init__(self, output: OutputFolder, inputs: Any):
        """Finds the folder, see `OutputFolder.begin`; the first part that is saved creates it."""
        self._output = output
        self._folder = f'{UNFINISHED}/{hash_json(inputs)[:16]}/'
        self.path = output.path / self._folder

    @property
    def names(self) -> list[str]:
        """The files of the parts that were saved, or were about to be, relative to the output folder."""
        return [name for name in self._output.names if name.startswith(self._folder)]

    def save(self, part: int | str, **arrays: Any) -> None:
        """Saves a part, or replaces it.

        Args:
          part: The number or name of the part.
          **arrays: Its content.

        Raises:
          UserError: If it cannot be written, or there is a file that jitm did not write.
        """
        content = io.BytesIO()
        np.savez(content, **arrays)
        with self._output.replacing(f'{self._folder}{part}') as file:
            file.write(hashlib.sha256(content.getbuffer()).digest())
            file.write(content.getbuffer())

    def load(self, part: int | str) -> dict[str, np.ndarray] | None:
        """Returns the arrays of a part; None if it is missing or damaged."""
        try:
            stored = memoryview(read_bytes(self.path / str(part)))
        except OSError:
            return None
        content = stored[CHECKSUM_BYTES:]
        if hashlib.sha256(content).digest() != stored[:CHECKSUM_BYTES]:
            return None
        return dict(np.load(io.BytesIO(content)))

    def parts(self) -> Iterator[dict[str, np.ndarray]]:
        """Yields the parts 0, 1, ... up to the first one that is missing or damaged."""
        return itertools.takewhile(lambda part: part is not None, map(self.load, itertools.count()))


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


@contextlib.contextmanager
def replacing_own(path: Path) -> Iterator[IO[bytes]]:
    """Replaces a file as `replacing` does, if it has MARK near an end or does not exist.

    Raises:
      UserError: If jitm did not write the existing file, or it cannot be written.
    """
    check_own(path)
    with replacing(path) as file:
        yield file


def check_own(path: Path) -> None:
    """Raises a UserError if a file exists without MARK near an end."""
    if not os.path.lexists(path):
        return
    with writing(path):
        if path.is_file():
            with path.open('rb') as file:
                start = file.read(MARK_WITHIN)
                file.seek(max(0, path.stat().st_size - MARK_WITHIN))
                if MARK in start or MARK in file.read():
                    return
    raise UserError(f'{path} exists and was not written by jitm; choose another file, or remove it')
