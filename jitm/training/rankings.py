"""Where the candidates of a ranking come from."""

import chex
import jax.numpy as jnp

from jitm.types import Ranking


def in_batch(scores: chex.Array, image_index: chex.Array, *, same_image_negatives: bool) -> dict[str, Ranking]:
    """Ranks the batch's texts for each image and its images for each text.

    Args:
      scores: [B, B], image i with text j; pairs stand on the diagonal.
      image_index: int [B], equal numbers are the same image.
      same_image_negatives: whether another text of the same image counts as a negative, as published.

    Returns:
      `i2t` and `t2i`, each a Ranking [B, B]; positives are the diagonal.
    """
    chex.assert_shape(scores, (*image_index.shape, *image_index.shape))
    positives = jnp.eye(len(image_index), dtype=bool)
    negatives = ~positives if same_image_negatives else image_index[:, None] != image_index[None]
    return {'i2t': Ranking(scores, positives, negatives), 't2i': Ranking(scores.T, positives, negatives)}
