"""Cross-attention against numbers worked out by hand."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.layers import attention


@pytest.mark.parametrize(
    ('aggregation', 'want'),
    [('Mean', 0.5), ('Sum', 1.0), ('Max', 0.8), ('LogSumExp', np.log(np.exp(2 * 0.8) + np.exp(2 * 0.2)) / 2)],
)
def test_relevance_is_aggregated_over_the_valid_queries(aggregation, want):
    relevance = jnp.array([[[0.8, 0.2, 0.9]]])
    np.testing.assert_allclose(
        attention.aggregate(relevance, jnp.array([[True, True, False]]), aggregation, 2.0), [[want]], rtol=1e-6
    )


@pytest.mark.parametrize(
    ('focal', 'weights', 'kept'),
    [  # sum w^1.5 / sum w^0.5 is 0.341 in the second case and 0.340 in the third
        ('equal', [0.405, 0.335, 0.26], [0.405, 0.335, 0]),
        ('prob', [0.42, 0.335, 0.245], [0.42, 0, 0]),
        ('prob', [0.41, 0.345, 0.245], [0.41, 0.345, 0]),
    ],
)
def test_what_is_above_the_mean_is_kept(focal, weights, kept):
    weights, kept = (jnp.float32([*x, 0]).reshape(1, 4, 1, 1) for x in (weights, kept))  # and padding
    np.testing.assert_array_equal(attention.focus(weights, jnp.array([[True, True, True, False]]), focal), kept)


@pytest.mark.parametrize('focal', attention.FOCALS)
def test_equal_weights_leave_nothing_to_focus_on(focal):
    focus = jax.jit(attention.focus, static_argnums=2)
    for weight in (1.0, 0.1, 1 / 3, 1.7e6):
        for real_ones in (1, 3):
            for padded in (3, 32, 36):
                mask = np.arange(padded)[None] < real_ones
                weights = jnp.where(jnp.asarray(mask)[..., None, None], weight, 0) * jnp.ones((1, padded, 2, 29))
                np.testing.assert_array_equal(focus(weights, mask, focal), 0)


def test_the_gradient_of_what_is_attended_to():
    rng = np.random.default_rng(0)
    weights = jnp.float32(rng.normal(size=(2, 3, 4, 5)))
    vectors = jnp.float32(rng.normal(size=(2, 3, 6)))
    cotangent = jnp.float32(rng.normal(size=(2, 4, 5, 6)))
    _, plain = jax.vjp(lambda *arguments: jnp.einsum('ckqm,ckd->cqmd', *arguments), weights, vectors)
    _, transposed = jax.vjp(attention.attended, weights, vectors)
    chex.assert_trees_all_close(transposed(cotangent), plain(cotangent), rtol=1e-5, atol=1e-5)
