"""Losses of texts whose words a model predicts: one value per text.

Every loss takes `logits` float [N, L, V], `labels` int [N, L] and `mask` bool [N, L], is unreduced over the texts, and
is 0 for a text of which no place counts. What stands where the mask is False, NaN included, does not matter. A mean is
over the places of a text; for one over those of several, as TAGS-DC's variants of a sentence, put them into one row.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jitm.losses.ranking import LEAST, masked_mean

MOST = float(-np.log(LEAST))


def _costs(logits: chex.Array, labels: chex.Array, mask: chex.Array) -> chex.Array:
    """-log softmax(logits_l)[label_l] of each place l that counts, 0 of the others: [N, L]."""
    chex.assert_rank(logits, 3)
    chex.assert_equal_shape([labels, mask])
    chex.assert_equal_shape_prefix([logits, labels], 2)
    logits, labels = jnp.where(mask[..., None], logits, 0), jnp.where(mask, labels, 0)
    label_logits = jnp.take_along_axis(logits, labels[..., None], axis=2)[..., 0]
    return jnp.where(mask, jax.nn.logsumexp(logits, axis=2) - label_logits, 0)


def captioning(logits: chex.Array, labels: chex.Array, mask: chex.Array) -> chex.Array:
    """Sum over places l of -log softmax(logits_l)[label_l] (VSRN, section 3.4: the caption's negative log-likelihood).

    Args:
      logits: [N, L, V], before the softmax.
      labels: int [N, L], the words that stand there.
      mask: bool [N, L], the places that count.

    Returns:
      [N], in nats; published as the sum over the batch divided by its size (reduction 'mean', weight 1).
    """
    return jnp.sum(_costs(logits, labels, mask), axis=1)


def masked_language_modeling(logits: chex.Array, labels: chex.Array, mask: chex.Array) -> chex.Array:
    """Mean over places l of -log softmax(logits_l)[label_l] (MLM; BERT, section 3.1; TAGS-DC, section 2.1).

    Args:
      logits: [N, L, V], before the softmax.
      labels: int [N, L], the words that stood there.
      mask: bool [N, L], the places that were masked.

    Returns:
      [N], in nats; TAGS-DC takes the mean over its sentences (reduction 'mean', weight 0.05 to 0.1 as released).
    """
    return masked_mean(_costs(logits, labels, mask), mask)


def word_discrimination(logits: chex.Array, labels: chex.Array, mask: chex.Array, *, match_weight: float) -> chex.Array:
    """Mean over places of -w_y log max(softmax(logits)[y], 1e-10), w_0 = 1, w_1 = match_weight (WoD, TAGS-DC eq. 7).

    Args:
      logits: [N, L, 2], before the softmax.
      labels: int [N, L], y: 1 where the word is the original one, a match, and 0 where it was replaced.
      mask: bool [N, L], the places that count, as released the first and the last too.
      match_weight: 0.11 as released, 1 in the paper; the mean is over places, not over weights.

    Returns:
      [N], in nats; released as the mean over the sentences (reduction 'mean', weight 5e-4).

    Raises:
      ValueError: if match_weight is negative.
    """
    if match_weight < 0:
        raise ValueError(f'match_weight is {match_weight}; it must not be negative')
    chex.assert_axis_dimension(logits, 2, 2)
    costs = jnp.minimum(_costs(logits, labels, mask), MOST)
    return masked_mean(jnp.where(labels == 1, match_weight * costs, costs), mask)


def word_correction(logits: chex.Array, labels: chex.Array, mask: chex.Array) -> chex.Array:
    """Mean over places l of -log max(softmax(logits_l)[label_l], 1e-10) (WoC, TAGS-DC eq. 8).

    Args:
      logits: [N, L, V], before the softmax, of a synthetic sentence.
      labels: int [N, L], the words of the original sentence.
      mask: bool [N, L], the places that were refilled, as released; all of the sentence's are the paper's.

    Returns:
      [N], in nats; released as the mean over the refilled places of all sentences (reduction 'mean', weight 5e-4).
    """
    return masked_mean(jnp.minimum(_costs(logits, labels, mask), MOST), mask)
