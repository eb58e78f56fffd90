"""Converts the tensors of published PyTorch weights to variables of our models, and back."""

import collections
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import chex
import numpy as np
from flax import traverse_util

from jitm.errors import UserError
from jitm.importers.containers import Tensors, list_names

LEAVES = {  # name of a variable -> name of its tensor in PyTorch
    'embedding': 'weight',
    'kernel': 'weight',
    'scale': 'weight',
    'bias': 'bias',
    'mean': 'running_mean',
    'variance': 'running_var',
}
OLD_NAMES = ((r'\.gamma$', '.weight'), (r'\.beta$', '.bias'))  # names of normalizations, for `rename`
KERNELS = re.compile(r'kernel|(query|key)_\d+')  # names of variables that PyTorch stores transposed
VECTORS = ('bias', 'scale', 'mean', 'variance')  # names of variables that have one axis in PyTorch
HEAD_SIZE = 64  # numbers per head of attention in all models that are released without a config
STACKED = 3  # tensors in one: the gates of a GRU, or queries, keys and values
# torchvision's names of the tensors of a network, and those of EfficientNet-Lite.
NETWORK = r'(conv\d|conv_stem|conv_head|bn\d|layer\d|blocks|features|classifier|fc)\..*'


class KeyMap(NamedTuple):
    """The published names of a model's variables, in a table that is read in both directions.

    `*` matches a number after `_` in one of our names, such as the number of a block. `{}` is the place of 'weight' or
    'bias' in a published name; without it they follow the module after a dot. A published name that ends in `[0]`,
    `[1]` or `[2]` is a third of the rows of a tensor; one that ends in `[T]` is stored transposed.

    Attributes:
      modules: Our module -> the published one.
      variables: The path of a variable of ours -> its tensor, if `modules` does not imply it.
      networks: The prefix of our modules -> the prefix of the published ones, where the rest has torchvision's names.
      unread: A pattern of tensors that a file may have and that have no effect on the scores.
    """

    modules: Mapping[str, str] = {}
    variables: Mapping[str, str] = {}
    networks: Mapping[str, str] = {}
    unread: str = r'.*\.num_batches_tracked'

    def name(self, path: tuple[str, ...]) -> str:
        """Returns the published name of a variable.

        Raises:
          KeyError: If the published model has no such variable.
        """
        tensor = _find(self.variables, '/'.join(path))
        if tensor:
            return tensor
        module = '/'.join(path[:-1])
        leaf = LEAVES.get(path[-1])
        published = _find(self.modules, module)
        for prefix in self.networks:
            if published is None and module.startswith(prefix):
                tail = re.sub(r'_(\d+)', r'.\1', module.removeprefix(prefix).replace('/', '.'))
                published = self.networks[prefix] + tail
        if published is None or leaf is None:
            raise KeyError('/'.join(path))
        return published.replace('{}', leaf) if '{}' in published else f'{published}.{leaf}'

    def pattern(self) -> re.Pattern:
        """Returns a pattern of the names of all tensors, whatever the sizes of the model."""
        tensors = [name if '{}' in name else f'{name}.{{}}' for name in self.modules.values()]
        escaped = {re.escape(name.partition('[')[0]) for name in (*tensors, *self.variables.values())}
        leaf = f'({"|".join({*LEAVES.values()})})'
        patterns = [name.replace(r'\*', r'\d+').replace(r'\{\}', leaf) for name in escaped]
        return re.compile('|'.join([*patterns, *(re.escape(prefix) + NETWORK for prefix in self.networks.values())]))


def _find(table: Mapping[str, str], name: str) -> str | None:
    """Returns the entry of a name, or the entry of its pattern with the numbers of the name."""
    if name in table:
        return table[name]
    stored = table.get(re.sub(r'_\d+', '_*', name))
    for number in re.findall(r'_(\d+)', name) if stored else ():
        stored = stored.replace('*', number, 1)
    return stored


def projections(ours: str, theirs: str) -> dict[str, str]:
    """Returns the modules of the queries, keys and values of attention.

    Args:
      ours: Our module of the attention.
      theirs: The published names, where `%(part)s` is 'query', `%(letter)s` is 'q' and `%(row)d` is 0 for the queries.
    """
    modules = {}
    for row, part in enumerate(('query', 'key', 'value')):
        modules[f'{ours}/{part}'] = theirs % {'part': part, 'letter': part[0], 'row': row}
    return modules


def below(modules: Mapping[str, str], ours: str, theirs: str) -> dict[str, str]:
    """Returns the modules of a part of a model, whose names get these prefixes."""
    return {ours + module: theirs + published for module, published in modules.items()}


def rename(rules: Iterable[tuple[str, str | Callable]], name: str) -> str:
    """Returns the name of a tensor after replacing each pattern, one rule after the other."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def convert(path: str, tensors: Tensors, trees: chex.ArrayTree, names: KeyMap, model: str) -> chex.ArrayTree:
    """Finds and converts the tensor of every variable.

    Args:
      path: The path of the file, for messages.
      tensors: The tensors of the file, by their current names.
      trees: 'params' and perhaps 'batch_stats'; only shapes are read.
      names: The names of the variables.
      model: The name of the model, for messages.

    Returns:
      The trees with float32 numpy arrays, 'batch_stats' too.

    Raises:
      UserError: If tensors are missing, left over, of another shape than the model's, or not finite.
    """
    flat = traverse_util.flatten_dict(trees)
    stored = {variable: names.name(variable[1:]) for variable in flat}
    required = {name.partition('[')[0] for name in stored.values()}
    unknown = {name for name in tensors.keys() - required if not re.fullmatch(names.unread, name)}
    problems = [
        f'{problem} tensors ({list_names(listed)})'
        for problem, listed in (('lacks', required - tensors.keys()), ('has unknown', unknown))
        if listed
    ]
    if problems:
        raise UserError(f'{path} {" and ".join(problems)}: give the weights of {model}')

    converted = {}
    for variable, name in stored.items():
        tensor = _read(tensors, name)
        shape = _published_shape(variable, flat[variable].shape)
        # The kernel of a convolution over single elements is a matrix; VGG's fully connected layers are convolutions.
        is_matrix = tensor.shape[: len(shape)] == shape
        is_convolution = (tensor.ndim, len(shape)) == (2, 4) and len(tensor) == shape[0]
        if (is_matrix or is_convolution) and tensor.size == math.prod(shape):
            tensor = tensor.reshape(shape)
        if tensor.shape != shape:
            raise UserError(
                f"{path} has a tensor '{name.removesuffix('[T]')}' of shape {list(tensor.shape)} where the model has "
                f'{list(shape)}: give the weights of {model}'
            )
        if KERNELS.fullmatch(variable[-1]):
            tensor = tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T
        with np.errstate(over='ignore'):
            converted[variable] = np.ascontiguousarray(tensor, np.float32).reshape(flat[variable].shape)
        if not np.isfinite(converted[variable]).all():
            raise UserError(
                f"{path} has a tensor '{name.partition('[')[0]}' with numbers that are not finite: give other weights"
            )
    return {'params': {}, 'batch_stats': {}} | traverse_util.unflatten_dict(converted)


def shape_of(path: str, tensors: Tensors, name: str, axes: int) -> tuple[int, ...]:
    """Returns the shape of a tensor from which a size of the model is read.

    Args:
      path: The path of the file, for messages.
      tensors: The tensors of the file.
      name: The name of the tensor.
      axes: The number of its axes.

    Raises:
      UserError: If there is no such tensor, or it has another number of axes.
    """
    shape = tensors[name]().shape if name in tensors else ()
    if len(shape) != axes or 0 in shape:
        raise UserError(f"{path} has no tensor '{name}' with {axes} axes: give weights of the system that --from names")
    return shape


def count_blocks(tensors: Iterable[str], blocks: str) -> int:
    """Returns how many blocks have tensors: their names are `blocks`, the number of the block, and the rest."""
    return len({match[1] for name in tensors if (match := re.match(rf'{re.escape(blocks)}\.(\d+)\.', name))})


def head_size(width: int) -> int:
    """Returns the numbers per head of a model that is released without a config: `HEAD_SIZE`, or its whole width."""
    return min(width, HEAD_SIZE)


def _read(tensors: Tensors, name: str) -> np.ndarray:
    """Reads a tensor, or the part of it that a name of a `KeyMap` states."""
    stored, _, part = name.removesuffix(']').partition('[')
    tensor = tensors[stored]()
    if part == 'T':
        return tensor.T
    if not part or tensor.ndim == 0 or len(tensor) % STACKED:  # which then has another shape than the model's
        return tensor
    return np.split(tensor, STACKED)[int(part)]


def export(variables: Mapping[str, chex.ArrayTree], names: KeyMap) -> dict[str, np.ndarray]:
    """Returns the published tensors of variables, the inverse of `convert`.

    Args:
      variables: 'params' and 'batch_stats'.
      names: The names of the variables.

    Raises:
      KeyError: If the published model has no such variable.
    """
    parts = collections.defaultdict(dict)
    for tree in variables.values():
        for path, value in traverse_util.flatten_dict(tree).items():
            stored, _, part = names.name(path).removesuffix(']').partition('[')
            value = np.asarray(value)
            shape = _published_shape(path, value.shape)
            if KERNELS.fullmatch(path[-1]):
                value = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.reshape(shape[::-1]).T
            tensor = np.ascontiguousarray(value).reshape(shape)
            parts[stored][part] = tensor.T if part == 'T' else tensor
    tensors = {}
    for name, slices in parts.items():
        in_order = [slices[part] for part in sorted(slices)]
        tensors[name] = np.concatenate(in_order) if len(in_order) > 1 else np.asarray(*in_order, order='C')
    return tensors


def _published_shape(path: tuple[str, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape in PyTorch, where kernels are [out, in, ...] and attention heads have no axis of their own."""
    is_kernel = KERNELS.fullmatch(path[-1])
    if is_kernel and len(shape) == 4:  # a convolution
        return shape[3], shape[2], *shape[:2]
    if is_kernel:
        inputs = math.prod(shape[:-1]) if path[-2] == 'out' else shape[0]
        return math.prod(shape) // inputs, inputs
    return (math.prod(shape),) if path[-1] in VECTORS else shape
