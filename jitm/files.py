"""Files that are there whole or not at all."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from jitm.errors import UserError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file for writing beside a path, which it replaces when it is complete.

    Raises:
      UserError: if it cannot be written, on a full disk for example; what was there before is left alone.
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
