"""Bidirectional focal attention (BFAN, Liu et al., 2019)."""

import chex
import einops

from jitm.layers import attention
from jitm.models.cross_attention import ElementMatcher
from jitm.types import Elements


class BFAN(ElementMatcher):
    """Words attend to regions and regions to words, twice: the second time only to what the first found relevant.

    The score is the sum of both directions' mean relevances, in [-2, 2]. The published BFAN is the mean of an 'equal'
    and a 'prob' model.

    Attributes:
      embed_dim, image, text: see `ElementMatcher`.
      focal: one of `attention.FOCALS`.
      raw_feature_norm: one of `attention.NORMALIZATIONS`, of the similarities before the attention.
      slope: of the leaky ReLU of clipped similarities, 0.1 as released; 0 is the paper's ReLU.
      lambda_softmax: temperature of the attention.
    """

    focal: str
    raw_feature_norm: str
    slope: float
    lambda_softmax: float

    def setup(self):
        """Checks the options."""
        attention.check_temperature(self.lambda_softmax)

    def score_block(self, images: Elements, texts: Elements) -> chex.Array:
        """Scores every image of a block with every text of it: [I, T]."""
        scores = attention.similarities(images, texts)
        words = self._direction(scores, images, texts)
        regions = self._direction(einops.rearrange(scores, 'i r t l -> t l i r'), texts, images)
        return words + regions.T

    def _direction(self, scores: chex.Array, context: Elements, queries: Elements) -> chex.Array:
        weights = self.weights(scores, context, queries)
        relevance = attention.attended_cosine(scores, weights, attention.gram(context))
        return attention.masked_mean(relevance, queries.mask)

    def weights(self, scores: chex.Array, context: Elements, queries: Elements) -> chex.Array:
        """Focal attention of each query element over the context, up to a factor: [C, K, Q, M]."""
        normalized = attention.normalize_over_queries(scores, queries.mask, self.raw_feature_norm, self.slope)
        weights = attention.attend(normalized, context.mask, self.lambda_softmax)
        return attention.focus(weights, context.mask, self.focal)

    def attention_block(self, images: Elements, texts: Elements) -> dict[str, chex.Array]:
        """The focal attention in both directions: name -> [I, T, L, R]."""
        words = self.weights(attention.similarities(images, texts), images, texts)
        regions = self.weights(attention.similarities(texts, images), texts, images)
        return {
            't2i': attention.word_by_region(words, texts, 't2i'),
            'i2t': attention.word_by_region(regions, images, 'i2t'),
        }
