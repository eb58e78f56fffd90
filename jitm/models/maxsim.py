"""MaxSim: the most similar element of the other side, in both directions (FILIP; Yao et al., 2022)."""

from chex import Array

from jitm.errors import check_choice
from jitm.layers import attention
from jitm.models.chan import CHAN
from jitm.models.tiled import DIRECTIONS
from jitm.types import Elements


class MaxSim(CHAN):
    """Averages over the tokens of a caption, the patches of an image, or both, their cosine with the most similar one.

    The elements are tokens and patches of CLIP's or SigLIP's towers, or words and regions. Where this averages, ColBERT
    (Khattab and Zaharia, 2020) sums over the tokens of the query. In FILIP each direction of the loss has its own
    score; here both have one.

    Attributes:
      embed_dim, image, text: See `CrossAttentionMatcher`.
      direction: 't2i', each token finds a patch; 'i2t', each patch finds a token; or 'both', the mean of both scores.
    """

    direction: str = 't2i'

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions whose scores are averaged."""
        return DIRECTIONS[self.direction]

    def setup(self):
        """Checks the direction."""
        check_choice(self.direction, DIRECTIONS, 'direction')

    def score_block(self, images: Elements, texts: Elements) -> Array:
        """Scores every image of a block with every text of it: [I, T]."""
        scores = 0
        if 't2i' in self.directions:
            scores += attention.mean_best_similarity(images, texts)
        if 'i2t' in self.directions:
            scores += attention.mean_best_similarity(texts, images).T
        return scores / len(self.directions)
