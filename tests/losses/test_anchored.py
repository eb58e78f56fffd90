import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from jitm.configs import dbl
from jitm.losses import anchored, distillation
from tests.losses.test_ranking import QUERIES, central_differences
from tests.losses.test_ranking import random_case as random_masks

# The formulas for one query as loops over Python floats, which are float64: the scores of its positives and of its
# negatives, neither empty, and the anchor's, then the loss' keywords.


def soft(y, margin, extreme):
    """Equation 17 as printed."""
    if extreme is None or margin == 0:
        return margin
    return 2 * margin / (1 + math.exp(2 / margin * (y - extreme))) - margin


def of_hardest_positive(own, anchor_own):
    return min(zip(own, anchor_own, strict=True))


def relative(own, others, anchor_own, anchor_others, margin=0.2, extreme=None):
    """Of each negative how far it is above the anchor's, and its hinge."""
    p, a = of_hardest_positive(own, anchor_own)
    pairs = zip(others, anchor_others, strict=True)
    return [(n - b, max(0.0, soft(a - b, margin, extreme) + (a - b) - (p - n))) for n, b in pairs]


def absolute(own, others, anchor_own, anchor_others, margin=0.2, alpha=0.5, extreme=None):
    p, a = of_hardest_positive(own, anchor_own)
    of_positive = max(0.0, soft(a, alpha * margin, extreme) + a - p)
    second = margin - alpha * margin
    pairs = zip(others, anchor_others, strict=True)
    return [(n - b, of_positive + max(0.0, soft(-b, second, extreme) + n - b)) for n, b in pairs]


def relative_sum(*scores, **keywords):
    return sum(hinge for _, hinge in relative(*scores, **keywords))


def relative_max(*scores, **keywords):
    return max(relative(*scores, **keywords))[1]


def absolute_sum(*scores, **keywords):
    return sum(hinge for _, hinge in absolute(*scores, **keywords))


def absolute_max(*scores, **keywords):
    return max(absolute(*scores, **keywords))[1]


def order_probability(scores):
    """Of the order the scores stand in: take the first of all, the second of the rest, and so on."""
    powers = [math.exp(score) for score in scores]
    return math.prod(power / sum(powers[n:]) for n, power in enumerate(powers))


def rank_distillation(own, others, anchor_own, anchor_others, temperature=0.1, hard=False):
    pairs = list(zip(anchor_own + anchor_others, own + others, strict=True))
    if hard:
        cubes = sorted(((-3 * a**3, -3 * s**3) for a, s in pairs), reverse=True)
        return -math.log(order_probability([s for _, s in cubes[1:5]]))
    value = 0.0
    for order in itertools.permutations(sorted(pairs, reverse=True)[:4]):
        anchor, target = ([score / temperature for score in scores] for scores in zip(*order, strict=True))
        value += order_probability(anchor) * math.log(order_probability(anchor) / order_probability(target))
    return value


def relational_distillation(own, others, anchor_own, anchor_others):
    distances = [abs(s - a) for s, a in zip(own + others, anchor_own + anchor_others, strict=True)]
    return sum(d**2 / 2 if d < 1 else d - 0.5 for d in distances) / len(distances)


def similarity_preserving(own, others, anchor_own, anchor_others):
    target, anchor = own + others, anchor_own + anchor_others
    pairs = zip(target, anchor, strict=True)
    return sum((s / math.hypot(*target) - a / math.hypot(*anchor)) ** 2 for s, a in pairs)


def softmax(scores, temperature):
    powers = [math.exp(score / temperature) for score in scores]
    return [power / sum(powers) for power in powers]


def mutual_learning(own, others, anchor_own, anchor_others, temperature=0.1):
    target, anchor = softmax(own + others, temperature), softmax(anchor_own + anchor_others, temperature)
    return sum(a * math.log(a / t) for a, t in zip(anchor, target, strict=True))


def self_distillation(own, others, anchor_own, anchor_others, temperature=0.1, inverse=False, subtract_entropy=False):
    target, anchor = softmax(own + others, temperature), softmax(anchor_own + anchor_others, temperature)
    first, second = (target, anchor) if inverse else (anchor, target)
    entropy = -sum(p * math.log(p) for p in first) if subtract_entropy else 0.0
    return -sum(p * math.log(q) for p, q in zip(first, second, strict=True)) - entropy


class Case(NamedTuple):
    loss: Callable
    oracle: Callable
    keywords: dict[str, Any]


CASES = {
    'relative_sum': Case(anchored.relative_sum, relative_sum, {}),
    'relative_sum, soft': Case(anchored.relative_sum, relative_sum, {'margin': 0.5, 'extreme': 1.0}),
    'relative_max': Case(anchored.relative_max, relative_max, {'margin': 0.3}),
    'relative_max, soft': Case(anchored.relative_max, relative_max, {'margin': 0.8, 'extreme': 0.5}),
    'absolute_sum': Case(anchored.absolute_sum, absolute_sum, {}),
    'absolute_sum, soft': Case(anchored.absolute_sum, absolute_sum, {'margin': 0.9, 'alpha': 0.3, 'extreme': 0.6}),
    'absolute_max': Case(anchored.absolute_max, absolute_max, {'margin': 0.4, 'alpha': 0.7}),
    'absolute_max, soft': Case(anchored.absolute_max, absolute_max, {'margin': 0.9, 'extreme': 0.5}),
    'rank_distillation': Case(distillation.rank_distillation, rank_distillation, {}),
    'rank_distillation, warmer': Case(distillation.rank_distillation, rank_distillation, {'temperature': 0.5}),
    'rank_distillation, hard': Case(distillation.rank_distillation, rank_distillation, {'hard': True}),
    'relational_distillation': Case(distillation.relational_distillation, relational_distillation, {}),
    'similarity_preserving': Case(distillation.similarity_preserving, similarity_preserving, {}),
    'mutual_learning': Case(distillation.mutual_learning, mutual_learning, {'temperature': 0.3}),
    'self_distillation': Case(distillation.self_distillation, self_distillation, {'temperature': 0.3}),
    'self_distillation, inverse': Case(
        distillation.self_distillation, self_distillation, {'temperature': 0.3, 'inverse': True}
    ),
    'self_distillation, released': Case(
        distillation.self_distillation, self_distillation, {'inverse': True, 'subtract_entropy': True}
    ),
}


def loss_of(name):
    """The loss `(scores, positives, negatives, anchor_scores) -> [Q]`."""
    loss, _, keywords = CASES[name]
    return lambda scores, positives, negatives, anchor_scores: loss(
        scores, positives, negatives, anchor_scores=anchor_scores, **keywords
    )


@functools.cache
def compiled(name):
    """The loss, compiled once for all tests of the shapes and dtypes."""
    return jax.jit(loss_of(name))


@functools.cache
def gradients_of(name):
    """The gradients of the sum of the loss by the scores and by the anchor's."""
    return jax.jit(jax.grad(lambda *case: loss_of(name)(*case).sum(), argnums=(0, 3)))


def expected(name, scores, positives, negatives, anchor_scores):
    """The oracle's value of every query, 0 for those without a positive or a negative."""
    _, oracle, keywords = CASES[name]
    result = []
    for row, positive, negative, anchor in zip(scores, positives, negatives, anchor_scores, strict=True):
        own, others, anchor_own, anchor_others = (
            x[mask].tolist() for x in (row, anchor) for mask in (positive, negative)
        )
        result.append(oracle(own, others, anchor_own, anchor_others, **keywords) if own and others else 0.0)
    return np.array(result)


def random_case(seed, several=1):
    """Scores, positives, negatives and anchor scores, which are near the scores."""
    scores, positives, negatives = random_masks(seed, positives_per_query=several)
    return (
        scores,
        positives,
        negatives,
        scores + np.random.default_rng(1000 + seed).normal(scale=0.6, size=scores.shape),
    )


class LossesTest(chex.TestCase):
    @parameterized.product(name=list(CASES))
    def test_equals_the_formula_in_float64(self, name):
        with jax.enable_x64(True):
            for seed in range(20):
                case = random_case(seed, several=1 + seed % 3)
                got = compiled(name)(*case)
                assert got.dtype == jnp.float64
                np.testing.assert_allclose(got, expected(name, *case), rtol=1e-10, atol=1e-13)

    @parameterized.product(name=list(CASES), dtype=[jnp.float32, jnp.bfloat16])
    def test_keeps_the_dtype_of_the_scores(self, name, dtype):
        with jax.enable_x64(True):
            scores, mask = (jax.ShapeDtypeStruct((QUERIES, QUERIES), kind) for kind in (dtype, bool))
            assert jax.eval_shape(loss_of(name), scores, mask, mask, scores).dtype == dtype

    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.product(name=list(CASES))
    def test_variants_agree(self, name):
        case = random_case(0)
        got = self.variant(loss_of(name))(*(jnp.asarray(x) for x in case))
        np.testing.assert_allclose(got, expected(name, *case), rtol=1e-5, atol=1e-5)

    @parameterized.product(name=list(CASES))
    def test_vmap_is_a_loop(self, name):
        cases = [[jnp.asarray(x) for x in random_case(seed)] for seed in range(4)]
        got = jax.jit(jax.vmap(loss_of(name)))(*(jnp.stack(arrays) for arrays in zip(*cases, strict=True)))
        want = np.stack([compiled(name)(*case) for case in cases])
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)

    @parameterized.product(name=list(CASES))
    def test_gradients_equal_finite_differences(self, name):
        @jax.jit
        def numerical(scores, positives, negatives, anchor):
            loss = loss_of(name)
            by_scores = central_differences(lambda x: loss(x, positives, negatives, anchor).sum(), scores)
            return by_scores, central_differences(lambda x: loss(scores, positives, negatives, x).sum(), anchor)

        with jax.enable_x64(True):
            for seed in range(4):
                case = random_case(seed, several=1 + seed % 2)
                for got, want in zip(gradients_of(name)(*case), numerical(*case), strict=True):
                    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)

    @parameterized.product(name=list(CASES))
    def test_queries_without_positive_or_negative_give_zero_and_no_nan(self, name):
        scores, positives, negatives, anchor = random_case(1)
        positives[0], negatives[1], positives[2], negatives[2] = False, False, False, False
        case = scores, positives, negatives, anchor
        with jax.enable_x64(True):
            got = compiled(name)(*case)
            np.testing.assert_array_equal(got[:3], 0)
            np.testing.assert_allclose(got, expected(name, *case), rtol=1e-10, atol=1e-13)
            for gradient in gradients_of(name)(*case):
                np.testing.assert_array_equal(gradient[:3], 0)
                assert np.isfinite(gradient).all()

    @parameterized.product(name=list(CASES))
    def test_one_pair_without_negatives_gives_zero_and_no_nan(self, name):
        case = jnp.asarray([[0.5]]), jnp.asarray([[True]]), None, jnp.asarray([[0.2]])
        np.testing.assert_array_equal(compiled(name)(*case), 0)
        for gradient in gradients_of(name)(*case):
            np.testing.assert_array_equal(gradient, 0)

    @parameterized.product(name=list(CASES))
    def test_candidates_that_are_neither_are_ignored(self, name):
        for several in (1, 2):
            scores, positives, negatives, anchor = random_case(3, several)
            ignored = ~(positives | negatives)
            assert ignored.any()
            with jax.enable_x64(True):
                want = compiled(name)(scores, positives, negatives, anchor)
                for far in (-9, 9):
                    case = np.where(ignored, far, scores), positives, negatives, np.where(ignored, -far, anchor)
                    np.testing.assert_array_equal(compiled(name)(*case), want)
                    for gradient in gradients_of(name)(*case):
                        np.testing.assert_array_equal(gradient[ignored], 0)

    @parameterized.product(name=list(CASES))
    def test_scores_equal_to_the_anchors_have_no_nan(self, name):
        scores, positives, negatives, _ = random_case(0)
        with jax.enable_x64(True):
            for x in (scores, 0 * scores):
                for gradient in gradients_of(name)(x, positives, negatives, x):
                    assert np.isfinite(gradient).all()

    @parameterized.product(name=list(CASES))
    def test_the_negatives_are_by_default_all_that_are_not_positive(self, name):
        scores, positives, _, anchor = random_case(2)
        with jax.enable_x64(True):
            want = compiled(name)(scores, positives, ~positives, anchor)
            np.testing.assert_allclose(compiled(name)(scores, positives, None, anchor), want, rtol=1e-14)


SCORES = jnp.asarray([[0.5, 0.4, 0.1], [0.6, 0.7, 0.65], [0.9, 0.2, 0.3]])
ANCHOR = jnp.asarray([[0.6, 0.5, -0.1], [0.5, 0.4, 0.7], [0.4, 0.3, 0.5]])
EYE = jnp.eye(3, dtype=bool)
BY_HAND = {
    # row 0: .2+(.6-.5)-(.5-.4)=.2, .2+(.6+.1)-(.5-.1)=.5; row 1: .2+(.4-.5)-(.7-.6)=0, .2+(.4-.7)-(.7-.65)<0;
    # row 2: .2+(.5-.4)-(.3-.9)=.9, .2+(.5-.3)-(.3-.2)=.3
    'relative_sum': [0.7, 0.0, 1.2],
    'relative_max': [0.5, 0.0, 0.9],
    # the positives' .1+.6-.5=.2, .1+.4-.7<0, .1+.5-.3=.3 twice; row 0: .1+.4-.5=0, .1+.1+.1=.3;
    # row 1: .1+.6-.5=.2, .1+.65-.7=.05; row 2: .1+.9-.4=.6, .1+.2-.3=0
    'absolute_sum': [0.7, 0.25, 1.2],
    'absolute_max': [0.5, 0.2, 0.9],
}


@pytest.mark.parametrize('name', BY_HAND)
def test_by_hand(name):
    got = getattr(anchored, name)(SCORES, EYE, anchor_scores=ANCHOR)
    np.testing.assert_allclose(got, BY_HAND[name], atol=1e-6)


SOFT_BY_HAND = {
    # .5 tanh((1-.5)/.5)+.5-.25, and .5 tanh((1-1.25)/.5)+1.25-.5, which is mined although it costs less
    'relative_sum': (1.0, 0.6307971 + 0.5189414),
    'relative_max': (1.0, 0.5189414),
    # of the positive .25 tanh((.75-.5)/.25)+.5-.5; .25 tanh((.75+0)/.25)+.25-0, and .25 tanh((.75-.75)/.25)+0+.75
    'absolute_sum': (0.75, 2 * 0.1903985 + 0.4987637 + 0.75),
    'absolute_max': (0.75, 0.1903985 + 0.75),
}


@pytest.mark.parametrize('name', SOFT_BY_HAND)
def test_soft_margins_by_hand(name):
    extreme, want = SOFT_BY_HAND[name]
    scores, anchor = jnp.asarray([[0.5, 0.25, 0.0]]), jnp.asarray([[0.5, 0.0, -0.75]])
    got = getattr(anchored, name)(scores, EYE[:1], anchor_scores=anchor, margin=0.5, extreme=extreme)
    np.testing.assert_allclose(got, [want], rtol=1e-6)


def one_query(loss, scores, anchor_scores, **keywords):
    """The loss of one query whose first candidate is positive, and its gradients by the scores and the anchor's."""

    def value(scores, anchor_scores):
        first = jnp.asarray([[True] + [False] * (len(scores) - 1)])
        return loss(scores[None], first, anchor_scores=anchor_scores[None], **keywords)[0]

    result, gradients = jax.jit(jax.value_and_grad(value, argnums=(0, 1)))(
        jnp.asarray(scores), jnp.asarray(anchor_scores)
    )
    return float(result), *(gradient.tolist() for gradient in gradients)


@pytest.mark.parametrize(('loss', 'want'), [(anchored.relative_max, 0.75), (anchored.absolute_max, 0.75)])
def test_the_mined_negative_is_the_one_most_above_the_anchors(loss, want):
    # candidate 1 is the target's hardest, but only candidate 2 is above the anchor's score of it
    got = one_query(loss, [0.5, 0.25, 0.0], [0.5, 0.5, -0.25], margin=0.5)
    assert got == (want, [-1, 0, 1], [1, 0, -1])


def test_each_loss_counts_the_positive_as_the_paper_does():
    # the positive's hinge is 1 and the negatives' are 0
    scores, anchor = [0.0, -1.0, -1.0, -1.0], [0.75, 0.0, 0.0, 0.0]
    assert one_query(anchored.absolute_sum, scores, anchor, margin=0.5)[:2] == (3, [-3, 0, 0, 0])
    assert one_query(anchored.absolute_max, scores, anchor, margin=0.5)[:2] == (1, [-1, 0, 0, 0])
    assert one_query(anchored.relative_sum, scores, anchor, margin=0.5)[:2] == (0.75, [-3, 1, 1, 1])


def test_equation_13_both_ways():
    """The relative loss is not above the absolute one, and equal to it just where no two hinges differ in sign."""
    alpha, margin, seen = 0.3, 0.4, set()

    @jax.jit
    def gaps_of(*masked_scores, anchor_scores):
        keywords = {'anchor_scores': anchor_scores, 'margin': margin}
        sums = anchored.relative_sum(*masked_scores, **keywords), anchored.relative_max(*masked_scores, **keywords)
        keywords |= {'alpha': alpha}
        bounds = anchored.absolute_sum(*masked_scores, **keywords), anchored.absolute_max(*masked_scores, **keywords)
        return {'sum': bounds[0] - sums[0], 'max': bounds[1] - sums[1]}

    with jax.enable_x64(True):
        for seed in range(20):
            scores, positives, negatives, anchor = random_case(seed, several=1 + seed % 2)
            gaps = jax.device_get(gaps_of(scores, positives, negatives, anchor_scores=anchor))
            for q in range(QUERIES):
                p = min(np.flatnonzero(positives[q]), key=lambda c: scores[q, c])
                first = alpha * margin + anchor[q, p] - scores[q, p]
                seconds = (1 - alpha) * margin + (scores - anchor)[q][negatives[q]]
                for name, others in (('sum', seconds), ('max', [max(seconds)])):
                    opposite = any(first * second < 0 for second in others)
                    assert gaps[name][q] > 1e-9 if opposite else abs(gaps[name][q]) < 1e-12
                    seen.add((name, opposite))
    assert len(seen) == 4


def test_equation_13_of_pairs_in_both_directions():
    """Equal just where the pair's three items share their sign, of which 0 has either."""
    items = np.array(list(itertools.product([-0.5, 0.0, 0.5], [-0.25, 0.0, 0.25], [-0.25, 0.0, 0.25])))
    first, *seconds = items.T

    def both_directions(loss):
        # the items are .25 + 0 - (.25 - first) and .25 + (second - .25) - 0
        rows = [jnp.asarray(np.stack([0.25 - first, second - 0.25], axis=1)) for second in seconds]
        positives = jnp.tile(EYE[:1, :2], (len(items), 1))
        return sum(loss(row, positives, anchor_scores=jnp.zeros_like(row), margin=0.5) for row in rows)

    relative, absolute = (np.asarray(both_directions(loss)) for loss in (anchored.relative_max, anchored.absolute_max))
    assert (relative <= absolute).all()
    share = (first * seconds[0] >= 0) & (first * seconds[1] >= 0)
    assert 0 < share.sum() < len(items)
    np.testing.assert_array_equal(relative == absolute, share)


# Of a loss the row of scores of p and n, the anchor's row where its measure is y, and the constants, such that the
# value is the soft margin of y, y and 9.
SOFT_MARGINS = {
    'RM': (anchored.relative_max, (-9.0, 0.0), lambda y: (y, 0 * y), {}),
    'AM, positive': (anchored.absolute_max, (-9.0, -9.0), lambda y: (y, 0 * y), {'alpha': 1.0}),
    'AM, negative': (anchored.absolute_max, (9.0, 9.0), lambda y: (0 * y, -y), {'alpha': 0.0}),
}


def soft_margin(name, y, margin, extreme):
    """The soft margins at y [N], and their slopes."""
    loss, scores, anchor, keywords = SOFT_MARGINS[name]
    scores = jnp.tile(jnp.asarray(scores, y.dtype), (len(y), 1))
    positives = jnp.tile(jnp.asarray([True, False]), (len(y), 1))

    def values(y):
        anchor_scores = jnp.stack(anchor(y), axis=1)
        return loss(scores, positives, anchor_scores=anchor_scores, margin=margin, extreme=extreme, **keywords) - y - 9

    return jax.jit(lambda y: (values(y), jax.grad(lambda y: values(y).sum())(y)))(y)


@pytest.mark.parametrize('margin', [0.1, 0.5])
@pytest.mark.parametrize('extreme', [1.0, 2.0])
@pytest.mark.parametrize('name', SOFT_MARGINS)
def test_soft_margin_approaches_the_extreme(name, margin, extreme):
    """Equation 16: at the extreme d the margin is 0 and falls like d - y, which it does not exceed before."""
    with jax.enable_x64(True):
        y = jnp.linspace(-extreme, extreme, 9)
        value, slope = soft_margin(name, y, margin, extreme)
        np.testing.assert_allclose([value[-1], slope[-1]], [0, -1], atol=1e-12)
        assert (value[:-1] > 0).all()
        assert (value[:-1] <= np.minimum(margin, extreme - y[:-1]) + 1e-12).all()
        np.testing.assert_allclose(value, [soft(at, margin, extreme) for at in y.tolist()], atol=1e-12)


@pytest.mark.parametrize('name', SOFT_MARGINS)
def test_soft_margins_far_from_the_extreme_are_the_fixed_ones(name):
    y = jnp.asarray([-3.0, 0.0, 3.0])
    for margin in (1e-3, 0.2):
        value, slope = soft_margin(name, y, margin, 1e6)
        np.testing.assert_allclose(value, np.full(3, margin), atol=2e-6)
        np.testing.assert_array_equal(slope, 0)


@pytest.mark.parametrize('loss', [anchored.absolute_sum, anchored.absolute_max])
@pytest.mark.parametrize('alpha', [0.0, 1.0])
def test_the_soft_margin_of_nothing_is_nothing(loss, alpha):
    # of both hinges one has the whole margin, and for scores near 0 soft is fixed
    scores, anchor = [0.0, 0.125], [0.25, 0.0]
    want = one_query(loss, scores, anchor, margin=0.0625, alpha=alpha)
    assert want == (0.4375, [-1, 1], [1, -1])
    assert one_query(loss, scores, anchor, margin=0.0625, alpha=alpha, extreme=2.0) == want


@pytest.mark.parametrize('loss', [anchored.relative_sum, anchored.relative_max])
def test_a_margin_of_zero_is_never_soft(loss):
    want = (0.375, [-1, 1], [1, -1])
    assert one_query(loss, [0.0, 0.125], [0.25, 0.0], margin=0.0, extreme=0.25) == want


# The anchor's scores of query n put the candidates in the n-th of all orders of four.
ORDERS = list(itertools.permutations(range(4)))
RANKED = -0.1 * jnp.argsort(jnp.asarray(ORDERS), axis=1)
FIRST = jnp.tile(jnp.arange(4) == 0, (len(ORDERS), 1))


def test_probabilities_of_all_orders_sum_to_one():
    with jax.enable_x64(True):
        target, anchor = (jnp.asarray(x) for x in np.random.default_rng(0).normal(scale=0.1, size=(2, 4)))

        @jax.jit
        def log_likelihoods(scores):
            # the hard form of x is the soft form's likelihood of s = -.3 x^3, for the candidates above the lowest
            rows = jnp.tile(jnp.append(jnp.cbrt(-scores / 0.3), 0), (len(ORDERS), 1))
            first, anchor = (
                jnp.pad(x, [(0, 0), (0, 1)], constant_values=y) for x, y in ((FIRST, False), (-RANKED, -1))
            )
            return -distillation.rank_distillation(rows, first, anchor_scores=anchor, hard=True)

        of_target, of_anchor = log_likelihoods(target), log_likelihoods(anchor)
        np.testing.assert_allclose([jnp.exp(of_target).sum(), jnp.exp(of_anchor).sum()], 1, rtol=1e-12)
        got = compiled('rank_distillation')(target[None], FIRST[:1], None, anchor[None])
        np.testing.assert_allclose(got, [jnp.sum(jnp.exp(of_anchor) * (of_anchor - of_target))], rtol=1e-9)
        np.testing.assert_array_equal(compiled('rank_distillation')(RANKED, FIRST, None, RANKED), 0)


def test_the_likelihood_of_an_order_by_hand():
    # powers 4, 2, 1 in the anchor's order from its second lowest score on: 4/7 2/3 1/1
    scores, anchor = jnp.cbrt(-jnp.log(jnp.asarray([[9.0, 2.0, 1.0, 4.0]])) / 3), jnp.asarray([[-0.9, 0.1, 0.5, -0.5]])
    got = distillation.rank_distillation(scores, FIRST[:1], anchor_scores=anchor, hard=True)
    np.testing.assert_allclose(got, [-math.log(8 / 21)], rtol=1e-6)


def test_the_orders_of_two_are_a_coin():
    # the anchor takes 0 before 1 with 3/4, the target with 1/2
    scores, anchor = jnp.asarray([[0.3, 0.3]]), 0.5 * jnp.log(jnp.asarray([[3.0, 1.0]]))
    got = distillation.rank_distillation(scores, EYE[:1, :2], anchor_scores=anchor, temperature=0.5)
    np.testing.assert_allclose(got, [0.75 * math.log(1.5) + 0.25 * math.log(0.5)], rtol=1e-5)


@pytest.mark.parametrize('name', ['rank_distillation', 'rank_distillation, hard'])
def test_the_orders_of_fewer_candidates_than_the_length(name):
    """Row n has n + 2 candidates, in any places, and costs what they cost alone."""
    with jax.enable_x64(True):
        scores, _, _, anchor = (x[:3] for x in random_case(0))
        candidates = np.array([[0, 1, 0, 0, 1, 0, 0], [1, 0, 0, 1, 0, 0, 1], [0, 1, 1, 0, 1, 1, 0]], bool)
        positives = np.cumsum(candidates, axis=1) * candidates == 1
        case = scores, positives, candidates & ~positives, anchor
        np.testing.assert_allclose(compiled(name)(*case), expected(name, *case), rtol=1e-9)
        for gradient in gradients_of(name)(*case):
            assert np.isfinite(gradient).all()
            np.testing.assert_array_equal(gradient[~candidates], 0)


def test_relational_distillation_by_hand():
    # distances .5 and 3: the mean of .125 and 2.5; 10 times the mean over the matrix is both directions' at weight 5
    got = one_query(distillation.relational_distillation, [0.5, -2.0], [0.0, 1.0])
    assert got == (1.3125, [0.25, -0.5], [-0.25, 0.5])
    distances = np.abs(np.asarray(SCORES) - 3 * np.asarray(ANCHOR))
    published = 10 * np.where(distances < 1, distances**2 / 2, distances - 0.5).mean()
    directions = [(SCORES, 3 * ANCHOR), (SCORES.T, 3 * ANCHOR.T)]
    both = [distillation.relational_distillation(s, EYE, anchor_scores=a).mean() for s, a in directions]
    np.testing.assert_allclose(5 * sum(both), published, rtol=1e-6)


def test_similarity_preserving_by_hand_and_of_any_scale():
    # (.6, .8) and (1, 0): the sum of .16 and .64
    for scale in (0.1, 10.0):
        got = distillation.similarity_preserving(
            jnp.asarray([[3.0, 4.0]]) * scale, EYE[:1, :2], anchor_scores=jnp.asarray([[2.0, 0.0]])
        )
        np.testing.assert_allclose(got, [0.8], rtol=1e-6)


def test_similarity_preserving_has_the_released_scale():
    def direction(scores, anchor):
        units = [
            [[x / math.hypot(*row) for x in row] for row in np.asarray(rows).tolist()] for rows in (scores, anchor)
        ]
        return np.mean([sum((s - a) ** 2 for s, a in zip(*rows, strict=True)) for rows in zip(*units, strict=True)])

    config = dbl.get_config('baseline,sp,oas,f30k')
    term = config.terms.similarity_preserving
    directions = [(SCORES, ANCHOR), (SCORES.T, ANCHOR.T)]
    both = [distillation.similarity_preserving(s, EYE, anchor_scores=a).mean() for s, a in directions]
    assert term.reduction == 'mean'
    np.testing.assert_allclose(term.weight * sum(both), 10 * sum(direction(*pair) for pair in directions), rtol=1e-5)


# With the score .5 log(p) and the temperature .5 the softmax is p.
HALVES, FOURTHS = (0.5 * jnp.log(jnp.asarray([p])) for p in ([0.5, 0.25, 0.25], [0.25, 0.25, 0.5]))


def test_softmaxes_by_hand():
    keywords = {'anchor_scores': FOURTHS, 'temperature': 0.5}
    # .25 log(.25/.5) + 0 + .5 log(.5/.25)
    got = distillation.mutual_learning(HALVES, EYE[:1], **keywords)
    np.testing.assert_allclose(got, [0.25 * math.log(2)], rtol=1e-5)
    # -.25 log .5 - .25 log .25 - .5 log .25, the same the other way
    got = distillation.self_distillation(HALVES, EYE[:1], **keywords)
    np.testing.assert_allclose(got, [1.75 * math.log(2)], rtol=1e-6)
    # .5 log(.5/.25) + 0 + .25 log(.25/.5)
    got = distillation.self_distillation(HALVES, EYE[:1], **keywords, inverse=True, subtract_entropy=True)
    np.testing.assert_allclose(got, [0.25 * math.log(2)], rtol=1e-5)


def test_self_distillation_is_mutual_learning_and_an_entropy():
    with jax.enable_x64(True):
        scores, positives, negatives, anchor = map(jnp.asarray, random_case(0))
        candidates = np.asarray(positives | negatives)

        def entropy(scores):
            rows = zip(scores, candidates, strict=True)
            softmaxes = [softmax(np.asarray(row)[present].tolist(), 0.1) for row, present in rows]
            return np.array([-sum(p * math.log(p) for p in powers) for powers in softmaxes])

        valid = np.asarray(positives.any(axis=1) & negatives.any(axis=1))
        assert valid.all()
        divergence = distillation.mutual_learning(scores, positives, negatives, anchor_scores=anchor)
        got = distillation.self_distillation(scores, positives, negatives, anchor_scores=anchor)
        np.testing.assert_allclose(got - divergence, entropy(anchor), atol=1e-12)
        divergence = distillation.mutual_learning(anchor, positives, negatives, anchor_scores=scores)
        got = distillation.self_distillation(scores, positives, negatives, anchor_scores=anchor, inverse=True)
        np.testing.assert_allclose(got - divergence, entropy(scores), atol=1e-12)


@pytest.mark.parametrize('name', ['rank_distillation', 'mutual_learning', 'self_distillation'])
def test_softmaxes_bear_a_low_temperature(name):
    keywords = CASES[name].keywords | {'temperature': 1e-3}
    value, *gradients = one_query(CASES[name].loss, [-1.0, 1.0, 1.0, 0.0], [1.0, -1.0, 0.5, 1.0], **keywords)
    assert np.isfinite(value)
    assert np.isfinite(gradients).all()


@pytest.mark.parametrize('name', [name for name in CASES if 'soft' in name])
def test_soft_margins_bear_a_small_margin(name):
    value, *gradients = one_query(CASES[name].loss, [0.0, 1.0, -1.0], [1.0, -1.0, 1.0], margin=1e-6, extreme=2.0)
    assert value > 0
    assert np.isfinite(gradients).all()
