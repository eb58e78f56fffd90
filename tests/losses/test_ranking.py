import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.losses import ranking
from tests.losses.test_formulas import central_differences, random_case

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
    np.testing.assert_allclose(getattr(ranking, name)(SCORES, EYE, **keywords), want, atol=1e-6)


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


@pytest.mark.parametrize(
    ('name', 'keywords'),
    [('projection_matching', {}), ('softmax_contrastive', {}), ('sigmoid_contrastive', {'bias': -1.5})],
)
def test_softmaxes_bear_a_low_temperature(name, keywords):
    value, gradient = one_query(getattr(ranking, name), [-1.0], [1.0, 1.0], temperature=1e-3, **keywords)
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
