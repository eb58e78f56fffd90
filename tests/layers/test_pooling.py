import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.layers import pooling
from jitm.layers.linear import Linear
from tests.layers.test_layers import torch_gru

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(4, 6, 5)).astype(np.float32)
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [0, 1, 0, 0, 1, 1]], bool)


def make(name):
    """The pooling as a function of features and mask, and its parameters."""
    pool = pooling.make_pooling(name, 'image_pooling')
    if not hasattr(pool, 'init'):
        return lambda _, features, mask: pool(features, mask), {}
    return pool.apply, jax.jit(pool.init)(jax.random.key(0), FEATURES, MASK)


def numpy_gpo_weights(params, count, temperature=0.1):
    """Position encoding, GRU and softmax in float64 for one number of vectors."""
    position = np.arange(count)[:, None]
    rates = np.exp(-np.arange(0, 32, 2) * np.log(1e4) / 32)
    encoding = np.zeros((count, 32))
    encoding[:, 0::2], encoding[:, 1::2] = np.sin(position * rates), np.cos(position * rates)
    directions = [torch_gru(params['gru'][name], encoding, count, name == 'backward') for name in params['gru']]
    scores = sum(directions) / 2 @ np.asarray(params['linear']['kernel'], np.float64)[:, 0] / temperature
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def oracle(name, params, row, mask):
    real = row[mask].astype(np.float64)
    if name == 'mean':
        return real.mean(0)
    if name == 'max':
        return real.max(0)
    if name == 'last':
        return real[-1]
    params = params['params']
    if name == 'gpo':
        return numpy_gpo_weights(params, len(real)) @ -np.sort(-real, axis=0)
    scores = real @ np.asarray(params['scores']['kernel'], np.float64) + np.asarray(params['scores']['bias'])
    attention = np.exp(scores) / np.exp(scores).sum(0)
    return (attention * real).sum(0)


@pytest.mark.parametrize('name', pooling.POOLINGS)
def test_each_pooling_is_its_formula_on_the_real_vectors(name):
    apply, params = make(name)
    got = jax.jit(apply)(params, FEATURES, MASK)
    for n in range(len(FEATURES)):
        np.testing.assert_allclose(got[n], oracle(name, params, FEATURES[n], MASK[n]), atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize('name', pooling.POOLINGS)
def test_padding_is_invisible_in_value_and_gradient(name):
    apply, params = make(name)
    gradient = jax.jit(jax.grad(lambda x, mask: jnp.sum(jnp.sin(apply(params, x, mask)))))
    spoiled = np.where(MASK[..., None], FEATURES, 1e4)
    np.testing.assert_allclose(apply(params, spoiled, MASK), apply(params, FEATURES, MASK), atol=1e-6)
    np.testing.assert_allclose(gradient(spoiled, MASK), gradient(FEATURES, MASK), atol=1e-6)
    assert not np.asarray(gradient(spoiled, MASK))[~MASK].any()
    wider = np.pad(FEATURES, [(0, 0), (0, 3), (0, 0)], constant_values=9)
    padded = apply(params, wider, np.pad(MASK, [(0, 0), (0, 3)]))
    np.testing.assert_allclose(padded, apply(params, FEATURES, MASK), atol=1e-6)


def test_ranks_are_those_of_a_stable_sort_with_ties():
    x = RNG.integers(0, 4, (3, 9, 7)).astype(np.float32)
    order = np.argsort(-x, axis=1, kind='stable')
    want = np.argsort(order, axis=1, kind='stable')
    np.testing.assert_array_equal(jax.jit(pooling.descending_ranks)(x), want)


@pytest.mark.parametrize('weigh', [pooling._weigh_by_counting, pooling._weigh_by_sorting])
def test_values_are_weighed_by_their_ranks_on_every_device(weigh):
    x, weights = RNG.integers(0, 4, (3, 9, 7)).astype(np.float32), RNG.normal(size=(3, 9)).astype(np.float32)
    x[1, [2, 5]], weights[1, 7:] = -np.inf, 0
    order = np.argsort(-x, axis=1, kind='stable')
    valid = np.isfinite(np.take_along_axis(x, order, axis=1))
    ordered = np.where(valid, np.take_along_axis(x, order, axis=1), 0)
    pooled, pull = jax.vjp(jax.jit(weigh), x, weights)
    np.testing.assert_allclose(pooled, np.einsum('nkd,nk->nd', ordered, weights), rtol=1e-6, atol=1e-6)
    cotangent = RNG.normal(size=(3, 7)).astype(np.float32)
    to_features, to_weights = pull(cotangent)
    want = np.zeros_like(x)
    np.put_along_axis(want, order, weights[..., None] * cotangent[:, None], axis=1)
    np.testing.assert_array_equal(to_features, want)
    np.testing.assert_allclose(to_weights, np.einsum('nkd,nd->nk', ordered, cotangent), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_gradient_of_gpo_is_the_numerical_one():
    with jax.enable_x64(True):
        apply, params = make('gpo')
        params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), params)
        features = jnp.asarray(FEATURES, jnp.float64)

        def value(params, features):
            return jnp.sum(jnp.cos(apply(params, features, MASK)))

        gradients = jax.grad(value, (0, 1))(params, features)
        for seed in range(3):
            rng = np.random.default_rng(seed)
            step = jax.tree.map(lambda x, rng=rng: jnp.asarray(1e-5 * rng.normal(size=x.shape)), (params, features))
            up = value(*jax.tree.map(jnp.add, (params, features), step))
            down = value(*jax.tree.map(jnp.subtract, (params, features), step))
            want = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, gradients, step)))
            np.testing.assert_allclose((up - down) / 2, want, rtol=1e-4)


@pytest.mark.slow
def test_gpo_computes_its_weights_once_for_each_number_of_vectors():
    gpo = pooling.GPO()
    params = gpo.init(jax.random.key(0), FEATURES, MASK)
    weights = gpo.apply(params, 6, method='weights')
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)
    for count in range(1, 7):
        np.testing.assert_allclose(weights[count - 1, :count], numpy_gpo_weights(params['params'], count), atol=1e-6)
        assert not weights[count - 1, count:].any()


def test_position_encoding_by_hand():
    encoding = pooling.positional_encoding(3, 4)
    np.testing.assert_allclose(encoding[0], [0, 1, 0, 1])
    np.testing.assert_allclose(encoding[2], [np.sin(2), np.cos(2), np.sin(0.02), np.cos(0.02)], rtol=1e-6)


def test_esa_attends_to_each_dimension_on_its_own():
    esa = pooling.ESA()
    variables = {'params': {'scores': {'kernel': np.zeros((2, 2)), 'bias': np.zeros(2)}}}
    features, mask = np.array([[[1.0, 4.0], [3.0, 0.0], [9.0, 9.0]]]), np.array([[True, True, False]])
    np.testing.assert_allclose(esa.apply(variables, features, mask), [[2, 2]])
    variables['params']['scores']['kernel'] = np.diag([100.0, 100.0])
    np.testing.assert_allclose(esa.apply(variables, features, mask), [[3, 4]])


@pytest.mark.parametrize(('name', 'bound'), [('esa', (6 / 128) ** 0.5), ('esa_uniform', 1 / 8)])
def test_esa_is_initialized_as_released(name, bound):
    pool = pooling.make_pooling(name, 'text_pooling')
    params = pool.init(jax.random.key(0), np.zeros((1, 2, 64), np.float32), np.ones((1, 2), bool))['params']['scores']
    assert 0.99 * bound < np.abs(params['kernel']).max() <= bound
    assert np.abs(params['bias']).any() == (name == 'esa_uniform')


def test_linear_layers_are_initialized_as_in_pytorch():
    params = Linear(200).init(jax.random.key(0), np.zeros((1, 64)))['params']
    assert params.keys() == {'kernel', 'bias'}
    for leaf in params.values():
        assert np.abs(leaf).max() <= 1 / 8
        np.testing.assert_allclose(np.std(leaf), 1 / 8 / 3**0.5, rtol=0.1)


def test_unknown_pooling_is_refused():
    with pytest.raises(ValueError, match=r"text_pooling is 'gop'; take one of .*did you mean 'gpo'"):
        pooling.make_pooling('gop', 'text_pooling')
