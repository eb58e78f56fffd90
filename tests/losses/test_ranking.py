import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.losses import ranking


def hinge(positive, negative, margin):
    return max(0.0, margin + negative - positive)


# The formulas for one query as loops over Python floats, which are float64: the scores of its positives and of its
# negatives, neither empty, then the loss' keywords, of [Q, C] arrays the values at the query's negatives.


def sum_of_hinges(own, others, margin):
    return sum(hinge(min(own), other, margin) for other in others)


def mean_of_hinges(own, others, margin):
    return sum(hinge(min(own), other, margin) for other in others) / len(others)


def max_of_hinges(own, others, margin):
    return max(hinge(min(own), other, margin) for other in others)


def semi_hard_hinge(own, others, margin):
    easier = [other for other in others if other < min(own)]
    return hinge(min(own), max(easier), margin) if easier else 0.0


def selective_contrastive(own, others, margin):
    return hinge(min(own), max(others), margin) if max(others) < min(own) else max(others)


def selective_hard_negative(own, others, margin, epsilon):
    if abs(max(others) - min(own)) > epsilon:
        return max_of_hinges(own, others, margin)
    return mean_of_hinges(own, others, margin)


def polynomial(own, others, margin):
    own = [score for score in own if score < 1 - 1e-5]
    others = [other for other in others if own and other + margin > min(own)]
    if not others:
        return 0.0
    value = max(0.0, 0.2 * min(own) ** 2 - 0.7 * min(own) + 0.5)
    return value + max(0.0, 0.9 * max(others) ** 2 - 0.4 * max(others) + 0.03)


def adaptive_margin(own, others, margins):
    return sum(hinge(min(own), other, margin) for other, margin in zip(others, margins, strict=True))


def projection_matching(own, others, temperature):
    powers = [math.exp(score / temperature) for score in own + others]
    truth = [1 / len(own)] * len(own) + [0.0] * len(others)
    predicted = [power / sum(powers) for power in powers]
    return sum(p * math.log(1e-8 + p / (q + 1e-8)) for p, q in zip(predicted, truth, strict=True))


def softmax_contrastive(own, others, temperature, label_smoothing=0.0):
    total = sum(math.exp(score / temperature) for score in own + others)
    losses = [-math.log(math.exp(score / temperature) / total) for score in own + others]
    smooth = label_smoothing * sum(losses) / len(losses)
    return (1 - label_smoothing) * sum(losses[: len(own)]) / len(own) + smooth


def sigmoid_contrastive(own, others, temperature, bias):
    matches = [math.log(1 + math.exp(-score / temperature - bias)) for score in own]
    return sum(matches) + sum(math.log(1 + math.exp(score / temperature + bias)) for score in others)


def matching_of_logits(own, others):
    matches = [-math.log(1 / (1 + math.exp(-logit))) for logit in own]
    mismatches = [-math.log(1 - 1 / (1 + math.exp(-logit))) for logit in others]
    return (sum(matches) / len(matches) + sum(mismatches) / len(mismatches)) / 2


class Case(NamedTuple):
    loss: Callable
    keywords: dict[str, Any]
    oracle: Callable
    oracle_keywords: dict[str, Any] | None = None


QUERIES = CANDIDATES = 7
MARGINS = np.random.default_rng(100).normal(scale=0.3, size=(QUERIES, CANDIDATES))
CASES = {
    'sum_of_hinges': Case(ranking.sum_of_hinges, {'margin': 0.2}, sum_of_hinges),
    'mean_of_hinges': Case(ranking.mean_of_hinges, {'margin': 0.2}, mean_of_hinges),
    'max_of_hinges': Case(ranking.max_of_hinges, {'margin': 0.2}, max_of_hinges),
    'semi_hard_hinge': Case(ranking.semi_hard_hinge, {'margin': 0.4}, semi_hard_hinge),
    'selective_contrastive': Case(ranking.selective_contrastive, {'margin': 0.4}, selective_contrastive),
    'selective_hard_negative': Case(
        ranking.selective_hard_negative, {'margin': 0.2, 'epsilon': 0.4}, selective_hard_negative
    ),
    'polynomial': Case(ranking.polynomial, {'margin': 0.2}, polynomial),
    'adaptive_margin': Case(ranking.adaptive_margin, {'margins': MARGINS}, adaptive_margin),
    'projection_matching': Case(ranking.projection_matching, {'temperature': 0.3}, projection_matching),
    'softmax_contrastive': Case(ranking.softmax_contrastive, {'temperature': 0.3}, softmax_contrastive),
    'smoothed_softmax': Case(
        ranking.softmax_contrastive, {'temperature': 0.3, 'label_smoothing': 0.1}, softmax_contrastive
    ),
    'sigmoid_contrastive': Case(ranking.sigmoid_contrastive, {'temperature': 0.3, 'bias': -1.5}, sigmoid_contrastive),
    'matching_cross_entropy': Case(
        lambda scores, *masks: ranking.matching_cross_entropy(jax.nn.sigmoid(scores), *masks), {}, matching_of_logits
    ),
}


def loss_of(name, dtype=None):
    """The loss `(scores, positives, negatives) -> [Q]`, its arrays of a dtype."""
    loss, keywords, *_ = CASES[name]
    keywords = {
        key: jnp.asarray(value, dtype) if isinstance(value, np.ndarray) else value for key, value in keywords.items()
    }
    return lambda scores, positives, negatives: loss(scores, positives, negatives, **keywords)


def expected(name, scores, positives, negatives):
    """The oracle's value of every query, 0 for those without a positive or a negative."""
    _, keywords, oracle, oracle_keywords = CASES[name]
    result = []
    for row in range(len(scores)):
        arguments = {
            key: value[row][negatives[row]].tolist() if isinstance(value, np.ndarray) else value
            for key, value in (oracle_keywords or keywords).items()
        }
        own, others = scores[row][positives[row]].tolist(), scores[row][negatives[row]].tolist()
        result.append(oracle(own, others, **arguments) if own and others else 0.0)
    return np.array(result)


def random_case(seed, positives_per_query=1):
    rng = np.random.default_rng(seed)
    scores = rng.normal(scale=0.7, size=(QUERIES, CANDIDATES))
    positives = np.zeros((QUERIES, CANDIDATES), bool)
    for row in positives:
        row[rng.permutation(CANDIDATES)[:positives_per_query]] = True
    return scores, positives, ~positives & (rng.random((QUERIES, CANDIDATES)) < 0.8)


def central_differences(function, x, step=1e-6):
    """The numerical gradient; chex.assert_numerical_grads takes a wrong stop_gradient for right."""
    steps = step * jnp.eye(x.size).reshape(-1, *x.shape)
    return jax.vmap(lambda d: (function(x + d) - function(x - d)) / (2 * step))(steps).reshape(x.shape)


@functools.cache
def compiled(name, dtype):
    """The loss, compiled once for all tests with scores of a dtype."""
    return jax.jit(lambda *case: loss_of(name, dtype)(*case))


@functools.cache
def compiled_gradients(name, dtype):
    """The sum of the loss, its gradient, and the numerical one, as functions of scores, positives and negatives."""

    def total(scores, positives, negatives):
        return loss_of(name, dtype)(scores, positives, negatives).sum()

    def numerical(scores, positives, negatives):
        return central_differences(lambda s: total(s, positives, negatives), scores)

    return jax.jit(jax.value_and_grad(total)), jax.jit(numerical)


@pytest.fixture(params=CASES)
def name(request):
    return request.param


def test_equals_the_formula_in_float64(name):
    with jax.enable_x64(True):
        for several in (1, 2, 3):
            for seed in range(20):
                case = random_case(seed, positives_per_query=several)
                got = compiled(name, jnp.float64)(*case)
                assert got.dtype == jnp.float64
                np.testing.assert_allclose(got, expected(name, *case), rtol=1e-11, atol=1e-13)


def test_keeps_the_dtype_of_the_scores(name):
    scores, positives, negatives = random_case(0)
    with jax.enable_x64(True):
        for dtype in (jnp.float32, jnp.bfloat16):
            got = jax.eval_shape(loss_of(name, dtype), jnp.asarray(scores, dtype), positives, negatives)
            assert got.dtype == dtype


def test_equals_the_formula_without_jit(name):
    scores, positives, negatives = random_case(0)
    got = loss_of(name)(jnp.asarray(scores, jnp.float32), positives, negatives)
    np.testing.assert_allclose(got, expected(name, scores, positives, negatives), rtol=1e-5, atol=1e-6)


def test_vmap_equals_a_loop(name):
    cases = [random_case(seed) for seed in range(4)]
    cases = [(scores.astype(np.float32), *masks) for scores, *masks in cases]
    got = jax.jit(jax.vmap(loss_of(name)))(*map(np.stack, zip(*cases, strict=True)))
    want = [compiled(name, jnp.float32)(*case) for case in cases]
    np.testing.assert_allclose(got, jnp.stack(want), rtol=1e-5, atol=1e-6)


def test_gradient_equals_finite_differences(name):
    with jax.enable_x64(True):
        value_and_gradient, numerical = compiled_gradients(name, jnp.float64)
        for several in (1, 2):
            for seed in range(4):
                case = random_case(seed, positives_per_query=several)
                np.testing.assert_allclose(value_and_gradient(*case)[1], numerical(*case), atol=1e-6)


def test_queries_without_positive_or_negative_are_0(name):
    scores, positives, negatives = random_case(1)
    positives[0], negatives[1], positives[2], negatives[2] = False, False, False, False
    case = scores.astype(np.float32), positives, negatives
    value, gradient = compiled_gradients(name, jnp.float32)[0](*case)
    np.testing.assert_array_equal(compiled(name, jnp.float32)(*case)[:3], 0)
    np.testing.assert_array_equal(gradient[:3], 0)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


SCORES = jnp.asarray([[0.5, 0.4, 0.1], [0.6, 0.7, 0.65], [0.9, 0.2, 0.3]])
EYE = jnp.eye(3, dtype=bool)
BY_HAND = {
    # row 0: .2+.4-.5=.1, .2+.1-.5<0; row 1: .2+.6-.7=.1, .2+.65-.7=.15; row 2: .2+.9-.3=.8, .2+.2-.3=.1
    'sum_of_hinges': ({'margin': 0.2}, [0.1, 0.25, 0.9]),
    'mean_of_hinges': ({'margin': 0.2}, [0.05, 0.125, 0.45]),
    'max_of_hinges': ({'margin': 0.2}, [0.1, 0.15, 0.8]),
    # row 2: .9 is above the positive .3, so .2 is mined
    'semi_hard_hinge': ({'margin': 0.2}, [0.1, 0.15, 0.1]),
    'selective_contrastive': ({'margin': 0.2}, [0.1, 0.15, 0.9]),
    # the gaps are .1, .05 and .6, so row 1 averages .1 and .15
    'selective_hard_negative': ({'margin': 0.2, 'epsilon': 0.07}, [0.1, 0.125, 0.8]),
    # row 0: .2*.25-.7*.5+.5=.2, .9*.16-.4*.4+.03=.014; row 1: .108, .15025; row 2: .308, .399
    'polynomial': ({'margin': 0.2}, [0.214, 0.25825, 0.707]),
    # row 0: .3+.4-.5=.2, .5+.1-.5=.1; row 1: .2+.6-.7=.1, .65-.7<0; row 2: -.7+.9-.3<0, .3+.2-.3=.2
    'adaptive_margin': ({'margins': jnp.asarray([[9, 0.3, 0.5], [0.2, 9, 0], [-0.7, 0.3, 9]])}, [0.3, 0.1, 0.2]),
}


@pytest.mark.parametrize('name', BY_HAND)
def test_by_hand(name):
    keywords, want = BY_HAND[name]
    np.testing.assert_allclose(CASES[name].loss(SCORES, EYE, **keywords), want, atol=1e-6)


# With the score .5 log(p) and the temperature .5 the softmax is p.
HALVES = 0.5 * jnp.log(jnp.asarray([[0.5, 0.25, 0.25]]))


@pytest.mark.parametrize(
    ('loss', 'positives', 'want'),
    [
        # q = (1, 0, 0): .5 log .5 + 2 * .25 log(.25 * 1e8)
        (ranking.projection_matching, [True, False, False], 8.1706204),
        # q = (.5, .5, 0): .5 log 1 + .25 log .5 + .25 log(.25 * 1e8)
        (ranking.projection_matching, [True, True, False], 4.0853102),
        # -log .5
        (ranking.softmax_contrastive, [True, False, False], 0.6931472),
        # the mean of -log .5 and -log .25
        (ranking.softmax_contrastive, [True, True, False], 1.0397208),
    ],
)
def test_softmaxes_by_hand(loss, positives, want):
    np.testing.assert_allclose(loss(HALVES, jnp.asarray([positives]), temperature=0.5), [want], rtol=1e-6)


def one_query(loss, positives, negatives, **keywords):
    """The loss of one query with these scores, and its gradient."""
    scores = jnp.asarray([positives + negatives])
    is_positive = jnp.asarray([[True] * len(positives) + [False] * len(negatives)])
    value, gradient = jax.value_and_grad(lambda s: loss(s, is_positive, **keywords)[0])(scores)
    return float(value), gradient[0].tolist()


def test_sigmoid_contrastive_by_hand():
    # the logits 2 * .5 - 1 = 0 and 2 * 1.5 - 1 = 2: log 2 and log(1 + e^2), with the slopes -2 / 2 and 2 sigmoid(2)
    value, gradient = one_query(ranking.sigmoid_contrastive, [0.5], [1.5], temperature=0.5, bias=-1.0)
    np.testing.assert_allclose([value, *gradient], [0.6931472 + 2.126928, -1, 1.7615942], rtol=1e-6)


def test_sigmoid_contrastive_learns_its_temperature_and_bias():
    scores, positives, negatives = random_case(0)
    with jax.enable_x64(True):

        def total(learned):
            keywords = {'temperature': learned[0], 'bias': learned[1]}
            return ranking.sigmoid_contrastive(jnp.asarray(scores), positives, negatives, **keywords).sum()

        learned = jnp.asarray([0.3, -1.5])
        np.testing.assert_allclose(jax.grad(total)(learned), central_differences(total, learned), rtol=1e-6)


def test_sigmoid_contrastive_counts_a_pair_once_per_direction():
    keywords = {'temperature': 0.1, 'bias': -10.0}
    logits = SCORES / 0.1 - 10
    published = -jnp.sum(jax.nn.log_sigmoid(jnp.where(EYE, logits, -logits))) / len(SCORES)
    for scores in (SCORES, SCORES.T):
        np.testing.assert_allclose(ranking.sigmoid_contrastive(scores, EYE, **keywords).mean(), published, rtol=1e-6)


def test_mean_of_hinges_divides_by_the_number_of_negatives():
    # .2+.8-.9 = .1 and 0
    value, gradient = one_query(ranking.mean_of_hinges, [0.9], [0.8, 0.3], margin=0.2)
    np.testing.assert_allclose([value, *gradient], [0.05, -0.5, 0.5, 0], atol=1e-7)
    scores = jnp.asarray([[0.9, 0.8, 0.3]] * 4)
    positives = jnp.asarray([[True, False, False]] * 3 + [[False] * 3])
    negatives = jnp.asarray([[False, True, True], [False, True, False], [False] * 3, [False, True, True]])
    got = ranking.mean_of_hinges(scores, positives, negatives, margin=0.2)
    np.testing.assert_allclose(got, [0.05, 0.1, 0, 0], atol=1e-7)


def test_matching_cross_entropy_by_hand():
    # of several positives and negatives the means: -log .5 and -log .25, then -log(1 - .75) and -log(1 - .5)
    value, gradient = one_query(ranking.matching_cross_entropy, [0.5, 0.25], [0.75, 0.5])
    np.testing.assert_allclose(value, (1.0397208 + 1.0397208) / 2, rtol=1e-6)
    np.testing.assert_allclose(gradient, [-0.5, -1, 1, 0.5], rtol=1e-6)


def test_matching_cross_entropy_bears_certain_mistakes():
    value, gradient = one_query(ranking.matching_cross_entropy, [0.0], [1.0])
    np.testing.assert_allclose(value, 10 * math.log(10), rtol=1e-6)
    assert gradient == [0, 0]
    value, gradient = one_query(ranking.matching_cross_entropy, [1.0], [0.0])
    assert (value, gradient) == (0, [-0.5, 0.5])


def test_semi_hard_hinge_is_0_without_easier_negatives():
    assert one_query(ranking.semi_hard_hinge, [0.5], [0.5, 0.75], margin=0.25) == (0, [0, 0, 0])


def test_selective_contrastive_only_pushes_a_hard_negative():
    assert one_query(ranking.selective_contrastive, [0.5], [0.75, 0.25], margin=0.25) == (0.75, [0, 1, 0])
    assert one_query(ranking.selective_contrastive, [0.5], [0.5, 0.25], margin=0.25) == (0.5, [0, 1, 0])
    assert one_query(ranking.selective_contrastive, [-0.5], [-0.25], margin=0.25) == (-0.25, [0, 1])


def test_selective_hard_negative_averages_at_a_gap_of_epsilon():
    keywords = {'margin': 0.5, 'epsilon': 0.25}
    assert one_query(ranking.selective_hard_negative, [0.5], [0.25, 0.125], **keywords) == (0.1875, [-1, 0.5, 0.5])
    assert one_query(ranking.selective_hard_negative, [0.5], [0.125, 0.0], **keywords) == (0.125, [-1, 1, 0])
    assert one_query(ranking.selective_hard_negative, [0.5], [1.0, 0.5], **keywords) == (1.0, [-1, 1, 0])


def test_polynomial_is_0_outside_of_its_range():
    assert one_query(ranking.polynomial, [1.0], [0.9], margin=0.2) == (0, [0, 0])
    assert one_query(ranking.polynomial, [0.5], [0.1], margin=0.2) == (0, [0, 0])
    # between .0955 and .349 a negative costs nothing: .2*.25^2-.7*.25+.5 of the positive, whose slope is .4*.25-.7
    value, gradient = one_query(ranking.polynomial, [0.25], [0.2], margin=0.2)
    np.testing.assert_allclose([value, *gradient], [0.3375, -0.6, 0], rtol=1e-6)


@pytest.mark.parametrize('name', ['projection_matching', 'softmax_contrastive', 'sigmoid_contrastive'])
def test_softmaxes_bear_a_low_temperature(name):
    value, gradient = one_query(CASES[name].loss, [-1.0], [1.0, 1.0], **CASES[name].keywords | {'temperature': 1e-3})
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


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
