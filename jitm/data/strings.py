"""Columns of texts in memory-mapped files."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow


class Strings(Sequence[str]):
    """A column of texts of Arrow, which may be memory-mapped."""

    def __init__(self, column: 'pyarrow.ChunkedArray'):
        """Takes a column of texts, without null."""
        self._column = column

    def __len__(self) -> int:
        """Returns the number of texts."""
        return len(self._column)

    def __eq__(self, other: object) -> bool:
        """Returns whether another column has the same texts."""
        return isinstance(other, Strings) and self._column.equals(other._column)

    def __getitem__(self, index: Any) -> str | list[str]:
        """Returns the text of a number, or those of a slice."""
        return self._column[index].to_pylist() if isinstance(index, slice) else self._column[int(index)].as_py()

    __hash__ = None

    def __iter__(self) -> Iterator[str]:
        for chunk in self._column.chunks:
            yield from chunk.to_pylist()

    def take(self, rows: np.ndarray) -> 'Strings':
        """Returns the texts of the rows int [N], in memory."""
        return Strings(self._column.take(rows))
