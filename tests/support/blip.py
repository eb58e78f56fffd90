"""A tiny BLIP as Hugging Face publishes theirs."""

import functools
import json

import jax
import numpy as np
from safetensors.numpy import save_file

from jitm.data.text.blip_pieces import BLIP_PIECES
from jitm.data.text.wordpiece import SPECIAL_PIECES
from jitm.importers.blip_weights import NAMES
from jitm.importers.released import shapes_of
from jitm.importers.tensors import export
from jitm.types import Images
from tests.support.configs import changed

V = 40
READ = ('a', 'red', 'ring', 'above', 'blue', 'square')
WORDS = (*SPECIAL_PIECES, *READ, *(f'w{n}' for n in range(V - 12)), *BLIP_PIECES)
TOWER = {'num_attention_heads': 2, 'num_hidden_layers': 2}
TEXT = TOWER | {'vocab_size': V, 'hidden_size': 16, 'intermediate_size': 32, 'max_position_embeddings': 12}
IMAGE = TOWER | {'hidden_size': 24, 'intermediate_size': 48, 'image_size': 32, 'patch_size': 16}


def blip_config(changes=()):
    """A config whose dotted keys may have other values."""
    config = {'model_type': 'blip', 'image_text_hidden_size': 8, 'text_config': TEXT, 'vision_config': IMAGE}
    return changed(config, dict(changes))


def write_folder(folder, config, words=WORDS):
    """Writes the config, the vocabulary and how pixels are prepared, which are read as they are."""
    folder.mkdir(exist_ok=True)
    (folder / 'config.json').write_text(json.dumps(config))
    (folder / 'vocab.txt').write_text('\n'.join(words) + '\n')
    edge = config['vision_config']['image_size']
    pixels = {'size': {'height': edge, 'width': edge}, 'resample': 3}
    pixels |= {'image_mean': [0, 0, 0], 'image_std': [1 / 255] * 3}
    (folder / 'preprocessor_config.json').write_text(json.dumps(pixels))


@functools.cache
def published_tensors(image_size=32, max_length=12):
    """Tensors of the tiny model with the names and the shapes of Hugging Face: sines of their places."""
    tower = {'num_layers': 2, 'num_heads': 2, 'activation': 'gelu', 'dtype': 'float32'}
    image = {'name': 'blip.NormalizedViT', 'hidden_dim': 24, 'mlp_dim': 48, 'image_size': image_size, 'patch_size': 16}
    image |= {'mean': (0.0, 0.0, 0.0), 'deviation': (1.0, 1.0, 1.0)}
    text = {'name': 'blip.MultimodalBERT', 'hidden_dim': 16, 'mlp_dim': 32, 'max_length': max_length}
    model = {'name': 'blip.BLIP', 'embed_dim': 8, 'image': image | tower, 'text': text | tower}
    shapes = shapes_of(model, V, Images(pixels=np.zeros((1, image_size, image_size, 3), np.uint8)))
    tensors = export(jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes), NAMES)
    for number, name in enumerate(sorted(tensors)):
        shape = tensors[name].shape
        filled = 0.2 * np.sin(number + 0.37 * np.arange(tensors[name].size))
        filled += bool('norm' in name.lower() and name.endswith('weight'))
        shape = (1, *shape) if name.endswith('position_embedding') else shape
        shape = (1, 1, *shape) if name.endswith('class_embedding') else shape
        tensors[name] = filled.astype(np.float32).reshape(shape)
    return tensors


def write_published(folder, image_size=32, max_length=12, changes=()):
    """Writes a folder of Hugging Face; returns its path."""
    sizes = {'vision_config.image_size': image_size, 'text_config.max_position_embeddings': max_length}
    write_folder(folder, blip_config(sizes | dict(changes)))
    save_file(published_tensors(image_size, max_length), folder / 'model.safetensors')
    return str(folder)
