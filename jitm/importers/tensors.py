"""Reads tensors from files of published PyTorch weights."""

import math
import pathlib
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping

import chex
import jax
import numpy as np
import safetensors
from flax import traverse_util

from jitm.errors import UserError
from jitm.importers import torch_files

FILES = ('model.safetensors', 'pytorch_model.bin')
LEAVES = {  # name of a variable -> that of its tensor in PyTorch
    'embedding': 'weight',
    'kernel': 'weight',
    'scale': 'weight',
    'bias': 'bias',
    'mean': 'running_mean',
    'variance': 'running_var',
}

COMPRESSED = 100  # times that an archive may be larger than its file

Read = Callable[[str], np.ndarray]
KERNELS = re.compile(r'kernel|(query|key)_\d+')  # names of variables that PyTorch stores transposed
VECTORS = ('bias', 'scale', 'mean', 'variance')  # names of variables that have one axis in PyTorch


def new_name(name: str) -> str:
    """Returns the current name of a tensor; the old names of normalizations were gamma and beta."""
    return re.sub(r'\.gamma$', '.weight', re.sub(r'\.beta$', '.bias', name))


def convert(
    path: str, names: Mapping[str, str], read: Read, params: chex.ArrayTree, published_name: Callable, model: str
) -> chex.ArrayTree:
    """Finds and converts the tensor of every parameter.

    Args:
      path: of the file, for messages.
      names: name of a tensor, as `published_name` returns it -> its name in the file.
      read: maps a name in the file to its tensor.
      params: only shapes are read.
      published_name: maps the path of a parameter to the name of its tensor.
      model: such as 'BERT', for messages.

    Returns:
      The tree of the parameters with float32 numpy arrays.

    Raises:
      UserError: if a tensor is missing or has another shape than the model's.
    """

    def tensor_of(parameter: tuple[str, ...], leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        name = published_name(parameter)
        if name not in names:
            raise UserError(f"{path} has no tensor '{name}': give {model} weights of this size")
        tensor = read(names[name])
        shape = _published_shape(parameter, leaf.shape)
        if tensor.shape != shape:
            raise UserError(
                f"{path} has a tensor '{names[name]}' of shape {list(tensor.shape)} where the model has "
                f'{list(shape)}: give {model} weights of this size and vocabulary'
            )
        if KERNELS.fullmatch(parameter[-1]):
            tensor = tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T
        return np.ascontiguousarray(tensor, np.float32).reshape(leaf.shape)

    flat = traverse_util.flatten_dict(params)
    return traverse_util.unflatten_dict({parameter: tensor_of(parameter, leaf) for parameter, leaf in flat.items()})


def refuse_others(
    path: str,
    names: Iterable[str],
    params: chex.ArrayTree,
    published_name: Callable,
    unread: tuple[str, ...],
    model: str,
) -> None:
    """Raises a UserError that lists the tensors of a file that have no place in a model.

    Args:
      path: of the file.
      names: of its tensors, as `published_name` returns them.
      params: of the model; only their paths are read.
      published_name: maps the path of a parameter to the name of its tensor.
      unread: prefixes of tensors that are skipped.
      model: such as 'UNITER', for the message.
    """
    known = {published_name(parameter) for parameter in traverse_util.flatten_dict(params)}
    if others := sorted(name for name in names if name not in known and not name.startswith(unread)):
        raise UserError(
            f'{path} has tensors that this model has not: {", ".join(others)}; give {model} weights of this size'
        )


def check_names(path: str, names: Collection[str], wanted: Collection[str], hint: str) -> None:
    """Raises a UserError that lists the tensors that a file lacks, or those that a model has no place for.

    Args:
      path: of the file.
      names: of its tensors.
      wanted: names of the tensors of the model.
      hint: what to do, for the message.
    """
    for reason, found in (('lacks', set(wanted) - set(names)), ('has unknown', set(names) - set(wanted))):
        if found:
            shown = ', '.join(sorted(found)[:20]) + (f' and {len(found) - 20} others' if len(found) > 20 else '')
            raise UserError(f'{path} {reason} tensors ({shown}): {hint}')


def to_published(parameter: tuple[str, ...], value: np.ndarray) -> np.ndarray:
    """Returns the tensor in PyTorch of a variable, the inverse of what `convert` does to it."""
    shape = _published_shape(parameter, value.shape)
    if not KERNELS.fullmatch(parameter[-1]):
        return value.reshape(shape)
    tensor = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.reshape(shape[::-1]).T
    return np.ascontiguousarray(tensor)


def _published_shape(parameter: tuple[str, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape in PyTorch, where kernels are [out, in, ...] and attention heads have no axis of their own."""
    is_kernel = KERNELS.fullmatch(parameter[-1])
    if is_kernel and len(shape) == 4:  # a convolution
        return shape[3], shape[2], *shape[:2]
    if is_kernel:
        inputs = math.prod(shape[:-1]) if parameter[-2] == 'out' else shape[0]
        return math.prod(shape) // inputs, inputs
    return (math.prod(shape),) if parameter[-1] in VECTORS else shape


def open_tensors(path: str, model: str) -> tuple[list[str], Read]:
    """Opens a file of weights: the names of its tensors, and a function that reads one of them.

    Args:
      path: a `.safetensors` file, an `.npz` file, a file of torch, or a folder with one of `FILES`.
      model: such as 'BERT', for messages.

    Raises:
      UserError: if there is no such file, or it is damaged.
    """
    file = pathlib.Path(path)
    if file.is_dir():
        file = next((file / name for name in FILES if (file / name).is_file()), None)
        if file is None:
            raise UserError(f'{path} has neither {" nor ".join(FILES)}: give the path of {model} weights')
    if not file.is_file():
        raise UserError(f'{path} does not exist: give the path of {model} weights ({" or ".join(FILES)})')
    return {'.safetensors': _open_safetensors, '.npz': _open_npz}.get(file.suffix, torch_files.open_tensors)(file)


def _open_safetensors(file: pathlib.Path) -> tuple[list[str], Read]:
    try:
        tensors = safetensors.safe_open(file, framework='numpy')
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f'{file} is not a complete safetensors file ({error}): download it again') from error

    def read(name: str) -> np.ndarray:
        try:
            return tensors.get_tensor(name)
        except (AttributeError, TypeError, safetensors.SafetensorError):  # numpy has no such type
            dtype = tensors.get_slice(name).get_dtype()
            raise UserError(
                f"{file} has the tensor '{name}' in {dtype}, which is not read: convert it to float16 or float32"
            ) from None

    return list(tensors.keys()), read


def _open_npz(file: pathlib.Path) -> tuple[list[str], Read]:
    try:
        size = file.stat().st_size
        with zipfile.ZipFile(file) as archive:
            held = sum(info.file_size for info in archive.infolist())
        if held > COMPRESSED * size:
            raise UserError(f'{file} holds {held:,} bytes in {size:,}, which weights do not: download it again')
        with file.open('rb') as opened, np.load(opened) as archive:
            tensors = dict(archive)
    except (OSError, TypeError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f'{file} is not a complete NumPy archive ({error}): download it again') from error
    return list(tensors), tensors.__getitem__
