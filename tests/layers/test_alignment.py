"""The alignments of SGRAF and DBL, and the reasoning on them, against numbers worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.errors import UserError
from jitm.layers import alignment


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def linear(kernel, bias=0.0):
    kernel = jnp.float32(kernel)
    return {'kernel': kernel, 'bias': jnp.zeros(kernel.shape[1]) + jnp.float32(bias)}


def as_variables(params, statistics):
    return {'params': params, 'batch_stats': jax.tree.map(jnp.float32, statistics)}


def self_attention(scores, slots=None):
    """A module whose local and whole vectors are the tanh of the element and of the mean, and its parameters."""
    params = {'local': linear(np.eye(2)), 'whole': linear(np.eye(2)), 'scores': linear(scores)}
    return alignment.SelfAttention(0.0, slots), params


@pytest.mark.slow
def test_self_attention_in_training_uses_the_statistics_of_the_batch():
    """Slot 0 is in both images, slot 1 in one and slot 2 in none, which keeps its running statistics."""
    vectors = np.random.default_rng(0).normal(size=(2, 3, 2)).astype(np.float32)
    mask = np.array([[True, True, False], [True, False, False]])
    model, params = self_attention([[2], [-1]], slots=3)
    params |= {f'{name}_norm': {'scale': jnp.ones(n), 'bias': jnp.zeros(n)} for name, n in (('local', 3), ('whole', 2))}
    means = np.stack([vectors[0, :2].mean(0), vectors[1, 0]])
    slots = vectors[:, 0].ravel(), vectors[0, 1], np.array([3.0])
    own = {
        'local_norm': {'mean': np.array([x.mean() for x in slots]), 'variance': np.array([x.var() for x in slots])},
        'whole_norm': {'mean': means.mean(0), 'variance': means.var(0)},
    }
    old = jax.tree.map(lambda x: np.full_like(x, 3), own)
    got, changed = model.apply(as_variables(params, old), vectors, mask, True, mutable=['batch_stats'])
    np.testing.assert_allclose(got, model.apply(as_variables(params, own), vectors, mask), rtol=1e-5)
    # The variances are unbiased where they are stored: slots have 4 and 2 numbers, dimensions of the mean 2.
    own['local_norm']['variance'] = own['local_norm']['variance'] * [4 / 3, 2, 1] + [0, 0, 3]
    own['whole_norm']['variance'] = own['whole_norm']['variance'] * 2
    want = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, old, own)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), changed['batch_stats'], want)


def test_more_regions_than_slots_are_refused():
    with pytest.raises(UserError, match='images have up to 5 regions, but the model has slots for 4'):
        alignment.SelfAttention(0.0, 4).init(jax.random.key(0), jnp.ones((1, 5, 2)), jnp.ones((1, 5), bool))
