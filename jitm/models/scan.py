"""Stacked cross attention: words attend to regions, or regions to words (SCAN, Lee et al., 2018)."""

import chex

from jitm.errors import UserError
from jitm.layers import attention
from jitm.models.cross_attention import ElementMatcher
from jitm.types import Elements

DIRECTIONS = ('t2i', 'i2t')


class SCAN(ElementMatcher):
    """The mean relevance of each word to the regions it attends to, or of each region to its words (section 3.1).

    The published SCAN is the mean of a t2i and an i2t model.

    Attributes:
      embed_dim, image, text: see `ElementMatcher`.
      direction: 't2i', each word attends to the regions; or 'i2t', each region to the words.
      raw_feature_norm: one of `attention.NORMALIZATIONS`, of the similarities before the attention.
      slope: of the leaky ReLU of clipped similarities, 0.1 as released; 0 is the paper's ReLU.
      lambda_softmax: temperature of the attention.
      aggregation: one of `attention.AGGREGATIONS`, from the relevance of each query element to the score.
      lambda_lse: temperature of 'LogSumExp'.
    """

    direction: str
    raw_feature_norm: str
    slope: float
    lambda_softmax: float
    aggregation: str
    lambda_lse: float

    def setup(self):
        """Checks the options."""
        if self.direction not in DIRECTIONS:
            raise UserError(f"config key 'model.direction' is '{self.direction}'; take 't2i' or 'i2t'")
        attention.check_temperature(self.lambda_softmax)
        if not self.lambda_lse > 0:
            raise UserError(f"config key 'model.lambda_lse' is {self.lambda_lse}; it must be above 0")

    def score_block(self, images: Elements, texts: Elements) -> chex.Array:
        """Scores every image of a block with every text of it: [I, T]."""
        context, queries = self._sides(images, texts)
        scores = attention.similarities(context, queries)
        relevance = attention.attended_cosine(scores, self.weights(scores, context, queries), attention.gram(context))
        result = attention.aggregate(relevance, queries.mask, self.aggregation, self.lambda_lse)
        return result if self.direction == 't2i' else result.T

    def _sides(self, images: Elements, texts: Elements) -> tuple[Elements, Elements]:
        return (images, texts) if self.direction == 't2i' else (texts, images)

    def weights(self, scores: chex.Array, context: Elements, queries: Elements) -> chex.Array:
        """Attention of each query element over the context, up to a factor: [C, K, Q, M]."""
        normalized = attention.normalize_over_queries(scores, queries.mask, self.raw_feature_norm, self.slope)
        return attention.attend(normalized, context.mask, self.lambda_softmax)

    def attention_block(self, images: Elements, texts: Elements) -> dict[str, chex.Array]:
        """The attention in the model's direction: name -> [I, T, L, R]."""
        context, queries = self._sides(images, texts)
        weights = self.weights(attention.similarities(context, queries), context, queries)
        return {self.direction: attention.word_by_region(weights, queries, self.direction)}
