"""CLIP and SigLIP: cosines of an image's and a text's vector (Radford et al., 2021; Zhai et al., 2023)."""

from chex import Array
from flax import linen as nn

from jitm.layers.normalization import l2_normalize
from jitm.models.matcher import TemperatureEncoder
from jitm.types import Count, Images, Texts


class CLIP(TemperatureEncoder):
    """Scores two unit vectors by their cosine.

    Attributes:
      embed_dim: The size D of the joint space.
      image: A module that maps images to [I, D], such as `ViT` or `ModifiedResNet`.
      text: A module that maps texts to [T, D], such as `CausalTransformer`.
    """

    embed_dim: Count
    image: nn.Module
    text: nn.Module

    def encode_image(self, images: Images, train: bool = False) -> Array:
        """Encodes [I, H, W, 3] pixels as unit vectors [I, D]."""
        return l2_normalize(self.image(images, train))

    def encode_text(self, texts: Texts, train: bool = False) -> Array:
        """Encodes [T, L] tokens as unit vectors [T, D]."""
        return l2_normalize(self.text(texts, train))


class SigLIP(CLIP):
    """CLIP with the towers of `jitm.layers.siglip`; the loss is sigmoid, with a learned temperature and bias.

    sigmoid(score / temperature + bias) is the probability of a match.
    """
