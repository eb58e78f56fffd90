import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.losses import anchored, distillation
from tests.losses import formulas
from tests.support.score_cases import random_case

NAMES = 'relative_sum', 'relative_max', 'absolute_sum', 'absolute_max'


def one_query(loss, scores, anchor_scores, **keywords):
    """The loss of one query whose first candidate is positive, and its gradients by the scores and the anchor's."""

    def value(scores, anchor_scores):
        first = jnp.asarray([[True] + [False] * (len(scores) - 1)])
        return loss(scores[None], first, anchor_scores=anchor_scores[None], **keywords)[0]

    result, gradients = jax.jit(jax.value_and_grad(value, argnums=(0, 1)))(
        jnp.asarray(scores), jnp.asarray(anchor_scores)
    )
    return float(result), *(gradient.tolist() for gradient in gradients)


@pytest.mark.slow
@pytest.mark.parametrize('loss', [anchored.relative_max, anchored.absolute_max])
def test_rounding_does_not_choose_the_negative_beside_a_copy(loss):
    scores = 4 * jax.random.uniform(jax.random.key(0), (6, 6))
    masks = jnp.eye(6, dtype=bool)
    rounding = 4e-7 * jax.random.uniform(jax.random.key(1), (20, *scores.shape), minval=-1)

    def gradient(anchor_scores):
        return jax.grad(lambda scores: loss(scores, masks, anchor_scores=anchor_scores).sum())(scores)

    chosen = jax.vmap(gradient)(scores + rounding) > 0
    hardest = jnp.argmax(jnp.where(masks, -jnp.inf, scores), axis=1)
    np.testing.assert_array_equal(chosen, jnp.broadcast_to(jax.nn.one_hot(hardest, 6), chosen.shape))


@pytest.mark.parametrize('loss', [anchored.absolute_sum, anchored.absolute_max])
@pytest.mark.parametrize('alpha', [0.0, 1.0])
def test_the_soft_margin_of_nothing_is_nothing(loss, alpha):
    # of both hinges one has the whole margin, and for scores near 0 soft is fixed
    scores = [0.0, 0.125]
    anchor = [0.25, 0.0]
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
    arrays = [random_case(seed)[0][:3] for seed in (0, 1)]
    candidates = np.array([[0, 1, 0, 0, 1, 0, 0], [1, 0, 0, 1, 0, 0, 1], [0, 1, 1, 0, 1, 1, 0]], bool)
    positives = np.cumsum(candidates, axis=1) * candidates == 1
    masks = positives, candidates & ~positives

    def loss(scores, anchor):
        values = distillation.rank_distillation(scores, *masks, anchor_scores=anchor, hard=hard)
        return values.sum(), values

    with jax.enable_x64(True):
        (_, values), gradients = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(*arrays)
    formula = functools.partial(formulas.rank_distillation, hard=hard)
    want = formulas.of_queries(formula, arrays[0], *masks, anchor_scores=arrays[1])
    np.testing.assert_allclose(values, want, rtol=1e-9)
    for gradient in gradients:
        assert np.isfinite(gradient).all()
        np.testing.assert_array_equal(gradient[~candidates], 0)


@pytest.mark.parametrize('name', NAMES)
def test_soft_margins_bear_a_small_margin(name):
    value, *gradients = one_query(getattr(anchored, name), [0.0, 1.0, -1.0], [1.0, -1.0, 1.0], margin=1e-6, extreme=2.0)
    assert value > 0
    assert np.isfinite(gradients).all()
