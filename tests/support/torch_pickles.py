"""Writes files in the formats of torch without torch, hostile ones too."""

import io
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

LEGACY_HEAD = (0x1950A86A20F9469CFC6C, 1001, {'protocol_version': 1001, 'little_endian': True, 'type_sizes': {}})


KINDS = {
    'float32': 'FloatStorage',
    'float16': 'HalfStorage',
    'bfloat16': 'BFloat16Storage',
    'int64': 'LongStorage',
    'int8': 'CharStorage',
}


class Global(NamedTuple):
    """A global of a module, which need not exist."""

    module: str
    name: str


class Call(NamedTuple):
    """The call of a function with arguments."""

    function: Any
    args: tuple


class Build(NamedTuple):
    """An object whose state is set."""

    target: Any
    state: Any


class Module(NamedTuple):
    """A module of TorchScript: its class in the archive's program, and its attributes."""

    name: str
    attributes: dict


class Storage(NamedTuple):
    """A storage with a key, and its values."""

    key: str
    values: np.ndarray
    kind: str = 'FloatStorage'
    count: int | None = None


class _Pickler(pickle._Pickler):
    def __init__(self, file, legacy=False):
        super().__init__(file, protocol=2)
        self.storages, self.legacy = {}, legacy

    def save(self, node, save_persistent_id=True):
        if isinstance(node, Global):
            self.write(f'c{node.module}\n{node.name}\n'.encode())
        elif isinstance(node, np.ndarray):
            self.save(dense(node, f'array {len(self.storages)}', KINDS[node.dtype.name]))
        elif isinstance(node, Call):
            self.save(node.function)
            self.save(tuple(node.args))
            self.write(pickle.REDUCE)
        elif isinstance(node, Build):
            self.save(node.target)
            self.save(node.state)
            self.write(pickle.BUILD)
        elif isinstance(node, Module):
            self.save(Global('__torch__', node.name))
            self.write(pickle.EMPTY_TUPLE + pickle.NEWOBJ)
            self.save(node.attributes)
            self.write(pickle.BUILD)
        elif isinstance(node, Storage):
            self.storages[node.key] = node.values
            count = len(node.values) if node.count is None else node.count
            view = (None,) if self.legacy else ()
            self.save(('storage', Global('torch', node.kind), node.key, 'cpu', count, *view))
            self.write(pickle.BINPERSID)
        else:
            super().save(node, save_persistent_id)

    def memoize(self, node):
        """Leaves the memo empty: the nodes above are tuples, which must not be written once for all."""


def tensor(storage: Storage, shape, strides, offset=0, function='_rebuild_tensor_v2') -> Call:
    hooks = () if function == '_rebuild_tensor' else (False, Call(Global('collections', 'OrderedDict'), ()))
    return Call(Global('torch._utils', function), (storage, offset, tuple(shape), tuple(strides), *hooks))


def dense(values: np.ndarray, key: str, kind: str = 'FloatStorage', function='_rebuild_tensor_v2') -> Call:
    """A contiguous tensor."""
    strides = [stride // values.itemsize for stride in values.strides]
    return tensor(Storage(key, values.ravel(), kind), values.shape, strides, function=function)


def modules(tensors: dict[str, np.ndarray], kind: str = 'FloatStorage') -> Module:
    """Tensors as the attributes of nested modules, as `torch.jit.save` writes a model."""
    root = Module('Model', {'training': False})
    for number, (name, values) in enumerate(tensors.items()):
        *parents, leaf = name.split('.')
        module = root
        for parent in parents:
            module = module.attributes.setdefault(parent, Module(parent.capitalize(), {'training': False}))
        module.attributes[leaf] = dense(values, str(number), kind)
    return root


def write_zip(path: Path, node: Any, root='archive', compression=zipfile.ZIP_STORED, extra=()) -> str:
    content = io.BytesIO()
    pickler = _Pickler(content)
    pickler.dump(node)
    with zipfile.ZipFile(path, 'w', compression) as archive:
        archive.writestr(f'{root}/data.pkl', content.getvalue())
        for name, text in extra:
            archive.writestr(f'{root}/{name}', text)
        for key, values in pickler.storages.items():
            archive.writestr(f'{root}/data/{key}', values.tobytes())
        archive.writestr(f'{root}/version', '3\n')
    return str(path)


def write_legacy(path: Path, node: Any, head=LEGACY_HEAD, keys=None) -> str:
    with path.open('wb') as file:
        for part in head:
            pickle.dump(part, file, protocol=2)
        pickler = _Pickler(file, legacy=True)
        pickler.dump(node)
        pickle.dump(list(pickler.storages) if keys is None else keys, file, protocol=2)
        for values in pickler.storages.values():
            file.write(struct.pack('<q', len(values)) + values.tobytes())
    return str(path)
