"""Reads files of `torch.save` and `torch.jit.save` without torch, and without running any code in them.

A file is a zip archive (torch 1.6 and later) or a sequence of pickles (before), see `jitm.files.pickles`.
"""

import dataclasses
import functools
import io
import itertools
import math
import re
import struct
import tarfile
import types
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jitm.errors import UserError
from jitm.files.pickles import BoundedUnpickler, Function, Placeholder

LEGACY = [0x1950A86A20F9469CFC6C, 1001]  # the first pickles: a magic number, and a version
STORAGES = {
    'DoubleStorage': np.float64,
    'FloatStorage': np.float32,
    'HalfStorage': np.float16,
    'BFloat16Storage': jnp.bfloat16,
    'LongStorage': np.int64,
    'IntStorage': np.int32,
    'ShortStorage': np.int16,
    'CharStorage': np.int8,
    'ByteStorage': np.uint8,
    'BoolStorage': np.bool_,
    'ComplexFloatStorage': np.complex64,
    'ComplexDoubleStorage': np.complex128,
    'QInt8Storage': np.int8,
    'QUInt8Storage': np.uint8,
    'QInt32Storage': np.int32,
}
TYPED_LISTS = ('build_intlist', 'build_doublelist', 'build_boollist', 'build_tensorlist', 'restore_type_tag')
OLD_MEMBER = 'storages'  # in archives that torch wrote before 0.1.10
MEMBERS = 100  # files of an archive that are inspected
NUMBER = re.compile(r'[<|=]?[biuf][1248]')  # little-endian NumPy types of one number


@dataclasses.dataclass(eq=False)
class Storage:
    """A one-dimensional array in a file.

    Attributes:
      dtype: The type of its elements.
      count: Number of its elements.
      read: Returns the bytes from the first to the last element; set once their position is known.
    """

    dtype: np.dtype
    count: int
    read: Callable[[], bytes] | None = None


class Tensor(NamedTuple):
    """A view of a storage, which is read when its values are.

    Attributes:
      storage: The storage with the values.
      offset: Position of the first element in the storage.
      shape: The shape of the tensor.
      strides: Step of each axis, in elements.
    """

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def numpy(self) -> np.ndarray:
        """Reads the values.

        Raises:
          UserError: If the file is damaged there.
        """
        dtype = self.storage.dtype
        values = np.frombuffer(self.storage.read(), dtype)[self.offset :] if self.storage.count else np.empty(0, dtype)
        strides = [stride * dtype.itemsize for stride in self.strides]
        return np.lib.stride_tricks.as_strided(values, self.shape, strides).copy()


def _make_tensor(storage: Storage, offset: int, shape: tuple, strides: tuple, *_: Any) -> Tensor | Placeholder:
    """Makes a tensor whose elements are all in its storage, each at its own position."""
    if isinstance(storage, Placeholder):
        return storage
    numbers = (offset, *shape, *strides)
    if not isinstance(storage, Storage) or any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError('a tensor has no storage, or a negative offset, size or stride')
    elements = math.prod(shape)
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if elements > storage.count or (elements and last >= storage.count):
        raise ValueError(f'a tensor of shape {list(shape)} exceeds its storage of {storage.count} elements')
    return Tensor(storage, offset, tuple(shape), tuple(strides))


def _encode_latin(text: str, encoding: str) -> bytes:
    """Decodes the bytes in pickles of protocol 2."""
    if encoding != 'latin1':
        raise ValueError('bytes are in another encoding than latin1')
    return text.encode('latin1')


class _Number:
    """The type of a NumPy number; unlike a NumPy type it ignores the state that a pickle adds."""

    __slots__ = ('name',)

    def __init__(self, name: str, *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        """Adds the byte order."""
        self.name = f'{state[1]}{self.name}'.replace('|', '=')


def _make_number(kind: Any, data: bytes | str) -> Any:
    """Returns a NumPy number, whose bytes Python 2 wrote as a string."""
    if not isinstance(kind, _Number) or not NUMBER.fullmatch(str(kind.name)):
        return Placeholder()
    return np.frombuffer(data.encode('latin1') if isinstance(data, str) else data, kind.name)[0].item()


_FIRST = Function(lambda first, *_: first)
_KNOWN = {
    ('torch', 'Size'): Function(tuple),
    ('torch', 'device'): _FIRST,
    ('torch._utils', '_rebuild_tensor'): Function(_make_tensor),
    ('torch._utils', '_rebuild_tensor_v2'): Function(_make_tensor),
    ('torch._utils', '_rebuild_parameter'): _FIRST,
    ('numpy', 'dtype'): Function(_Number),
    ('numpy.core.multiarray', 'scalar'): Function(_make_number),
    ('numpy._core.multiarray', 'scalar'): Function(_make_number),
    ('_codecs', 'encode'): Function(_encode_latin),
    **{('torch.jit._pickle', name): _FIRST for name in TYPED_LISTS},
    **{('torch', name): Function(np.dtype(dtype).type) for name, dtype in STORAGES.items()},
    ('torch.storage', 'UntypedStorage'): Function(np.uint8),
}


class _TorchUnpickler(BoundedUnpickler):
    """Collects the storages that tensors refer to."""

    def __init__(self, file: io.IOBase, path: Path) -> None:
        super().__init__(file, path.stat().st_size, _KNOWN)
        self.storages: dict[str, Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Returns the substitute of a global; only the attributes of a module of TorchScript are read."""
        return types.SimpleNamespace if module.split('.')[0] == '__torch__' else super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        """Returns the storage that a tensor refers to, or the class of a module, which is stored with its code."""
        if pid[0] == 'module':
            return pid[1]
        kind, function, key, _, count, *view = pid
        if kind != 'storage' or type(count) is not int or count < 0 or any(view):
            raise ValueError('a tensor refers to an unknown kind of storage')
        if not isinstance(function, Function):
            return function()
        storage = self.storages.setdefault(str(key), Storage(np.dtype(function.function), count))
        if (storage.dtype, storage.count) != (np.dtype(function.function), count):
            raise ValueError(f"storage '{key}' has two types or sizes")
        return storage


def load(path: str | Path) -> Any:
    """Reads a file of torch.

    Args:
      path: The path of a file of any version of torch since 0.1.10.

    Returns:
      The object in it: containers with `Tensor`, numbers and strings; options and modules as SimpleNamespace, others as
      `Placeholder`.

    Raises:
      UserError: If the file is damaged, or an archive of several files.
    """
    path = Path(path)
    try:
        if tarfile.is_tarfile(path):
            with tarfile.open(path) as archive:
                raise _archive(path, [member.name for member in itertools.islice(archive, MEMBERS) if member.isfile()])
        return _load_zip(path) if zipfile.is_zipfile(path) else _load_legacy(path)
    except UserError:
        raise
    except Exception as error:  # Unpickling a damaged file can raise anything.
        raise _damaged(path, error) from error


def _damaged(path: str | Path, error: Exception) -> UserError:
    detail = f'{type(error).__name__}: {error}'.removesuffix(': ')
    return UserError(f'{path} is not a complete PyTorch file of weights ({detail}): download it again')


def _archive(path: Path, names: list[str]) -> UserError:
    if OLD_MEMBER in names:
        return UserError(f'{path} was written by torch before 0.1.10; save it again with a later version')
    listed = ', '.join(names[:5]) + (' and others' if len(names) > 5 else '')
    return UserError(f'{path} is an archive of checkpoints ({listed}): unpack it and give the path of one')


def _load_zip(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        infos = {info.filename.partition('/')[2]: info for info in archive.infolist()}
        if 'data.pkl' not in infos:
            raise _archive(path, [name for name in archive.namelist() if not name.endswith('/')])
        for name in {'byteorder', 'data.pkl'} & infos.keys():
            if infos[name].compress_type != zipfile.ZIP_STORED:
                raise ValueError(f'{name} is compressed')
        if 'byteorder' in infos and archive.read(infos['byteorder']).strip() != b'little':
            raise ValueError('its numbers are big-endian')
        with archive.open(infos['data.pkl']) as file:
            unpickler = _TorchUnpickler(file, path)
            result = unpickler.load()
    with path.open('rb') as file:
        for key, storage in unpickler.storages.items():
            info = infos[f'data/{key}']
            size = storage.count * storage.dtype.itemsize
            if info.compress_type != zipfile.ZIP_STORED or info.file_size != size:
                raise ValueError(f"storage '{key}' is compressed, or has another size than its tensors need")
            file.seek(info.header_offset + 26)  # the lengths of name and extra field, which precede the content
            start = sum(struct.unpack('<HH', file.read(4))) + file.tell()
            storage.read = functools.partial(_read, path, start, size, info)
    return result


def _load_legacy(path: Path) -> Any:
    with path.open('rb') as file:
        if file.read(2) == b'\x1f\x8b':
            raise UserError(f'{path} is compressed with gzip: unpack it with gunzip')
        file.seek(0)
        heads = [_TorchUnpickler(file, path).load() for _ in range(3)]
        if heads[:2] != LEGACY or not heads[2]['little_endian']:
            raise ValueError('it has no header of torch')
        unpickler = _TorchUnpickler(file, path)
        result = unpickler.load()
        for key in _TorchUnpickler(file, path).load():
            storage = unpickler.storages[key]
            (count,) = struct.unpack('<q', file.read(8))
            start = file.tell()
            size = count * storage.dtype.itemsize
            if count != storage.count or file.seek(0, io.SEEK_END) < start + size:
                raise ValueError(f"storage '{key}' is incomplete")
            file.seek(start + size)
            storage.read = functools.partial(_read, path, start, size)
    if any(storage.read is None for storage in unpickler.storages.values()):
        raise ValueError('a storage is missing')
    return result


def _read(path: Path, start: int, size: int, info: zipfile.ZipInfo | None = None) -> bytes:
    """Reads a storage; `ZipFile` would read the list of all members again for each."""
    try:
        with path.open('rb') as file:
            file.seek(start)
            data = file.read(size)
        if len(data) != size:
            raise EOFError('it is cut off')
        if info and zlib.crc32(data) != info.CRC:
            raise ValueError(f'{info.filename} has another checksum than stated')
        return data
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, error) from error
