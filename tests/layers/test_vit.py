"""What the encoders of CLIP and SigLIP refuse, and the states of their tokens against a formula.

Their other values are compared with other libraries in tests/importers.
"""

import math
import re

import jax
import numpy as np
import pytest

from jitm.errors import UserError
from jitm.layers.clip_resnet import ModifiedResNet
from jitm.layers.clip_text import CausalTransformer
from jitm.layers.siglip import PaddedTransformer, PooledViT
from jitm.layers.vit import ViT
from jitm.types import Images, Texts

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


def token_states(params, ids, length, padded):
    """The last states of the tokens of one text, as loops over heads and positions: float64 [L, H]."""
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)

    def norm(x, name, epsilon, within):
        x = x - x.mean(axis=-1, keepdims=True)
        return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon) * within[name]['scale'] + within[name]['bias']

    def gelu(x):
        return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2

    epsilon = 1e-6 if padded else 1e-5
    ids = np.concatenate([ids[:length], np.ones(6 - length, int)]) if padded else ids[:length]
    x, block = params['words']['embedding'][ids] + params['positions'][: len(ids)], params['encoder']['block_0']
    y, part = norm(x, 'attention_norm', epsilon, block), block['attention']
    attended = np.zeros_like(x)
    for head in range(2):
        query, key, value = (
            y @ part[name]['kernel'][:, head] + part[name]['bias'][head] for name in ('query', 'key', 'value')
        )
        for row in range(len(x)):
            seen = len(x) if padded else row + 1
            weights = np.exp(query[row] @ key[:seen].T / 2)  # the square root of 4 dimensions
            attended[row] += weights / weights.sum() @ value[:seen] @ part['out']['kernel'][head]
    x = x + attended + part['out']['bias']
    y = gelu(norm(x, 'mlp_norm', epsilon, block) @ block['mlp_in']['kernel'] + block['mlp_in']['bias'])
    x = norm(x + y @ block['mlp_out']['kernel'] + block['mlp_out']['bias'], 'norm_out', epsilon, params)
    return np.concatenate([x[: length - 1], x[-1:]]) if padded else x


@pytest.mark.parametrize(('make', 'arguments'), [(CausalTransformer, TEXT), (PaddedTransformer, PADDED)])
def test_states_of_tokens_are_their_formula_in_float64(make, arguments):
    model, rng = make(**arguments), np.random.default_rng(0)
    ids, lengths = rng.integers(2, 9, (3, 5)).astype(np.int32), np.array([5, 2, 4])
    texts = Texts(np.where(np.arange(5) < lengths[:, None], ids, 0), lengths)
    shapes = jax.eval_shape(model.init, jax.random.key(0), texts)
    variables = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)
    got, whole = jax.jit(lambda v: (model.apply(v, texts, method='features'), model.apply(v, texts)))(variables)
    assert (got.shape, got.dtype) == ((3, 5, 8), np.float32)
    projection = variables['params']['projection']
    for n, length in enumerate(lengths):
        want = token_states(variables['params'], ids[n], length, padded=make is PaddedTransformer)
        np.testing.assert_allclose(got[n, :length], want, atol=2e-5)
        last = got[n, length - 1] @ projection['kernel'] + projection.get('bias', 0)
        np.testing.assert_allclose(whole[n], last, atol=2e-5)  # the last state is the one that is projected
