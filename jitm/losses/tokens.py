"""Losses of predicted words: one value per text.

Every loss takes `logits` float [N, L, V], `labels` int [N, L] and `mask` bool [N, L], is unreduced over the texts, and
is 0 for a text with an empty mask. Values outside of the mask, NaN included, are ignored. A mean is over the positions
of a text; for a mean over several texts, such as TAGS-DC's variants of a caption, put them into one row.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jitm.losses.ranking import MIN_PROBABILITY, masked_mean

MAX_COST = float(-np.log(MIN_PROBABILITY))


def _costs(logits: chex.Array, labels: chex.Array, mask: chex.Array) -> chex.Array:
    """Returns -log softmax(logits_l)[label_l] at each position l of the mask, 0 at the others: [N, L]."""
    chex.assert_rank(logits, 3)
    chex.assert_equal_shape([labels, mask])
    chex.assert_equal_shape_prefix([logits, labels], 2)
    logits, labels = jnp.where(mask[..., None], logits, 0), jnp.where(mask, labels, 0)
    label_logits = jnp.take_along_axis(logits, labels[..., None], axis=2)[..., 0]
    return jnp.where(mask, jax.nn.logsumexp(logits, axis=2) - label_logits, 0)


def captioning(logits: chex.Array, labels: chex.Array, mask: chex.Array) -> chex.Array:
    """Sum over positions l of -log softmax(logits_l)[label_l], a negative log-likelihood (VSRN, section 3.4).

    Args:
      logits: [N, L, V], before the softmax.
      labels: int [N, L], the words.
      mask: bool [N, L], the positions of words.

    Returns:
      [N], in nats; published as the sum over the batch divided by its size (reduction 'mean', weight 1).
    """
    return jnp.sum(_costs(logits, labels, mask), axis=1)


def masked_language_modeling(logits: chex.Array, labels: chex.Array, mask: chex.Array) -> chex.Array:
    """Mean over positions l of -log softmax(logits_l)[label_l] (MLM; BERT, section 3.1; Fan et al., 2022, section 2.1).

    Args:
      logits: [N, L, V], before the softmax.
      labels: int [N, L], the original words.
      mask: bool [N, L], the masked positions.

    Returns:
      [N], in nats; TAGS-DC takes the mean over its texts (reduction 'mean', weight 0.05 to 0.1 as released).
    """
    return masked_mean(_costs(logits, labels, mask), mask)


def word_discrimination(logits: chex.Array, labels: chex.Array, mask: chex.Array, *, match_weight: float) -> chex.Array:
    """Mean over positions of -w_y log max(softmax(logits)[y], 1e-10) (WoD; Fan et al., 2022, eq. 7).

    The weights are w_0 = 1 and w_1 = match_weight.

    Args:
      logits: [N, L, 2], before the softmax.
      labels: int [N, L], y: 1 for the original word, a match, and 0 for a replaced one.
      mask: bool [N, L], the positions of words; as released also those of the special tokens.
      match_weight: 0.11 as released, 1 in the paper; the mean is over positions, not over weights.

    Returns:
      [N], in nats; released as the mean over the texts (reduction 'mean', weight 5e-4).
    """
    chex.assert_axis_dimension(logits, 2, 2)
    costs = jnp.minimum(_costs(logits, labels, mask), MAX_COST)
    return masked_mean(jnp.where(labels == 1, match_weight * costs, costs), mask)


def word_correction(logits: chex.Array, labels: chex.Array, mask: chex.Array) -> chex.Array:
    """Mean over positions l of -log max(softmax(logits_l)[label_l], 1e-10) (WoC; Fan et al., 2022, eq. 8).

    Args:
      logits: [N, L, V], before the softmax, of a synthetic caption.
      labels: int [N, L], the words of the original caption.
      mask: bool [N, L], the refilled positions as released; all positions of words in the paper.

    Returns:
      [N], in nats; released as the mean over the refilled positions of all captions (reduction 'mean', weight 5e-4).
    """
    return masked_mean(jnp.minimum(_costs(logits, labels, mask), MAX_COST), mask)
