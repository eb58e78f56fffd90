"""Where the candidates of a ranking come from."""

import chex
import jax.numpy as jnp

from jitm.types import Ranking


def relevance_margins(relevance: chex.Array, temperature: float) -> chex.Array:
    """The margins (phi(p) - phi(n)) / tau of SAM (arXiv 2110.02623, not checked against its text).

    Args:
      relevance: phi [Q, C] of each candidate n for each query; the positive p of query q is candidate q.
      temperature: tau, what a difference in phi is divided by to be one in scores.

    Returns:
      [Q, C], below 0 where a candidate is the more relevant one.
    """
    return (jnp.diagonal(relevance)[:, None] - relevance) / temperature


def in_batch(
    scores: chex.Array,
    image_index: chex.Array,
    relevance: chex.Array | None = None,
    *,
    same_image_negatives: bool,
    margin_temperature: float = 5.0,
) -> dict[str, Ranking]:
    """Ranks the batch's texts for each image and its images for each text.

    Args:
      scores: [B, B], image i with text j; pairs stand on the diagonal.
      image_index: int [B], equal numbers are the same image.
      relevance: [B, B], phi of text j for image i, if there are to be margins.
      same_image_negatives: whether another text of the same image counts as a negative, as published.
      margin_temperature: tau of the margins.

    Returns:
      `i2t` and `t2i`, each a Ranking [B, B]; positives are the diagonal.
    """
    chex.assert_shape(scores, (*image_index.shape, *image_index.shape))
    positives = jnp.eye(len(image_index), dtype=bool)
    negatives = ~positives if same_image_negatives else image_index[:, None] != image_index[None]
    i2t, t2i = Ranking(scores, positives, negatives), Ranking(scores.T, positives, negatives)
    if relevance is not None:
        i2t = i2t.replace(margins=relevance_margins(relevance, margin_temperature))
        t2i = t2i.replace(margins=relevance_margins(relevance.T, margin_temperature))
    return {'i2t': i2t, 't2i': t2i}
