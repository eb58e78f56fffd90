import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jitm.devices import parallel
from jitm.errors import UserError
from jitm.layers.blocks import BlockOptions, Transformer, TransformerBlock
from jitm.layers.clip_text import CausalTransformer
from jitm.layers.transformer import BASE, BERT, LARGE, BERTEmbeddings, BERTSize
from jitm.types import Segment, Texts

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


@pytest.fixture(scope='module')
def variables(texts):
    """Parameters spread widely, so that every part of the formulas shows."""
    shapes = jax.jit(bert().init)(jax.random.key(0), texts)
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)


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


@pytest.mark.slow
def test_accelerators_loop_over_the_layers(variables, monkeypatch):
    model = Transformer(2, BlockOptions(heads=3, mlp_dim=20, dropout=0.1))
    tokens = np.random.default_rng(3).normal(size=(2, 6, 12)).astype(np.float32)
    mask = np.array([[1, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1]], bool)

    def states(params, train=False, key=0):
        return model.apply({'params': params}, tokens, mask, train, rngs={'dropout': jax.random.key(key)})

    def gradients(params):  # traced anew by each call
        return jax.jit(jax.value_and_grad(lambda params: jnp.sum(states(params) ** 2)))(params)

    params = variables['params']['encoder']
    expected = gradients(params)
    monkeypatch.setattr(parallel, 'platform', lambda: 'tpu')
    assert str(jax.make_jaxpr(lambda params: states(params))(params)).count('= dot_general') == 8
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3, rtol=1e-4), gradients(params), expected)
    train = jax.jit(lambda key: states(params, True, key))
    first, again, other = map(train, (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).min(-1).max() > 1e-4


@pytest.mark.slow
def test_relative_positions_reach_the_loop_over_the_layers(monkeypatch):
    """The states, and the gradient of the table, which all blocks share."""
    model = BERT(30, dataclasses.replace(TINY, relative_positions=True, token_types=0, first_position=2), 0.1)
    texts = Texts(np.arange(1, 13, dtype=np.int32)[None], np.array([12], np.int32))
    shapes = jax.eval_shape(model.init, jax.random.key(0), texts)
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)['params']

    def values():  # traced by each call
        return jax.jit(jax.value_and_grad(lambda params: jnp.sum(model.apply({'params': params}, texts) ** 2)))(params)

    expected = values()
    table = np.abs(expected[1]['relative']['buckets']['embedding']).max(axis=1)
    assert (table > 0).tolist() == [n % 16 < 9 and n != 16 for n in range(32)]  # distances up to 11 on both sides
    monkeypatch.setattr(parallel, 'platform', lambda: 'tpu')
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3, rtol=1e-4), values(), expected)


@pytest.mark.slow
def test_loop_over_the_layers_reads_a_context(monkeypatch):
    model, rng = Transformer(2, BlockOptions(heads=3, mlp_dim=20, dropout=0)), np.random.default_rng(3)
    tokens, context = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 6, 12), (2, 4, 7)))
    variables = model.init(jax.random.key(0), tokens, None, context=context)
    without, given = (model.apply(variables, tokens, None, context=one) for one in (None, context))
    assert np.abs(without - given).max() > 1e-3
    monkeypatch.setattr(parallel, 'platform', lambda: 'tpu')
    for one, wanted in ((None, without), (context, given)):
        np.testing.assert_allclose(model.apply(variables, tokens, None, context=one), wanted, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('platform', ['cpu', pytest.param('tpu', marks=pytest.mark.slow)])
def test_texts_with_a_profile_leave_out_padding(platform, monkeypatch):
    """The states and all gradients of a BERT and of CLIP's encoder are those of padded texts."""
    counts = np.array([3, 9, 2, 12, 5], np.int32)
    profile = Segment(0, 4, 5), Segment(4, 8, 3), Segment(8, 12, 2)
    texts = Texts(np.tile(np.arange(1, 13, dtype=np.int32), (5, 1)), counts)
    bert = BERT(30, dataclasses.replace(TINY, relative_positions=True), 0.0)
    sizes = {'embed_dim': 6, 'hidden_dim': 8, 'num_layers': 2, 'num_heads': 2, 'mlp_dim': 12}
    causal = CausalTransformer(**sizes, activation='gelu', dtype='float32', vocab_size=30, max_length=12)
    monkeypatch.setattr(parallel, 'platform', lambda: platform)
    for model in (bert, causal):
        rng, shapes = np.random.default_rng(1), jax.eval_shape(model.init, jax.random.key(0), texts)
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
        assert f'f32[40,{model.size.mlp_dim if model is bert else 12}]' in jaxpr  # 40 of 60 places


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
@pytest.mark.parametrize(('size', 'parameters'), [(BASE, 109_482_240 - 590_592), (LARGE, 335_141_888 - 1_049_600)])
def test_published_sizes_have_the_published_number_of_parameters(size, parameters):
    """Those of `transformers.BertModel`, less its pooler's."""
    texts = Texts(jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32))
    shapes = jax.eval_shape(BERT(30522, size, 0.1).init, jax.random.key(0), texts)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == parameters


@pytest.mark.slow
def test_texts_longer_than_the_positions(variables):
    full = Texts(np.ones((1, 16), np.int32), np.full(1, 16))
    assert bert().apply(variables, full).shape == (1, 16, 12)
    with pytest.raises(UserError, match=r'texts padded to 17 tokens, the model reads 16: shorten'):
        bert().apply(variables, Texts(np.ones((1, 17), np.int32), np.full(1, 3)))
