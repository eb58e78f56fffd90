import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.losses import tokens
from tests.losses.formulas import OF_TEXTS


@pytest.mark.slow
@pytest.mark.parametrize('garbage', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('name', OF_TEXTS)
def test_places_that_do_not_count_do_not_matter(name, garbage):
    formula, keywords = OF_TEXTS[name]
    logits = jnp.asarray([[[0.0, garbage]], [[0.5, 0.0]]])
    mask = jnp.asarray([[False], [True]])

    def total(logits):
        values = getattr(tokens, formula.__name__)(logits, jnp.asarray([[10**6], [1]]), mask, **keywords)
        return values.sum(), values

    gradient, values = jax.grad(total, has_aux=True)(logits)
    assert values[0] == 0
    assert np.isfinite(values).all()
    np.testing.assert_array_equal(gradient[0], 0)
    assert np.isfinite(gradient).all()


def test_captioning_bears_large_logits():
    logits = jnp.asarray([[[1e4, 0.0], [0.0, 1e4]]])
    loss = lambda x: tokens.captioning(x, jnp.zeros((1, 2), int), jnp.ones((1, 2), bool))[0]  # noqa: E731
    value, gradient = jax.value_and_grad(loss)(logits)
    assert value == 1e4
    np.testing.assert_array_equal(gradient[0], [[0, 0], [-1, 1]])
