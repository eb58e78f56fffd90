"""Losses for captions of which some stand at the wrong image, and the ladder loss.

The contract and the notation are those of `jitm.losses.ranking`. P is softmax(s / temperature) over the candidates of a
query. The label y [Q] of a query is how far its pair is believed to belong together, from 0 to 1; where it comes from
is a matter of training (`jitm.training.labels`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import chex
import jax.numpy as jnp
from jax.scipy.special import digamma, gammaln

from jitm.losses.ranking import MIN_PROBABILITY, hardest_positive, masked_log_softmax, max_of_hinges, prepare
from jitm.types import Margin, Mask, NotNegative, PerQuery, Probability, Scores, Temperature

COMPLEMENTS = {  # loss of a negative, of 1 - P
    'log': lambda rest: -jnp.log(jnp.maximum(rest, MIN_PROBABILITY)),
    'tan': lambda rest: jnp.tan(1 - rest),
    'abs': lambda rest: 1 - rest,
    'exp': lambda rest: jnp.exp(-rest),
}


def complementary_contrastive(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    temperature: Temperature,
    complement: Literal[*COMPLEMENTS] = 'log',
) -> PerQuery:
    """RCL (Hu et al., 2023, released): the sum over n of f(P_n), so that a wrong positive is never drawn closer.

    The positive occurs in the denominator of P only. f(p) is -log(1 - p), tan(p), p, or exp(p - 1); with 'abs' the loss
    is 1 - P_p.

    Published: mean; temperature 0.05.
    """
    negatives, valid = prepare(scores, positives, negatives)
    probabilities = jnp.exp(masked_log_softmax(scores / temperature, positives | negatives, valid))
    # 1 - P of the likeliest candidate is the sum of all others, which rounding does not make 0.
    likeliest = jnp.arange(scores.shape[1]) == jnp.argmax(probabilities, axis=1)[:, None]
    others = jnp.sum(jnp.where(likeliest, 0, probabilities), axis=1, keepdims=True)
    losses = COMPLEMENTS[complement](jnp.where(likeliest, others, 1 - probabilities))
    return jnp.sum(jnp.where(negatives & valid[:, None], losses, 0), axis=1)


def active_complementary(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    labels: PerQuery,
    temperature: Temperature,
    complementary_weight: NotNegative = 5.0,
) -> PerQuery:
    """CRCL (Qin et al., 2023, released): y (-log P_p) + weight * sum over n of tan P_n / (sum over all tan P)^(1 - y).

    Published: mean; temperature 0.05, weight 5.
    """
    negatives, valid = prepare(scores, positives, negatives)
    logs = masked_log_softmax(scores / temperature, positives | negatives, valid)
    tangents = jnp.tan(jnp.exp(logs))
    active = -hardest_positive(jnp.where(positives, logs, 0), positives)
    total = jnp.sum(jnp.where(positives | negatives, tangents, 0), axis=1)
    complementary = jnp.sum(jnp.where(negatives, tangents, 0), axis=1) / jnp.where(valid, total, 1) ** (1 - labels)
    return jnp.where(valid, labels * active + complementary_weight * complementary, 0)


def soft_margin(
    scores: Scores, positives: Mask, negatives: Mask | None = None, *, labels: PerQuery, margin: Margin
) -> PerQuery:
    """NCR (Huang et al., 2021, eq. 8 and 9): `max_of_hinges` with the margin (10^y - 1) / 9 times `margin`.

    Published: sum; margin 0.2. The released code gives row q the margins of all columns, by broadcasting.
    """
    soft = margin * (10**labels - 1) / 9
    return max_of_hinges(scores + jnp.where(positives, 0, soft[:, None]), positives, negatives, margin=0)


def evidential(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    temperature: Temperature = 0.1,
    divergence_weight: NotNegative = 0.1,
) -> PerQuery:
    """DECL (Qin et al., 2022, released): the squared error of a Dirichlet distribution over the candidates.

    The evidence of a candidate is exp(s / temperature), of scores in [-1, 1], and alpha = evidence + 1. A query without
    a positive, such as one whose pair is judged wrong, has the target 0 everywhere. The divergence is that of the
    distribution without the evidence of the positives from the uniform one.

    Published: mean; temperature and weight 0.1.
    """
    negatives, _ = prepare(scores, positives, negatives)
    candidates, valid = positives | negatives, negatives.any(axis=1)

    def total(values: chex.Array) -> chex.Array:
        return jnp.sum(jnp.where(candidates, values, 0), axis=1)

    alpha = jnp.exp(scores / temperature) + 1
    strength = jnp.where(valid, total(alpha), 1)[:, None]
    error = jnp.square(positives - alpha / strength)
    variance = alpha * (strength - alpha) / (jnp.square(strength) * (strength + 1))
    others = jnp.where(positives, 1, alpha)
    sums = jnp.where(valid, total(others), 1)
    divergence = (
        gammaln(sums)
        - gammaln(jnp.maximum(total(jnp.ones_like(alpha)), 1))
        - total(gammaln(others))
        + total((others - 1) * (digamma(others) - digamma(sums)[:, None]))
    )
    return jnp.where(valid, total(error + variance) + divergence_weight * divergence, 0)


def ladder(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    relevance: Scores,
    margin: Margin = 0.2,
    thresholds: Sequence[Probability] = (0.63,),
    ladder_margins: Sequence[Margin] = (0.01,),
    ladder_weight: NotNegative = 0.25,
) -> PerQuery:
    """Ladder loss (Zhou et al., 2020): `max_of_hinges`, and a hinge between two groups of candidates per threshold.

    The hinge is [m' + s_u - s_r]_+ with r the candidate of lowest score among those whose relevance reaches the
    threshold, the positive included, and u that of highest score among the negatives below it; 0 without any below. The
    released code gives candidates outside of a group the score 0, which can win.

    Args:
      relevance: [Q, C], such as the similarity of the captions of query and candidate, in [0, 1].
      margin: The margin of `max_of_hinges`.
      thresholds: The thresholds of the relevance.
      ladder_margins: The margin m' of each threshold.
      ladder_weight: The factor of each hinge of a threshold.

    Published: sum; margins 0.2 and 0.01, threshold 0.63, weight 0.25.
    """
    negatives, _ = prepare(scores, positives, negatives)
    loss = max_of_hinges(scores, positives, negatives, margin=margin)
    for ladder_margin, threshold in zip(ladder_margins, thresholds, strict=True):
        related = positives | (negatives & (relevance >= threshold))
        loss += ladder_weight * max_of_hinges(scores, related, negatives & ~related, margin=ladder_margin)
    return loss
