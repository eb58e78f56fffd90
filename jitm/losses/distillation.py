"""Losses that imitate an anchor branch, which DBL is compared with: of one retrieval direction, one value per query.

As `jitm.losses.anchored`, they take `anchor_scores` A [Q, C] beside `scores` S, without a gradient to A by the caller,
are unreduced and 0 for a query that has no positive or no negative. Candidates that are neither are left out.
"""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jitm.losses.ranking import masked_log_softmax, masked_mean, prepare

LONGEST = 6  # candidates whose orders are listed: 720


def _order_log_likelihoods(scores: chex.Array, present: chex.Array) -> chex.Array:
    """Log of the product over places of the softmax over what remains (Plackett-Luce): [..., L] -> [...]."""
    scores = jnp.where(present, scores, -jnp.inf)
    remaining = jax.lax.cumlogsumexp(scores, axis=scores.ndim - 1, reverse=True)
    return jnp.sum(jnp.where(present, scores - remaining, 0), axis=-1)


def rank_distillation(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    anchor_scores: chex.Array,
    length: int = 4,
    temperature: float = 0.1,
    hard: bool = False,
) -> chex.Array:
    """KL(P_A || P_S) of all orders of the anchor's highest candidates (DR: DarkRank's soft transfer, on scores).

    The probability of an order is the product of softmaxes over what remains (Plackett-Luce).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].
      length: how many candidates; the orders are its factorial, so at most 6 unless `hard`. DBL does not give its own.
      temperature: divides the scores; DBL does not give its own, 0.1 is that of its other losses.
      hard: -log P_S of the anchor's own order instead (DarkRank's hard transfer).

    Returns:
      [Q]; reduced by the mean over the batch.

    Raises:
      ValueError: if length is below 1, or the orders are too many.
    """
    if length < 1 or (length > LONGEST and not hard):
        raise ValueError(f'length is {length}; take 1 to {LONGEST}, whose factorial is the number of orders')
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    candidates = positives | negatives
    _, top = jax.lax.top_k(jnp.where(candidates, anchor_scores, -jnp.inf), min(length, scores.shape[1]))
    present = jnp.take_along_axis(candidates, top, axis=1)
    target, anchor = (jnp.take_along_axis(x, top, axis=1) / temperature for x in (scores, anchor_scores))
    if hard:
        return jnp.where(valid, -_order_log_likelihoods(target, present), 0)
    orders = np.array(list(itertools.permutations(range(top.shape[1]))))
    target, anchor = (_order_log_likelihoods(x[:, orders], present[:, orders]) for x in (target, anchor))
    # Where fewer are present, an order of them is listed several times: the softmax shares its probability out.
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
      weight 5 is the same.
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    distances = jnp.abs(scores - anchor_scores)
    values = jnp.where(distances > 1, distances - 0.5, distances**2 / 2)
    return jnp.where(valid, masked_mean(values, positives | negatives), 0)


def similarity_preserving(
    scores: chex.Array, positives: chex.Array, negatives: chex.Array | None = None, *, anchor_scores: chex.Array
) -> chex.Array:
    """Mean over candidates of (s / |s| - a / |a|)^2, the norms over the query's candidates (SP, on scores).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].

    Returns:
      [Q]; published as 10 times the mean over the matrix of one direction. Reduction 'mean' with weight 5 takes both
      directions, whose norms differ, to the same size.
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    candidates = positives | negatives

    def unit(row):
        row = jnp.where(candidates, row, 0)
        return row * jax.lax.rsqrt(jnp.maximum(jnp.sum(row**2, axis=1, keepdims=True), 1e-24))

    return jnp.where(valid, masked_mean((unit(scores) - unit(anchor_scores)) ** 2, candidates), 0)


def _log_probabilities(scores: chex.Array, candidates: chex.Array, valid: chex.Array, temperature: float) -> chex.Array:
    """Log of the softmax over the candidates, 0 elsewhere, so that products and differences there are 0."""
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
      temperature: in score units; DBL multiplies by 10, which is 0.1.

    Returns:
      [Q]; published as the mean over each direction, added.
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
) -> chex.Array:
    """-sum P_A log P_S, P = softmax(. / temperature) over the candidates (DINO, on scores, without its centring).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].
      temperature: in score units, of both; DBL multiplies by 10, which is 0.1.
      inverse: -sum P_S log P_A instead (DINO* of DBL's table II), of which P_S has the gradient.

    Returns:
      [Q]; reduced by the mean over the batch.
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    target, anchor = (_log_probabilities(x, positives | negatives, valid, temperature) for x in (scores, anchor_scores))
    first, second = (target, anchor) if inverse else (anchor, target)
    return jnp.where(valid, -jnp.sum(jnp.exp(first) * second, axis=1), 0)
