"""Losses relative to an anchor model (DBL; Diao et al., 2024): one retrieval direction, one value per query.

Beside `scores` S, `positives` and `negatives`, as in `jitm.losses.ranking`, they take `anchor_scores` A [Q, C], the
scores of the same pairs by another matcher. The training step stops the gradient through them, so the losses do not;
the soft margins depend on A alone and are detached with it.

Every loss is unreduced, 0 for a query without a positive or without a negative, and ignores candidates that are
neither. p is the hardest positive by S, also for A. The published value is the sum over both directions of the batch
(reduction 'sum', weight 1), beside the loss of the anchor's training; models H and I of DBL's table IV take two of
them, each as a term of weight 0.5.
"""

import chex
import jax.numpy as jnp

from jitm.losses.ranking import hardest_negative, hardest_positive, prepare


def _margin(anchor: chex.Array, margin: float, extreme: float | None) -> chex.Numeric:
    """Returns the margin, or the soft one with which anchor + margin stays below the extreme (DBL eq. 17 and 19)."""
    if extreme is None or margin == 0:
        return margin
    return margin * jnp.tanh((extreme - anchor) / margin)


def _relative_hinges(
    scores: chex.Array, positives: chex.Array, anchor_scores: chex.Array, margin: float, extreme: float | None
) -> chex.Array:
    """Returns [margin + (a_p - a_n) - (s_p - s_n)]_+ for every candidate n: [Q, C]."""
    distances = hardest_positive(scores, positives)[:, None] - scores
    anchor_distances = hardest_positive(scores, positives, anchor_scores)[:, None] - anchor_scores
    return jnp.maximum(_margin(anchor_distances, margin, extreme) + anchor_distances - distances, 0)


def _absolute_hinges(
    scores: chex.Array,
    positives: chex.Array,
    anchor_scores: chex.Array,
    margin: float,
    alpha: float,
    extreme: float | None,
) -> chex.Array:
    """Returns [alpha margin + a_p - s_p]_+ + [(1 - alpha) margin + s_n - a_n]_+ for every candidate n: [Q, C]."""
    positive, anchor = hardest_positive(scores, positives), hardest_positive(scores, positives, anchor_scores)
    positive_hinge = jnp.maximum(_margin(anchor, alpha * margin, extreme) + anchor - positive, 0)
    margins = _margin(-anchor_scores, (1 - alpha) * margin, extreme)
    return positive_hinge[:, None] + jnp.maximum(margins + scores - anchor_scores, 0)


def relative_sum(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    anchor_scores: chex.Array,
    margin: float = 0.2,
    extreme: float | None = None,
) -> chex.Array:
    """Sum over negatives n of [margin + (a_p - a_n) - (s_p - s_n)]_+ (RS, DBL eq. 7, one direction).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].
      margin: in score units.
      extreme: the maximum of a_p - a_n, 2 for scores in [-1, 1], for soft margins (eq. 17); None for a fixed margin.

    Returns:
      [Q].
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    hinges = _relative_hinges(scores, positives, anchor_scores, margin, extreme)
    return jnp.sum(jnp.where(negatives & valid[:, None], hinges, 0), axis=1)


def relative_max(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    anchor_scores: chex.Array,
    margin: float = 0.2,
    extreme: float | None = None,
) -> chex.Array:
    """[margin + (a_p - a_n) - (s_p - s_n)]_+ of the negative n of highest s_n - a_n (RM, DBL eq. 8 and 18).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].
      margin: in score units.
      extreme: the maximum of a_p - a_n, 2 for scores in [-1, 1], for soft margins (eq. 17); None for a fixed margin.

    Returns:
      [Q].
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    hinges = _relative_hinges(scores, positives, anchor_scores, margin, extreme)
    return jnp.where(valid, hardest_negative(scores - anchor_scores, negatives, hinges), 0)


def absolute_sum(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    anchor_scores: chex.Array,
    margin: float = 0.2,
    alpha: float = 0.5,
    extreme: float | None = None,
) -> chex.Array:
    """Sum over negatives n of [m_1 + a_p - s_p]_+ + [m_2 + s_n - a_n]_+ (AS, DBL eq. 9, one direction).

    The hinge of the positive is part of the sum, once for each negative.

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].
      margin: m_1 + m_2, in score units.
      alpha: m_1 as a fraction of the margin.
      extreme: the maximum of a_p and -a_n, 1 for scores in [-1, 1], for soft margins (eq. 19); None for fixed margins.

    Returns:
      [Q], at least `relative_sum` for fixed margins.
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    hinges = _absolute_hinges(scores, positives, anchor_scores, margin, alpha, extreme)
    return jnp.sum(jnp.where(negatives & valid[:, None], hinges, 0), axis=1)


def absolute_max(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    anchor_scores: chex.Array,
    margin: float = 0.2,
    alpha: float = 0.5,
    extreme: float | None = None,
) -> chex.Array:
    """[m_1 + a_p - s_p]_+ + [m_2 + s_n - a_n]_+ of the negative n of highest s_n - a_n (AM, DBL eq. 10 and 20).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].
      margin: m_1 + m_2, in score units.
      alpha: m_1 as a fraction of the margin.
      extreme: the maximum of a_p and -a_n, 1 for scores in [-1, 1], for soft margins (eq. 19); None for fixed margins.

    Returns:
      [Q], at least `relative_max` for fixed margins (eq. 13).
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    hinges = _absolute_hinges(scores, positives, anchor_scores, margin, alpha, extreme)
    return jnp.where(valid, hardest_negative(scores - anchor_scores, negatives, hinges), 0)
