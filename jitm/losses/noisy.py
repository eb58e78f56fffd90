"""Losses for noisy correspondence, captions paired with the wrong images, and the ladder loss.

For the contract and the notation see `jitm.losses.ranking`. P is softmax(s / temperature) over the candidates of a
query. The correspondence label y [Q] of a query is the estimated probability that its pair matches, from 0 to 1;
`jitm.training.label_estimators` estimate it.
"""

from __future__ import annotations

import jax.numpy as jnp
from chex import Array
from jax.nn import logsumexp, sigmoid, softplus

from jitm.config.arguments import checked
from jitm.errors import ArgumentError
from jitm.losses.ranking import (
    MIN_PROBABILITY,
    hardest_positive,
    masked_log_softmax,
    masked_sum,
    max_of_hinges,
    prepare,
)
from jitm.types import Margin, Mask, NotNegative, PerQuery, Scores, Temperature

NO_EVIDENCE = -1e30  # logarithm of zero evidence
SHIFT = 8  # moves arguments of gammaln and digamma to where four terms of their series suffice


@checked
def complementary_contrastive(
    scores: Scores, positives: Mask, negatives: Mask | None = None, *, temperature: Temperature
) -> PerQuery:
    """RCL (Hu et al., 2023, released): the sum over n of -log(1 - P_n); a wrong positive is never attracted.

    The positive occurs in the denominator of P only.

    Published: mean; temperature 0.05.
    """
    negatives, valid = prepare(positives, negatives)
    probabilities = jnp.exp(masked_log_softmax(scores / temperature, positives | negatives, valid))
    losses = -jnp.log(jnp.maximum(_one_minus(probabilities), MIN_PROBABILITY))
    return masked_sum(losses, negatives & valid[:, None])


def _one_minus(probabilities: Scores) -> Scores:
    """Returns 1 - P; for the likeliest candidate this is the sum of all others, which does not round to 0."""
    likeliest = jnp.arange(probabilities.shape[1]) == jnp.argmax(probabilities, axis=1)[:, None]
    complement = jnp.sum(jnp.where(likeliest, 0, probabilities), axis=1, keepdims=True)
    return jnp.where(likeliest, complement, 1 - probabilities)


@checked
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
    negatives, valid = prepare(positives, negatives)
    logs = masked_log_softmax(scores / temperature, positives | negatives, valid)
    tangents = jnp.tan(jnp.exp(logs))
    active = -hardest_positive(jnp.where(positives, logs, 0), positives)
    total = masked_sum(tangents, positives | negatives)
    complementary = masked_sum(tangents, negatives) / jnp.where(valid, total, 1) ** (1 - labels)
    return jnp.where(valid, labels * active + complementary_weight * complementary, 0)


@checked
def soft_margin(
    scores: Scores, positives: Mask, negatives: Mask | None = None, *, labels: PerQuery, margin: Margin
) -> PerQuery:
    """NCR (Huang et al., 2021, eq. 8 and 9): `max_of_hinges` with the margin (10^y - 1) / 9 times `margin`.

    Published: sum; margin 0.2. In the released code row q has the margins of all columns, by broadcasting.
    """
    soft = margin * (10**labels - 1) / 9
    return max_of_hinges(scores + jnp.where(positives, 0, soft[:, None]), positives, negatives, margin=0)


@checked
def evidential(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    temperature: Temperature = 0.1,
    divergence_weight: NotNegative = 0.1,
) -> PerQuery:
    """DECL (Qin et al., 2022, released): the squared error of a Dirichlet distribution over the candidates.

    The evidence of a candidate is exp(s / temperature), for any score, and alpha = evidence + 1. A query without a
    positive, such as one whose pair is judged wrong, has the target 0 everywhere. The divergence compares the
    distribution without the evidence of the positives with the uniform one.

    Published: mean; temperature and weight 0.1.
    """
    negatives, _ = prepare(positives, negatives)
    candidates = positives | negatives
    valid = negatives.any(axis=1)

    evidence = jnp.where(candidates, scores / temperature, NO_EVIDENCE)
    count = jnp.maximum(candidates.sum(axis=1), 1).astype(evidence.dtype)
    strength = jnp.log(count) + softplus(logsumexp(evidence, axis=1) - jnp.log(count))
    means = jnp.where(candidates, jnp.exp(softplus(evidence) - strength[:, None]), 0)
    complements = _one_minus(means)
    error = jnp.square(jnp.where(positives, complements, means))
    variance = means * complements * sigmoid(-strength)[:, None]
    negative_evidence = jnp.where(positives, NO_EVIDENCE, evidence)
    divergence = _divergence_part(logsumexp(negative_evidence, axis=1), count)
    divergence -= masked_sum(_divergence_part(negative_evidence, 1), candidates)
    # A divergence near 0 may be rounded to below it.
    return jnp.where(
        valid, masked_sum(error + variance, candidates) + divergence_weight * jnp.maximum(divergence, 0), 0
    )


def _divergence_part(evidence: Array, count: Array | int) -> Array:
    """Returns gammaln(n + e) - gammaln(n) + e (1 - digamma(n + e)) for the logarithm of the evidence e, and n >= 1.

    Stirling's series for both functions are added, so that terms growing as e log e cancel before rounding; n is
    shifted by their recurrences.
    """
    shifts = (evidence - jnp.log(count + k) for k in range(SHIFT))
    shifted = count + SHIFT
    ratio = evidence - jnp.log(shifted)
    inverse = sigmoid(-ratio) / shifted  # 1 / (n + e)
    log_gamma, at_0 = (x / 12 - x**3 / 360 + x**5 / 1260 - x**7 / 1680 for x in (inverse, 1 / shifted))
    digamma = inverse / 12 - inverse**3 / 120 + inverse**5 / 252 - inverse**7 / 240
    value = (shifted - 0.5) * softplus(ratio) + log_gamma - at_0 + sigmoid(ratio) * (0.5 + digamma)
    return value + sum(sigmoid(x) - softplus(x) for x in shifts)


@checked
def ladder(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    relevance: Scores,
    margin: Margin = 0.2,
    thresholds: tuple[NotNegative, ...] = (0.63,),
    ladder_margins: tuple[Margin, ...] = (0.01,),
    ladder_weight: NotNegative = 0.25,
) -> PerQuery:
    """Ladder loss (Zhou et al., 2020): `max_of_hinges`, and a hinge between two groups of candidates per threshold.

    The hinge is [m' + s_u - s_r]_+ with r the candidate of lowest score among those whose relevance reaches the
    threshold, the positive included, and u the highest among the negatives below it; 0 without any below. In the
    released code candidates outside of a group have the score 0, which can win.

    Args:
      relevance: [Q, C], such as the similarity of the captions of query and candidate.
      margin: The margin of `max_of_hinges`.
      thresholds: The thresholds of the relevance.
      ladder_margins: The margin m' of each threshold.
      ladder_weight: The factor of each hinge of a threshold.

    Published: sum; margins 0.2 and 0.01, threshold 0.63, weight 0.25.

    Raises:
      ArgumentError: If a threshold has no margin, or a margin no threshold.
    """
    if len(thresholds) != len(ladder_margins):
        raise ArgumentError(
            'ladder_margins', f'has {len(ladder_margins)} margins for {len(thresholds)} thresholds: give one for each'
        )
    negatives, valid = prepare(positives, negatives)
    loss = max_of_hinges(scores, positives, negatives, margin=margin)
    for ladder_margin, threshold in zip(ladder_margins, thresholds, strict=True):
        related = positives | (negatives & (relevance >= threshold))
        loss += ladder_weight * max_of_hinges(scores, related, negatives & ~related, margin=ladder_margin)
    return jnp.where(valid, loss, 0)
