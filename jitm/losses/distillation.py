"""Distillation losses, which imitate an anchor model (baselines of DBL): one direction, one value per query.

Like `jitm.losses.anchored`, they take `anchor_scores` A [Q, C] beside `scores` S, leave it to the caller to stop the
gradient through A, are unreduced, and are 0 for a query without a positive or without a negative. Candidates that are
neither are ignored.
"""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jitm.losses.ranking import masked_log_softmax, masked_mean, prepare

LENGTH = 4  # candidates whose order is distilled, as released


def _order_log_likelihoods(scores: chex.Array, present: chex.Array) -> chex.Array:
    """Returns the Plackett-Luce log-likelihood of the given order of scores: [..., L] -> [...]."""
    scores = jnp.where(present, scores, -jnp.inf)
    remaining = jax.lax.cumlogsumexp(scores, axis=scores.ndim - 1, reverse=True)
    return jnp.sum(jnp.where(present, scores - remaining, 0), axis=-1)


def rank_distillation(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    anchor_scores: chex.Array,
    temperature: float = 0.1,
    hard: bool = False,
) -> chex.Array:
    """KL(P_A || P_S) over all orders of the anchor's four highest candidates (DR: DarkRank's soft transfer, on scores).

    The probability of an order is the product of softmaxes over the remaining candidates (Plackett-Luce).

    The code of DBL has DarkRank's hard transfer instead (`hard`): -log P_S of the anchor's order, with -3 x^3 in place
    of x / temperature. DarkRank takes distances x and skips the nearest, the query itself. For scores this is the order
    of the candidates from the lowest score on, without the lowest.

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].
      temperature: divisor of the scores; not stated by DBL, 0.1 is that of its other losses. No effect with `hard`.
      hard: the released form, see above.

    Returns:
      [Q]; reduced by the mean over the batch.
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    candidates, skipped = positives | negatives, int(hard)
    target, anchor = (-3 * x**3 if hard else x / temperature for x in (scores, anchor_scores))
    _, top = jax.lax.top_k(jnp.where(candidates, anchor, -jnp.inf), min(skipped + LENGTH, scores.shape[1]))
    top = top[:, skipped:]
    present = jnp.take_along_axis(candidates, top, axis=1)
    target, anchor = (jnp.take_along_axis(x, top, axis=1) for x in (target, anchor))
    if hard:
        return jnp.where(valid, -_order_log_likelihoods(target, present), 0)
    orders = np.array(list(itertools.permutations(range(top.shape[1]))))
    target, anchor = (_order_log_likelihoods(x[:, orders], present[:, orders]) for x in (target, anchor))
    # With fewer candidates than positions an order occurs several times, and the softmax divides its probability.
    return jnp.where(valid, jnp.sum(jax.nn.softmax(anchor, axis=1) * (anchor - target), axis=1), 0)


def relational_distillation(
    scores: chex.Array, positives: chex.Array, negatives: chex.Array | None = None, *, anchor_scores: chex.Array
) -> chex.Array:
    """Mean over candidates of d^2 / 2, or |d| - 1/2 where |d| > 1, d = s - a (RKD's distance loss, as DBL released).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].

    Returns:
      [Q]; published as 10 times the mean over the matrix. Both directions have that mean, so reduction 'mean' with
      weight 5 is equal.
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    distances = jnp.abs(scores - anchor_scores)
    values = jnp.where(distances > 1, distances - 0.5, distances**2 / 2)
    return jnp.where(valid, masked_mean(values, positives | negatives), 0)


def similarity_preserving(
    scores: chex.Array, positives: chex.Array, negatives: chex.Array | None = None, *, anchor_scores: chex.Array
) -> chex.Array:
    """Sum over candidates of (s / |s| - a / |a|)^2, the norms over the query's candidates (SP, on scores).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].

    Returns:
      [Q]; released as 10 times the sum of the means over each direction (reduction 'mean', weight 10). The released
      code normalizes the columns of the matrix whose rows it has normalized already; here each direction takes the
      scores themselves.
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    candidates = positives | negatives

    def unit(row):
        row = jnp.where(candidates, row, 0)
        return row * jax.lax.rsqrt(jnp.maximum(jnp.sum(row**2, axis=1, keepdims=True), 1e-24))

    return jnp.where(valid, jnp.sum((unit(scores) - unit(anchor_scores)) ** 2, axis=1), 0)


def _log_probabilities(scores: chex.Array, candidates: chex.Array, valid: chex.Array, temperature: float) -> chex.Array:
    """Returns the log-softmax over the candidates, 0 elsewhere, so that products and differences are 0 there."""
    return jnp.where(candidates, masked_log_softmax(scores / temperature, candidates, valid), 0)


def mutual_learning(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    anchor_scores: chex.Array,
    temperature: float = 0.1,
) -> chex.Array:
    """KL(softmax(a / temperature) || softmax(s / temperature)) over the candidates (DML, on scores).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].
      temperature: in score units; DBL multiplies by 10, i.e. 0.1.

    Returns:
      [Q]; published as the sum of the means over each direction.
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    target, anchor = (_log_probabilities(x, positives | negatives, valid, temperature) for x in (scores, anchor_scores))
    return jnp.where(valid, jnp.sum(jnp.exp(anchor) * (anchor - target), axis=1), 0)


def self_distillation(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    anchor_scores: chex.Array,
    temperature: float = 0.1,
    inverse: bool = False,
    subtract_entropy: bool = False,
) -> chex.Array:
    """-sum P_A log P_S, P = softmax(. / temperature) over the candidates (DINO, on scores, without centering).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].
      temperature: in score units, of both; DBL multiplies by 10, i.e. 0.1.
      inverse: -sum P_S log P_A instead (DINO* of DBL's table II), with the gradient through P_S.
      subtract_entropy: subtracts the entropy of the first distribution, which gives KL(P_A || P_S), or with `inverse`
        KL(P_S || P_A) as released for DINO*; the paper has the cross-entropy.

    Returns:
      [Q]; reduced by the mean over the batch.
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    target, anchor = (_log_probabilities(x, positives | negatives, valid, temperature) for x in (scores, anchor_scores))
    first, second = (target, anchor) if inverse else (anchor, target)
    entropy = -jnp.sum(jnp.exp(first) * first, axis=1) if subtract_entropy else 0
    return jnp.where(valid, -jnp.sum(jnp.exp(first) * second, axis=1) - entropy, 0)
