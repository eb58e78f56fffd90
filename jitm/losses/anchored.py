"""Boosting losses of DBL (Diao et al., 2024): the model must exceed an anchor's distance of positives from negatives.

    loss(scores, positives, negatives=None, *, anchor_scores, ...) -> [Q]

For the contract and the notation see `jitm.losses.ranking`. a_c is the anchor's score of the pair that the model
scores s_c. p is the positive of lowest s_p, also for the anchor, and the hardest negative is the one of highest
s_n - a_n; of several that are equal up to rounding, the one of highest s_n. The caller stops the gradient through
`anchor_scores`, as the training step does.

With `extreme`, the margins are soft (eq. 14-20): they shrink as the anchor approaches the highest possible
value. For scores in [-1, 1], it is 2 for the relative losses and 1 for the absolute ones.

Published: sum, beside the loss that the anchor trains with; margin 0.2, alpha 0.5. Models H and I of table IV have two
of these losses, each with weight 0.5.
"""

from __future__ import annotations

import jax.numpy as jnp
from chex import Array, Numeric

from jitm.config.arguments import checked
from jitm.losses.ranking import hardest_negative, hardest_positive, masked_sum, prepare
from jitm.types import Margin, Mask, NotNegative, PerQuery, Positive, Scores

ROUNDING = 1e-6  # differences of this share of the scores are equal


def _at_hardest(scores: Scores, anchor_scores: Scores, negatives: Mask, values: Scores) -> PerQuery:
    """Returns the value of the hardest negative; 0 without a negative.

    A model and its copy differ by rounding, which depends on the number of devices, so that s_n decides between them.
    """
    distances = jnp.where(negatives, scores - anchor_scores, -jnp.inf)
    rounding = ROUNDING * jnp.max(jnp.abs(scores), axis=1, keepdims=True)
    highest = distances >= jnp.max(distances, axis=1, keepdims=True) - rounding
    return hardest_negative(scores, negatives & highest, values)


def _margin(anchor: Array, margin: float, extreme: float | None) -> Numeric:
    """Returns the margin, or the soft one with which anchor + margin stays below the extreme (eq. 17 and 19)."""
    if extreme is None or margin == 0:
        return margin
    return margin * jnp.tanh((extreme - anchor) / margin)


def _relative_hinges(
    scores: Scores, positives: Mask, anchor_scores: Scores, margin: float, extreme: float | None
) -> Scores:
    """Returns [margin + (a_p - a_n) - (s_p - s_n)]_+ for every candidate n."""
    distances = hardest_positive(scores, positives)[:, None] - scores
    anchor_distances = hardest_positive(scores, positives, anchor_scores)[:, None] - anchor_scores
    return jnp.maximum(_margin(anchor_distances, margin, extreme) + anchor_distances - distances, 0)


def _absolute_hinges(
    scores: Scores, positives: Mask, anchor_scores: Scores, margin: float, alpha: float, extreme: float | None
) -> Scores:
    """Returns [alpha margin + a_p - s_p]_+ + [(1 - alpha) margin + s_n - a_n]_+ for every candidate n."""
    positive = hardest_positive(scores, positives)
    anchor = hardest_positive(scores, positives, anchor_scores)
    positive_hinge = jnp.maximum(_margin(anchor, alpha * margin, extreme) + anchor - positive, 0)
    margins = _margin(-anchor_scores, (1 - alpha) * margin, extreme)
    return positive_hinge[:, None] + jnp.maximum(margins + scores - anchor_scores, 0)


@checked
def relative_sum(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    anchor_scores: Scores,
    margin: Margin = 0.2,
    extreme: Positive | None = None,
) -> PerQuery:
    """RS (DBL, eq. 7; soft: eq. 17): the sum over n of [margin + (a_p - a_n) - (s_p - s_n)]_+."""
    negatives, valid = prepare(positives, negatives)
    hinges = _relative_hinges(scores, positives, anchor_scores, margin, extreme)
    return masked_sum(hinges, negatives & valid[:, None])


@checked
def relative_max(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    anchor_scores: Scores,
    margin: Margin = 0.2,
    extreme: Positive | None = None,
) -> PerQuery:
    """RM (DBL, eq. 8; soft: eq. 18): [margin + (a_p - a_n) - (s_p - s_n)]_+ of the hardest negative n.

    Example:
      >>> scores = jnp.array([[1.0, 0.875, 0.25], [0.75, 0.5, 0.5]])  # two queries, three candidates
      >>> jitm.losses.relative_max(scores, jnp.eye(2, 3, dtype=bool), anchor_scores=0.5 * scores, margin=0.25)
      Array([0.1875, 0.375 ], dtype=float32)
    """
    negatives, valid = prepare(positives, negatives)
    hinges = _relative_hinges(scores, positives, anchor_scores, margin, extreme)
    return jnp.where(valid, _at_hardest(scores, anchor_scores, negatives, hinges), 0)


@checked
def absolute_sum(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    anchor_scores: Scores,
    margin: Margin = 0.2,
    alpha: NotNegative = 0.5,
    extreme: Positive | None = None,
) -> PerQuery:
    """AS (DBL, eq. 9; soft: eq. 19): the sum over n of [m_1 + a_p - s_p]_+ + [m_2 + s_n - a_n]_+.

    m_1 is alpha margin, and m_2 is (1 - alpha) margin. The hinge of the positive counts once for each negative. With
    fixed margins the loss is at least `relative_sum`.
    """
    negatives, valid = prepare(positives, negatives)
    hinges = _absolute_hinges(scores, positives, anchor_scores, margin, alpha, extreme)
    return masked_sum(hinges, negatives & valid[:, None])


@checked
def absolute_max(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    anchor_scores: Scores,
    margin: Margin = 0.2,
    alpha: NotNegative = 0.5,
    extreme: Positive | None = None,
) -> PerQuery:
    """AM (DBL, eq. 10; soft: eq. 20): [m_1 + a_p - s_p]_+ + [m_2 + s_n - a_n]_+ of the hardest negative n.

    m_1 is alpha margin, and m_2 is (1 - alpha) margin. With fixed margins the loss is at least `relative_max` (eq. 13).
    """
    negatives, valid = prepare(positives, negatives)
    hinges = _absolute_hinges(scores, positives, anchor_scores, margin, alpha, extreme)
    return jnp.where(valid, _at_hardest(scores, anchor_scores, negatives, hinges), 0)
