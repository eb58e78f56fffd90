"""Refills masked captions with sampled words and filters out true captions (TAGS: Fan et al., 2022, section 2.1).

Pure functions of the masked views of one caption, of static shapes; `jitm.data.pairs.masking` decides which words are
masked.
"""

import math

import jax
import jax.numpy as jnp
from chex import Array, PRNGKey

from jitm.types import Masked


def refill(logits: Array, masked: Masked, num_samples: int, temperature: float, key: PRNGKey) -> Array:
    """Samples a word for every masked token position from softmax(logits / tau), independently (section 2.1).

    Args:
      logits: float [K, L, V], for each word at each token position of K masked views.
      masked: The masked views.
      num_samples: The number of captions per view.
      temperature: tau; near 0 the most probable words are sampled, so that captions repeat.
      key: A random key.

    Returns:
      int32 [K num_samples, L], the captions of a view next to each other.
    """
    tempered = logits.astype(jnp.float32) / temperature
    words = jnp.moveaxis(sample_words(tempered, num_samples, key), -1, 1)
    refilled = jnp.where(masked.labelled[:, None], words, masked.ids[:, None]).astype(jnp.int32)
    return refilled.reshape(-1, refilled.shape[2])


def sample_words(logits: Array, num_samples: int, key: PRNGKey) -> Array:
    """Samples words int [..., num_samples] from softmax(logits [..., V]).

    Each word needs two random numbers: one chooses a block of words, the other a word in the block.
    """
    weights = jnp.exp(logits - jnp.max(logits, -1, keepdims=True))
    size = math.isqrt(logits.shape[-1] - 1) + 1  # words per block, about as many as blocks
    padding = -logits.shape[-1] % size
    blocks = jnp.pad(weights, [(0, 0)] * (logits.ndim - 1) + [(0, padding)])
    blocks = blocks.reshape(*logits.shape[:-1], -1, size)
    shares = jax.random.uniform(key, (2, *logits.shape[:-1], num_samples))
    block = inverse_cdf(blocks.sum(-1)[..., None, :], shares[0])
    word = inverse_cdf(jnp.take_along_axis(blocks, block[..., None], axis=-2), shares[1])
    return block * size + word


def inverse_cdf(weights: Array, share: Array) -> Array:
    """Returns the first index int [...] at which the cumulative weights [..., N] exceed a share [...] of their sum.

    Weights are not negative and not all zero. The index of a zero weight is never returned.
    """
    # Rounded sums need not ascend: sums at zero weights do not count, and the share stays below the largest.
    cumulative = jnp.where(weights > 0, jnp.cumsum(weights, -1), 0)
    total = jnp.max(cumulative, -1)
    threshold = jnp.minimum(share * total, jnp.nextafter(total, 0))
    return jnp.argmax(cumulative > threshold[..., None], -1)


def novel(captions: Array, original: Array, existing: Array) -> Array:
    """Returns which captions have a changed word that no caption of the image contains (section 2.1).

    This is the paper's criterion against false negatives; it also excludes the original caption. Captions are int
    [N, L], the original [L], and `existing` [W] has the words of all captions of the image, padded with -1.
    """
    return jnp.any((captions != original) & ~jnp.isin(captions, existing), axis=1)


def distinct(captions: Array) -> Array:
    """Returns which captions [N, L] differ from all preceding ones: bool [N]."""
    equal = jnp.all(captions[:, None] == captions, axis=2)
    return ~jnp.any(jnp.tril(equal, -1), axis=1)


def hardest(scores: Array, valid: Array, num_hard: int) -> tuple[Array, Array]:
    """Selects the `num_hard` valid captions of N with the highest scores (section 2.2).

    Returns:
      int [m], the selected captions, the highest score first, and bool [m], which of them are valid: there may be fewer
      than m valid captions.
    """
    values, index = jax.lax.top_k(jnp.where(valid, scores, -jnp.inf), num_hard)
    return index, jnp.isfinite(values)
