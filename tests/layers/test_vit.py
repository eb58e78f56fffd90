"""What the encoders of CLIP and SigLIP refuse, and the states of their tokens.

Their other values are compared with other libraries in tests/importers.
"""

import re

import chex
import jax
import numpy as np
import pytest
from flax import linen as nn

from jitm.errors import UserError
from jitm.layers.clip_resnet import ModifiedResNet
from jitm.layers.clip_text import CausalTransformer
from jitm.layers.siglip import PaddedTransformer, PooledViT
from jitm.layers.vit import Patches, ViT
from jitm.types import Images, Texts
from tests.support.matchers import random_variables

TOWER = {'hidden_dim': 8, 'num_layers': 1, 'num_heads': 2, 'mlp_dim': 12, 'activation': 'gelu', 'dtype': 'float32'}
PIXELS = {'mean': (0.5, 0.4, 0.3), 'deviation': (0.3, 0.4, 0.5)}
VIT = {'embed_dim': 4, 'image_size': 32, 'patch_size': 16} | TOWER | PIXELS
RESNET = {'embed_dim': 4, 'image_size': 32, 'blocks': (1, 1, 1, 1), 'stem_dim': 4, 'num_heads': 2, 'train_norm': True}
RESNET |= {'dtype': 'float32'} | PIXELS
POOLED = VIT | {'embed_dim': 8}
TEXT = {'vocab_size': 9, 'embed_dim': 4, 'max_length': 6} | TOWER
PADDED = TEXT | {'pad': 1}


def shape_of(module, inputs):
    return jax.eval_shape(lambda key: module.init_with_output(key, inputs)[0], jax.random.key(0)).shape


def images(height=32, width=32):
    return Images(pixels=np.zeros((2, height, width, 3), np.uint8))


@pytest.mark.parametrize(
    ('make', 'arguments', 'changes', 'message'),
    [
        (ViT, VIT, {'patch_size': 12}, 'image_size is 32, no multiple of patch_size 12'),
        (ViT, VIT, {'num_heads': 3}, 'num_heads is 3, which does not divide hidden_dim 8'),
        (ViT, VIT, {'activation': 'elu'}, "activation is 'elu'; use one of gelu, quick_gelu"),
        (ViT, VIT, {'dtype': 'float16'}, "dtype is 'float16'"),
        (ModifiedResNet, RESNET, {'image_size': 40}, 'image_size is 40, no multiple of 32'),
        (ModifiedResNet, RESNET, {'num_heads': 3}, 'num_heads is 3, which does not divide the 128 channels'),
        (PooledViT, POOLED, {'embed_dim': 4}, 'hidden_dim is 8; without a projection it is embed_dim'),
        (PooledViT, POOLED, {'dtype': 'float16'}, "dtype is 'float16'"),
        (PaddedTransformer, PADDED, {'activation': 'elu'}, "activation is 'elu'; use one of gelu, quick_gelu, gelu"),
        (CausalTransformer, TEXT, {'num_heads': 5}, 'num_heads is 5, which does not divide hidden_dim 8'),
    ],
)
def test_wrong_sizes_are_refused(make, arguments, changes, message):
    inputs = Texts(np.ones((2, 3), np.int32), np.full(2, 3)) if 'max_length' in arguments else images()
    with pytest.raises(ValueError, match=re.escape(message)):
        shape_of(make(**arguments | changes), inputs)


@pytest.mark.parametrize(('make', 'arguments'), [(ViT, VIT), (ModifiedResNet, RESNET), (PooledViT, POOLED)])
def test_images_of_another_size_are_refused(make, arguments):
    assert shape_of(make(**arguments), images()) == (2, arguments['embed_dim'])
    with pytest.raises(UserError, match='the images have 64 x 32 pixels, but the model reads 32 x 32'):
        shape_of(make(**arguments), images(64, 32))


@pytest.mark.parametrize(('make', 'arguments'), [(CausalTransformer, TEXT), (PaddedTransformer, PADDED)])
def test_texts_that_are_too_long_are_refused(make, arguments):
    assert shape_of(make(**arguments), Texts(np.ones((2, 6), np.int32), np.full(2, 6))) == (2, 4)
    with pytest.raises(UserError, match='padded to 7 tokens, the model reads 6'):
        shape_of(make(**arguments), Texts(np.ones((2, 7), np.int32), np.full(2, 7)))


@pytest.mark.parametrize(('make', 'arguments'), [(CausalTransformer, TEXT), (PaddedTransformer, PADDED)])
def test_the_state_of_a_token_is_that_of_a_text_that_ends_with_it(make, arguments):
    """SigLIP attends to all positions: there the token and its position change places with the last padding."""
    model = make(**arguments)
    ids = np.random.default_rng(0).integers(2, 9, (1, 6)).astype(np.int32)
    ids[0, 5] = 1
    texts = Texts(ids, np.array([5]))
    params = random_variables(model, texts)['params']
    apply = jax.jit(model.apply, static_argnames='method')
    states = apply({'params': params}, texts, method='features')[0]
    projection = params['projection']
    for k in range(5):
        ended = texts.replace(lengths=np.array([k + 1]))
        moved = params
        if make is PaddedTransformer:
            order = np.arange(6)
            order[[k, 5]] = 5, k
            ended = Texts(ids[:, order], np.array([6]))
            moved = params | {'positions': params['positions'][order]}
        projected = states[k] @ projection['kernel'] + projection.get('bias', 0)
        whole = apply({'params': moved}, ended)[0]
        if make is CausalTransformer or k < 4:
            np.testing.assert_allclose(projected, whole, atol=1e-5)
    last = apply({'params': params}, texts)[0]
    np.testing.assert_allclose(projected, last, atol=1e-5)  # the last state is the one that is projected


@pytest.mark.parametrize('use_bias', [False, True])
def test_patches_are_a_convolution_without_overlap(use_bias):
    rng = np.random.default_rng(0)
    pixels = rng.normal(size=(2, 9, 7, 3)).astype(np.float32)  # a row and a column are left out
    convolution = nn.Conv(5, (2, 2), (2, 2), 'VALID', use_bias=use_bias)
    variables = random_variables(convolution, pixels)
    convolved = convolution.apply(variables, pixels)
    patches = Patches(5, 2, use_bias, None)
    chex.assert_trees_all_equal_shapes(patches.init(jax.random.key(0), pixels), variables)
    chex.assert_trees_all_close(patches.apply(variables, pixels), convolved.reshape(2, 12, 5), atol=1e-5)
