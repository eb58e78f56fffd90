"""`jitm COMMAND` and `python -m jitm COMMAND`."""

import ctypes
import sys
from collections.abc import Sequence

from jitm.devices import job
from jitm.runs import interrupt

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # constants in malloc.h
LARGEST = 2**31 - 1  # bytes


def keep_freed_memory() -> None:
    """Keeps freed memory in this process: the arrays of the next step then need no new pages of the system.

    By default glibc returns large arrays to the system as soon as they are freed. Without glibc nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)
    if mallopt:
        mallopt(M_TRIM_THRESHOLD, LARGEST)
        mallopt(M_MMAP_THRESHOLD, LARGEST)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command, see `jitm.commands.cli.main`; signals count from the first line on."""
    with interrupt.watched():
        keep_freed_memory()
        from jitm.commands import cli  # imports take seconds

        code = 1
        try:
            code = cli.main(argv)
        finally:
            job.leave(code)
        return code


if __name__ == '__main__':
    sys.exit(main())
