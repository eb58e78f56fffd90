import functools
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from jitm.losses import tokens
from tests.losses.test_ranking import central_differences

# The formulas for one text as loops over Python floats: the logits of each place and its label, of the places that
# count.


def captioning(logits, labels):
    return sum(
        math.log(sum(map(math.exp, row))) - row[label] for row, label in zip(logits.tolist(), labels, strict=True)
    )


def mean_of_captioning(logits, labels):
    return captioning(logits, labels) / max(len(labels), 1)


def word_discrimination(logits, labels):
    replaced, original = (captioning(logits[labels == label], labels[labels == label]) for label in (0, 1))
    return (replaced + 0.11 * original) / max(len(labels), 1)


CASES = {
    'captioning': (tokens.captioning, captioning),
    'masked_language_modeling': (tokens.masked_language_modeling, mean_of_captioning),
    'word_discrimination': (functools.partial(tokens.word_discrimination, match_weight=0.11), word_discrimination),
    'word_correction': (tokens.word_correction, mean_of_captioning),
}
TEXTS, LENGTH, VOCABULARY = 5, 4, 6


def random_case(name, seed):
    rng = np.random.default_rng(seed)
    vocabulary = 2 if name == 'word_discrimination' else VOCABULARY
    logits = rng.normal(scale=2, size=(TEXTS, LENGTH, vocabulary))
    mask = rng.random((TEXTS, LENGTH)) < 0.6
    mask[0], mask[1] = False, True
    return logits, rng.integers(0, vocabulary, (TEXTS, LENGTH)), mask


def expected(name, logits, labels, mask):
    return np.array([CASES[name][1](logits[n][mask[n]], labels[n][mask[n]]) for n in range(len(logits))])


class LossesTest(chex.TestCase):
    @parameterized.product(name=list(CASES))
    def test_equals_the_formula_in_float64(self, name):
        with jax.enable_x64(True):
            for seed in range(20):
                case = random_case(name, seed)
                got = CASES[name][0](*map(jnp.asarray, case))
                assert got.dtype == jnp.float64
                np.testing.assert_allclose(got, expected(name, *case), rtol=1e-11)

    @parameterized.product(name=list(CASES), dtype=[jnp.float32, jnp.bfloat16])
    def test_keeps_the_dtype_of_the_logits(self, name, dtype):
        logits, labels, mask = random_case(name, 0)
        with jax.enable_x64(True):
            assert CASES[name][0](jnp.asarray(logits, dtype), jnp.asarray(labels), jnp.asarray(mask)).dtype == dtype

    @chex.variants(with_jit=True, without_jit=True, with_device=True)
    @parameterized.product(name=list(CASES))
    def test_variants_agree(self, name):
        logits, labels, mask = random_case(name, 0)
        got = self.variant(CASES[name][0])(logits.astype(np.float32), labels, mask)
        np.testing.assert_allclose(got, expected(name, logits, labels, mask), rtol=1e-5)

    @parameterized.product(name=list(CASES))
    def test_vmap_is_a_loop(self, name):
        cases = [[jnp.asarray(x) for x in random_case(name, seed)] for seed in range(4)]
        loss = CASES[name][0]
        got = jax.vmap(loss)(*(jnp.stack(arrays) for arrays in zip(*cases, strict=True)))
        np.testing.assert_allclose(got, jnp.stack([loss(*case) for case in cases]), rtol=1e-6)

    @parameterized.product(name=list(CASES))
    def test_gradient_is_the_numerical_one(self, name):
        with jax.enable_x64(True):
            for seed in range(4):
                logits, labels, mask = random_case(name, seed)
                loss = lambda x: CASES[name][0](x, labels, mask).sum()  # noqa: B023, E731
                want = central_differences(loss, logits)
                np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(logits)), want, atol=1e-6)

    @parameterized.product(name=list(CASES), garbage=[np.nan, np.inf, -np.inf])
    def test_places_that_do_not_count_do_not_matter(self, name, garbage):
        logits, labels, mask = random_case(name, 2)
        want = expected(name, logits, labels, mask)
        logits[~mask], labels[~mask] = garbage, 10**6
        loss = lambda x: CASES[name][0](x, jnp.asarray(labels), jnp.asarray(mask))  # noqa: E731
        got, pullback = jax.vjp(loss, jnp.asarray(logits, jnp.float32))
        np.testing.assert_allclose(got, want, rtol=1e-5)
        assert got[0] == 0
        (gradient,) = pullback(jnp.ones_like(got))
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(np.asarray(gradient)[~mask], 0)


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
