import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.configs import dbl
from jitm.losses import anchored, distillation
from tests.losses import formulas
from tests.losses.test_formulas import random_case

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


@pytest.mark.parametrize('loss', [anchored.relative_max, anchored.absolute_max])
def test_rounding_does_not_choose_the_negative_beside_a_copy(loss):
    scores, masks = 4 * jax.random.uniform(jax.random.key(0), (6, 6)), jnp.eye(6, dtype=bool)
    rounding = 4e-7 * jax.random.uniform(jax.random.key(1), (20, *scores.shape), minval=-1)

    def gradient(anchor_scores):
        return jax.grad(lambda scores: loss(scores, masks, anchor_scores=anchor_scores).sum())(scores)

    chosen = jax.vmap(gradient)(scores + rounding) > 0
    hardest = jnp.argmax(jnp.where(masks, -jnp.inf, scores), axis=1)
    np.testing.assert_array_equal(chosen, jnp.broadcast_to(jax.nn.one_hot(hardest, 6), chosen.shape))


def test_each_loss_counts_the_positive_as_the_paper_does():
    # the positive's hinge is 1 and the negatives' are 0
    scores, anchor = [0.0, -1.0, -1.0, -1.0], [0.75, 0.0, 0.0, 0.0]
    assert one_query(anchored.absolute_sum, scores, anchor, margin=0.5)[:2] == (3, [-3, 0, 0, 0])
    assert one_query(anchored.absolute_max, scores, anchor, margin=0.5)[:2] == (1, [-1, 0, 0, 0])
    assert one_query(anchored.relative_sum, scores, anchor, margin=0.5)[:2] == (0.75, [-3, 1, 1, 1])


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
        np.testing.assert_allclose(value, [formulas.soft(at, margin, extreme) for at in y.tolist()], atol=1e-12)


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


@pytest.mark.parametrize('hard', [False, True])
def test_the_orders_of_fewer_candidates_than_the_length(hard):
    """Row n has n + 2 candidates, in any places, and costs what they cost alone."""
    scores, anchor = (random_case(seed)[0][:3] for seed in (0, 1))
    candidates = np.array([[0, 1, 0, 0, 1, 0, 0], [1, 0, 0, 1, 0, 0, 1], [0, 1, 1, 0, 1, 1, 0]], bool)
    positives = np.cumsum(candidates, axis=1) * candidates == 1
    masks = positives, candidates & ~positives

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def loss(scores, anchor):
        values = distillation.rank_distillation(scores, *masks, anchor_scores=anchor, hard=hard)
        return values.sum(), values

    with jax.enable_x64(True):
        (_, values), gradients = loss(scores, anchor)
        formula = functools.partial(formulas.rank_distillation, hard=hard)
        np.testing.assert_allclose(
            values, formulas.of_queries(formula, scores, *masks, anchor_scores=anchor), rtol=1e-9
        )
        for gradient in gradients:
            assert np.isfinite(gradient).all()
            np.testing.assert_array_equal(gradient[~candidates], 0)


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


@pytest.mark.parametrize('name', ['rank_distillation', 'mutual_learning', 'self_distillation'])
def test_softmaxes_bear_a_low_temperature(name):
    scores = [-1.0, 1.0, 1.0, 0.0], [1.0, -1.0, 0.5, 1.0]
    value, *gradients = one_query(getattr(distillation, name), *scores, temperature=1e-3)
    assert np.isfinite(value)
    assert np.isfinite(gradients).all()


@pytest.mark.parametrize('name', BY_HAND)
def test_soft_margins_bear_a_small_margin(name):
    value, *gradients = one_query(getattr(anchored, name), [0.0, 1.0, -1.0], [1.0, -1.0, 1.0], margin=1e-6, extreme=2.0)
    assert value > 0
    assert np.isfinite(gradients).all()
