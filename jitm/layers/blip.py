"""The towers of BLIP (Li et al., 2022): a ViT, and a BERT whose words can attend to the states of an image."""

import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.layers import blocks
from jitm.layers.blocks import layer_norm
from jitm.layers.clip_text import CausalTransformer
from jitm.layers.vit import ViT
from jitm.types import DTYPES, Images, Positive, Texts


class NormalizedViT(ViT):
    """A `ViT` without a normalization of its inputs; the last states of all tokens are normalized.

    Attributes:
      epsilon: The epsilon of the normalizations: 1e-6 in the authors' code, 1e-5 in the conversion of Hugging Face.
    """

    epsilon: Positive = 1e-6

    def setup(self):
        """Creates the projection of the class token."""
        self.projection = nn.Dense(self.embed_dim)

    @nn.compact
    def states(self, images: Images) -> Array:
        """Returns the last states of the class token and of the patches, float32 [I, 1 + R, H]."""
        tokens = self._blocks()(self._tokens(images, use_bias=True), None)
        return layer_norm(None, 'norm_out', self.epsilon)(tokens.astype(jnp.float32))

    def _encode(self, images: Images, train: bool, pooled: bool) -> Array:
        """Returns the projected state of the class token, or the states of the patches."""
        del train
        states = self.states(images)
        return self.projection(states[:, 0]) if pooled else states[:, 1:]


class MultimodalBERT(CausalTransformer):
    """A BERT without segments, whose first state is projected; in every block, words can also attend to an image.

    Attributes:
      max_length: The number of positions, 512 as published. The tokenizer cuts captions at 35 pieces.
    """

    epsilon = blocks.EPSILON
    pre_norm = False

    def setup(self):
        """Creates the projection of the first word."""
        self.projection = nn.Dense(self.embed_dim)

    @nn.compact
    def states(self, texts: Texts, image: Array | None = None) -> Array:
        """Returns the last states of the tokens, float32 [T, L, H].

        Args:
          texts: T texts.
          image: The states [T, K, C] of the image that each text is read with; None to read the texts alone.
        """
        tokens = layer_norm(DTYPES[self.dtype], 'norm_in', self.epsilon)(self._embed(texts.ids))
        return self._blocks()(tokens, texts.mask, context=image).astype(jnp.float32)

    def _encode(self, texts: Texts, train: bool, pooled: bool) -> Array:
        """Returns the projected state of the first token, or the states of all."""
        del train
        states = self.states(texts)
        return self.projection(states[:, 0]) if pooled else states
