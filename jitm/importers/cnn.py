"""Converts published ImageNet weights to the variables of the networks in `jitm.layers.cnn`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import chex
import numpy as np
from flax import traverse_util

from jitm.errors import UserError
from jitm.files import hash_file
from jitm.importers.tensors import LEAVES, Read, convert, open_tensors

# Other names of tensors -> those of torchvision, one rule after the other.
_RULES = (
    (r'^(state_dict|model)\.', ''),
    (r'^module\.', ''),  # of torch.nn.DataParallel
    # timm's VGG
    (r'^pre_logits\.fc1\.', 'classifier.0.'),
    (r'^pre_logits\.fc2\.', 'classifier.3.'),
    # Hugging Face's ResNet
    (r'^resnet\.', ''),
    (r'^embedder\.embedder\.', '0.'),
    (r'^encoder\.stages\.(\d+)\.layers\.(\d+)\.', lambda match: f'layer{int(match[1]) + 1}.{match[2]}.'),
    (r'(\d+)\.convolution\.', lambda match: f'conv{int(match[1]) + 1}.'),
    (r'(\d+)\.normalization\.', lambda match: f'bn{int(match[1]) + 1}.'),
    (r'\.layer\.(conv|bn)', r'.\1'),
    (r'\.shortcut\.convolution\.', '.downsample.0.'),
    (r'\.shortcut\.normalization\.', '.downsample.1.'),
)
_FULLY_CONNECTED = {'classifier.0.weight': 7, 'classifier.3.weight': 1}  # of VGG -> edge of the map that it reads
_Value = TypeVar('_Value')
# Classifiers, of which a model may have the first layers only, and counters.
_SKIPPED = re.compile(r'(fc|head\.fc|classifier(\.\d+)?)\.(weight|bias)|.*\.num_batches_tracked')


def load_network(path: str, params: chex.ArrayTree, batch_stats: chex.ArrayTree) -> dict[str, chex.ArrayTree]:
    """Reads published weights of VGG19, ResNet or SqueezeNet 1.1.

    Args:
      path: a file of torchvision (`.pth`), timm or Hugging Face (`.safetensors`), a folder with one, or an `.npz` file
        with torchvision's names. The classifier is skipped.
      params: of a network in `jitm.layers.cnn`; only shapes are read.
      batch_stats: its batch statistics, likewise; empty for a network without batch normalization.

    Returns:
      'params' and 'batch_stats' -> the same trees with float32 numpy arrays.

    Raises:
      UserError: if the file cannot be read, lacks tensors of the network or has others, or they have other shapes.
    """
    _check_digest(path)
    stored, read_stored = open_tensors(path, 'network')
    names = {_torchvision_name(name): name for name in stored}
    names = renumber(names)
    variables = {'params': params, 'batch_stats': batch_stats}
    wanted = {published_name(leaf) for tree in variables.values() for leaf in traverse_util.flatten_dict(tree)}
    missing = wanted - set(names)
    unknown = {names[name] for name in set(names) - wanted if not _SKIPPED.fullmatch(name)}
    for reason, found in (('lacks', missing), ('has unknown', unknown)):
        if found:
            raise UserError(
                f'{path} {reason} tensors ({_list(found)}): give the weights of the network that the config names'
            )
    read = _reading_convolutions({stored: name for name, stored in names.items()}, read_stored)
    return {part: convert(path, names, read, tree, published_name, 'network') for part, tree in variables.items()}


def _check_digest(path: str) -> None:
    """Raises a UserError if a file's name ends in the first digits of its SHA-256, as torchvision's, and it differs."""
    match = re.search(r'-([0-9a-f]{8})\.pth$', path)
    if match and Path(path).is_file():
        digest = hash_file(path)
        if not digest.startswith(match[1]):
            raise UserError(f'{path} is damaged, its SHA-256 starts with {digest[:8]}: download it again')


def published_name(path: tuple[str, ...]) -> str:
    """Returns the name of a variable's tensor in torchvision."""
    return f'{torchvision_module("/".join(path[:-1]))}.{LEAVES[path[-1]]}'


def torchvision_module(module: str) -> str:
    """Returns the name in torchvision of a module of ours, such as 'layer1_0/conv1'."""
    return re.sub(r'_(\d+)', r'.\1', module.replace('/', '.'))


def _torchvision_name(name: str) -> str:
    for pattern, replacement in _RULES:
        name = re.sub(pattern, replacement, name)
    return name


def renumber(names: Mapping[str, _Value]) -> dict[str, _Value]:
    """Returns the tensors with the current numbers of VGG's classifier, which before 2017 started with dropout."""
    if 'classifier.4.weight' not in names:
        return dict(names)
    numbers = {'0': '-', '1': '0', '4': '3'}
    return {re.sub(r'(?<=^classifier\.)\d', lambda n: numbers.get(n[0], n[0]), k): v for k, v in names.items()}


def as_convolution(name: str, tensor: np.ndarray) -> np.ndarray:
    """Returns a fully connected layer of VGG as a convolution over the map, as timm stores it; other tensors as given.

    Args:
      name: of the tensor in torchvision.
      tensor: its values.
    """
    edge = _FULLY_CONNECTED.get(name)
    if edge and tensor.ndim == 2 and tensor.shape[1] % edge**2 == 0:
        return tensor.reshape(len(tensor), -1, edge, edge)
    return tensor


def as_matrix(name: str, tensor: np.ndarray) -> np.ndarray:
    """Returns a fully connected layer of VGG as torchvision stores it, the inverse of `as_convolution`."""
    return tensor.reshape(len(tensor), -1) if name in _FULLY_CONNECTED else tensor


def _reading_convolutions(names: dict[str, str], read: Read) -> Read:
    """Reads tensors, the fully connected layers of VGG as convolutions."""
    return lambda stored: as_convolution(names[stored], read(stored))


def _list(names: set[str], shown: int = 5) -> str:
    """Lists names, the first ones if there are many."""
    more = f' and {len(names) - shown} others' if len(names) > shown else ''
    return ', '.join(sorted(names)[:shown]) + more
