import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.losses import tokens
from tests.losses.formulas import OF_TEXTS


@pytest.mark.parametrize('garbage', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('name', OF_TEXTS)
def test_places_that_do_not_count_do_not_matter(name, garbage):
    formula, keywords = OF_TEXTS[name]
    logits, mask = jnp.asarray([[[0.0, garbage]], [[0.5, 0.0]]]), jnp.asarray([[False], [True]])

    def total(logits):
        values = getattr(tokens, formula.__name__)(logits, jnp.asarray([[10**6], [1]]), mask, **keywords)
        return values.sum(), values

    gradient, values = jax.grad(total, has_aux=True)(logits)
    assert values[0] == 0
    assert np.isfinite(values).all()
    np.testing.assert_array_equal(gradient[0], 0)
    assert np.isfinite(gradient).all()


def test_captioning_by_hand():
    # With logits log(p) the softmax is p: -log .5 - log .25, then -log .25, then nothing.
    logits = jnp.log(jnp.asarray([[0.5, 0.25, 0.25]]))
    logits = jnp.broadcast_to(logits, (3, 2, 3))
    labels = jnp.asarray([[0, 1], [0, 2], [1, 1]])
    mask = jnp.asarray([[True, True], [False, True], [False, False]])
    np.testing.assert_allclose(tokens.captioning(logits, labels, mask), [2.0794415, 1.3862944, 0], rtol=1e-6)


def test_captioning_bears_large_logits():
    logits = jnp.asarray([[[1e4, 0.0], [0.0, 1e4]]])
    loss = lambda x: tokens.captioning(x, jnp.zeros((1, 2), int), jnp.ones((1, 2), bool))[0]  # noqa: E731
    value, gradient = jax.value_and_grad(loss)(logits)
    assert value == 1e4
    np.testing.assert_array_equal(gradient[0], [[0, 0], [-1, 1]])


def test_means_by_hand():
    # -log .5 and -log .25, then -log .25, then nothing.
    logits = jnp.broadcast_to(jnp.log(jnp.asarray([[0.5, 0.25, 0.25]])), (3, 2, 3))
    labels = jnp.asarray([[0, 1], [0, 2], [1, 1]])
    mask = jnp.asarray([[True, True], [False, True], [False, False]])
    for loss in (tokens.masked_language_modeling, tokens.word_correction):
        np.testing.assert_allclose(loss(logits, labels, mask), [1.0397208, 1.3862944, 0], rtol=1e-6)


def test_word_discrimination_divides_by_places_and_not_by_weights():
    labels = jnp.asarray([[0] + [1] * 9 + [0] * 2])
    mask = jnp.arange(12)[None] < 10
    got = tokens.word_discrimination(jnp.zeros((1, 12, 2)), labels, mask, match_weight=0.11)
    np.testing.assert_allclose(got, (1 + 9 * 0.11) * math.log(2) / 10, rtol=1e-6)
    np.testing.assert_allclose(got, 0.138, atol=5e-4)


def test_the_class_of_a_match_is_one():
    logits = jnp.log(jnp.asarray([[[0.25, 0.75], [0.25, 0.75]]]))
    one = jnp.ones((1, 2), bool)
    for label, want in ((0, -math.log(0.25)), (1, -0.5 * math.log(0.75))):
        got = tokens.word_discrimination(logits, jnp.full((1, 2), label), one, match_weight=0.5)
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    'loss', [tokens.word_correction, functools.partial(tokens.word_discrimination, match_weight=0.11)]
)
def test_a_probability_counts_as_1e_minus_10_at_least(loss):
    logits, labels, mask = jnp.asarray([[[0.0, 30.0]], [[0.0, 20.0]]]), jnp.zeros((2, 1), int), jnp.ones((2, 1), bool)
    np.testing.assert_allclose(loss(logits, labels, mask), [10 * math.log(10), 20], rtol=1e-6)
    gradient = jax.grad(lambda x: loss(x, labels, mask).sum())(logits)
    np.testing.assert_allclose(gradient, [[[0, 0]], [[-1, 1]]], atol=1e-6)
