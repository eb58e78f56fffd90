"""Losses of texts whose words a model predicts: one value per text.

Every loss takes `logits` float [N, L, V], `labels` int [N, L] and `mask` bool [N, L], is unreduced over the texts, and
is 0 for a text of which no place counts. What stands where the mask is False, NaN included, does not matter.
"""

import chex
import jax
import jax.numpy as jnp


def captioning(logits: chex.Array, labels: chex.Array, mask: chex.Array) -> chex.Array:
    """Sum over places l of -log softmax(logits_l)[label_l] (VSRN, section 3.4: the caption's negative log-likelihood).

    Args:
      logits: [N, L, V], before the softmax.
      labels: int [N, L], the words that stand there.
      mask: bool [N, L], the places that count.

    Returns:
      [N], in nats; published as the sum over the batch divided by its size (reduction 'mean', weight 1).
    """
    chex.assert_rank(logits, 3)
    chex.assert_equal_shape([labels, mask])
    chex.assert_equal_shape_prefix([logits, labels], 2)
    logits, labels = jnp.where(mask[..., None], logits, 0), jnp.where(mask, labels, 0)
    label_logits = jnp.take_along_axis(logits, labels[..., None], axis=2)[..., 0]
    return jnp.sum(jnp.where(mask, jax.nn.logsumexp(logits, axis=2) - label_logits, 0), axis=1)
