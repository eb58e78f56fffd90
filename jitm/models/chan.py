"""Hard alignment: each word is scored by its most similar region (CHAN; Pan et al., 2023)."""

from chex import Array

from jitm.layers import attention
from jitm.models.tiled import CrossAttentionMatcher
from jitm.types import Elements


class CHAN(CrossAttentionMatcher):
    """Averages over the words their cosine with the most similar region.

    Attributes:
      embed_dim, image, text: See `CrossAttentionMatcher`.
    """

    reads_gram = False

    def score_block(self, images: Elements, texts: Elements) -> Array:
        """Scores every image of a block with every text of it: [I, T]."""
        return attention.mean_best_similarity(images, texts)

    def weights(self, scores: Array, context: Elements, queries: Elements) -> Array:
        """Returns the attention of each query element, 1 for the most similar context element: [C, K, Q, M]."""
        del queries
        best = attention.best_similarities(scores, context.mask)
        return (scores == best[:, None]).astype(scores.dtype)
