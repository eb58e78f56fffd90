"""Output folders and files that belong to jitm: nothing is replaced or removed that jitm did not write."""

import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from jitm.errors import UserError
from jitm.files import LOCK, PARTIAL, leads_out, parse_json, partial_path, replacing, writing

OWNED = '.jitm'  # in an output folder: its kind, and the files that jitm wrote to it
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
            folders = {str(parent) for name in removed for parent in Path(name).parents[:-1]}
            for folder in sorted(folders, reverse=True):  # inner ones first
                with contextlib.suppress(OSError):  # it is not empty, or gone
                    (self.path / folder).rmdir()
            claimed[:] = [name for name in claimed if name not in removed]


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
