"""Visual-semantic embeddings: both sides are one vector, and the score is their product or their order violation.

VSE0 and VSE++ are paper 003 (Faghri et al., 2018), Order0 and Order++ its section 3.7; RVSE++ is paper 004 (Li et al.,
2023).
"""

import chex
import jax.numpy as jnp
from flax import linen as nn

from jitm.errors import UserError
from jitm.layers.linear import product
from jitm.layers.normalization import l2_normalize, safe_sqrt
from jitm.layers.pooling import make_pooling
from jitm.models.matcher import Matcher
from jitm.types import Images, Texts


def order_similarity(image: chex.Array, text: chex.Array) -> chex.Array:
    """-||max(0, text - image)||, how far the text is from lying below the image (section 3.7).

    The paper squares the norm; the released code, which made the published numbers, does not, and neither does this.

    Args:
      image: [..., D].
      text: [..., D].

    Returns:
      [...], at most 0, float32 of half-precision vectors; the gradient is 0 where the order holds everywhere.
    """
    image, text = (x.astype(jnp.promote_types(x.dtype, jnp.float32)) for x in (image, text))
    return -safe_sqrt(jnp.sum(jnp.square(nn.relu(text - image)), axis=-1))


class VSE(Matcher):
    """Encoded regions pooled to one vector, encoded words pooled to another (paper 003, sections 2.1 and 3).

    VSE(FC), VSE(MLP), RVSE(MLP) and RVSE++ are paper 004, section 3.1 and 3.4; VSE-infinity and ESA differ in the MLP
    and the pooling.

    Attributes:
      embed_dim: D of the joint space.
      image: from images to [I, R, D] and which regions count, such as `RegionEncoder`.
      text: from texts to [T, L, D], such as `GRUEncoder` or `BERTEncoder`.
      image_pooling: one of `jitm.layers.pooling.POOLINGS`, as is
      text_pooling: 'last' is the state after the last word.
      normalize_images: L2-normalises the image side; VSE0 does not, its score is then no cosine.
      absolute: takes absolute values of both embeddings (Order0).
      measure: 'cosine' (the inner product) or 'order'.
    """

    embed_dim: int
    image: nn.Module
    text: nn.Module
    image_pooling: str
    text_pooling: str
    normalize_images: bool
    absolute: bool
    measure: str

    def setup(self):
        """Makes the poolings."""
        if self.measure not in ('cosine', 'order'):
            raise UserError(f"config key 'model.measure' is '{self.measure}'; take 'cosine' or 'order'")
        if self.embed_dim < 1:
            raise UserError(f"config key 'model.embed_dim' is {self.embed_dim}; it must be at least 1")
        self.image_pool = make_pooling(self.image_pooling, where='model.image_pooling')
        self.text_pool = make_pooling(self.text_pooling, where='model.text_pooling')

    @property
    def scores_products(self) -> bool:
        """Of the cosine measure."""
        return self.measure == 'cosine'

    def vectors(self, encoding: chex.Array) -> chex.Array:
        """The encodings themselves: [N, D]."""
        return encoding

    def encode_image(self, images: Images, train: bool = False) -> chex.Array:
        """Encodes [I, R, F] regions as [I, D], or as [I E, D] where each of E copies keeps other regions."""
        regions, mask = self.image(images, train)
        embedding = self.image_pool(regions, mask)
        if self.normalize_images:
            embedding = l2_normalize(embedding)
        return jnp.abs(embedding) if self.absolute else embedding

    def encode_text(self, texts: Texts, train: bool = False) -> chex.Array:
        """Encodes [T, L] words as [T, D]."""
        embedding = l2_normalize(self.text_pool(self.text(texts, train), texts.mask))
        return jnp.abs(embedding) if self.absolute else embedding

    def score_block(self, images: chex.Array, texts: chex.Array) -> chex.Array:
        """Order violations of [I, D] with [T, D]: [I, T]."""
        return order_similarity(images[:, None], texts)

    def floats_per_pair(self, images: chex.Array, texts: chex.Array) -> int:
        """The differences of two vectors."""
        return self.embed_dim

    def similarity(self, images: chex.Array, texts: chex.Array, train: bool = False) -> chex.Array:
        """Scores [I, D] with [T, D]: [I, T]."""
        if self.measure == 'order':
            return super().similarity(images, texts, train)
        return product('id,td->it', images, texts)

    def similarity_pairwise(self, images: chex.Array, texts: chex.Array, train: bool = False) -> chex.Array:
        """Scores [N, D] with [N, D]: [N]."""
        if self.measure == 'order':
            return order_similarity(images, texts)
        return product('nd,nd->n', images, texts)
