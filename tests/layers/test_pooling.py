import jax
import numpy as np
import pytest

from jitm.layers import pooling
from tests.support.gru import torch_gru

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
    encoding[:, 0::2] = np.sin(position * rates)
    encoding[:, 1::2] = np.cos(position * rates)
    directions = [torch_gru(params['gru'][name], encoding, count, name == 'backward') for name in params['gru']]
    scores = sum(directions) / 2 @ np.asarray(params['linear']['kernel'], np.float64)[:, 0] / temperature
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def oracle(name, params, row, mask):
    real = row[mask].astype(np.float64)
    if name == 'mean':
        return real.mean(0)
    if name == 'mean_sqrt':
        return real.sum(0) / np.sqrt(len(real))
    if name == 'weighted_mean':
        return np.average(real, axis=0, weights=np.arange(1, len(mask) + 1)[mask])
    if name == 'max':
        return real.max(0)
    if name == 'first':
        return real[0]
    if name == 'last':
        return real[-1]
    params = params['params']
    if name == 'gpo':
        return numpy_gpo_weights(params, len(real)) @ -np.sort(-real, axis=0)
    scores = real @ np.asarray(params['scores']['kernel'], np.float64) + np.asarray(params['scores']['bias'])
    attention = np.exp(scores) / np.exp(scores).sum(0)
    return (attention * real).sum(0)


@pytest.mark.slow
@pytest.mark.parametrize('name', pooling.POOLINGS)
def test_each_pooling_is_its_formula_on_the_real_vectors(name):
    apply, params = make(name)
    got = jax.jit(apply)(params, FEATURES, MASK)
    for n in range(len(FEATURES)):
        np.testing.assert_allclose(got[n], oracle(name, params, FEATURES[n], MASK[n]), atol=2e-6)


@pytest.mark.parametrize('weigh', [pooling._weigh_by_counting, pooling._weigh_by_sorting])
def test_values_are_weighed_by_their_ranks_on_every_device(weigh):
    x = RNG.integers(0, 4, (3, 9, 7)).astype(np.float32)
    weights = RNG.normal(size=(3, 9)).astype(np.float32)
    x[1, [2, 5]] = -np.inf
    weights[1, 7:] = 0
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


@pytest.mark.parametrize(('name', 'bound'), [('esa', (6 / 128) ** 0.5), ('esa_uniform', 1 / 8)])
def test_esa_is_initialized_as_released(name, bound):
    pool = pooling.make_pooling(name, 'text_pooling')
    params = pool.init(jax.random.key(0), np.zeros((1, 2, 64), np.float32), np.ones((1, 2), bool))['params']['scores']
    assert 0.99 * bound < np.abs(params['kernel']).max() <= bound
    assert np.abs(params['bias']).any() == (name == 'esa_uniform')


def test_unknown_pooling_is_refused():
    with pytest.raises(ValueError, match=r"text_pooling is 'gop'; use one of .*did you mean 'gpo'"):
        pooling.make_pooling('gop', 'text_pooling')
