"""Stacked cross attention: words attend to regions, or regions to words (SCAN; Lee et al., 2018)."""

from chex import Array

from jitm.errors import check_choice
from jitm.layers import attention
from jitm.models.tiled import CrossAttentionMatcher
from jitm.types import Elements, InverseTemperature, Positive

DIRECTIONS = ('t2i', 'i2t')


class SCAN(CrossAttentionMatcher):
    """Aggregates the relevance of each word to its attended regions, or of each region to its words (section 3.1).

    The best published results average the scores of a t2i and an i2t model.

    Attributes:
      embed_dim, image, text: See `CrossAttentionMatcher`.
      direction: 't2i', each word attends to the regions; or 'i2t', each region attends to the words.
      lambda_softmax: The attention's inverse temperature.
      aggregation: One of `attention.AGGREGATIONS`, from the relevance of each query element to the score.
      lambda_lse: The inverse temperature of 'LogSumExp'.
    """

    direction: str
    lambda_softmax: InverseTemperature
    aggregation: str
    lambda_lse: Positive

    @property
    def directions(self) -> tuple[str, ...]:
        """The direction."""
        return (self.direction,)

    def setup(self):
        """Checks the options."""
        check_choice(self.direction, DIRECTIONS, 'direction')
        check_choice(self.aggregation, attention.AGGREGATIONS, 'aggregation')

    def score_block(self, images: Elements, texts: Elements) -> Array:
        """Scores every image of a block with every text of it: [I, T]."""
        context, queries = (images, texts) if self.direction == 't2i' else (texts, images)
        scores = attention.similarities(context, queries)
        relevance = attention.attended_cosine(scores, self.weights(scores, context, queries), attention.gram(context))
        result = attention.aggregate(relevance, queries.mask, self.aggregation, self.lambda_lse)
        return result if self.direction == 't2i' else result.T
