"""Losses for noisy captions, against loops in float64."""

import math
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from jitm.losses import noisy, ranking
from tests.losses.test_ranking import central_differences, random_case

LABELS = np.random.default_rng(1).uniform(size=7)
RELEVANCE = np.random.default_rng(2).uniform(size=(7, 7))


def split(row, positives, negatives):
    """Scores of the positive and of the negatives."""
    [own] = [s for s, p in zip(row, positives, strict=True) if p]
    return own, [s for s, n in zip(row, negatives, strict=True) if n]


def probabilities(own, others, temperature):
    powers = [math.exp(s / temperature) for s in (own, *others)]
    return [power / sum(powers) for power in powers]


def complementary_contrastive(q, own, others, complement):
    f = {'log': lambda p: -math.log(1 - p), 'tan': math.tan, 'abs': lambda p: p, 'exp': lambda p: math.exp(-(1 - p))}
    return sum(map(f[complement], probabilities(own, others, 0.3)[1:]))


def active_complementary(q, own, others):
    first, *rest = probabilities(own, others, 0.3)
    tangents = [math.tan(p) for p in (first, *rest)]
    return LABELS[q] * -math.log(first) + 5 * sum(tangents[1:]) / sum(tangents) ** (1 - LABELS[q])


def soft_margin(q, own, others):
    return max(0.2 * (10 ** LABELS[q] - 1) / 9 + max(others) - own, 0)


SCIPY = SimpleNamespace(exp=math.exp, loggamma=special.gammaln, digamma=special.digamma)


def evidential(q, own, others, lib=SCIPY, temperature=0.1):
    alphas = [lib.exp(s / temperature) + 1 for s in (own, *others)]
    strength, loss = sum(alphas), 0
    for truth, alpha in zip((1, *(0 for _ in others)), alphas, strict=True):
        loss += (truth - alpha / strength) ** 2 + alpha * (strength - alpha) / (strength**2 * (strength + 1))
    return loss + divergence([1, *alphas[1:]], lib) / 10


def divergence(alphas, lib=SCIPY):
    """That of a Dirichlet distribution from the uniform one."""
    strength = sum(alphas)
    kl = lib.loggamma(strength) - lib.loggamma(len(alphas)) - sum(map(lib.loggamma, alphas))
    return kl + sum((a - 1) * (lib.digamma(a) - lib.digamma(strength)) for a in alphas)


CASES = {
    **{
        f'complementary_contrastive {name}': (
            partial(noisy.complementary_contrastive, temperature=0.3, complement=name),
            partial(complementary_contrastive, complement=name),
        )
        for name in noisy.COMPLEMENTS
    },
    'active_complementary': (
        partial(noisy.active_complementary, labels=LABELS, temperature=0.3),
        active_complementary,
    ),
    'soft_margin': (partial(noisy.soft_margin, labels=LABELS, margin=0.2), soft_margin),
    'evidential': (noisy.evidential, evidential),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def test_equals_the_formula_in_float64(case):
    loss, oracle = case
    with jax.enable_x64(True):
        for seed in range(3):
            scores, positives, negatives = random_case(seed)
            got = loss(jnp.asarray(scores), positives, negatives)
            for q, value in enumerate(got):
                if positives[q].any() and negatives[q].any():
                    want = oracle(q, *split(scores[q], positives[q], negatives[q]))
                    assert value == pytest.approx(want, rel=1e-9, abs=1e-12)


def test_gradient_equals_finite_differences(case):
    loss, _ = case
    with jax.enable_x64(True):
        scores, positives, negatives = random_case(5)
        scores = scores / 4  # about as cosines are
        function = jax.jit(lambda s: jnp.sum(loss(s, positives, negatives)))
        got = jax.jit(jax.grad(function))(jnp.asarray(scores))
        np.testing.assert_allclose(got, central_differences(function, scores), rtol=1e-5, atol=1e-7)


def test_queries_without_candidates_are_0_with_a_finite_gradient(case):
    loss, _ = case
    scores, positives, _ = random_case(0)
    none = np.zeros_like(positives)
    for masks in ((positives, none), (none, none)):
        value, gradient = jax.value_and_grad(lambda s, m=masks: jnp.sum(loss(s, *m)))(jnp.asarray(scores, jnp.float32))
        assert value == 0
        assert not gradient.any()


def test_abs_is_one_minus_the_probability_of_the_positive():
    scores, positives, _ = random_case(0)
    got = noisy.complementary_contrastive(scores, positives, temperature=0.2, complement='abs')
    want = 1 - np.exp(-ranking.softmax_contrastive(scores, positives, temperature=0.2))
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_a_certain_mistake_has_a_gradient():
    scores, positives = jnp.array([[0.0, 2.0, 0.1]]), np.eye(1, 3, dtype=bool)
    loss = partial(noisy.complementary_contrastive, positives=positives, temperature=0.05)
    value, gradient = jax.value_and_grad(lambda s: loss(s)[0])(scores)
    # 1 - P of the second candidate is exp(-40) + exp(-38), which float32 cannot subtract from 1, and clips at 1e-10.
    assert value == pytest.approx(-math.log(1e-10), rel=1e-5)
    value, gradient = jax.value_and_grad(lambda s: loss(s)[0])(scores.at[0, 1].set(0.95))
    assert value == pytest.approx(-math.log(math.exp(-19) + math.exp(-17)), rel=1e-4)
    assert gradient[0, 1] == pytest.approx(1 / 0.05, rel=1e-3)


def test_labels_of_1_give_the_plain_losses():
    scores, positives, negatives = random_case(1)
    ones = np.ones(len(scores))
    np.testing.assert_allclose(
        noisy.soft_margin(scores, positives, negatives, labels=ones, margin=0.2),
        ranking.max_of_hinges(scores, positives, negatives, margin=0.2),
        rtol=1e-6,
    )
    active = noisy.active_complementary(
        scores, positives, negatives, labels=ones, temperature=0.3, complementary_weight=0.0
    )
    np.testing.assert_allclose(
        active, ranking.softmax_contrastive(scores, positives, negatives, temperature=0.3), rtol=1e-5, atol=1e-6
    )


def test_evidential_keeps_queries_whose_pair_is_wrong():
    scores = np.array([[0.5, 0.1, -0.2]])
    none = np.zeros((1, 3), bool)
    [got] = noisy.evidential(scores, none, ~none)
    alphas = np.exp(scores[0] / 0.1) + 1
    strength = alphas.sum()
    error = np.sum((alphas / strength) ** 2 + alphas * (strength - alphas) / (strength**2 * (strength + 1)))
    assert got == pytest.approx(error + 0.1 * divergence(alphas), rel=1e-4)


@pytest.mark.parametrize(
    ('top', 'temperature'), [(-1, 0.1), (0.5, 0.1), (1, 0.02), (2.5, 0.1), (6, 0.02), (50, 0.1), (50, 0.02)]
)
def test_evidence_of_any_score_in_float32(top, temperature):
    """Values and finite differences by mpmath, and up to exp(2500) by float64."""
    scores = np.random.default_rng(0).uniform(min(top / 2, top), max(top / 2, top), (1, 5))
    function = jax.value_and_grad(lambda s: noisy.evidential(s, np.eye(1, 5, dtype=bool), temperature=temperature)[0])
    value, gradient = jax.jit(function)(jnp.asarray(scores, jnp.float32))
    with jax.enable_x64(True):
        want, slopes = jax.jit(function)(jnp.asarray(np.float32(scores), float))
    assert value >= 0
    np.testing.assert_allclose(value, want, rtol=1e-5)
    np.testing.assert_allclose(gradient, slopes, atol=1e-4 * np.abs(slopes).max())
    if top / temperature <= 500:
        mp = pytest.importorskip('mpmath')
        own, *others = map(mp.mpf, map(float, np.float32(scores[0])))
        with mp.workdps(50 + int(top / temperature)):
            by_mpmath = partial(evidential, 0, lib=mp, temperature=temperature)
            np.testing.assert_allclose(float(want), float(by_mpmath(own, others)), rtol=1e-9)
            slope = mp.diff(lambda s: by_mpmath(own, [s, *others[1:]]), others[0])
            np.testing.assert_allclose(float(slopes[0, 1]), float(slope), rtol=1e-7)


def test_ladder_by_hand():
    scores, positives = np.array([[0.6, 0.5, 0.55, 0.1], [0.3, 0.9, 0.2, 0.1]]), np.eye(2, 4, dtype=bool)
    relevance = np.array([[1.0, 0.7, 0.2, 0.1], [0.1, 1.0, 0.2, 0.3]])
    got = noisy.ladder(scores, positives, relevance=relevance)
    hinge = 0.2 + 0.55 - 0.6
    np.testing.assert_allclose(got[0], hinge + 0.25 * (0.01 + 0.55 - 0.5), rtol=1e-5)
    np.testing.assert_allclose(got[1], 0, atol=1e-7)  # only the positive is relevant, and far above
    [alone] = noisy.ladder(scores[:1], positives[:1], relevance=np.ones((1, 4)))
    assert alone == pytest.approx(hinge, rel=1e-5)  # nothing is below the threshold


def test_ladder_equals_a_loop():
    with jax.enable_x64(True):
        scores, positives, negatives = random_case(3)
        got = noisy.ladder(
            jnp.asarray(scores),
            positives,
            negatives,
            relevance=RELEVANCE,
            thresholds=(0.3, 0.6),
            ladder_margins=(0.1, 0.05),
        )
    for q, (row, own, others) in enumerate(zip(scores, positives, negatives, strict=True)):
        if own.any() and others.any():
            want = max(0.2 + row[others].max() - row[own].min(), 0)
            for margin, threshold in ((0.1, 0.3), (0.05, 0.6)):
                related = own | (others & (RELEVANCE[q] >= threshold))
                below = others & ~related
                if below.any():
                    want += 0.25 * max(margin + row[below].max() - row[related].min(), 0)
            assert got[q] == pytest.approx(want, rel=1e-9)
