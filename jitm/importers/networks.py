"""The network in VSE++'s checkpoints that reads photos, beside the layers of checkpoints on features."""

from collections.abc import Mapping
from typing import Any

from jitm.errors import UserError
from jitm.importers.containers import Tensors
from jitm.importers.key_maps import NETWORK
from jitm.layers import cnn

ENCODER = 'cnn.PixelEncoder'
SIZE = 224  # pixels of the photos of VSE++
FIXED = {'image.normalize_features': True, 'image.network.pooled': True}  # keys of the model, in the authors' code


def recognize(path: str, tensors: Tensors) -> dict[str, Any] | None:
    """Returns the config of the network in a checkpoint; None if it has none that is known.

    Raises:
      UserError: if it is a ResNet of unknown depth.
    """
    sizes = {'pooled': True, 'dtype': 'float32', 'remat': False}
    if f'{NETWORK}.features.0.weight' in tensors:
        return {'name': 'cnn.VGG19', **sizes}
    if f'{NETWORK}.conv1.weight' not in tensors:
        return None
    layers = [f'{NETWORK}.layer{layer}' for layer in range(1, 5)]
    blocks = tuple(sum(f'{layer}.{n}.conv1.weight' in tensors for n in range(len(tensors))) for layer in layers)
    has_bottlenecks = f'{layers[0]}.0.conv3.weight' in tensors
    for depth, known in cnn.RESNETS.items():
        if known == blocks and (depth >= cnn.BOTTLENECKS) == has_bottlenecks:
            return {'name': 'cnn.ResNet', 'depth': depth, 'train_norm': False, **sizes}
    known = ', '.join(map(str, cnn.RESNETS))
    raise UserError(f'{path} has a ResNet with {blocks} blocks: give a checkpoint with one of {known} layers')


def regions_of(image: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the part of the config's `model.image` that encodes features, whether a network computes them or not."""
    return image['regions'] if image['name'] == ENCODER else image


def with_network(image: Mapping[str, Any], network: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the config's `model.image` with a network, or without one if it is None."""
    regions = dict(regions_of(image))
    if network is None:
        return regions
    return {'name': ENCODER, 'network': dict(network), 'normalize_features': True, 'regions': regions}
