"""Vision transformers on pixels (Dosovitskiy et al., 2021), as CLIP has them (Radford et al., 2021)."""

import chex
import einops
import jax.numpy as jnp
from flax import linen as nn

from jitm.errors import ArgumentError, UserError, check_choice
from jitm.layers.cnn import normalize_pixels
from jitm.layers.transformer import ACTIVATIONS, BlockStyle, KernelInits, Transformer, layer_norm
from jitm.types import DTYPES, Count, Images

EPSILON = 1e-5  # of the normalizations
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)  # of the pixels of CLIP's training images, red green blue
CLIP_DEVIATION = (0.26862954, 0.26130258, 0.27577711)


def pre_norm_transformer(tower: nn.Module, epsilon: float = EPSILON) -> Transformer:
    """Returns CLIP's blocks as the module `encoder` of a tower, initialized as its text transformer (released code).

    Args:
      tower: A `ViT`, or a module that has its attributes from `hidden_dim` to `dtype`.
      epsilon: That of the normalizations.

    Raises:
      ArgumentError: if the activation is unknown, or the heads do not divide `hidden_dim`.
    """
    hidden_dim, num_heads = tower.hidden_dim, tower.num_heads
    check_choice(tower.activation, ACTIVATIONS, 'activation')
    if hidden_dim % num_heads:
        raise ArgumentError('num_heads', f'is {num_heads}, which does not divide hidden_dim {hidden_dim}')
    inner = nn.initializers.normal(hidden_dim**-0.5)
    out = nn.initializers.normal((2 * hidden_dim * tower.num_layers) ** -0.5)
    inits = KernelInits(inner, out, nn.initializers.normal((2 * hidden_dim) ** -0.5), out)
    return Transformer(
        layers=tower.num_layers,
        heads=num_heads,
        mlp_dim=tower.mlp_dim,
        dropout=0.0,
        dtype=DTYPES[tower.dtype],
        kernel_init=inits,
        style=BlockStyle(pre_norm=True, activation=tower.activation, epsilon=epsilon),
        name='encoder',
    )


def check_size(images: Images, image_size: int) -> None:
    """Raises a UserError unless images have the height and width that a model reads."""
    height, width = images.pixels.shape[1:3]
    if (height, width) != (image_size, image_size):
        raise UserError(
            f'the images have {height} x {width} pixels, but the model reads {image_size} x {image_size}: change the '
            "size in config key 'data', or 'model.image.image_size'"
        )


class ViT(nn.Module):
    """Reads an image as patches and a class token, whose last state is projected.

    Attributes:
      embed_dim: The size D of the result.
      image_size: The height and width of the images, in pixels; a multiple of `patch_size`.
      patch_size: The height and width of a patch, in pixels.
      hidden_dim: The size H of the hidden states.
      num_layers: The number of blocks.
      num_heads: The number of attention heads.
      mlp_dim: The hidden size of the two-layer network in each block.
      activation: 'gelu', 'quick_gelu' as in OpenAI's models, or 'gelu_tanh' as in SigLIP.
      dtype: The type of the computation, 'float32' or 'bfloat16'; parameters are float32.
      mean: The mean of the pixels of each channel, as a fraction of 255.
      deviation: The standard deviation of the pixels of each channel, as a fraction of 255.
    """

    embed_dim: Count
    image_size: Count
    patch_size: Count
    hidden_dim: Count
    num_layers: Count
    num_heads: Count
    mlp_dim: Count
    activation: str
    dtype: str
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]

    reads = ('pixels',)
    normalize_features = False  # `features` are written as they are

    def __call__(self, images: Images, train: bool = False) -> chex.Array:
        """Encodes pixels uint8 [I, image_size, image_size, 3] as float32 [I, D]."""
        del train
        return self._encode(images, whole=True)

    def features(self, images: Images, train: bool = False) -> chex.Array:
        """Returns the last states of the patches, row by row, without the projection: float32 [I, R, H]."""
        del train
        return self._encode(images, whole=False)

    @nn.compact
    def _encode(self, images: Images, whole: bool) -> chex.Array:
        """Returns the projected state of the class token, or the states of the patches."""
        check_choice(self.dtype, DTYPES, 'dtype')
        if self.image_size % self.patch_size:
            raise ArgumentError('image_size', f'is {self.image_size}, no multiple of patch_size {self.patch_size}')
        check_size(images, self.image_size)
        dtype, scale = DTYPES[self.dtype], nn.initializers.normal(self.hidden_dim**-0.5)
        pixels = normalize_pixels(images.pixels, self.mean, self.deviation)
        edge = (self.patch_size, self.patch_size)
        patches = nn.Conv(self.hidden_dim, edge, edge, 'VALID', use_bias=False, dtype=dtype, name='patches')(pixels)
        tokens = einops.rearrange(patches, 'i h w d -> i (h w) d')
        first = self.param('class_embedding', scale, (self.hidden_dim,)).astype(dtype)
        tokens = jnp.concatenate([jnp.broadcast_to(first, (len(tokens), 1, self.hidden_dim)), tokens], axis=1)
        positions = self.param('positions', scale, (tokens.shape[1], self.hidden_dim))
        tokens = layer_norm(dtype, 'norm_in', EPSILON)(tokens + positions.astype(dtype))
        tokens = pre_norm_transformer(self)(tokens, None)
        tokens = tokens[:, 0] if whole else tokens[:, 1:]
        tokens = layer_norm(None, 'norm_out', EPSILON)(tokens.astype(jnp.float32))
        if not whole:
            return tokens
        return nn.Dense(self.embed_dim, use_bias=False, kernel_init=scale, name='projection')(tokens)
