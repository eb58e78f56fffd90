import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from test_losses_ranking import central_differences

from jitm.losses import tokens

# The formulas for one text as loops over Python floats: the logits of each place and its label, of the places that
# count.


def captioning(logits, labels):
    return sum(
        math.log(sum(map(math.exp, row))) - row[label] for row, label in zip(logits.tolist(), labels, strict=True)
    )


CASES = {'captioning': (tokens.captioning, captioning)}
TEXTS, LENGTH, VOCABULARY = 5, 4, 6


def random_case(seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2, size=(TEXTS, LENGTH, VOCABULARY))
    mask = rng.random((TEXTS, LENGTH)) < 0.6
    mask[0], mask[1] = False, True
    return logits, rng.integers(0, VOCABULARY, (TEXTS, LENGTH)), mask


def expected(name, logits, labels, mask):
    return np.array([CASES[name][1](logits[n][mask[n]], labels[n][mask[n]]) for n in range(len(logits))])


class LossesTest(chex.TestCase):
    @parameterized.product(name=list(CASES))
    def test_equals_the_formula_in_float64(self, name):
        with jax.enable_x64(True):
            for seed in range(20):
                case = random_case(seed)
                got = CASES[name][0](*map(jnp.asarray, case))
                assert got.dtype == jnp.float64
                np.testing.assert_allclose(got, expected(name, *case), rtol=1e-11)

    @parameterized.product(name=list(CASES), dtype=[jnp.float32, jnp.bfloat16])
    def test_keeps_the_dtype_of_the_logits(self, name, dtype):
        logits, labels, mask = random_case(0)
        with jax.enable_x64(True):
            assert CASES[name][0](jnp.asarray(logits, dtype), jnp.asarray(labels), jnp.asarray(mask)).dtype == dtype

    @chex.variants(with_jit=True, without_jit=True, with_device=True)
    @parameterized.product(name=list(CASES))
    def test_variants_agree(self, name):
        logits, labels, mask = random_case(0)
        got = self.variant(CASES[name][0])(logits.astype(np.float32), labels, mask)
        np.testing.assert_allclose(got, expected(name, logits, labels, mask), rtol=1e-5)

    @parameterized.product(name=list(CASES))
    def test_vmap_is_a_loop(self, name):
        cases = [[jnp.asarray(x) for x in random_case(seed)] for seed in range(4)]
        loss = CASES[name][0]
        got = jax.vmap(loss)(*(jnp.stack(arrays) for arrays in zip(*cases, strict=True)))
        np.testing.assert_allclose(got, jnp.stack([loss(*case) for case in cases]), rtol=1e-6)

    @parameterized.product(name=list(CASES))
    def test_gradient_is_the_numerical_one(self, name):
        with jax.enable_x64(True):
            for seed in range(4):
                logits, labels, mask = random_case(seed)
                loss = lambda x: CASES[name][0](x, labels, mask).sum()  # noqa: B023, E731
                want = central_differences(loss, logits)
                np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(logits)), want, atol=1e-6)

    @parameterized.product(name=list(CASES), garbage=[np.nan, np.inf, -np.inf])
    def test_places_that_do_not_count_do_not_matter(self, name, garbage):
        logits, labels, mask = random_case(2)
        want = expected(name, logits, labels, mask)
        logits[~mask], labels[~mask] = garbage, 10**6
        loss = lambda x: CASES[name][0](x, jnp.asarray(labels), jnp.asarray(mask))  # noqa: E731
        got, pullback = jax.vjp(loss, jnp.asarray(logits, jnp.float32))
        np.testing.assert_allclose(got, want, rtol=1e-5)
        assert got[0] == 0
        (gradient,) = pullback(jnp.ones_like(got))
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(np.asarray(gradient)[~mask], 0)

    @parameterized.product(name=list(CASES))
    def test_the_shape_is_checked(self, name):
        logits, labels, mask = map(jnp.asarray, random_case(0))
        for wrong in ((logits[0], labels, mask), (logits, labels[:, 1:], mask), (logits[:1], labels, mask)):
            with pytest.raises(AssertionError):
                CASES[name][0](*wrong)


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
