import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from jitm.losses import ranking

LOSSES = {'sum_of_hinges': ranking.sum_of_hinges, 'max_of_hinges': ranking.max_of_hinges}


def oracle(name, scores, positives, negatives, margin):
    """The formulas as loops over Python floats, which are float64."""
    result = []
    for row, is_positive, is_negative in zip(scores.tolist(), positives, negatives, strict=True):
        own = [s for s, p in zip(row, is_positive, strict=True) if p]
        others = [s for s, n in zip(row, is_negative, strict=True) if n]
        hinges = [max(0.0, margin + other - min(own)) for other in others] if own else []
        result.append((sum(hinges) if name == 'sum_of_hinges' else max(hinges)) if hinges else 0.0)
    return np.array(result)


def random_case(seed, queries=7, candidates=7, positives_per_query=1):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(queries, candidates))
    positives = np.zeros((queries, candidates), bool)
    for row in positives:
        row[rng.permutation(candidates)[:positives_per_query]] = True
    return scores, positives, ~positives & (rng.random((queries, candidates)) < 0.8)


class LossesTest(chex.TestCase):
    @parameterized.product(name=list(LOSSES), several=[1, 2, 3])
    def test_equals_the_formula_in_float64(self, name, several):
        with jax.enable_x64(True):
            for seed in range(20):
                scores, positives, negatives = random_case(seed, positives_per_query=several)
                got = LOSSES[name](jnp.asarray(scores), positives, negatives, margin=0.2)
                assert got.dtype == jnp.float64
                np.testing.assert_allclose(got, oracle(name, scores, positives, negatives, 0.2), rtol=1e-12)

    @chex.variants(with_jit=True, without_jit=True, with_device=True)
    @parameterized.product(name=list(LOSSES))
    def test_variants_agree(self, name):
        scores, positives, negatives = random_case(0)
        got = self.variant(lambda s: LOSSES[name](s, positives, negatives, margin=0.2))(scores.astype(np.float32))
        np.testing.assert_allclose(got, oracle(name, scores, positives, negatives, 0.2), rtol=1e-5, atol=1e-6)

    @parameterized.product(name=list(LOSSES))
    def test_vmap_is_a_loop(self, name):
        cases = [random_case(seed) for seed in range(4)]
        stacked = [jnp.stack([jnp.asarray(case[n]) for case in cases]) for n in range(3)]
        loss = LOSSES[name]
        got = jax.vmap(lambda s, p, n: loss(s, p, n, margin=0.2))(*stacked)
        want = [loss(jnp.asarray(s), jnp.asarray(p), jnp.asarray(n), margin=0.2) for s, p, n in cases]
        np.testing.assert_allclose(got, jnp.stack(want), rtol=1e-6)

    @parameterized.product(name=list(LOSSES))
    def test_gradient_is_the_numerical_one(self, name):
        scores, positives, negatives = random_case(3)
        with jax.enable_x64(True):
            loss = lambda s: LOSSES[name](s, positives, negatives, margin=0.2).sum()  # noqa: E731
            chex.assert_numerical_grads(loss, (jnp.asarray(scores),), order=1, atol=1e-6)

    @parameterized.product(name=list(LOSSES))
    def test_queries_without_positive_or_negative_give_zero_and_no_nan(self, name):
        scores, positives, negatives = random_case(1)
        positives[0], negatives[1], positives[2], negatives[2] = False, False, False, False
        scores = jnp.asarray(scores, jnp.float32)
        value, gradient = jax.value_and_grad(lambda s: LOSSES[name](s, positives, negatives, margin=0.2).sum())(scores)
        per_query = LOSSES[name](scores, positives, negatives, margin=0.2)
        np.testing.assert_array_equal(per_query[:3], 0)
        np.testing.assert_array_equal(gradient[:3], 0)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()

    @parameterized.product(name=list(LOSSES))
    def test_the_shape_is_checked(self, name):
        with pytest.raises(AssertionError):
            LOSSES[name](jnp.zeros((3, 4)), jnp.zeros((3, 3), bool), margin=0.2)


SCORES = jnp.asarray([[0.5, 0.4, 0.1], [0.6, 0.7, 0.65], [0.9, 0.2, 0.3]])
EYE = jnp.eye(3, dtype=bool)


def test_sum_of_hinges_by_hand():
    # row 0: .2+.4-.5=.1, .2+.1-.5<0; row 1: .2+.6-.7=.1, .2+.65-.7=.15; row 2: .2+.9-.3=.8, .2+.2-.3=.1
    np.testing.assert_allclose(ranking.sum_of_hinges(SCORES, EYE, margin=0.2), [0.1, 0.25, 0.9], atol=1e-6)


def test_max_of_hinges_by_hand():
    np.testing.assert_allclose(ranking.max_of_hinges(SCORES, EYE, margin=0.2), [0.1, 0.15, 0.8], atol=1e-6)


def test_dropped_negatives_are_not_mined():
    negatives = ~EYE.at[2, 0].set(True)
    np.testing.assert_allclose(ranking.max_of_hinges(SCORES, EYE, negatives, margin=0.2), [0.1, 0.15, 0.1], atol=1e-6)


def test_the_hardest_of_none_is_zero():
    none = jnp.zeros((3, 3), bool)
    np.testing.assert_array_equal(ranking.hardest_positive(SCORES, none), 0)
    np.testing.assert_array_equal(ranking.hardest_negative(SCORES, none), 0)


def test_collapsed_scores_cost_twice_batch_times_margin():
    scores, eye = jnp.full((128, 128), 0.3), jnp.eye(128, dtype=bool)
    total = 2 * ranking.max_of_hinges(scores, eye, margin=0.2).sum()
    np.testing.assert_allclose(total, 51.2, rtol=1e-5)


def test_the_gradient_of_tied_negatives_goes_to_the_first():
    scores = jnp.asarray([[0.5, 0.4, 0.4]])
    positives = jnp.asarray([[True, False, False]])
    gradient = jax.grad(lambda s: ranking.max_of_hinges(s, positives, margin=0.2).sum())(scores)
    np.testing.assert_array_equal(gradient, [[-1, 1, 0]])
