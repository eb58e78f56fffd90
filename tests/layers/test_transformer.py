import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jitm.devices import parallel
from jitm.errors import UserError
from jitm.layers.blocks import BlockOptions, Transformer, TransformerBlock
from jitm.layers.clip_text import CausalTransformer
from jitm.layers.transformer import BERT, BERTEmbeddings, BERTSize
from jitm.types import Profile, Segment, Texts

TINY = BERTSize(hidden=12, layers=2, heads=3, mlp_dim=20, max_positions=16)


def bert(dropout=0.1, **attributes):
    return BERT(vocab_size=30, size=TINY, dropout=dropout, **attributes)


def states_of(variables, texts, **attributes):
    return jax.jit(bert(**attributes).apply)(variables, texts)


@pytest.fixture(scope='module')
def texts():
    rng = np.random.default_rng(0)
    lengths = np.array([7, 2, 5, 3], np.int32)
    ids = np.where(np.arange(7) < lengths[:, None], rng.integers(1, 30, (4, 7)), 0)
    return Texts(ids.astype(np.int32), lengths)


def draw(model, texts):
    """Parameters spread widely, so that every part of the formulas shows."""
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(model.init, jax.random.key(0), texts)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)


@pytest.fixture(scope='module')
def variables(texts):
    return draw(bert(), texts)


def layer_norm(x, scale=1, bias=0):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(1e-12)) * scale + bias


def embedded_alone(word):
    """A word's vector [1, H] with nothing added to it."""
    params = {
        'words': {'embedding': word},
        'positions': {'embedding': np.zeros((16, 12), np.float32)},
        'token_types': {'embedding': np.zeros((2, 12), np.float32)},
        'norm': {'scale': np.ones(12, np.float32), 'bias': np.zeros(12, np.float32)},
    }
    return BERTEmbeddings(1, TINY, 0.1).apply({'params': params}, np.zeros((1, 1), int))


@pytest.mark.slow
def test_normalisations_keep_tiny_differences(variables):
    """Where the variance is 1e-10, an eps of 1e-12 hardly shows."""
    tiny = np.float32(1e-5) * np.array([[[1, -1] * 6]], np.float32)
    block = TransformerBlock(BlockOptions(heads=3, mlp_dim=20, dropout=0))
    params = jax.tree.map(jnp.zeros_like, variables['params']['encoder']['block_0'])
    params |= {'attention_norm': {'scale': jnp.full(12, 1e-5), 'bias': jnp.zeros(12)}}
    params |= {'mlp_norm': {'scale': jnp.ones(12), 'bias': jnp.zeros(12)}}
    want = layer_norm(np.float32(1e-5) * layer_norm(tiny))
    assert 0.99 < want[0, 0, 0] < 0.996
    np.testing.assert_allclose(jax.jit(block.apply)({'params': params}, tiny, jnp.ones((1, 1), bool)), want, rtol=1e-4)
    np.testing.assert_allclose(embedded_alone(tiny[0]), layer_norm(tiny), rtol=1e-4)


def test_normalisations_keep_their_digits_far_from_zero():
    far = np.float32(3000.7) + np.array([[1, -1] * 6], np.float32)
    np.testing.assert_allclose(embedded_alone(far)[0], layer_norm(far), rtol=1e-3)


@pytest.fixture
def on_platforms(monkeypatch):
    """Calls a function that unrolls the layers, and again where accelerators loop over them."""

    def call(function, *arguments):
        results = []
        for platform in ('cpu', 'tpu'):
            monkeypatch.setattr(parallel, 'platform', lambda platform=platform: platform)
            results.append(jax.jit(lambda *inputs: function(*inputs))(*arguments))
        return results

    return call


@pytest.mark.slow
def test_accelerators_loop_over_the_layers(variables, on_platforms):
    model = Transformer(2, BlockOptions(heads=3, mlp_dim=20, dropout=0.1))
    tokens = np.random.default_rng(3).normal(size=(2, 6, 12)).astype(np.float32)
    mask = np.array([[1, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1]], bool)
    params = variables['params']['encoder']

    def states(params, train=False, key=0):
        return model.apply({'params': params}, tokens, mask, train, rngs={'dropout': jax.random.key(key)})

    unrolled, looped = on_platforms(jax.value_and_grad(lambda params: jnp.sum(states(params) ** 2)), params)
    chex.assert_trees_all_close(looped, unrolled, atol=1e-3, rtol=1e-4)
    assert str(jax.make_jaxpr(lambda params: states(params))(params)).count('= dot_general') == 8
    first, again, with_another_key = map(jax.jit(lambda key: states(params, True, key)), (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - with_another_key).min(-1).max() > 1e-4


@pytest.mark.slow
def test_relative_positions_reach_the_loop_over_the_layers(on_platforms):
    """The states, and the gradient of the table, which all blocks share."""
    model = BERT(30, dataclasses.replace(TINY, relative_positions=True, token_types=0, first_position=2), 0.1)
    texts = Texts(np.arange(1, 13, dtype=np.int32)[None], np.array([12], np.int32))
    params = draw(model, texts)['params']
    value = jax.value_and_grad(lambda params: jnp.sum(model.apply({'params': params}, texts) ** 2))
    unrolled, looped = on_platforms(value, params)
    table = np.abs(unrolled[1]['relative']['buckets']['embedding']).max(axis=1)
    assert (table > 0).tolist() == [n % 16 < 9 and n != 16 for n in range(32)]  # distances up to 11 on both sides
    chex.assert_trees_all_close(looped, unrolled, atol=1e-3, rtol=1e-4)


@pytest.mark.slow
def test_loop_over_the_layers_reads_a_context(on_platforms):
    model = Transformer(2, BlockOptions(heads=3, mlp_dim=20, dropout=0))
    rng = np.random.default_rng(3)
    tokens, context = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 6, 12), (2, 4, 7)))
    variables = model.init(jax.random.key(0), tokens, None, context=context)
    states = []
    for read in (None, context):
        unrolled, looped = on_platforms(lambda v, read=read: model.apply(v, tokens, None, context=read), variables)
        np.testing.assert_allclose(looped, unrolled, atol=1e-5)
        states.append(unrolled)
    assert np.abs(states[0] - states[1]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize('platform', ['cpu', pytest.param('tpu', marks=pytest.mark.slow)])
def test_texts_with_a_profile_leave_out_padding(platform, monkeypatch):
    """The states and all gradients of a BERT and of CLIP's encoder are those of padded texts."""
    counts = np.array([3, 9, 2, 12, 5], np.int32)
    profile = Profile((Segment(0, 4, 5), Segment(4, 12, 3)), tokens=33)
    texts = Texts(np.tile(np.arange(1, 13, dtype=np.int32), (5, 1)), counts)
    bert = BERT(30, dataclasses.replace(TINY, relative_positions=True), 0.0)
    sizes = {'embed_dim': 6, 'hidden_dim': 8, 'num_layers': 2, 'num_heads': 2, 'mlp_dim': 12}
    causal = CausalTransformer(**sizes, activation='gelu', dtype='float32', vocab_size=30, max_length=12)
    monkeypatch.setattr(parallel, 'platform', lambda: platform)
    for model in (bert, causal):
        rng = np.random.default_rng(1)
        shapes = jax.eval_shape(model.init, jax.random.key(0), texts)
        params = jax.tree.map(lambda leaf, rng=rng: rng.normal(size=leaf.shape).astype(np.float32) / 3, shapes)

        def values(params, texts, model=model):
            out = model.apply(params, texts)
            return jnp.sum(out**2), out

        packed, padded = (
            jax.jit(jax.value_and_grad(values, has_aux=True))(params, texts.replace(profile=one))
            for one in (profile, None)
        )
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3, rtol=1e-4), packed, padded)
        jaxpr = str(jax.make_jaxpr(values)(params, texts.replace(profile=profile)))
        assert f'f32[33,{model.size.mlp_dim if model is bert else 12}]' in jaxpr  # 31 words at 60 places


def test_bfloat16_is_for_products_and_float32_for_the_softmax(variables, texts):
    jaxpr = str(jax.make_jaxpr(lambda v: bert(dtype=jnp.bfloat16).apply(v, texts))(variables)).splitlines()
    products = [line for line in jaxpr if '= dot_general' in line]
    assert sum(':bf16[' in line for line in products) == 7 * TINY.layers
    # Flax multiplies float32 weights with the values as float32.
    assert sum(':f32[' in line for line in products) == TINY.layers
    exponentials = [line for line in jaxpr if '= exp ' in line]
    assert len(exponentials) == TINY.layers
    assert all(':f32[4,3,7,7]' in line for line in exponentials)


@pytest.mark.slow
def test_dropout_stands_where_bert_has_it(variables):
    """After the embeddings, the attention and the network, and on each attention weight of its own."""
    same = Texts(np.tile(np.arange(1, 6, dtype=np.int32), (2, 1)), np.full(2, 5, np.int32))
    calls = []

    def skip_dropout(call, arguments, keywords, context):
        if not isinstance(context.module, nn.Dropout):
            return call(*arguments, **keywords)
        assert context.module.rate == 0.1
        calls.append(context.module.path)
        return arguments[0]

    with nn.intercept_methods(skip_dropout):
        states = bert().apply(variables, same, True, rngs={'dropout': jax.random.key(0)})
    assert [path[0] for path in calls] == ['embeddings'] + ['encoder'] * 2 * TINY.layers
    assert np.abs(states[0] - states[1]).max() > 1e-3


@pytest.mark.slow
def test_texts_longer_than_the_positions(variables):
    full = Texts(np.ones((1, 16), np.int32), np.full(1, 16))
    assert bert().apply(variables, full).shape == (1, 16, 12)
    with pytest.raises(UserError, match=r'texts padded to 17 tokens, the model reads 16: shorten'):
        bert().apply(variables, Texts(np.ones((1, 17), np.int32), np.full(1, 3)))
