"""A file of curves that TensorBoard reads.

It is a TFRecord file of protocol buffers `Event`, of which few fields are needed. They are encoded here, because the
packages that write such files import a deep learning framework wherever one is installed, which takes seconds.
"""

import contextlib
import functools
import os
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from jitm.files import RESUMES, writing

# Keys of protocol buffers: the number of a field in `Event`, `Summary`, `Summary.Value` or `SessionLog`, and its type.
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY, _SESSION_LOG = b'\x09', b'\x10', b'\x1a', b'\x2a', b'\x3a'
_VALUE, _TAG, _SIMPLE_VALUE = b'\x0a', b'\x0a', b'\x15'
_START = b'\x08\x01'  # a session log of status START
_CASTAGNOLI = 0x82F63B78  # the polynomial of CRC-32C, lowest bit first


class Board:
    """A new TensorBoard file of the curves of a run."""

    def __init__(self, folder: Path, step: int):
        """Opens a new file.

        Args:
          folder: The folder of the files of all starts.
          step: The first step of this start; TensorBoard drops later lines of earlier starts.

        Raises:
          UserError: If it cannot be written.
        """
        self._folder = folder
        with writing(folder, RESUMES):
            folder.mkdir(parents=True, exist_ok=True)
            name = f'events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}'
            self._file = (folder / name).open('wb')
        self._write(0, _nested(_FILE_VERSION, b'brain.Event:2'))
        self._write(step, _nested(_SESSION_LOG, _START))

    def _write(self, step: int, content: bytes) -> None:
        event = _WALL_TIME + struct.pack('<d', time.time()) + _STEP + _varint(step) + content
        with writing(self._folder, RESUMES):
            self._file.write(_record(event))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Adds values of a step by their names; raises a UserError if they cannot be written."""
        entries = (
            _nested(_TAG, name.encode()) + _SIMPLE_VALUE + struct.pack('<f', value) for name, value in values.items()
        )
        self._write(step, _nested(_SUMMARY, b''.join(_nested(_VALUE, entry) for entry in entries)))

    def flush(self) -> None:
        """Flushes the buffer to disk; raises a UserError if that fails."""
        with writing(self._folder, RESUMES):
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):  # already raised, or the values are in `metrics.jsonl`
            self._file.close()


def _varint(number: int) -> bytes:
    """Returns an integer in groups of seven bits, the lowest first; all but the last have the highest bit set."""
    groups = []
    while number >= 128:
        groups.append(number % 128 + 128)
        number //= 128
    return bytes([*groups, number])


def _nested(key: bytes, content: bytes) -> bytes:
    """Returns a field of a protocol buffer that holds a string or another protocol buffer."""
    return key + _varint(len(content)) + content


def _record(data: bytes) -> bytes:
    """Returns a TFRecord: the length and the data, each followed by its checksum."""
    length = struct.pack('<Q', len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    """Returns the CRC-32C of some bytes, rotated by 15 bits and increased by a constant, as TFRecord files have it."""
    table, crc = _crc_table(), 2**32 - 1
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) % 256]
    crc ^= 2**32 - 1
    return struct.pack('<I', ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)


@functools.cache
def _crc_table() -> tuple[int, ...]:
    """Returns the remainder of each byte."""

    def remainder(byte: int) -> int:
        for _ in range(8):
            byte = byte >> 1 ^ (_CASTAGNOLI if byte % 2 else 0)
        return byte

    return tuple(map(remainder, range(256)))
