"""What models have in common that compare the words of a text with the regions of an image."""

import chex
from flax import linen as nn

from jitm.layers import attention
from jitm.models.matcher import Matcher
from jitm.models.tiling import longest_first
from jitm.types import Elements, Images, Texts

UNPAIRED = (
    '{} in training scores a batch as a whole, so that losses of single pairs, such as those of mined negatives, do '
    'not apply: take another model, or other terms'
)


class ElementMatcher(Matcher):
    """Regions and words as unit vectors; a model adds `score_block`.

    Attributes:
      embed_dim: D.
      image: from images to [I, R, D] and which regions count.
      text: from texts to [T, L, D].
    """

    embed_dim: int
    image: nn.Module
    text: nn.Module

    def encode_image(self, images: Images, train: bool = False) -> Elements:
        """Encodes [I, R, F] regions as unit vectors [I, R, D]."""
        return attention.unit_elements(*self.image(images, train))

    def encode_text(self, texts: Texts, train: bool = False) -> Elements:
        """Encodes [T, L] words as unit vectors [T, L, D]."""
        return attention.unit_elements(self.text(texts, train), texts.mask)

    def floats_per_pair(self, images: Elements, texts: Elements) -> int:
        """The similarities of all regions with all words."""
        return images.mask.shape[1] * texts.mask.shape[1]

    def similarity(self, images: Elements, texts: Elements, train: bool = False) -> chex.Array:
        """Scores every image with every text: [I, T]."""
        if not train:
            return super().similarity(images, texts)
        texts, back = longest_first(texts)
        return self.in_tiles('score_block', images, texts, cut=True)[:, back]
