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
    # the margins are .3, .5; .2, 0; -.7, .3
    # row 0: .3+.4-.5=.2, .5+.1-.5=.1; row 1: .2+.6-.7=.1, .65-.7<0; row 2: -.7+.9-.3<0, .3+.2-.3=.2
    'adaptive_margin': (
        {'relevance': [[3, 1.5, 0.5], [0, 1, 1], [4.5, -0.5, 1]], 'temperature': 5},
        [0.3, 0.1, 0.2],
    ),
}


@pytest.mark.parametrize('name', BY_HAND)
def test_by_hand(name):
    keywords, want = BY_HAND[name]
    np.testing.assert_allclose(getattr(ranking, name)(SCORES, EYE, **keywords), want, atol=1e-6)


def one_query(loss, positives, negatives, **keywords):
    """The loss of one query with these scores, and its gradient."""
    scores = jnp.asarray([positives + negatives])
    is_positive = jnp.asarray([[True] * len(positives) + [False] * len(negatives)])
    value, gradient = jax.value_and_grad(lambda s: loss(s, is_positive, **keywords)[0])(scores)
    return float(value), gradient[0].tolist()


def test_sigmoid_contrastive_learns_its_temperature_and_bias():
    scores, positives, negatives = random_case(0)
    with jax.enable_x64(True):

        def total(learned):
            keywords = {'temperature': learned[0], 'bias': learned[1]}
            return ranking.sigmoid_contrastive(jnp.asarray(scores), positives, negatives, **keywords).sum()

        learned = jnp.asarray([0.3, -1.5])
        np.testing.assert_allclose(jax.grad(total)(learned), central_differences(total, learned), rtol=1e-6)


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


def test_the_gradient_of_tied_negatives_goes_to_the_first():
    scores = jnp.asarray([[0.5, 0.4, 0.4]])
    positives = jnp.asarray([[True, False, False]])
    gradient = jax.grad(lambda s: ranking.max_of_hinges(s, positives, margin=0.2).sum())(scores)
    np.testing.assert_array_equal(gradient, [[-1, 1, 0]])
