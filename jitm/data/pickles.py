"""Unpickling of untrusted files, in time and memory that grow with their size.

Which classes and functions a file may name is up to the subclass; here a file cannot repeat its content without end.
"""

import pickle
import types
from collections.abc import Collection, Iterable, Mapping
from typing import IO, Any, ClassVar

REPEATED = 16  # times that a file may repeat its content, on average
SMALL = 2**20  # characters and items that any file may have
KEYS = (str, bytes, int, float, type(None))  # types of the keys of dicts; the hash of nested tuples may take for ever
UNUSED = [code[0] for code in (pickle.BYTEARRAY8, pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET)]


class BoundedUnpickler(pickle._Unpickler):  # the one in C fills its memory up to any number that a file names
    """Unpickles a file whose objects, written out without references to each other, are not much larger than it."""

    dispatch: ClassVar = {code: load for code, load in pickle._Unpickler.dispatch.items() if code not in UNUSED}

    def __init__(self, file: IO[bytes], size: int):
        """Starts reading.

        Args:
          file: A file at the start of a pickle.
          size: The size of the file in bytes.
        """
        super().__init__(file, encoding='latin1')
        self._file_readline = lambda: _read_line(file)
        self._most = self._room = REPEATED * size + SMALL

    def load(self) -> Any:
        """Returns the object.

        Raises:
          Exception: Any kind of exception, for example a ValueError if it repeats its content too often, or contains
            itself.
        """
        result = super().load()
        if _size(result, {}) > self._most:
            raise ValueError('it repeats its content too often')
        return result

    def _count(self, copied: Iterable[Any]) -> None:
        self._room -= sum(len(part) for part in copied if hasattr(part, '__len__'))
        if self._room < 0:
            raise ValueError('it repeats its content too often')

    def _instantiate(self, kind: Any, args: tuple) -> None:
        self._count(args)
        super()._instantiate(kind, args)

    def load_reduce(self) -> None:
        """Calls a function, which may copy its arguments."""
        self._count(self.stack[-1])
        super().load_reduce()

    def load_build(self) -> None:
        """Sets the attributes of an object, which copies their dict."""
        self._count(self.stack[-1:])
        super().load_build()

    def load_dict(self) -> None:
        """Makes a dict."""
        check_keys(self.stack[::2])
        super().load_dict()

    def load_setitem(self) -> None:
        """Sets an item of a dict."""
        check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        """Sets items of a dict."""
        check_keys(self.stack[::2])
        super().load_setitems()

    dispatch |= {
        pickle.REDUCE[0]: load_reduce,
        pickle.BUILD[0]: load_build,
        pickle.DICT[0]: load_dict,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
    }


def check_keys(keys: Collection[Any]) -> Collection[Any]:
    """Returns the keys of a dict, or the items of a set; raises a ValueError if one is not a string or number."""
    if any(not isinstance(key, KEYS) for key in keys):
        raise ValueError('a key is neither a string nor a number')
    return keys


def _read_line(file: IO[bytes]) -> bytes:
    line = file.readline()
    if not line.endswith(b'\n'):
        raise EOFError('it is cut off')
    return line


def _size(node: Any, known: dict[int, int | None]) -> int:
    """Returns the number of characters and items of an object, those of repeated parts each time.

    Args:
      node: The object.
      known: The size of the containers that were counted before by id, None of those that contain the object.
    """
    if isinstance(node, str | bytes):
        return 1 + len(node)
    if isinstance(node, Mapping):
        parts = (*node.keys(), *node.values())
    elif isinstance(node, list | tuple | set):
        parts = tuple(node)
    elif isinstance(node, types.SimpleNamespace):
        parts = tuple(vars(node).values())
    else:
        return 1
    if id(node) not in known:
        known[id(node)] = None
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    if known[id(node)] is None:
        raise ValueError('it contains itself')
    return known[id(node)]
