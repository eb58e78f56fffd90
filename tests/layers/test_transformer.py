import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jitm import parallel
from jitm.errors import UserError
from jitm.layers.transformer import BASE, BERT, LARGE, BERTEmbeddings, BERTSize, Transformer, TransformerBlock
from jitm.types import Texts

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


def gelu(x):
    return (x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2).astype(np.float32)


def block_by_hand(params, x, mask):
    """One sequence x [L, H] through one block, head by head and query by query."""

    def project(name, h):
        layer = params['attention'][name]
        return x @ layer['kernel'][:, h] + layer['bias'][h]

    attended = np.broadcast_to(params['attention']['out']['bias'], x.shape).copy()
    heads, size = params['attention']['out']['kernel'].shape[:2]
    for h in range(heads):
        query, key, value = (project(name, h) for name in ('query', 'key', 'value'))
        for i in range(len(x)):
            weights = np.array(
                [np.exp(query[i] @ k / math.sqrt(size)) if m else 0 for k, m in zip(key, mask, strict=True)]
            )
            attended[i] += weights / weights.sum() @ value @ params['attention']['out']['kernel'][h]
    hidden = layer_norm(x + attended, **params['attention_norm'])
    wide = gelu(hidden @ params['mlp_in']['kernel'] + params['mlp_in']['bias'])
    narrow = wide @ params['mlp_out']['kernel'] + params['mlp_out']['bias']
    return layer_norm(hidden + narrow, **params['mlp_norm'])


def test_block_follows_the_formulas(variables):
    params = variables['params']['encoder']['block_0']
    rng = np.random.default_rng(2)
    tokens = rng.normal(size=(3, 5, 12)).astype(np.float32)
    mask = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [1, 0, 0, 0, 0]], bool)
    got = jax.jit(TransformerBlock(heads=3, mlp_dim=20, dropout=0.1).apply)({'params': params}, tokens, mask)
    for n in range(3):
        np.testing.assert_allclose(got[n], block_by_hand(params, tokens[n], mask[n]), atol=2e-5)


def test_embeddings_sum_words_positions_and_the_first_type(variables):
    params = variables['params']['embeddings']
    ids = np.array([[3, 1, 4], [1, 5, 0]], np.int32)
    got = BERTEmbeddings(30, TINY, 0.1).apply({'params': params}, ids)
    tables = {name: params[name]['embedding'] for name in ('words', 'positions', 'token_types')}
    total = tables['words'][ids] + tables['positions'][:3] + tables['token_types'][0]
    np.testing.assert_allclose(got, layer_norm(total, **params['norm']), atol=1e-5)


def embedded_alone(word):
    """A word's vector [1, H] with nothing added to it."""
    params = {
        'words': {'embedding': word},
        'positions': {'embedding': np.zeros((16, 12), np.float32)},
        'token_types': {'embedding': np.zeros((2, 12), np.float32)},
        'norm': {'scale': np.ones(12, np.float32), 'bias': np.zeros(12, np.float32)},
    }
    return BERTEmbeddings(1, TINY, 0.1).apply({'params': params}, np.zeros((1, 1), int))


def test_normalisations_keep_tiny_differences(variables):
    """Where the variance is 1e-10, an eps of 1e-12 hardly shows."""
    tiny = np.float32(1e-5) * np.array([[[1, -1] * 6]], np.float32)
    block = TransformerBlock(heads=3, mlp_dim=20, dropout=0)
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


def test_padding_is_invisible_and_comes_out_zero(variables, texts):
    states = states_of(variables, texts)
    assert states.shape == (4, 7, 12)
    ids = np.pad(texts.ids, [(0, 0), (0, 4)])
    ids[np.arange(11) >= texts.lengths[:, None]] = 9
    padded = states_of(variables, Texts(ids, texts.lengths))
    np.testing.assert_allclose(padded[:, :7], states, atol=1e-5)
    real = np.arange(11) < texts.lengths[:, None]
    assert not np.any(padded[~real])
    assert np.all(np.any(padded[real], axis=-1))


def test_order_of_texts_does_not_matter_but_that_of_words_does(variables, texts):
    states = states_of(variables, texts)
    order = np.array([2, 0, 3, 1])
    np.testing.assert_allclose(states_of(variables, jax.tree.map(lambda x: x[order], texts)), states[order], atol=1e-5)
    swapped = texts.ids.copy()
    swapped[0, [1, 2]] = swapped[0, [2, 1]]
    changed = states_of(variables, Texts(swapped, texts.lengths))
    assert np.abs(changed[0, 5] - states[0, 5]).max() > 1e-3


def test_masked_tokens_are_not_looked_at_wherever_they_stand(variables):
    encode = jax.jit(Transformer(layers=2, heads=3, mlp_dim=20, dropout=0.1).apply)
    params = {'params': variables['params']['encoder']}
    tokens = np.random.default_rng(3).normal(size=(2, 6, 12)).astype(np.float32)
    mask = np.array([[1, 0, 1, 1, 0, 1], [1, 1, 1, 1, 1, 1]], bool)
    states = encode(params, tokens, mask)
    other = np.where(mask[..., None], tokens, 1e3).astype(np.float32)
    np.testing.assert_allclose(encode(params, other, mask)[mask], states[mask], atol=1e-5)
    squeezed = encode(params, tokens[:1, mask[0]], mask[:1, mask[0]])
    np.testing.assert_allclose(squeezed[0], states[0, mask[0]], atol=1e-5)
    tokens[1, 4] += 1
    assert np.abs(encode(params, tokens, mask) - states)[1].max(-1).min() > 1e-4


def test_accelerators_loop_over_the_layers(variables, monkeypatch):
    model = Transformer(layers=2, heads=3, mlp_dim=20, dropout=0.1)
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
def test_bfloat16_computes_with_float32_parameters(variables, texts):
    half = bert(dtype=jnp.bfloat16)
    for leaf in jax.tree.leaves(jax.eval_shape(half.init, jax.random.key(0), texts)):
        assert leaf.dtype == jnp.float32
    states = jax.jit(half.apply)(variables, texts)
    assert states.dtype == jnp.bfloat16
    exact = states_of(variables, texts)
    assert exact.dtype == jnp.float32
    error = np.abs(states.astype(jnp.float32) - exact)
    assert 0 < error.mean() < 0.03 * np.abs(exact).mean()
    gradients = jax.jit(jax.grad(lambda v: half.apply(v, texts).astype(jnp.float32).sum()))(variables)
    for leaf in jax.tree.leaves(gradients):
        assert leaf.dtype == jnp.float32
        assert np.isfinite(leaf).all()


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
@pytest.mark.parametrize('train', [False, True])
def test_gradients_are_finite_and_reach_every_parameter(variables, texts, train):
    def loss(params):
        states = bert().apply({'params': params}, texts, train, rngs={'dropout': jax.random.key(0)})
        return jnp.sum(states * jnp.cos(jnp.arange(states.size)).reshape(states.shape))

    for path, gradient in jax.tree_util.tree_leaves_with_path(jax.jit(jax.grad(loss))(variables['params'])):
        name = jax.tree_util.keystr(path)
        assert np.isfinite(gradient).all(), name
        if name.endswith("['key']['bias']"):
            # It adds the same to all of a query's logits, which softmax does not see.
            np.testing.assert_allclose(gradient, 0, atol=1e-4)
        else:
            assert np.abs(gradient).max() > 1e-3, name


@pytest.mark.slow
def test_padding_gets_no_gradient(variables, texts):
    gradient = jax.jit(jax.grad(lambda v: jnp.sum(bert().apply(v, texts)[..., 0])))(variables)
    words = gradient['params']['embeddings']['words']['embedding']
    assert not np.any(words[0])
    assert np.any(words[texts.ids[0, 0]])


@pytest.mark.slow
def test_dropout_is_active_only_in_training(variables, texts):
    def states(seed, train, dropout=0.1):
        apply = jax.jit(bert(dropout).apply, static_argnums=2)
        return np.asarray(apply(variables, texts, train, rngs={'dropout': jax.random.key(seed)}))

    np.testing.assert_array_equal(states(0, False), states_of(variables, texts))
    np.testing.assert_array_equal(states(0, True), states(0, True))
    assert np.any(states(0, True) != states(1, True))
    np.testing.assert_array_equal(states(0, True, dropout=0.0), states(0, False))


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
def test_initialisation():
    size = BERTSize(hidden=64, layers=1, heads=4, mlp_dim=128)
    texts = Texts(jnp.ones((1, 2), jnp.int32), jnp.full(1, 2))
    params = BERT(500, size, 0.1).init(jax.random.key(0), texts)['params']
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        kind = path[-1].key
        if kind in ('kernel', 'embedding'):
            np.testing.assert_allclose(np.std(leaf), 0.02, rtol=0.2)
            assert abs(np.mean(leaf)) < 0.004
        else:
            np.testing.assert_array_equal(leaf, 1 if kind == 'scale' else 0)


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
    with pytest.raises(UserError, match=r'texts padded to 17 word pieces, BERT takes 16: shorten'):
        bert().apply(variables, Texts(np.ones((1, 17), np.int32), np.full(1, 3)))
