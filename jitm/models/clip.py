"""CLIP: cosines of an image's and a text's vector, with a learned temperature (Radford et al., 2021)."""

import math

import chex
import jax.numpy as jnp
from flax import linen as nn

from jitm.layers.normalization import l2_normalize
from jitm.models.matcher import DualEncoder
from jitm.types import Count, Images, Temperature, Texts


class CLIP(DualEncoder):
    """Scores two unit vectors by their cosine.

    The published logits are the cosines divided by the temperature, which only the loss reads: the ranks are the same,
    and margins apply to cosines.

    Attributes:
      embed_dim: The size D of the joint space.
      image: A module that maps images to [I, D], such as `ViT` or `ModifiedResNet`.
      text: A module that maps texts to [T, D], such as `CausalTransformer`.
      initial_temperature: 0.07 as published; its inverse is learned as a logarithm, `logit_scale`.
    """

    embed_dim: Count
    image: nn.Module
    text: nn.Module
    initial_temperature: Temperature

    def setup(self):
        """Creates the temperature."""
        self.logit_scale = self.param('logit_scale', nn.initializers.constant(-math.log(self.initial_temperature)), ())

    @property
    def temperature(self) -> chex.Array:
        """The learned temperature, float32 []."""
        return jnp.exp(-self.logit_scale)

    def encode_image(self, images: Images, train: bool = False) -> chex.Array:
        """Encodes [I, H, W, 3] pixels as unit vectors [I, D]."""
        return l2_normalize(self.image(images, train))

    def encode_text(self, texts: Texts, train: bool = False) -> chex.Array:
        """Encodes [T, L] tokens as unit vectors [T, D]."""
        return l2_normalize(self.text(texts, train))
