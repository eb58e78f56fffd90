"""Bidirectional focal attention (BFAN; Liu et al., 2019)."""

import jax.numpy as jnp
from chex import Array

from jitm.errors import check_choice
from jitm.layers import attention
from jitm.models.tiled import CrossAttentionMatcher
from jitm.types import Elements, InverseTemperature


class BFAN(CrossAttentionMatcher):
    """Words attend to regions and regions to words, in two passes: the second drops irrelevant elements.

    The score is the sum of both directions' mean relevances, in [-2, 2]. The published BFAN averages the scores of an
    'equal' and a 'prob' model.

    Attributes:
      embed_dim, image, text: See `CrossAttentionMatcher`.
      focal: One of `attention.FOCALS`.
      lambda_softmax: The attention's inverse temperature.
    """

    focal: str
    lambda_softmax: InverseTemperature

    directions = ('t2i', 'i2t')

    def setup(self):
        """Checks the options."""
        check_choice(self.focal, attention.FOCALS, 'focal')

    def score_block(self, images: Elements, texts: Elements) -> Array:
        """Scores every image of a block with every text of it: [I, T]."""
        return attention.add_directions(self._mean_relevance, images, texts)

    def _mean_relevance(self, _: str, scores: Array, context: Elements, queries: Elements) -> Array:
        weights = self.weights(scores, context, queries)
        relevance = attention.attended_cosine(scores, weights, attention.gram(context))
        return jnp.mean(relevance, axis=-1, where=queries.mask)

    def weights(self, scores: Array, context: Elements, queries: Elements) -> Array:
        """See `CrossAttentionMatcher`."""
        return attention.focus(super().weights(scores, context, queries), context.mask, self.focal)
