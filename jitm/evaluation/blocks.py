"""Finished blocks of a similarity matrix on disk, from which an interrupted job resumes."""

import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jitm.files import replacing

CHECKSUM_BYTES = 4


class FinishedBlocks:
    """The finished blocks of one job, one file per block: a checksum and the scores.

    Missing or corrupt blocks are recomputed. The folder of a job is named by a hash of everything that its scores
    depend on, so several jobs may share a parent folder.
    """

    def __init__(self, parent: Path, cache_key: Mapping[str, Any]):
        """Locates the blocks of a job; the first block written creates the folder.

        Args:
          parent: the folder that holds the folders of all jobs.
          cache_key: everything that the scores depend on, as JSON; see `Scorer.cache_key`.
        """
        self.folder = parent / hashlib.sha256(json.dumps(cache_key).encode()).hexdigest()[:16]

    def _path(self, rows: np.ndarray, columns: np.ndarray) -> Path:
        return self.folder / f'{rows[0]}_{columns[0]}'

    def read(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray | None:
        """Returns the scores of a block, or None if the file is missing or corrupt.

        Args:
          rows: int [N], the images of the block.
          columns: int [M], its texts.

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
          rows: int [N], the images of the block.
          columns: int [M], its texts.
          block: [N, M], the scores; stored as float32.

        Raises:
          UserError: if it cannot be written.
        """
        path, scores = self._path(rows, columns), np.ascontiguousarray(block, np.float32)
        with replacing(path) as file:
            file.write(_checksum(scores) + scores.tobytes())


def _checksum(array: np.ndarray) -> bytes:
    return zlib.crc32(array).to_bytes(CHECKSUM_BYTES)
