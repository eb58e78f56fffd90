"""Where the candidates of a ranking come from."""

import chex
import jax.numpy as jnp

from jitm.errors import UserError
from jitm.types import Ranking

SAME_IMAGE = ('negative', 'positive', 'ignored')


def in_batch(scores: chex.Array, image_index: chex.Array, *, same_image: str) -> dict[str, Ranking]:
    """Ranks the batch's texts for each image and its images for each text.

    Args:
      scores: [E B, E B], image i with text j; a pair's E copies stand together, and all match each other.
      image_index: int [B], equal numbers are the same image.
      same_image: what another pair of the same image is: a 'negative', as published; a 'positive', as in CMPM; or
        'ignored'.

    Returns:
      `i2t` and `t2i`, each a Ranking [E B, E B].

    Raises:
      UserError: same_image is something else.
    """
    if same_image not in SAME_IMAGE:
        raise UserError(f"config key 'rankings.same_image' is '{same_image}'; take one of {', '.join(SAME_IMAGE)}")
    copies = len(scores) // len(image_index)
    chex.assert_shape(scores, (copies * len(image_index),) * 2)
    pair, image = jnp.repeat(jnp.arange(len(image_index)), copies), jnp.repeat(image_index, copies)
    same_pair, same = pair[:, None] == pair, image[:, None] == image
    positives = same if same_image == 'positive' else same_pair
    negatives = ~same_pair if same_image == 'negative' else ~same
    return {'i2t': Ranking(scores, positives, negatives), 't2i': Ranking(scores.T, positives, negatives)}
