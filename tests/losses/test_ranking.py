import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.losses import distillation, ranking
from tests.support.score_cases import central_differences, random_case

ANCHOR = {'anchor_scores': jnp.asarray([[1.0, -1.0, 0.5, 1.0]])}


def one_query(loss, positives, negatives, **keywords):
    """The loss of one query with these scores, and its gradient."""
    scores = jnp.asarray([positives + negatives])
    is_positive = jnp.asarray([[True] * len(positives) + [False] * len(negatives)])
    value, gradient = jax.value_and_grad(lambda s: loss(s, is_positive, **keywords)[0])(scores)
    return float(value), gradient[0].tolist()


@pytest.mark.slow
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
    ('loss', 'keywords'),
    [
        (ranking.projection_matching, {}),
        (ranking.softmax_contrastive, {}),
        (ranking.sigmoid_contrastive, {'bias': -1.5}),
        (distillation.rank_distillation, ANCHOR),
        (distillation.mutual_learning, ANCHOR),
        (distillation.self_distillation, ANCHOR),
    ],
)
def test_softmaxes_bear_a_low_temperature(loss, keywords):
    value, gradient = one_query(loss, [-1.0], [1.0, 1.0, 0.0], temperature=1e-3, **keywords)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_the_gradient_of_tied_negatives_goes_to_the_first():
    scores = jnp.asarray([[0.5, 0.4, 0.4]])
    positives = jnp.asarray([[True, False, False]])
    gradient = jax.grad(lambda s: ranking.max_of_hinges(s, positives, margin=0.2).sum())(scores)
    np.testing.assert_array_equal(gradient, [[-1, 1, 0]])
