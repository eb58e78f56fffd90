"""CLIP's residual networks on pixels, with attention pooling (Radford et al., 2021, section 2.4; released code).

Modules have the published names, with `_` for the dot.
"""

import functools

import einops
import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.devices.buffers import computed_once
from jitm.errors import ArgumentError, check_choice
from jitm.layers.convolutions import convolve_and_normalize, normalize_pixels
from jitm.layers.vit import Tower, check_size
from jitm.types import DTYPES, Count, Images

STRIDE = 32  # pixels per cell of the last map
EXPANSION = 4  # output channels of a block per inner channel


def _average(x: Array, size: int) -> Array:
    """Averages windows of size x size."""
    return nn.avg_pool(x, (size, size), (size, size)) if size > 1 else x


class _Bottleneck(nn.Module):
    """A residual block that averages instead of striding.

    Attributes:
      width: The number of channels of the inner convolutions; the block has four times as many outputs.
      stride: 1, or 2 to halve height and width.
      dtype: The type of the convolutions.
    """

    width: int
    stride: int
    dtype: str

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """Maps [I, H, W, C] to [I, H / stride, W / stride, 4 width]; `train` uses the statistics of the batch."""
        x = computed_once(x)
        outputs = EXPANSION * self.width
        convolve = functools.partial(convolve_and_normalize, dtype=self.dtype, train=train)
        inner = nn.relu(convolve(x, ('conv1', 'bn1'), self.width, 1))
        inner = nn.relu(convolve(inner, ('conv2', 'bn2'), self.width, 3))
        identity = nn.initializers.zeros  # the block starts as the identity
        inner = convolve(_average(inner, self.stride), ('conv3', 'bn3'), outputs, 1, scale_init=identity)
        if self.stride > 1 or x.shape[-1] != outputs:
            x = convolve(_average(x, self.stride), ('downsample_0', 'downsample_1'), outputs, 1)
        return nn.relu(x + inner)


class ModifiedResNet(Tower):
    """A stem of three convolutions, four layers of bottlenecks, and attention of the mean to all cells.

    Images are uint8 [I, image_size, image_size, 3]. The `features` are the 32 `stem_dim` channels of the cells of the
    last map, row by row.

    Attributes:
      embed_dim: The size D of the result.
      image_size: The height and width of the images, in pixels; a multiple of 32.
      blocks: The number of bottlenecks in each layer: (3, 4, 6, 3) for RN50.
      stem_dim: The number of channels of the stem and of the inner convolutions of the first layer; 64 as published.
      num_heads: The number of attention heads of the pooling; 32 as published.
      train_norm: Batch normalization uses and updates the statistics of the batch in training; otherwise it is frozen,
        as is customary in fine-tuning.
      dtype: The type of the convolutions, 'float32' or 'bfloat16'; parameters are float32.
      mean, deviation: See `jitm.layers.vit.ViT`.
    """

    embed_dim: Count
    image_size: Count
    blocks: tuple[int, int, int, int]
    stem_dim: Count
    num_heads: Count
    train_norm: bool
    dtype: str
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]

    reads = ('pixels',)
    normalize_features = False  # `features` are written as they are

    @nn.compact
    def _encode(self, images: Images, train: bool, pooled: bool) -> Array:
        """Returns the pooled and projected cells, or the cells."""
        check_choice(self.dtype, DTYPES, 'dtype')
        if self.image_size % STRIDE:
            raise ArgumentError('image_size', f'is {self.image_size}, no multiple of {STRIDE}')
        check_size(images, self.image_size)
        train = train and self.train_norm
        x = normalize_pixels(images.pixels, self.mean, self.deviation)
        for n, (width, stride) in enumerate([(self.stem_dim // 2, 2), (self.stem_dim // 2, 1), (self.stem_dim, 1)], 1):
            names = f'conv{n}', f'bn{n}'
            x = nn.relu(convolve_and_normalize(x, names, width, 3, stride, dtype=self.dtype, train=train))
        x = _average(x, 2)
        for layer, blocks in enumerate(self.blocks):
            for n in range(blocks):
                stride = 2 if layer > 0 and n == 0 else 1
                x = _Bottleneck(self.stem_dim * 2**layer, stride, self.dtype, name=f'layer{layer + 1}_{n}')(x, train)
        cells = einops.rearrange(x.astype(jnp.float32), 'i h w c -> i (h w) c')
        return self._pool(cells) if pooled else cells

    def _pool(self, cells: Array) -> Array:
        """Pools cells [I, R, C] with one query, their mean: [I, D]."""
        channels = cells.shape[-1]
        if channels % self.num_heads:
            raise ArgumentError('num_heads', f'is {self.num_heads}, which does not divide the {channels} channels')
        scale = nn.initializers.normal(channels**-0.5)
        cells = jnp.concatenate([cells.mean(axis=1, keepdims=True), cells], axis=1)
        cells += self.param('positions', scale, cells.shape[1:])
        attention = nn.MultiHeadDotProductAttention(
            self.num_heads, qkv_features=channels, out_features=self.embed_dim, kernel_init=scale, name='attnpool'
        )
        return attention(cells[:, :1], cells)[:, 0]
