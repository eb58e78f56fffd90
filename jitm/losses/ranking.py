"""Ranking losses of one retrieval direction: scores and masks in, one value per query out.

Every loss takes `scores` float [Q, C], `positives` bool [Q, C] and `negatives` bool [Q, C] (default: every candidate
that is not positive), is unreduced, and is 0 for a query that has no positive or no negative. The published value is
the stated reduction of both directions: the loss of S plus the loss of its transpose.
"""

import chex
import jax.numpy as jnp


def hardest_positive(scores: chex.Array, positives: chex.Array) -> chex.Array:
    """The lowest positive score of each query [Q]; of one positive (the published case) its score, 0 where none."""
    index = jnp.argmin(jnp.where(positives, scores, jnp.inf), axis=1, keepdims=True)
    score = jnp.take_along_axis(scores, index, axis=1)[:, 0]
    return jnp.where(positives.any(axis=1), score, 0)


def hardest_negative(scores: chex.Array, negatives: chex.Array) -> chex.Array:
    """The highest negative score of each query [Q]; the gradient goes to the first of ties. 0 where there is none."""
    index = jnp.argmax(jnp.where(negatives, scores, -jnp.inf), axis=1, keepdims=True)
    score = jnp.take_along_axis(scores, index, axis=1)[:, 0]
    return jnp.where(negatives.any(axis=1), score, 0)


def sum_of_hinges(
    scores: chex.Array, positives: chex.Array, negatives: chex.Array | None = None, *, margin: float
) -> chex.Array:
    """Sum over negatives n of [margin + s_n - s_p]_+ (VSE0; VSE++ eq. 5, the SH loss, one direction).

    Args:
      scores: [Q, C].
      positives: bool [Q, C]; of several the hardest is p.
      negatives: bool [Q, C], default `~positives`.
      margin: in score units, 0.2 as published.

    Returns:
      [Q]; published as the sum over both directions of the batch.
    """
    chex.assert_rank(scores, 2)
    negatives = ~positives if negatives is None else negatives
    chex.assert_equal_shape([scores, positives, negatives])
    valid = negatives & positives.any(axis=1, keepdims=True)
    hinges = jnp.maximum(margin + scores - hardest_positive(scores, positives)[:, None], 0)
    return jnp.sum(jnp.where(valid, hinges, 0), axis=1)


def max_of_hinges(
    scores: chex.Array, positives: chex.Array, negatives: chex.Array | None = None, *, margin: float
) -> chex.Array:
    """The hinge [margin + s_n - s_p]_+ of the hardest negative n (VSE++ eq. 6, the MH loss, one direction).

    Args:
      scores: [Q, C].
      positives: bool [Q, C]; of several the hardest is p.
      negatives: bool [Q, C], default `~positives`.
      margin: in score units, 0.2 as published.

    Returns:
      [Q]; published as the sum over both directions of the batch.
    """
    chex.assert_rank(scores, 2)
    negatives = ~positives if negatives is None else negatives
    chex.assert_equal_shape([scores, positives, negatives])
    hinge = margin + hardest_negative(scores, negatives) - hardest_positive(scores, positives)
    return jnp.where(negatives.any(axis=1) & positives.any(axis=1), jnp.maximum(hinge, 0), 0)
