"""Writes splits in the layout of `*_precomp` folders, which `jitm.data.precomp` reads."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import IO

import numpy as np

from jitm.data.precomp import FEATURES, SHARED
from jitm.files.outputs import OutputFolder


@dataclasses.dataclass(frozen=True)
class PrecompWriter:
    """Writes the files of one split, each whole or not at all.

    Attributes:
      output: The folder.
      split: The name of the split, such as 'train'.
    """

    output: OutputFolder
    split: str

    def _replacing(self, name: str) -> contextlib.AbstractContextManager[IO[bytes]]:
        return self.output.replacing(name if name in SHARED else f'{self.split}{name}')

    def write_lines(self, name: str, lines: Iterable[str]) -> None:
        """Writes a file of lines, such as '_caps.txt' of the split or 'dataset.txt' of all splits."""
        with self._replacing(name) as file:
            file.write(''.join(f'{line}\n' for line in lines).encode())

    def write_array(self, name: str, array: np.ndarray) -> None:
        """Writes an array, such as '_counts.npy' of the split or 'boxes.npy' of all splits."""
        with self._replacing(name) as file:
            np.save(file, array)

    @contextlib.contextmanager
    def features(self, num_rows: int, name: str = FEATURES) -> Iterator[Callable[[np.ndarray], None]]:
        """Opens the file of the features, or of vectors, which exists when the block ends without an error.

        Args:
          num_rows: The number I of images, or of vectors.
          name: The suffix of the file name after the split's name.

        Yields:
          A function that appends the features of the next images, [n, R, F] or [n, F], or the next vectors.
        """
        with self._replacing(name) as file:

            def append(features: np.ndarray) -> None:
                if not file.tell():
                    shape = num_rows, *features.shape[1:]
                    header = {'descr': features.dtype.str, 'fortran_order': False, 'shape': shape}
                    np.lib.format.write_array_header_1_0(file, header)
                file.write(features.tobytes())

            yield append
