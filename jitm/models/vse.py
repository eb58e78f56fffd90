"""Visual-semantic embeddings: each side is one vector; the score is an inner product or an order violation.

| system | source | options of `VSE`, or of `OrderEmbedding` |
|---|---|---|
| VSE0 | Faghri et al., 2018 | the last state of a GRU, images not normalized; the loss is a sum of hinges |
| VSE++ | Faghri et al., 2018 | the last state of a GRU; the loss is the maximum of hinges |
| Order0, Order++ | Faghri et al., 2018 | `OrderEmbedding`; absolute values for Order0 |
| VSE(FC), VSE(MLP), RVSE(MLP) | Li et al., 2023 | GPO, and the MLP 'none', 'plain' or 'residual' |
| RVSE++ | Li et al., 2023 | RVSE(MLP) with BERT and SelHN |
| VSE-infinity, GPO | Chen et al., 2021 | GPO, and the MLP 'residual_on_input' |
| ESA | Zhu et al., 2023 | element-wise attention, and the MLP 'residual_on_input' |
"""

import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.errors import ArgumentError
from jitm.layers.lengths import by_length, with_lengths_of
from jitm.layers.normalization import l2_normalize, safe_sqrt
from jitm.layers.pooling import OF_ONE_ELEMENT, make_pooling
from jitm.models.matcher import Matcher, TemperatureEncoder, check_width
from jitm.models.tiled import TiledMatcher
from jitm.types import Count, Elements, Images, Texts


def order_similarity(image: Array, text: Array) -> Array:
    """-||max(0, text - image)||, the negative order violation (Faghri et al., 2018, section 3.7).

    The paper squares the norm; the released code, which produced the published numbers, does not, and neither does
    this.

    Maps [..., D] and [..., D] to [...], at most 0, float32 for half-precision vectors. The gradient is 0 where the
    order is not violated.
    """
    image, text = (x.astype(jnp.promote_types(x.dtype, jnp.float32)) for x in (image, text))
    return -safe_sqrt(jnp.sum(jnp.square(nn.relu(text - image)), axis=-1))


class PooledEncoders(Matcher):
    """Encodes and pools the regions to one vector and the words to another (Faghri et al., 2018, sections 2.1 and 3).

    Attributes:
      embed_dim: The size D of the joint space.
      image: A module that maps images to [I, R, D] and a mask of the valid regions, such as `RegionEncoder`.
      text: A module that maps texts to [T, L, D], such as `GRUEncoder` or `BERTEncoder`.
      image_pooling: One of `jitm.layers.pooling.POOLINGS`.
      text_pooling: One of `jitm.layers.pooling.POOLINGS`; 'last' is the state after the last word, and needs a text
        encoder that reads words in context.
      normalize_images: L2-normalizes the image vectors; VSE0 does not, so that its score is not a cosine.
      absolute: Takes the absolute values of both vectors (Order0).
    """

    embed_dim: Count
    image: nn.Module
    text: nn.Module
    image_pooling: str
    text_pooling: str
    normalize_images: bool
    absolute: bool

    def setup(self):
        """Creates the poolings."""
        super().setup()
        self.image_pool = make_pooling(self.image_pooling, 'image_pooling')
        self.text_pool = make_pooling(self.text_pooling, 'text_pooling')
        if self.text_pooling == 'last' and not getattr(self.text, 'recurrent', True):
            raise ArgumentError(
                'text_pooling', "is 'last', which ignores all words where 'text.recurrent' is False: use 'mean'"
            )

    def encode_image(self, images: Images, train: bool = False) -> Array:
        """Encodes [I, R, F] regions as [I, D], or as [I E, D] if each image has E views that keep different regions."""
        regions, mask = self.image(images, train)
        embedding = self.image_pool(regions, mask)
        if self.normalize_images:
            embedding = l2_normalize(embedding)
        return jnp.abs(embedding) if self.absolute else embedding

    def encode_text(self, texts: Texts, train: bool = False) -> Array:
        """Encodes [T, L] words as [T, D]."""
        words = Elements(self.text(texts, train), texts.mask)
        if self.text_pooling not in OF_ONE_ELEMENT:
            words = with_lengths_of(texts, words)
        embedding = l2_normalize(by_length(lambda part: self.text_pool(part.vectors, part.mask), words))
        return jnp.abs(embedding) if self.absolute else embedding


class VSE(PooledEncoders, TemperatureEncoder):
    """VSE++ and its successors: scores two pooled vectors by their inner product; see `PooledEncoders`."""


class OrderEmbedding(PooledEncoders, TiledMatcher):
    """Order++: scores two pooled vectors by `order_similarity` (Faghri et al., 2018, section 3.7)."""

    encoders = 'image', 'text', 'image_pool', 'text_pool'

    def score_block(self, images: Array, texts: Array) -> Array:
        """Scores [I, D] with [T, D]: [I, T]."""
        check_width(self, 'image', images)
        check_width(self, 'text', texts)
        return order_similarity(images[:, None], texts)

    def floats_per_pair(self, images: Array, texts: Array) -> int:
        """Returns the size of the difference of two vectors."""
        return self.embed_dim
