"""Ranking losses: the scores of one retrieval direction to one value per query.

    loss(scores, positives, negatives=None, *, ...) -> [Q]

Notation: s_c is the score of candidate c, p the positive of lowest score (papers have one positive per query), n a
negative, and [x]_+ is max(x, 0). The hardest negative is the one of highest score. Margins are in units of the scores.

Without `negatives`, every candidate that is not positive is a negative. Candidates that are neither are ignored. A
query without a positive or without a negative has loss 0.

Losses are not reduced. The loss of a batch is the loss of its scores [images, captions], for image-to-text retrieval,
plus the loss of their transpose. "Published" is a paper's reduction over the queries of each direction and its weight,
the `reduction` and the `weight` of a term in a config; the weight is 1 unless another one is given.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from chex import Array

from jitm.config.arguments import checked
from jitm.types import Bias, Margin, Mask, PerQuery, Probability, Scores, Temperature

MIN_PROBABILITY = 1e-10  # smaller probabilities are clipped to this, so that their logarithm is finite


def hardest_positive(scores: Scores, positives: Mask, values: Scores | None = None) -> PerQuery:
    """Returns the lowest score s_p among the positives of each query, 0 without a positive.

    With `values`, it is the entry of `values` at that candidate instead.
    """
    index = jnp.argmin(jnp.where(positives, scores, jnp.inf), axis=1, keepdims=True)
    value = jnp.take_along_axis(scores if values is None else values, index, axis=1)[:, 0]
    return jnp.where(positives.any(axis=1), value, 0)


def hardest_negative(scores: Scores, negatives: Mask, values: Scores | None = None) -> PerQuery:
    """Returns the highest score among the negatives of each query, 0 without a negative.

    With `values`, it is the entry of `values` at that candidate instead. The first of several equal scores gets the
    gradient.
    """
    index = jnp.argmax(jnp.where(negatives, scores, -jnp.inf), axis=1, keepdims=True)
    value = jnp.take_along_axis(scores if values is None else values, index, axis=1)[:, 0]
    return jnp.where(negatives.any(axis=1), value, 0)


def prepare(positives: Mask, negatives: Mask | None) -> tuple[Mask, Array]:
    """Returns the negatives and a mask [Q] of the queries with a positive and a negative."""
    negatives = ~positives if negatives is None else negatives
    return negatives, positives.any(axis=1) & negatives.any(axis=1)


def masked_sum(values: Array, mask: Array, axis: int | None = 1) -> Array:
    """Returns the sum of the values in a mask, by default of each row."""
    return jnp.sum(jnp.where(mask, values, 0), axis=axis)


def masked_mean(values: Array, mask: Array, axis: int | None = 1) -> Array:
    """Returns the mean of the values in a mask, by default of each row; 0 if the mask is empty."""
    return masked_sum(values, mask, axis) / jnp.maximum(mask.sum(axis=axis), 1)


@checked
def sum_of_hinges(scores: Scores, positives: Mask, negatives: Mask | None = None, *, margin: Margin) -> PerQuery:
    """VSE0, Triplet (Faghri et al., 2018, eq. 5): the sum over n of [margin + s_n - s_p]_+.

    Published: sum; margin 0.2.

    Example:
      >>> scores = jnp.array([[1.0, 0.875, 0.25], [0.75, 0.5, 0.5]])  # two queries, three candidates
      >>> jitm.losses.sum_of_hinges(scores, jnp.eye(2, 3, dtype=bool), margin=0.25)
      Array([0.125, 0.75 ], dtype=float32)
    """
    negatives, valid = prepare(positives, negatives)
    hinges = jnp.maximum(margin + scores - hardest_positive(scores, positives)[:, None], 0)
    return masked_sum(hinges, negatives & valid[:, None])


@checked
def mean_of_hinges(scores: Scores, positives: Mask, negatives: Mask | None = None, *, margin: Margin) -> PerQuery:
    """Fine-tuning of UNITER, TAGS (Fan et al., 2022, eq. 6): the mean over n of [margin + s_n - s_p]_+.

    Published: mean; margin 0.2, for scores that are probabilities.
    """
    negatives, _ = prepare(positives, negatives)
    total = sum_of_hinges(scores, positives, negatives, margin=margin)
    return total / jnp.maximum(negatives.sum(axis=1), 1)


@checked
def max_of_hinges(scores: Scores, positives: Mask, negatives: Mask | None = None, *, margin: Margin) -> PerQuery:
    """VSE++, MH, HN (Faghri et al., 2018, eq. 6): [margin + s_n - s_p]_+ of the hardest negative n.

    Published: sum; margin 0.2.

    Example:
      >>> scores = jnp.array([[1.0, 0.875, 0.25], [0.75, 0.5, 0.5]])  # two queries, three candidates
      >>> jitm.losses.max_of_hinges(scores, jnp.eye(2, 3, dtype=bool), margin=0.25)
      Array([0.125, 0.5  ], dtype=float32)
    """
    negatives, valid = prepare(positives, negatives)
    hinge = margin + hardest_negative(scores, negatives) - hardest_positive(scores, positives)
    return jnp.where(valid, jnp.maximum(hinge, 0), 0)


@checked
def semi_hard_hinge(scores: Scores, positives: Mask, negatives: Mask | None = None, *, margin: Margin) -> PerQuery:
    """SHN (Li et al., 2023, eq. 13-14): [margin + s_n - s_p]_+ of the hardest n among those with s_n < s_p.

    Published: sum; margin 0.2.
    """
    negatives, _ = prepare(positives, negatives)
    semi_hard = negatives & (scores < hardest_positive(scores, positives)[:, None])
    return max_of_hinges(scores, positives, semi_hard, margin=margin)


@checked
def selective_contrastive(
    scores: Scores, positives: Mask, negatives: Mask | None = None, *, margin: Margin
) -> PerQuery:
    """SCT (Li et al., 2023, eq. 16): [margin + s_n - s_p]_+ of the hardest negative n if s_n < s_p, else s_n.

    The loss is below 0 where s_p <= s_n < 0. Xuan et al. (2020), for image retrieval, weight s_n and use a softmax of
    the pair in place of the hinge. Published: sum; margin 0.2.
    """
    negatives, valid = prepare(positives, negatives)
    negative = hardest_negative(scores, negatives)
    hard = valid & (negative >= hardest_positive(scores, positives))
    return jnp.where(hard, negative, max_of_hinges(scores, positives, negatives, margin=margin))


@checked
def selective_hard_negative(
    scores: Scores, positives: Mask, negatives: Mask | None = None, *, margin: Margin, epsilon: Margin
) -> PerQuery:
    """SelHN (Li et al., 2023, eq. 9-12): `max_of_hinges` if |s_n - s_p| > epsilon, else `mean_of_hinges`.

    n is the hardest negative. Eq. 12 divides the sum of hinges by C; the released code, as here, computes the mean over
    the negatives. At |s_n - s_p| = epsilon the paper uses the mean as well, and the released code does not.

    Published: sum; released: mean, weight 0.5. Margin 0.2, epsilon 0.01.

    Example:
      >>> scores = jnp.array([[1.0, 0.875, 0.25], [0.75, 0.5, 0.5]])  # two queries, three candidates
      >>> jitm.losses.selective_hard_negative(scores, jnp.eye(2, 3, dtype=bool), margin=0.25, epsilon=0.2)
      Array([0.0625, 0.5   ], dtype=float32)
    """
    negatives, _ = prepare(positives, negatives)
    average = mean_of_hinges(scores, positives, negatives, margin=margin)
    gap = jnp.abs(hardest_negative(scores, negatives) - hardest_positive(scores, positives))
    return jnp.where(gap > epsilon, max_of_hinges(scores, positives, negatives, margin=margin), average)


@checked
def polynomial(scores: Scores, positives: Mask, negatives: Mask | None = None, *, margin: Margin) -> PerQuery:
    """MPL (Wei et al., 2020; PolyLoss): [0.2 s_p^2 - 0.7 s_p + 0.5]_+ + [0.9 s_n^2 - 0.4 s_n + 0.03]_+.

    n is the hardest negative. The loss is 0 unless s_n + margin > s_p and s_p < 1 - 1e-5; the released code can fail
    for a higher s_p. The published coefficients are for SCAN i2t-AVG on Flickr30K, on cosines. The second polynomial is
    below 0 for s_n between 0.0955 and 0.349.

    Published: mean.
    """
    negatives, valid = prepare(positives, negatives)
    positive = hardest_positive(scores, positives)
    negative = hardest_negative(scores, negatives)
    value = jnp.maximum(jnp.polyval(jnp.asarray((0.2, -0.7, 0.5), scores.dtype), positive), 0)
    value += jnp.maximum(jnp.polyval(jnp.asarray((0.9, -0.4, 0.03), scores.dtype), negative), 0)
    return jnp.where(valid & (positive < 1 - 1e-5) & (negative + margin > positive), value, 0)


@checked
def adaptive_margin(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    relevance: Scores,
    temperature: Temperature = 5.0,
) -> PerQuery:
    """SAM (Biten et al., 2022, not checked against its text): the sum over n of [margin_n + s_n - s_p]_+.

    margin_n is (phi_p - phi_n) / temperature, which is below 0 where a negative is more relevant than the positive. To
    sample one negative per query, pass `negatives` with one True in each row.

    Published: in addition to `max_of_hinges`, with its reduction.

    Args:
      scores: The scores s.
      positives: The matching candidates.
      negatives: The other candidates, by default all.
      relevance: phi, a metric of captions, such as the CIDEr of a caption with the query's captions.
      temperature: The divisor; differences in CIDEr divided by 5 are 0.2 on average.
    """
    margins = (hardest_positive(scores, positives, relevance)[:, None] - relevance) / temperature
    return sum_of_hinges(scores + jnp.where(positives, 0, margins), positives, negatives, margin=0)


def masked_log_softmax(scores: Scores, candidates: Mask, valid: Array) -> Scores:
    """Returns the log-softmax over the candidates, -inf elsewhere; for queries that are not valid, over all columns."""
    return jax.nn.log_softmax(jnp.where(candidates | ~valid[:, None], scores, -jnp.inf), axis=1)


@checked
def projection_matching(
    scores: Scores, positives: Mask, negatives: Mask | None = None, *, temperature: Temperature
) -> PerQuery:
    """CMPM (Zhang and Lu, 2018, released): the sum over candidates of P log(1e-8 + P / (T + 1e-8)), about KL(P || T).

    P is softmax(s / temperature), and T is uniform over the positives. All captions of the query's image are positives.
    The scores of CMPM are projections x_c . z_q / |z_q| at temperature 1. DBL uses similarities at 0.1.

    Published: mean.
    """
    negatives, valid = prepare(positives, negatives)
    predicted = jnp.exp(masked_log_softmax(scores / temperature, positives | negatives, valid))
    matching = positives / jnp.maximum(positives.sum(axis=1, keepdims=True), 1)
    divergence = predicted * jnp.log(1e-8 + predicted / (matching.astype(scores.dtype) + 1e-8))
    return jnp.where(valid, jnp.sum(divergence, axis=1), 0)


@checked
def softmax_contrastive(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    temperature: Temperature,
    label_smoothing: Probability = 0.0,
) -> PerQuery:
    """InfoNCE (CLIP; SupCon, eq. 2): the mean over positives of -log softmax(s / temperature).

    With several positives the minimum is the logarithm of their number, not 0. Label smoothing moves this share of the
    weight from the positives to all candidates equally (Szegedy et al., 2016, section 7).

    Published (CLIP): mean, weight 0.5; the temperature is learned, from 0.07, and labels are not smoothed.

    Example:
      >>> scores = jnp.array([[1.0, 0.875, 0.25], [0.75, 0.5, 0.5]])  # two queries, three candidates
      >>> jitm.losses.softmax_contrastive(scores, jnp.eye(2, 3, dtype=bool), temperature=0.1)
      Array([0.25..., 2.65...], dtype=float32)
    """
    negatives, valid = prepare(positives, negatives)
    logs = masked_log_softmax(scores / temperature, positives | negatives, valid)
    smoothed = (1 - label_smoothing) * masked_mean(logs, positives)
    smoothed += label_smoothing * masked_mean(logs, positives | negatives)
    return jnp.where(valid, -smoothed, 0)


@checked
def sigmoid_contrastive(
    scores: Scores, positives: Mask, negatives: Mask | None = None, *, temperature: Temperature, bias: Bias
) -> PerQuery:
    """SigLIP (Zhai et al., 2023, eq. 1): the sum of -log sigmoid(z_p) over positives and of -log sigmoid(-z_n) over n.

    z is s / temperature + bias, the logit of a match.

    Published: mean, of one direction: the sum over all pairs, divided by the batch, counts a pair once. Both directions
    with weight 0.5 have the same value if every query has one positive. Temperature and bias are learned, from 0.1
    and -10.

    Example:
      >>> scores = jnp.array([[1.0, 0.875, 0.25], [0.75, 0.5, 0.5]])  # two queries, three candidates
      >>> jitm.losses.sigmoid_contrastive(scores, jnp.eye(2, 3, dtype=bool), temperature=0.1, bias=-5.0)
      Array([3.85..., 3.96...], dtype=float32)
    """
    negatives, valid = prepare(positives, negatives)
    logits = scores / temperature + bias
    losses = jax.nn.softplus(jnp.where(positives, -logits, logits))
    return masked_sum(losses, (positives | negatives) & valid[:, None])


@checked
def matching_cross_entropy(scores: Scores, positives: Mask, negatives: Mask | None = None) -> PerQuery:
    """ITM (UNITER, section 3.2): half of mean over positives of -log s_p plus mean over negatives of -log(1 - s_n).

    Scores are probabilities, clipped to at least 1e-10 from 0 and 1. UNITER samples a match or a mismatch with equal
    probability for each image; this is the expectation of its loss.

    Published: mean, weight 0.5.
    """
    negatives, valid = prepare(positives, negatives)
    matches, mismatches = (-jnp.log(jnp.maximum(probability, MIN_PROBABILITY)) for probability in (scores, 1 - scores))
    return jnp.where(valid, (masked_mean(matches, positives) + masked_mean(mismatches, negatives)) / 2, 0)
