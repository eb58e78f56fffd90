"""Vision transformers on pixels (Dosovitskiy et al., 2021), as CLIP has them (Radford et al., 2021)."""

import einops
import jax.numpy as jnp
from chex import Array, ArrayDType
from flax import linen as nn

from jitm.errors import ArgumentError, UserError, check_choice
from jitm.layers.blocks import ACTIVATIONS, BlockOptions, KernelInits, Transformer, layer_norm
from jitm.layers.convolutions import normalize_pixels
from jitm.types import DTYPES, Count, Images, Texts

EPSILON = 1e-5  # layer normalizations
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)  # pixels of CLIP's training images, RGB
CLIP_DEVIATION = (0.26862954, 0.26130258, 0.27577711)


def check_size(images: Images, image_size: int) -> None:
    """Raises a UserError unless images have the height and width that a model reads."""
    height, width = images.pixels.shape[1:3]
    if (height, width) != (image_size, image_size):
        raise UserError(
            f'the images have {height} x {width} pixels, but the model reads {image_size} x {image_size}: change the '
            "size in config key 'data', or 'model.image.image_size'"
        )


class Tower(nn.Module):
    """Encodes images or texts as vectors, or returns the states they are computed from; a tower adds `_encode`."""

    def __call__(self, inputs: Images | Texts, train: bool = False) -> Array:
        """Encodes N images or texts as float32 [N, D], or each of their tokens: [N, K, D]."""
        return self._encode(inputs, train, pooled=True)

    def features(self, inputs: Images | Texts, train: bool = False) -> Array:
        """Returns the last states of the patches, cells or tokens of N images or texts, float32 [N, K, H]."""
        return self._encode(inputs, train, pooled=False)


class Patches(nn.Module):
    """A convolution whose stride is the edge of its kernel, as a product, with the parameters of `nn.Conv`.

    A CPU computes the product at ten times the rate of the convolution.

    Attributes:
      features: The number H of outputs.
      edge: The height and width P of a patch, in pixels.
      use_bias: Whether to add a bias.
      dtype: The type of the computation.
    """

    features: int
    edge: int
    use_bias: bool
    dtype: ArrayDType | None

    @nn.compact
    def __call__(self, pixels: Array) -> Array:
        """Maps pixels [I, rows P, columns P, C] to [I, rows columns, H]; pixels beyond the last patch are left out."""
        edge = self.edge
        channels = pixels.shape[-1]
        kernel = self.param('kernel', nn.linear.default_kernel_init, (edge, edge, channels, self.features))
        bias = self.param('bias', nn.initializers.zeros, (self.features,)) if self.use_bias else None
        pixels, kernel, bias = nn.dtypes.promote_dtype(pixels, kernel, bias, dtype=self.dtype)
        rows = pixels.shape[1] // edge
        columns = pixels.shape[2] // edge
        cropped = pixels[:, : rows * edge, : columns * edge]
        patches = einops.rearrange(cropped, 'i (h a) (w b) c -> i (h w) (a b c)', a=edge, b=edge)
        products = patches @ kernel.reshape(-1, self.features)
        return products if bias is None else products + bias


class TransformerTower(Tower):
    """A tower of blocks, which are pre-norm unless a class of towers has others.

    Attributes:
      embed_dim: The size D of the result.
      hidden_dim: The size H of the hidden states.
      num_layers: The number of blocks.
      num_heads: The number of attention heads.
      mlp_dim: The hidden size of the two-layer network in each block.
      activation: 'gelu', 'quick_gelu' as in OpenAI's models, or 'gelu_tanh' as in SigLIP.
      dtype: The type of the computation, 'float32' or 'bfloat16'; parameters are float32.
    """

    embed_dim: Count
    hidden_dim: Count
    num_layers: Count
    num_heads: Count
    mlp_dim: Count
    activation: str
    dtype: str

    epsilon = EPSILON
    pre_norm = True

    def _blocks(self) -> Transformer:
        """Returns the blocks as the module `encoder`, initialized as CLIP's text transformer (released code).

        Raises:
          ArgumentError: If the activation or the dtype is unknown, or the heads do not divide `hidden_dim`.
        """
        check_choice(self.dtype, DTYPES, 'dtype')
        check_choice(self.activation, ACTIVATIONS, 'activation')
        size = self.hidden_dim
        heads = self.num_heads
        if size % heads:
            raise ArgumentError('num_heads', f'is {heads}, which does not divide hidden_dim {size}')
        out = nn.initializers.normal((2 * size * self.num_layers) ** -0.5)
        mlp_in = nn.initializers.normal((2 * size) ** -0.5)
        inits = KernelInits(nn.initializers.normal(size**-0.5), out, mlp_in, out)
        kind = {'pre_norm': self.pre_norm, 'activation': self.activation, 'epsilon': self.epsilon}
        options = BlockOptions(heads, self.mlp_dim, 0.0, DTYPES[self.dtype], inits, **kind)
        return Transformer(self.num_layers, options, name='encoder')


class ViT(TransformerTower):
    """Reads an image as patches and a class token, whose last state is projected.

    Images are uint8 [I, image_size, image_size, 3]. The `features` are the states of the patches, row by row.

    Attributes:
      embed_dim, hidden_dim, num_layers, num_heads, mlp_dim, activation, dtype: See `TransformerTower`.
      image_size: The height and width of the images, in pixels; a multiple of `patch_size`.
      patch_size: The height and width of a patch, in pixels.
      mean: The mean of the pixels of each channel, as a fraction of 255.
      deviation: The standard deviation of the pixels of each channel, as a fraction of 255.
    """

    image_size: Count
    patch_size: Count
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]

    reads = ('pixels',)
    normalize_features = False  # `features` are written as they are

    def _patches(self, images: Images, use_bias: bool) -> Array:
        """Embeds the patches, row by row: [I, R, H]."""
        check_size(images, self.image_size)
        pixels = normalize_pixels(images.pixels, self.mean, self.deviation)
        return Patches(self.hidden_dim, self.patch_size, use_bias, DTYPES[self.dtype], name='patches')(pixels)

    def _tokens(self, images: Images, use_bias: bool) -> Array:
        """Embeds the class token and the patches, with their positions: [I, 1 + R, H]."""
        if self.image_size % self.patch_size:
            raise ArgumentError('image_size', f'is {self.image_size}, no multiple of patch_size {self.patch_size}')
        tokens = self._patches(images, use_bias)
        dtype = DTYPES[self.dtype]
        scale = nn.initializers.normal(self.hidden_dim**-0.5)
        first = self.param('class_embedding', scale, (self.hidden_dim,)).astype(dtype)
        tokens = jnp.concatenate([jnp.broadcast_to(first, (len(tokens), 1, self.hidden_dim)), tokens], axis=1)
        positions = self.param('positions', scale, (tokens.shape[1], self.hidden_dim))
        return tokens + positions.astype(dtype)

    @nn.compact
    def _encode(self, images: Images, train: bool, pooled: bool) -> Array:
        """Returns the projected state of the class token, or the states of the patches."""
        del train
        blocks = self._blocks()
        tokens = layer_norm(DTYPES[self.dtype], 'norm_in', EPSILON)(self._tokens(images, use_bias=False))
        tokens = blocks(tokens, None)
        tokens = tokens[:, 0] if pooled else tokens[:, 1:]
        tokens = layer_norm(None, 'norm_out', EPSILON)(tokens.astype(jnp.float32))
        if not pooled:
            return tokens
        scale = nn.initializers.normal(self.hidden_dim**-0.5)
        return nn.Dense(self.embed_dim, use_bias=False, kernel_init=scale, name='projection')(tokens)
