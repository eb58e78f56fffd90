"""Distillation losses, the baselines of DBL (Diao et al., 2024, table II): the model imitates an anchor's scores.

    loss(scores, positives, negatives=None, *, anchor_scores, ...) -> [Q]

For the contract and the notation see `jitm.losses.ranking` and `jitm.losses.anchored`; c is any candidate,
positive or negative. The losses were published for the distances of images; here they compare the scores of pairs. DBL
multiplies the scores by 10, which is a temperature of 0.1.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from chex import Array

from jitm.config.arguments import checked
from jitm.losses.ranking import masked_log_softmax, masked_mean, prepare
from jitm.types import Mask, PerQuery, Scores, Temperature

LENGTH = 4  # candidates whose order is distilled, as in the released code


def _order_log_likelihoods(scores: Array, present: Array) -> Array:
    """Returns the Plackett-Luce log-likelihood of the given order of scores: [..., L] -> [...]."""
    scores = jnp.where(present, scores, -jnp.inf)
    remaining = jax.lax.cumlogsumexp(scores, axis=scores.ndim - 1, reverse=True)
    return jnp.sum(jnp.where(present, scores - remaining, 0), axis=-1)


@checked
def rank_distillation(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    anchor_scores: Scores,
    temperature: Temperature = 0.1,
    hard: bool = False,
) -> PerQuery:
    """DR (DarkRank's soft transfer, Chen et al., 2018): KL(P_A || P_S) over all orders of the anchor's top 4.

    The probability of an order is the product of softmaxes over the remaining candidates (Plackett-Luce). DBL does not
    state the temperature.

    Published: mean.

    Args:
      scores: The model's scores.
      positives: The matching candidates.
      negatives: The other candidates, by default all.
      anchor_scores: The anchor's scores.
      temperature: The divisor of the scores, without effect if `hard`.
      hard: DarkRank's hard transfer, as in the code of DBL: -log P_S of the anchor's order, with -3 x^3 in place of
        x / temperature. DarkRank uses distances x and skips the nearest, the query itself. For scores this is the
        order of the candidates from the lowest score on, without the lowest.
    """
    negatives, valid = prepare(positives, negatives)
    candidates = positives | negatives
    skipped = int(hard)
    target, anchor = (-3 * x**3 if hard else x / temperature for x in (scores, anchor_scores))
    _, top = jax.lax.top_k(jnp.where(candidates, anchor, -jnp.inf), min(skipped + LENGTH, scores.shape[1]))
    top = top[:, skipped:]
    present = jnp.take_along_axis(candidates, top, axis=1)
    target, anchor = (jnp.take_along_axis(x, top, axis=1) for x in (target, anchor))
    if hard:
        return jnp.where(valid, -_order_log_likelihoods(target, present), 0)
    orders = np.array(list(itertools.permutations(range(top.shape[1]))))
    target, anchor = (_order_log_likelihoods(x[:, orders], present[:, orders]) for x in (target, anchor))
    # With fewer candidates than positions, an order occurs several times, and the softmax divides its probability.
    return jnp.where(valid, jnp.sum(jax.nn.softmax(anchor, axis=1) * (anchor - target), axis=1), 0)


@checked
def relational_distillation(
    scores: Scores, positives: Mask, negatives: Mask | None = None, *, anchor_scores: Scores
) -> PerQuery:
    """RKD (distance loss of Park et al., 2019, as DBL released): the mean over c of the Huber loss of s_c - a_c.

    It is d^2 / 2, or |d| - 1/2 where |d| > 1.

    Published: 10 times the mean over the matrix, which is the mean of either direction: mean, weight 5.
    """
    negatives, valid = prepare(positives, negatives)
    distances = jnp.abs(scores - anchor_scores)
    values = jnp.where(distances > 1, distances - 0.5, distances**2 / 2)
    return jnp.where(valid, masked_mean(values, positives | negatives), 0)


@checked
def similarity_preserving(
    scores: Scores, positives: Mask, negatives: Mask | None = None, *, anchor_scores: Scores
) -> PerQuery:
    """SP (Tung and Mori, 2019): the sum over c of (s_c / |s| - a_c / |a|)^2, with the norms over the candidates.

    The released code normalizes the columns of the matrix whose rows it has normalized already; here each direction
    normalizes the scores themselves.

    Released: mean, weight 10.
    """
    negatives, valid = prepare(positives, negatives)
    candidates = positives | negatives

    def unit(row):
        row = jnp.where(candidates, row, 0)
        return row * jax.lax.rsqrt(jnp.maximum(jnp.sum(row**2, axis=1, keepdims=True), 1e-24))

    return jnp.where(valid, jnp.sum((unit(scores) - unit(anchor_scores)) ** 2, axis=1), 0)


def _log_probabilities(scores: Scores, candidates: Mask, valid: Array, temperature: float) -> Scores:
    """Returns the log-softmax over the candidates, 0 elsewhere, so that products and differences are 0 there."""
    return jnp.where(candidates, masked_log_softmax(scores / temperature, candidates, valid), 0)


@checked
def mutual_learning(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    anchor_scores: Scores,
    temperature: Temperature = 0.1,
) -> PerQuery:
    """DML (Zhang et al., 2018): KL(P_A || P_S), where P is softmax(. / temperature) over the candidates.

    Published: mean.
    """
    negatives, valid = prepare(positives, negatives)
    target, anchor = (_log_probabilities(x, positives | negatives, valid, temperature) for x in (scores, anchor_scores))
    return jnp.where(valid, jnp.sum(jnp.exp(anchor) * (anchor - target), axis=1), 0)


@checked
def self_distillation(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    anchor_scores: Scores,
    temperature: Temperature = 0.1,
    inverse: bool = False,
    subtract_entropy: bool = False,
) -> PerQuery:
    """DINO (Caron et al., 2021, without centering): -sum P_A log P_S, where P is softmax(. / temperature).

    Published: mean.

    Args:
      scores: The model's scores.
      positives: The matching candidates.
      negatives: The other candidates, by default all.
      anchor_scores: The anchor's scores.
      temperature: The divisor of both models' scores.
      inverse: Exchanges the roles: -sum P_S log P_A, DINO* of DBL's table II. The gradient flows through P_S.
      subtract_entropy: Subtracts the entropy of the first distribution, for KL(P_A || P_S), or KL(P_S || P_A)
        with `inverse`, as in DBL's code for DINO*. The paper has the cross-entropy.
    """
    negatives, valid = prepare(positives, negatives)
    target, anchor = (_log_probabilities(x, positives | negatives, valid, temperature) for x in (scores, anchor_scores))
    first, second = (target, anchor) if inverse else (anchor, target)
    entropy = -jnp.sum(jnp.exp(first) * first, axis=1) if subtract_entropy else 0
    return jnp.where(valid, -jnp.sum(jnp.exp(first) * second, axis=1) - entropy, 0)
