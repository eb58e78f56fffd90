"""Visual-semantic embeddings: both sides are one vector, and the score is their product or their order violation.

VSE0 and VSE++ are paper 003 (Faghri et al., 2018), Order0 and Order++ its section 3.7.
"""

import chex
import einops
import jax
import jax.numpy as jnp
from flax import linen as nn

from jitm.errors import UserError
from jitm.layers.normalization import l2_normalize, safe_sqrt
from jitm.layers.text import GRUEncoder
from jitm.matcher import Matcher, all_pairs
from jitm.types import Images, Texts


def order_similarity(image: chex.Array, text: chex.Array) -> chex.Array:
    """-||max(0, text - image)||, how far the text is from lying below the image (section 3.7).

    The paper squares the norm; the released code, which made the published numbers, does not, and neither does this.

    Args:
      image: [..., D].
      text: [..., D].

    Returns:
      [...], at most 0; the gradient is 0 where the order holds everywhere.
    """
    return -safe_sqrt(jnp.sum(jnp.square(nn.relu(text - image)), axis=-1))


class VSE(Matcher):
    """A fully connected layer on the mean region, a GRU on the words, one vector each (sections 2.1 and 3).

    Attributes:
      vocab_size: V.
      embed_dim: D of the joint space.
      word_dim: size of the word embeddings.
      bidirectional: reads the text in both directions.
      normalize_images: L2-normalises the image side; VSE0 does not, its score is then no cosine.
      absolute: takes absolute values of both embeddings (Order0).
      measure: 'cosine' (the inner product) or 'order'.
    """

    vocab_size: int
    embed_dim: int
    word_dim: int
    bidirectional: bool
    normalize_images: bool
    absolute: bool
    measure: str

    def setup(self):
        """Makes the layers of both sides."""
        if self.measure not in ('cosine', 'order'):
            raise UserError(f"config key 'model.measure' is '{self.measure}'; take 'cosine' or 'order'")
        if min(self.embed_dim, self.word_dim) < 1:
            raise UserError("config keys 'model.embed_dim' and 'model.word_dim' must be at least 1")
        self.image_fc = nn.Dense(self.embed_dim, kernel_init=nn.initializers.xavier_uniform())
        self.text_gru = GRUEncoder(self.vocab_size, self.word_dim, self.embed_dim, self.bidirectional)

    def encode_image(self, images: Images, train: bool = False) -> chex.Array:
        """Encodes [I, R, F] regions as [I, D]."""
        mask = jnp.arange(images.regions.shape[1]) < einops.rearrange(images.counts, 'i -> i 1')
        regions = jnp.where(einops.rearrange(mask, 'i r -> i r 1'), images.regions.astype(jnp.float32), 0)
        mean = jnp.sum(regions, axis=1) / einops.rearrange(images.counts, 'i -> i 1')
        embedding = self.image_fc(mean)
        if self.normalize_images:
            embedding = l2_normalize(embedding)
        return jnp.abs(embedding) if self.absolute else embedding

    def encode_text(self, texts: Texts, train: bool = False) -> chex.Array:
        """Encodes [T, L] words as [T, D]."""
        _, final = self.text_gru(texts)
        embedding = l2_normalize(final)
        return jnp.abs(embedding) if self.absolute else embedding

    def similarity(self, images: chex.Array, texts: chex.Array, train: bool = False) -> chex.Array:
        """Scores [I, D] with [T, D]: [I, T]."""
        if self.measure == 'order':
            return all_pairs(order_similarity, images, texts)
        return jnp.einsum('id,td->it', images, texts, precision=jax.lax.Precision.HIGHEST)

    def similarity_pairwise(self, images: chex.Array, texts: chex.Array, train: bool = False) -> chex.Array:
        """Scores [N, D] with [N, D]: [N]."""
        if self.measure == 'order':
            return order_similarity(images, texts)
        return jnp.einsum('nd,nd->n', images, texts)
