import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.layers.linear import Linear, WeightNormLinear
from jitm.layers.normalization import BatchNorm, l2_normalize, safe_sqrt
from jitm.layers.recurrent import GRUCell
from jitm.layers.sequences import GRU
from jitm.layers.text import BERTEncoder, GRUEncoder
from jitm.layers.vision import MLP
from jitm.types import Profile, Segment, Texts
from tests.support.gru import affine


@pytest.mark.slow
@pytest.mark.parametrize('bidirectional', [False, True])
def test_a_profile_changes_neither_states_nor_gradients(bidirectional):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 6, 3)).astype(np.float32)
    lengths = np.array([3, 6, 1, 2, 4])
    weights = rng.normal(size=(5, 6, 4)).astype(np.float32)
    gru = GRU(4, bidirectional)
    params = jax.jit(gru.init)(jax.random.key(0), x, lengths)['params']

    def read(profile):
        def value(params, x):
            states = gru.apply({'params': params}, x, lengths, profile)
            return jnp.sum(weights * states), states

        return jax.jit(jax.value_and_grad(value, (0, 1), has_aux=True))

    profile = Profile((Segment(0, 2, 5), Segment(2, 3, 3), Segment(3, 6, 2)), 30)
    got, want = (read(profile)(params, x) for profile in (profile, None))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)
    profiles = *(Profile((Segment(0, 2, count), Segment(2, 6, 2)), 30) for count in (4, 5)), None
    text = [read(profile).lower(params, x).as_text() for profile in profiles]
    assert text[0] == text[2] != text[1]  # a profile of four sequences says nothing about five


def test_gru_is_initialised_like_pytorch():
    features = 64
    cell = GRUCell(features)
    params = jax.jit(cell.init)(jax.random.key(0), jnp.zeros((1, features)), jnp.zeros((1, 200)))['params']
    bound = features**-0.5
    for layer in params.values():
        assert np.abs(layer['kernel']).max() <= bound
        np.testing.assert_allclose(np.std(layer['kernel']), bound / 3**0.5, rtol=0.05)
        assert np.abs(layer['bias']).max() <= bound
        np.testing.assert_allclose(np.std(layer['bias']), bound / 3**0.5, rtol=0.25)
    assert params.keys() == {f'{part}_{gate}' for part in ('input', 'hidden') for gate in ('reset', 'update', 'new')}


def test_without_the_gru_words_are_mapped_one_by_one():
    encoder = GRUEncoder(vocab_size=11, embed_dim=7, word_dim=5, bidirectional=True, dropout=0.0, recurrent=False)
    texts = Texts(np.array([[3, 1, 4, 1], [5, 9, 0, 0]], np.int32), np.array([4, 2], np.int32))
    variables = jax.jit(encoder.init)(jax.random.key(0), texts)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables['params'])
    words = affine(params['linear'], params['embedding']['embedding'][texts.ids])
    words[1, 2:] = 0
    np.testing.assert_allclose(encoder.apply(variables, texts), words, atol=1e-6)


WORD = Texts(jnp.zeros((1, 1), int), jnp.ones(1, int))


def test_embeddings_are_uniform_within_a_tenth_or_normal():
    keywords = {'bidirectional': False, 'dropout': 0.0, 'recurrent': False}
    encoder = GRUEncoder(vocab_size=500, embed_dim=4, word_dim=20, **keywords)
    table = jax.jit(encoder.init)(jax.random.key(0), WORD)['params']['embedding']
    assert 0.099 < np.abs(table['embedding']).max() <= 0.1
    table = jax.jit(encoder.clone(word_init='normal').init)(jax.random.key(0), WORD)['params']['embedding']
    np.testing.assert_allclose(np.quantile(table['embedding'], [0.16, 0.5, 0.84]), [-1, 0, 1], atol=0.03)


@pytest.mark.slow
@pytest.mark.parametrize(('init', 'bound'), [('uniform', 128**-0.5), ('xavier', (6 / (128 + 64)) ** 0.5)])
def test_linear_layer_after_bert_is_initialized_as_released(init, bound):
    keywords = {'size': 'tiny', 'dropout': 0.1, 'output_dropout': 0.1, 'dtype': 'float32', 'linear_init': init}
    encoder = BERTEncoder(vocab_size=5, embed_dim=64, **keywords)
    params = jax.jit(encoder.init)(jax.random.key(0), WORD)['params']['linear']
    assert params['kernel'].shape == (128, 64)
    assert 0.99 * bound < np.abs(params['kernel']).max() <= bound
    assert np.abs(params['bias']).any() == (init == 'uniform')


@pytest.mark.slow
def test_l2_normalize_is_finite_at_zero_and_one_elsewhere():
    x = jnp.asarray([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(l2_normalize(x), [[0.6, 0.8], [0, 0]], atol=1e-7)
    np.testing.assert_array_equal(l2_normalize(x.T, axis=0), l2_normalize(x).T)
    gradient = jax.grad(lambda x: l2_normalize(x).sum())(x)
    np.testing.assert_allclose(gradient[1], [1, 1])
    assert np.isfinite(gradient).all()
    with jax.enable_x64(True):
        chex.assert_numerical_grads(lambda x: l2_normalize(x).sum(), (jnp.asarray([[0.3, -1.2, 2.0]]),), order=1)


def test_safe_sqrt_has_a_zero_gradient_at_zero():
    np.testing.assert_allclose(safe_sqrt(jnp.asarray([4.0, 0.0])), [2, 0])
    np.testing.assert_allclose(jax.vmap(jax.grad(safe_sqrt))(jnp.asarray([4.0, 0.0])), [0.25, 0])


def numpy_batch_norm(x, weights):
    """Mean, biased and unbiased variance of weighted rows in float64."""
    x = np.asarray(x, np.float64)
    count = weights.sum()
    mean = (weights[:, None] * x).sum(0) / count
    squares = (weights[:, None] * (x - mean) ** 2).sum(0)
    return mean, squares / count, squares / (count - 1)


@pytest.mark.parametrize('norm_padding', [False, True])
def test_mlp_counts_padding_up_to_the_longest_image(norm_padding):
    rng = np.random.default_rng(0)
    counts = np.array([2, 4, 1])
    mask = np.arange(6) < counts[:, None]
    x = np.where(mask[..., None], rng.normal(1, 2, size=(3, 6, 5)), 0).astype(np.float32)
    mlp = MLP(8, norm_padding=norm_padding)
    variables = jax.jit(mlp.init)(jax.random.key(0), x, mask)
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), variables['params'])
    hidden = affine(p['linear_1'], x)
    counted = np.broadcast_to(np.arange(6) < 4, (3, 6)) if norm_padding else mask
    mean, variance, unbiased = numpy_batch_norm(hidden.reshape(18, 4), counted.ravel())
    got, changed = mlp.apply(variables, x, mask, train=True, mutable=['batch_stats'])
    want = affine(p['linear_2'], np.maximum((hidden - mean) / np.sqrt(variance + 1e-5), 0))
    np.testing.assert_allclose(got, want, atol=1e-5)
    np.testing.assert_allclose(changed['batch_stats']['norm']['mean'], 0.1 * mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(changed['batch_stats']['norm']['variance'], 0.9 + 0.1 * unbiased, rtol=1e-5)


def test_statistics_of_half_precision_are_those_of_float32():
    x = jnp.asarray(np.random.default_rng(0).normal(1, 0.1, size=(1000, 3)), jnp.bfloat16)
    norm = BatchNorm()
    variables = jax.jit(norm.init)(jax.random.key(0), x)
    whole, half = (norm.apply(variables, y, train=True, mutable=['batch_stats'])[1] for y in (jnp.float32(x), x))
    chex.assert_trees_all_equal(whole, half)


@pytest.mark.parametrize('masked', [True, False])
def test_one_row_leaves_the_running_statistics(masked):
    """It has no unbiased variance, as the last batch of an epoch with one pair."""
    x = jnp.asarray([[1.0, 2.0], [5.0, 6.0]])
    rows = x if masked else x[:1]
    norm = BatchNorm()
    variables = jax.jit(norm.init)(jax.random.key(0), x)
    mask = jnp.asarray([[True], [False]]) if masked else None
    got, changed = norm.apply(variables, rows, mask, train=True, mutable=['batch_stats'])
    chex.assert_trees_all_equal(changed['batch_stats'], variables['batch_stats'])
    np.testing.assert_array_equal(got[0], 0)


def test_what_is_not_counted_does_not_change_the_statistics():
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    mask = np.array([[True] * 4, [True, True, False, False]])[..., None]
    spoiled = np.where(mask, x, np.nan)
    norm = BatchNorm()
    variables = jax.jit(norm.init)(jax.random.key(0), x)
    clean = norm.apply(variables, x, mask, train=True, mutable=['batch_stats'])
    dirty = norm.apply(variables, spoiled, mask, train=True, mutable=['batch_stats'])
    chex.assert_trees_all_equal(clean[1], dirty[1])
    np.testing.assert_array_equal(clean[0][mask[..., 0]], dirty[0][mask[..., 0]])


def test_weight_normalization_starts_as_the_linear_layer():
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    key = jax.random.key(0)
    (want, params), (got, normalized) = (layer(5).init_with_output(key, x) for layer in (Linear, WeightNormLinear))
    np.testing.assert_allclose(got, want, atol=1e-6)
    lengths = normalized['params'].pop('length')
    np.testing.assert_allclose(lengths, np.linalg.norm(params['params']['kernel'], axis=0), rtol=1e-6)
    chex.assert_trees_all_equal(normalized, params)
