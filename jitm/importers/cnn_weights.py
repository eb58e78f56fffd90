"""Converts published ImageNet weights to the variables of the networks in `jitm.layers.cnn`."""

import functools
import re
from pathlib import Path

import chex

from jitm.errors import UserError
from jitm.files import hash_file
from jitm.importers.containers import Tensors, open_checkpoint
from jitm.importers.tensors import KeyMap, convert, rename

# Patterns of other names of tensors -> torchvision's, one rule after the other.
_RULES = (
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
FULLY_CONNECTED = {'classifier.0.weight', 'classifier.3.weight'}  # matrices in torchvision's VGG, convolutions in ours
NAMES = KeyMap(
    networks={'': ''},
    # Classifiers, whose last layers our networks do not have, and counters.
    unread=r'(fc|head\.fc|classifier(\.\d+)?)\.(weight|bias)|.*\.num_batches_tracked',
)


def load_network(path: str, params: chex.ArrayTree, batch_stats: chex.ArrayTree) -> dict[str, chex.ArrayTree]:
    """Reads published weights of VGG19, ResNet or SqueezeNet 1.1.

    Args:
      path: The path of a file of torchvision (`.pth`), timm or Hugging Face (`.safetensors`), a folder with one, or an
        `.npz` file with torchvision's names. The classifier is skipped.
      params: The parameters of a network in `jitm.layers.cnn`; only shapes are read.
      batch_stats: Its batch statistics, likewise; empty for a network without batch normalization.

    Returns:
      'params' and 'batch_stats' -> the same trees with float32 numpy arrays.

    Raises:
      UserError: If the file cannot be read, lacks tensors of the network or has others, or they have other shapes.
    """
    _check_digest(path)
    tensors = prepare(open_checkpoint(path, 'the network', NAMES.pattern(), functools.partial(rename, _RULES)).tensors)
    trees = {'params': params, 'batch_stats': batch_stats}
    return convert(path, tensors, trees, NAMES, 'the network that the config names')


def _check_digest(path: str) -> None:
    """Raises a UserError if a file's name ends in the first digits of its SHA-256, as torchvision's, and it differs."""
    match = re.search(r'-([0-9a-f]{8})\.pth$', path)
    if match and Path(path).is_file():
        digest = hash_file(path)
        if not digest.startswith(match[1]):
            raise UserError(f'{path} is damaged, its SHA-256 starts with {digest[:8]}: download it again')


def prepare(tensors: Tensors, prefix: str = '') -> Tensors:
    """Returns the tensors of a network, below a prefix, with the current numbers of the layers of VGG's classifier.

    Before 2017 the classifier started with dropout.
    """
    if f'{prefix}classifier.4.weight' not in tensors:
        return tensors
    numbers = {'0': '-', '1': '0', '4': '3'}
    return {
        re.sub(rf'(?<=^{re.escape(prefix)}classifier\.)\d', lambda n: numbers.get(n[0], n[0]), name): read
        for name, read in tensors.items()
    }
