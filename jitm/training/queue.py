"""The pairs of past steps, encoded by a member that follows the target: negatives beyond the batch (MoCo).

He et al. (2020) keep the vectors of one kind, with an encoder that averages the trained one; here both sides are kept.
"""

import functools
from collections.abc import Mapping
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jitm.models.matcher import Matcher
from jitm.types import Batch, Count

# 'images' and 'texts': encodings; 'image_index' and 'text_index': int32 rows in the split, -1 where there is no pair.
Stored = Mapping[str, chex.ArrayTree]


class Queue(NamedTuple):
    """What the queue keeps.

    Attributes:
      encoder: The member that encodes the pairs.
      length: The number of pairs, the latest first.
    """

    encoder: str
    length: Count

    def init(self, model: Matcher, variables: chex.ArrayTree, batch: Batch) -> Stored:
        """Returns the queue before the first step; of the batch only the shapes count."""
        shapes = jax.eval_shape(functools.partial(encode, model), variables, batch)
        rows = jax.tree.map(lambda x: jnp.zeros((self.length, *x.shape[1:]), x.dtype), shapes)
        return rows | {key: jnp.full(self.length, -1) for key in ('image_index', 'text_index')}


def encode(model: Matcher, variables: chex.ArrayTree, batch: Batch) -> Stored:
    """Encodes the pairs of a batch in evaluation mode, with their rows in the split."""

    def both(matcher: Matcher) -> Stored:
        return {'images': matcher.encode_image(batch.images), 'texts': matcher.encode_text(batch.texts)}

    index = {'image_index': batch.image_index, 'text_index': batch.text_index}
    return model.apply(variables, method=both) | index
