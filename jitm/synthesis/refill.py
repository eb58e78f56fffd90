"""Wrong sentences that a model writes itself: masked places refilled, true ones sorted out (TAGS, paper 001, 2.1).

Pure functions of one sentence's variants, of static shapes; which words are masked is `jitm.data.masking`'s matter.
"""

import chex
import jax
import jax.numpy as jnp

from jitm.types import Masked


def refill(logits: chex.Array, masked: Masked, samples: int, temperature: float, key: chex.PRNGKey) -> chex.Array:
    """Draws a word for every labelled place from softmax(logits / tau), the places by themselves (section 2.1).

    Args:
      logits: float [K, L, V], of the words at each place of K variants.
      masked: ids and labelled places [K, L].
      samples: how many sentences are made of each variant.
      temperature: tau; near 0 the most probable words are drawn, so that sentences repeat.
      key: of the draw.

    Returns:
      int32 [K samples, L], those of a variant together.
    """
    tempered = logits.astype(jnp.float32) / temperature
    # One sample at a time: a random number for every word of every place of all samples takes gigabytes.
    words = jax.lax.map(lambda key: jax.random.categorical(key, tempered), jax.random.split(key, samples))
    filled = jnp.where(masked.labelled, words, masked.ids).astype(jnp.int32)
    return filled.swapaxes(0, 1).reshape(-1, filled.shape[2])


def novel(sentences: chex.Array, original: chex.Array, known: chex.Array) -> chex.Array:
    """Which sentences say something that no caption of the image says (section 2.1, the criterion of false negatives).

    At least one changed word must be outside of all captions of the image. The original itself is none of them.

    Args:
      sentences: int [N, L].
      original: int [L].
      known: int [W], the words of all captions of the image, padded with -1.

    Returns:
      bool [N].
    """
    return jnp.any((sentences != original) & ~jnp.isin(sentences, known), axis=1)


def distinct(sentences: chex.Array) -> chex.Array:
    """Which of N sentences [N, L] are not there before: bool [N]."""
    equal = jnp.all(sentences[:, None] == sentences, axis=2)
    return ~jnp.any(jnp.tril(equal, -1), axis=1)


def hardest(scores: chex.Array, allowed: chex.Array, count: int) -> tuple[chex.Array, chex.Array]:
    """Takes the sentences of the highest scores (section 2.2).

    Args:
      scores: [N], of each with the image.
      allowed: bool [N].
      count: m, at most N.

    Returns:
      int [m], the allowed ones of the highest scores, and bool [m], which of these there are: fewer may be allowed.
    """
    values, index = jax.lax.top_k(jnp.where(allowed, scores, -jnp.inf), count)
    return index, jnp.isfinite(values)
