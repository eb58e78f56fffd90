"""Ranking losses of one retrieval direction, from scores and masks to one value per query.

Every loss takes `scores` float [Q, C], `positives` bool [Q, C] and `negatives` bool [Q, C] (default: every candidate
that is not positive), is unreduced, and is 0 for a query without a positive or without a negative. The published value
is the stated reduction over both directions: the loss of S plus the loss of its transpose.
"""

import chex
import jax
import jax.numpy as jnp

MIN_PROBABILITY = 1e-10  # smaller probabilities are clipped to this, so that their logarithm is finite


def hardest_positive(scores: chex.Array, positives: chex.Array, values: chex.Array | None = None) -> chex.Array:
    """Returns the lowest positive score of each query.

    Args:
      scores: [Q, C].
      positives: bool [Q, C]; one positive per query is the published case.
      values: [Q, C], returned in place of the scores, of the same candidate; None for the scores.

    Returns:
      [Q]; 0 for a query without a positive.
    """
    index = jnp.argmin(jnp.where(positives, scores, jnp.inf), axis=1, keepdims=True)
    value = jnp.take_along_axis(scores if values is None else values, index, axis=1)[:, 0]
    return jnp.where(positives.any(axis=1), value, 0)


def hardest_negative(scores: chex.Array, negatives: chex.Array, values: chex.Array | None = None) -> chex.Array:
    """Returns the highest negative score of each query; among ties the first gets the gradient.

    Args:
      scores: [Q, C].
      negatives: bool [Q, C].
      values: [Q, C], returned in place of the scores, of the same candidate; None for the scores.

    Returns:
      [Q]; 0 for a query without a negative.
    """
    index = jnp.argmax(jnp.where(negatives, scores, -jnp.inf), axis=1, keepdims=True)
    value = jnp.take_along_axis(scores if values is None else values, index, axis=1)[:, 0]
    return jnp.where(negatives.any(axis=1), value, 0)


def prepare(scores: chex.Array, positives: chex.Array, negatives: chex.Array | None) -> tuple[chex.Array, chex.Array]:
    """Checks shapes and types; returns the negatives and a mask [Q] of the queries with a positive and a negative."""
    chex.assert_rank(scores, 2)
    chex.assert_type([positives] if negatives is None else [positives, negatives], bool)
    negatives = ~positives if negatives is None else negatives
    chex.assert_equal_shape([scores, positives, negatives])
    return negatives, positives.any(axis=1) & negatives.any(axis=1)


def sum_of_hinges(
    scores: chex.Array, positives: chex.Array, negatives: chex.Array | None = None, *, margin: float
) -> chex.Array:
    """Sum over negatives n of [margin + s_n - s_p]_+ (VSE0; Faghri et al., 2018, eq. 5, one direction).

    Args:
      scores: [Q, C].
      positives: bool [Q, C]; the hardest of them is p.
      negatives: bool [Q, C], default `~positives`.
      margin: in score units, 0.2 as published.

    Returns:
      [Q]; published as the sum over both directions of the batch.
    """
    negatives, valid = prepare(scores, positives, negatives)
    hinges = jnp.maximum(margin + scores - hardest_positive(scores, positives)[:, None], 0)
    return jnp.sum(jnp.where(negatives & valid[:, None], hinges, 0), axis=1)


def mean_of_hinges(
    scores: chex.Array, positives: chex.Array, negatives: chex.Array | None = None, *, margin: float
) -> chex.Array:
    """Mean over negatives n of [margin + s_n - s_p]_+ (UNITER's fine-tuning; Fan et al., 2022, eq. 6).

    Args:
      scores: [Q, C].
      positives: bool [Q, C]; the hardest of them is p.
      negatives: bool [Q, C], default `~positives`; their number may differ between queries.
      margin: in score units, 0.2 as published, where scores are probabilities.

    Returns:
      [Q]; published as the sum of the means over each direction.
    """
    negatives, _ = prepare(scores, positives, negatives)
    total = sum_of_hinges(scores, positives, negatives, margin=margin)
    return total / jnp.maximum(negatives.sum(axis=1), 1)


def max_of_hinges(
    scores: chex.Array, positives: chex.Array, negatives: chex.Array | None = None, *, margin: float
) -> chex.Array:
    """The hinge [margin + s_n - s_p]_+ of the hardest negative n (Faghri et al., 2018, eq. 6, one direction).

    Args:
      scores: [Q, C].
      positives: bool [Q, C]; the hardest of them is p.
      negatives: bool [Q, C], default `~positives`.
      margin: in score units, 0.2 as published.

    Returns:
      [Q]; published as the sum over both directions of the batch.
    """
    negatives, valid = prepare(scores, positives, negatives)
    hinge = margin + hardest_negative(scores, negatives) - hardest_positive(scores, positives)
    return jnp.where(valid, jnp.maximum(hinge, 0), 0)


def semi_hard_hinge(
    scores: chex.Array, positives: chex.Array, negatives: chex.Array | None = None, *, margin: float
) -> chex.Array:
    """The hinge [margin + s_n - s_p]_+ of the hardest negative n with s_n < s_p (SHN; Li et al., 2023, eq. 13-14).

    Args:
      scores: [Q, C].
      positives: bool [Q, C]; the hardest of them is p.
      negatives: bool [Q, C], default `~positives`.
      margin: in score units, 0.2 as published.

    Returns:
      [Q]; published as the sum over both directions of the batch.
    """
    negatives, _ = prepare(scores, positives, negatives)
    semi_hard = negatives & (scores < hardest_positive(scores, positives)[:, None])
    return max_of_hinges(scores, positives, semi_hard, margin=margin)


def selective_contrastive(
    scores: chex.Array, positives: chex.Array, negatives: chex.Array | None = None, *, margin: float
) -> chex.Array:
    """The hinge [margin + s_n - s_p]_+ of the hardest negative n if s_n < s_p, else s_n (SCT; Li et al., 2023, eq. 16).

    Args:
      scores: [Q, C].
      positives: bool [Q, C]; the hardest of them is p.
      negatives: bool [Q, C], default `~positives`.
      margin: in score units, 0.2 as published.

    Returns:
      [Q], below 0 where s_p <= s_n < 0; published as the sum over both directions of the batch.
    """
    negatives, valid = prepare(scores, positives, negatives)
    negative = hardest_negative(scores, negatives)
    hard = valid & (negative >= hardest_positive(scores, positives))
    return jnp.where(hard, negative, max_of_hinges(scores, positives, negatives, margin=margin))


def selective_hard_negative(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    margin: float,
    epsilon: float,
) -> chex.Array:
    """`max_of_hinges` where |s_n - s_p| > epsilon, else `mean_of_hinges` (SelHN; Li et al., 2023, eq. 9-12).

    s_n is the score of the hardest negative.

    Args:
      scores: [Q, C].
      positives: bool [Q, C]; the hardest of them is p.
      negatives: bool [Q, C], default `~positives`.
      margin: in score units, 0.2 as published.
      epsilon: in score units, 0.01 as published; at equality the paper averages and the released code does not.

    Returns:
      [Q]; the paper sums over both directions (reduction 'sum', weight 1), the released code takes the mean of each
      direction and halves their sum (reduction 'mean', weight 0.5). The average is over the negatives, as released;
      eq. 12 divides the sum of hinges by C.
    """
    negatives, _ = prepare(scores, positives, negatives)
    average = mean_of_hinges(scores, positives, negatives, margin=margin)
    gap = jnp.abs(hardest_negative(scores, negatives) - hardest_positive(scores, positives))
    return jnp.where(gap > epsilon, max_of_hinges(scores, positives, negatives, margin=margin), average)


def polynomial(
    scores: chex.Array, positives: chex.Array, negatives: chex.Array | None = None, *, margin: float
) -> chex.Array:
    """[0.2 p^2 - 0.7 p + 0.5]_+ + [0.9 n^2 - 0.4 n + 0.03]_+ (MPL; Wei et al., 2020; released PolyLoss).

    p is the score of the hardest positive, n that of the hardest negative. The coefficients are those of SCAN i2t-AVG
    on Flickr30K; the second polynomial is below 0 for n between 0.0955 and 0.349.

    0 unless n + margin > p and p < 1 - 1e-5; the released code can crash above that.

    Args:
      scores: [Q, C], cosines.
      positives: bool [Q, C]; the hardest of them is p.
      negatives: bool [Q, C], default `~positives`.
      margin: in score units.

    Returns:
      [Q]; published as the sum of the means over each direction.
    """
    negatives, valid = prepare(scores, positives, negatives)
    positive, negative = hardest_positive(scores, positives), hardest_negative(scores, negatives)
    value = jnp.maximum(jnp.polyval(jnp.asarray((0.2, -0.7, 0.5), scores.dtype), positive), 0)
    value += jnp.maximum(jnp.polyval(jnp.asarray((0.9, -0.4, 0.03), scores.dtype), negative), 0)
    return jnp.where(valid & (positive < 1 - 1e-5) & (negative + margin > positive), value, 0)


def adaptive_margin(
    scores: chex.Array, positives: chex.Array, negatives: chex.Array | None = None, *, margins: chex.Array
) -> chex.Array:
    """Sum over negatives n of [margin_n + s_n - s_p]_+ (SAM; Biten et al., 2022; not checked against its text).

    The margin is (phi(p) - phi(n)) / tau of a caption metric phi, such as CIDEr to the query's captions. To
    sample one negative per query, pass `negatives` with one True per row.

    Args:
      scores: [Q, C].
      positives: bool [Q, C]; the hardest of them is p.
      negatives: bool [Q, C], default `~positives`.
      margins: [Q, C], in score units; those of positives are ignored.

    Returns:
      [Q]; an additional term beside `max_of_hinges`, reduced like it.
    """
    chex.assert_equal_shape([scores, positives, margins])
    return sum_of_hinges(scores + jnp.where(positives, 0, margins), positives, negatives, margin=0)


def masked_log_softmax(scores: chex.Array, candidates: chex.Array, valid: chex.Array) -> chex.Array:
    """Returns the log-softmax over the candidates, -inf elsewhere; for queries that are not valid, over all columns."""
    return jax.nn.log_softmax(jnp.where(candidates | ~valid[:, None], scores, -jnp.inf), axis=1)


def projection_matching(
    scores: chex.Array, positives: chex.Array, negatives: chex.Array | None = None, *, temperature: float
) -> chex.Array:
    """Sum of p log(1e-8 + p / (q + 1e-8)), about KL(p || q), p = softmax(s / temperature) (CMPM, released).

    q is uniform over the positives, and both are over positives and negatives only.

    Args:
      scores: [Q, C]; CMPM's are projections x_c . z_q / |z_q| at temperature 1, those of DBL are similarities.
      positives: bool [Q, C]; all matches of the query, such as all captions of the same image.
      negatives: bool [Q, C], default `~positives`.
      temperature: in score units; DBL multiplies by 10, i.e. 0.1.

    Returns:
      [Q]; published as the sum of the means over each direction.
    """
    negatives, valid = prepare(scores, positives, negatives)
    predicted = jnp.exp(masked_log_softmax(scores / temperature, positives | negatives, valid))
    matching = positives / jnp.maximum(positives.sum(axis=1, keepdims=True), 1)
    divergence = predicted * jnp.log(1e-8 + predicted / (matching.astype(scores.dtype) + 1e-8))
    return jnp.where(valid, jnp.sum(divergence, axis=1), 0)


def masked_mean(values: chex.Array, mask: chex.Array) -> chex.Array:
    """Returns the mean of each row [Q] over the mask; 0 if the mask is empty."""
    return jnp.sum(jnp.where(mask, values, 0), axis=1) / jnp.maximum(mask.sum(axis=1), 1)


def softmax_contrastive(
    scores: chex.Array, positives: chex.Array, negatives: chex.Array | None = None, *, temperature: float
) -> chex.Array:
    """Mean over positives of -log softmax(s / temperature) (InfoNCE, as in CLIP; SupCon, eq. 2).

    The softmax is over positives and negatives. With several positives the minimum is the logarithm of their number.

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      temperature: in score units, 0.07 at the start of CLIP's training, which learns it.

    Returns:
      [Q]; CLIP takes the mean of each direction and halves their sum (reduction 'mean', weight 0.5).
    """
    negatives, valid = prepare(scores, positives, negatives)
    logs = masked_log_softmax(scores / temperature, positives | negatives, valid)
    return jnp.where(valid, -masked_mean(logs, positives), 0)


def matching_cross_entropy(
    scores: chex.Array, positives: chex.Array, negatives: chex.Array | None = None
) -> chex.Array:
    """Half of: mean over positives of -log s_p, plus mean over negatives of -log(1 - s_n) (ITM; UNITER, section 3.2).

    UNITER samples a match or a mismatch with equal probability for each image; this is the expectation of its loss.

    Args:
      scores: [Q, C], probabilities; those of a match or of a mismatch are clipped to at least 1e-10.
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.

    Returns:
      [Q]; published as the mean over a batch of images and texts (reduction 'mean', weight 0.5).
    """
    negatives, valid = prepare(scores, positives, negatives)
    matches, mismatches = (-jnp.log(jnp.maximum(probability, MIN_PROBABILITY)) for probability in (scores, 1 - scores))
    return jnp.where(valid, (masked_mean(matches, positives) + masked_mean(mismatches, negatives)) / 2, 0)
