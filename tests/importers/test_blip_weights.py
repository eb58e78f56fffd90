"""BLIP: the golden numbers of a tiny model, transformers, and the layout of the authors' files."""

import functools
import json
import re

import chex
import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from jitm.data.text.wordpiece import BLIP_PIECES, SPECIAL_PIECES
from jitm.errors import UserError
from jitm.importers.blip_weights import EPSILON, NAMES, load_blip
from jitm.importers.released import shapes_of
from jitm.importers.tensors import export
from jitm.models.make import make_model
from jitm.types import Images, Texts
from tests.importers.torch_pickles import write_zip
from tests.parity.bounds import assert_within

V = 40
WORDS = (*SPECIAL_PIECES, *(f'w{n}' for n in range(V - 6)), *BLIP_PIECES)
TOWER = {'num_attention_heads': 2, 'num_hidden_layers': 2}
TEXT = TOWER | {'vocab_size': V, 'hidden_size': 16, 'intermediate_size': 32, 'max_position_embeddings': 12}
IMAGE = TOWER | {'hidden_size': 24, 'intermediate_size': 48, 'image_size': 32, 'patch_size': 16}
IDS = np.array([[5, 7, 9, 11, 2, 0, 0], [5, 8, 6, 4, 3, 12, 2]], np.int32)
TEXTS = Texts(IDS, np.count_nonzero(IDS, axis=1).astype(np.int32))


def blip_config(**changes):
    config = {'model_type': 'blip', 'image_text_hidden_size': 8, 'text_config': dict(TEXT), 'vision_config': dict(IMAGE)}
    for key, value in changes.items():
        section, _, name = key.rpartition('__')
        (config[section] if section else config)[name] = value
    return config


def write_folder(folder, config, words=WORDS):
    """Writes the config, the vocabulary and how pixels are prepared."""
    folder.mkdir(exist_ok=True)
    (folder / 'config.json').write_text(json.dumps(config))
    (folder / 'vocab.txt').write_text('\n'.join(words) + '\n')
    size = {'height': config['vision_config']['image_size'], 'width': config['vision_config']['image_size']}
    # Pixels are read as they are.
    pixels = {'size': size, 'resample': 3, 'image_mean': [0, 0, 0], 'image_std': [1 / 255] * 3}
    (folder / 'preprocessor_config.json').write_text(json.dumps(pixels))


@functools.cache
def published_tensors():
    """Tensors of the tiny model with the names and the shapes of Hugging Face: sines of their places."""
    tower = {'num_layers': 2, 'num_heads': 2, 'activation': 'gelu', 'dtype': 'float32'}
    image = {'name': 'blip.NormalizedViT', 'hidden_dim': 24, 'mlp_dim': 48, 'image_size': 32, 'patch_size': 16}
    image |= {'mean': (0.0, 0.0, 0.0), 'deviation': (1.0, 1.0, 1.0)}
    text = {'name': 'blip.MultimodalBERT', 'hidden_dim': 16, 'mlp_dim': 32, 'max_length': 12}
    model = {'name': 'blip.BLIP', 'embed_dim': 8, 'image': image | tower, 'text': text | tower}
    shapes = shapes_of(model, V, Images(pixels=np.zeros((1, 32, 32, 3), np.uint8)))
    tensors = export(jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes), NAMES)
    for number, name in enumerate(sorted(tensors)):
        shape = tensors[name].shape
        filled = 0.2 * np.sin(number + 0.37 * np.arange(tensors[name].size))
        filled += bool('norm' in name.lower() and name.endswith('weight'))
        shape = (1, *shape) if name.endswith('position_embedding') else shape
        shape = (1, 1, *shape) if name.endswith('class_embedding') else shape
        tensors[name] = filled.astype(np.float32).reshape(shape)
    return tensors


def outputs(published, first_pieces=None):
    """The cosines, the logits of pairs (0, 0) and (1, 1), and the states of images.

    Args:
      published: The model.
      first_pieces: The piece that text n starts with instead of [ENC]: its embedding becomes that of [ENC]. Given as
        Hugging Face's model starts with the caption's own first piece.
    """
    model = make_model(published.model, V)
    pixels = np.sin(0.05 * np.arange(2 * 3 * 32 * 32)).astype(np.float32).reshape(2, 3, 32, 32).transpose(0, 2, 3, 1)
    images = Images(pixels=pixels)

    @jax.jit
    def match(variables, image, text):
        def run(matcher):
            encoded = matcher.encode_image(image), matcher.encode_text(text)
            return matcher.read_pairs(*encoded, ('itm', 'rank'))

        return model.reranker.apply(variables, method=run)

    @jax.jit
    def vectors(variables):
        def run(matcher):
            encoded = matcher.encode_image(images), matcher.encode_text(TEXTS)
            return matcher.similarity(*encoded), matcher.image.states(images)

        return model.apply(variables, method=run)

    logits = []
    for n, piece in enumerate(first_pieces or (V - 1, V - 1)):
        changed = jax.tree.map(np.array, published.variables)
        words = changed['params']['text']['words']['embedding']
        words[V - 1] = words[piece]
        got = match(changed, images.replace(pixels=pixels[n : n + 1]), jax.tree.map(lambda x: x[n : n + 1], TEXTS))
        np.testing.assert_array_equal(got['rank'], got['itm'][:, 1])
        logits.append(got['itm'][0])
    return *vectors(published.variables), np.array(logits)


GOLDEN = {  # epsilon of the image tower -> logits of two pairs, cosines, the first numbers of the first state
    1e-5: (
        [[0.065086, 0.142022], [0.125941, 0.206959]],
        [[-0.001178, -0.015172], [-0.001086, -0.015102]],
        [0.057954, -0.996961, 2.032747, 1.196183],
    ),
    1e-6: (
        [[0.065091, 0.142027], [0.125944, 0.206962]],
        [[-0.001145, -0.015148], [-0.001055, -0.015080]],
        [0.056028, -0.997575, 2.036454, 1.190563],
    ),
}


@pytest.mark.parametrize('epsilon', GOLDEN)
def test_golden_numbers(tmp_path, epsilon):
    """Of the formulas in float64, with each caption's own first piece."""
    assert len(published_tensors()) == 92
    write_folder(tmp_path, blip_config(vision_config__layer_norm_eps=epsilon))
    save_file(published_tensors(), tmp_path / 'model.safetensors')
    cosines, states, logits = outputs(load_blip(str(tmp_path)), IDS[:, 0].tolist())
    for one, other in zip((logits, cosines, states[0, 0, :4]), GOLDEN[epsilon], strict=True):
        np.testing.assert_allclose(one, other, atol=1.5e-6)
