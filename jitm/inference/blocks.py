"""Finished blocks of a similarity matrix on disk, from which an interrupted job resumes."""

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jitm.files import hash_json, replacing
from jitm.outputs import OutputFolder

CHECKSUM_BYTES = 4


class FinishedBlocks:
    """The finished blocks of one command in its output folder, one file per block: a checksum and the scores.

    A command has one or more jobs, one after the other. Missing or corrupt blocks are recomputed. The folder of a job
    is named by a hash of everything that its scores depend on, so several commands may share an output folder.

    Attributes:
      path: The folder of all jobs.
    """

    def __init__(self, folder: OutputFolder):
        """Locates the blocks; the first job creates their folder.

        Args:
          folder: The output folder of the command.
        """
        self.path = folder.path / 'blocks'
        self._folder, self._names = folder, []

    def begin(self, cache_key: Mapping[str, Any], blocks: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
        """Begins a job, which `read` and `write` belong to from now on.

        Args:
          cache_key: Everything that the scores depend on, as JSON; see `Scorer.cache_key`.
          blocks: The images int [N] and the texts int [M] of each block.

        Raises:
          UserError: if the folder cannot be written.
        """
        self._job = self.path / hash_json(cache_key)[:16]
        names = [str(self._path(*block).relative_to(self._folder.path)) for block in blocks]
        self._folder.claim(names)
        self._names += names

    def remove(self) -> None:
        """Removes the blocks of the jobs that were begun."""
        self._folder.remove(self._names)

    def _path(self, rows: np.ndarray, columns: np.ndarray) -> Path:
        return self._job / f'{rows[0]}_{columns[0]}'

    def read(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray | None:
        """Returns the scores of a block, or None if the file is missing or corrupt.

        Args:
          rows: The images of the block, int [N].
          columns: Its texts, int [M].

        Returns:
          float32 [N, M].
        """
        try:
            checksum, scores = np.split(np.fromfile(self._path(rows, columns), np.uint8), [CHECKSUM_BYTES])
        except OSError:
            return None
        if len(scores) != 4 * len(rows) * len(columns) or checksum.tobytes() != _checksum(scores):
            return None
        return scores.view(np.float32).reshape(len(rows), len(columns))

    def write(self, rows: np.ndarray, columns: np.ndarray, block: np.ndarray) -> None:
        """Writes a block.

        Args:
          rows: The images of the block, int [N].
          columns: Its texts, int [M].
          block: [N, M], the scores; stored as float32.

        Raises:
          UserError: if it cannot be written.
        """
        path, scores = self._path(rows, columns), np.ascontiguousarray(block, np.float32)
        with replacing(path) as file:
            file.write(_checksum(scores) + scores.tobytes())


def _checksum(array: np.ndarray) -> bytes:
    return zlib.crc32(array).to_bytes(CHECKSUM_BYTES)
