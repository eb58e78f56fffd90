"""Unpickling of untrusted files, in time and memory that grow with their size, and without running anything in them.

A pickle can name any class or function. A reader accepts a few; all others become a `Placeholder`, and are never
imported or called. No file can repeat its content without end.
"""

import collections
import pickle
import types
from collections.abc import Callable, Iterable, Mapping, Sized
from typing import IO, Any, ClassVar, NamedTuple

REPEATED = 16  # repetitions of its content that a file may have, on average
SMALL = 2**20  # characters and items allowed in any file
MOST_CLASSES = 2000  # allowed in a file


class Placeholder(dict):
    """An object of an unknown class: only the items that a file sets, without the rest of its state.

    Attributes:
      origin: The name of the class.
    """

    origin = ''
    __hash__ = object.__hash__

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __repr__(self) -> str:
        return f"an object of '{self.origin}'"

    def __setstate__(self, state: Any) -> None:
        """Ignores the attributes, or the items of a list."""

    append = extend = __setstate__


KEYS = (str, bytes, int, float, type(None), type, Placeholder)  # types of keys with a fast hash
LONGEST_KEY = 8  # items of a tuple as a key


class Function(NamedTuple):
    """A function that a file may call, as an object whose attributes the file cannot change."""

    function: Callable

    def __call__(self, *args: Any) -> Any:
        """Calls it."""
        return self.function(*args)


def _make_dict(pairs: Iterable = ()) -> collections.OrderedDict:
    pairs = pairs.items() if isinstance(pairs, Mapping) else pairs
    return collections.OrderedDict((key, value) for key, value in pairs if _is_key(key))


_DICT = Function(_make_dict)
_LIST = Function(list)
_NEW = Function(lambda kind, *_: kind())
CONTAINERS = {  # module and name -> its constructor; sets become lists, which need no hashes
    ('collections', 'OrderedDict'): _DICT,
    ('collections', 'Counter'): _DICT,
    ('collections', 'defaultdict'): Function(lambda _=None, pairs=(): _make_dict(pairs)),
    ('argparse', 'Namespace'): types.SimpleNamespace,
    ('types', 'SimpleNamespace'): types.SimpleNamespace,
    ('builtins', 'set'): _LIST,
    ('builtins', 'frozenset'): _LIST,
    ('__builtin__', 'set'): _LIST,
    ('__builtin__', 'frozenset'): _LIST,
    ('copyreg', '_reconstructor'): _NEW,  # in protocols 0 and 1
    ('copy_reg', '_reconstructor'): _NEW,
}


class BoundedUnpickler(pickle._Unpickler):  # the C version allocates any size that a file names
    """Unpickles a file whose objects, written out without references to each other, are not much larger than it."""

    def __init__(self, file: IO[bytes], size: int, permitted: Mapping[tuple[str, str], Any], encoding: str = 'latin1'):
        """Starts reading.

        Args:
          file: A file at the start of a pickle.
          size: The size of the file in bytes.
          permitted: Module and name of a class or function -> its substitute; `CONTAINERS` are known too.
          encoding: The encoding of the strings of Python 2.
        """
        super().__init__(file, encoding=encoding)
        self._file_readline = lambda: _read_line(file)
        self._most = self._room = REPEATED * size + SMALL
        self._known = CONTAINERS | permitted
        self._unknown = {}

    def find_class(self, module: str, name: str) -> Any:
        """Returns the substitute of a global of a pickle."""
        if (module, name) in self._known:
            return self._known[module, name]
        origin = f'{module}.{name}'
        if origin not in self._unknown:
            if len(self._unknown) == MOST_CLASSES:
                raise ValueError('it refers to too many classes')
            self._unknown[origin] = type('Placeholder', (Placeholder,), {'origin': origin})
        return self._unknown[origin]

    def get_extension(self, code: int) -> None:
        """Raises a ValueError: a code of `copyreg` is a global of this process."""
        raise ValueError('it refers to a registered class')

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
        self._room -= sum(len(part) for part in copied if isinstance(part, Sized))
        if self._room < 0:
            raise ValueError('it repeats its content too often')

    def _instantiate(self, kind: Any, args: tuple) -> None:
        self._count(args)
        super()._instantiate(kind, args)

    def _drop_items(self) -> None:
        """Drops the items of a dict whose keys have other types."""
        items = []
        for key, value in zip(self.stack[::2], self.stack[1::2], strict=True):
            if _is_key(key):
                items += [key, value]
        self.stack[:] = items

    def _load_item(self) -> None:
        if _is_key(self.stack[-2]):
            super().load_setitem()
        else:
            del self.stack[-2:]

    def _after(check: Callable, load: Callable) -> Callable:
        def check_and_load(self: 'BoundedUnpickler') -> None:
            check(self)
            load(self)

        return check_and_load

    _base = pickle._Unpickler
    dispatch: ClassVar = _base.dispatch | {
        # A function may copy its arguments; an object copies a dict of attributes.
        pickle.REDUCE[0]: _after(lambda self: self._count(self.stack[-1]), _base.load_reduce),
        pickle.BUILD[0]: _after(lambda self: self._count(self.stack[-1:]), _base.load_build),
        pickle.DICT[0]: _after(_drop_items, _base.load_dict),
        pickle.SETITEM[0]: _load_item,
        pickle.SETITEMS[0]: _after(_drop_items, _base.load_setitems),
        pickle.BYTEARRAY8[0]: _base.load_binbytes8,
        pickle.EMPTY_SET[0]: _base.load_empty_list,
        pickle.ADDITEMS[0]: _base.load_appends,
        pickle.FROZENSET[0]: _base.load_list,
    }


def _is_key(key: Any) -> bool:
    """Returns whether a key of a dict is a string or number, or a few of them; items with other keys are dropped."""
    parts = key if isinstance(key, tuple) and len(key) <= LONGEST_KEY else [key]
    return all(isinstance(part, KEYS) for part in parts)


def _read_line(file: IO[bytes]) -> bytes:
    line = file.readline()
    if not line.endswith(b'\n'):
        raise EOFError('it is cut off')
    return line


def _size(node: Any, sizes: dict[int, int | None]) -> int:
    """Returns the number of characters and items of an object; repeated parts count each time.

    Args:
      node: The object.
      sizes: The size of the containers that were counted before by id, None of those that contain the object.
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
    if id(node) not in sizes:
        sizes[id(node)] = None
        sizes[id(node)] = 1 + sum(_size(part, sizes) for part in parts)
    if sizes[id(node)] is None:
        raise ValueError('it contains itself')
    return sizes[id(node)]
