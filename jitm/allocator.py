"""The allocator of the C library, which computations on a CPU take their arrays from."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST = 2**31 - 1  # bytes


def keep_freed_memory() -> None:
    """Keeps freed memory in this process: the arrays of the next step then need no new pages of the system.

    By default glibc returns large arrays to the system as soon as they are freed. Without glibc nothing changes.
    """
    if mallopt := getattr(ctypes.CDLL(None), 'mallopt', None):
        mallopt(M_TRIM_THRESHOLD, LARGEST)
        mallopt(M_MMAP_THRESHOLD, LARGEST)
