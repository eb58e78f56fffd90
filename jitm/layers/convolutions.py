"""The parts of convolutional networks: normalized pixels, convolutions and pooling."""

import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from chex import Array
from flax import linen as nn

from jitm.layers.normalization import EPSILON, BatchNorm
from jitm.types import DTYPES

MEAN = (0.485, 0.456, 0.406)  # ImageNet, RGB
DEVIATION = (0.229, 0.224, 0.225)
Padding = Sequence[tuple[int, int]]  # before and after, for height and width
KERNEL_INIT = nn.initializers.variance_scaling(2.0, 'fan_out', 'normal')  # He et al. (2015), as torchvision


def normalize_pixels(pixels: Array, mean: Sequence[float] = MEAN, deviation: Sequence[float] = DEVIATION) -> Array:
    """Maps uint8 [..., 3], red green blue, to float32 with mean 0 and deviation 1 over images with these moments."""
    return (pixels.astype(jnp.float32) / 255 - np.asarray(mean)) / np.asarray(deviation)


def adaptive_average_pool(x: Array, size: int) -> Array:
    """Averages [I, H, W, F] to [I, size, size, F] over windows that may overlap, as `torch.nn.AdaptiveAvgPool2d`."""

    def windows(length):
        position = np.arange(length)
        cell = np.arange(size)[:, None]
        inside = (position >= cell * length // size) & (position < -(-(cell + 1) * length // size))
        return inside / inside.sum(axis=1, keepdims=True)

    rows, columns = (jnp.asarray(windows(length), x.dtype) for length in x.shape[1:3])
    return jnp.einsum('yh,xw,ihwf->iyxf', rows, columns, x)


def max_pool(x: Array, size: int, stride: int, padding: Padding = ((0, 0), (0, 0))) -> Array:
    """Returns the maximum over square windows of [I, H, W, F] with edges of `size`, `stride` apart.

    It is the maximum of shifted slices; on a CPU the gradient of `nn.max_pool` takes seven times as long. Equal values
    share the gradient, which in torch flows to the first; after a ReLU only zeros are equal.
    """
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)), constant_values=-jnp.inf)
    for axis in (1, 2):
        span = (x.shape[axis] - size) // stride * stride + 1
        slices = (jax.lax.slice_in_dim(x, first, first + span, stride, axis) for first in range(size))
        x = functools.reduce(jnp.maximum, slices)
    return x


def convolution(
    features: int, size: int, stride: int = 1, padding: int | str = 0, use_bias: bool = True, *, dtype: str, name: str
) -> nn.Conv:
    """Returns a square convolution; at stride 2 'SAME' pads another side than torch.

    Args:
      features: The number of outputs.
      size: The edge of the kernel.
      stride: The stride in both directions.
      padding: The number of zeros on each side, or 'SAME' for TensorFlow's.
      use_bias: Adds a bias.
      dtype: The type of the computation.
      name: The name of the module.
    """
    keywords = {'use_bias': use_bias, 'dtype': DTYPES[dtype], 'kernel_init': KERNEL_INIT, 'name': name}
    sides = padding if isinstance(padding, str) else [(padding, padding)] * 2
    return nn.Conv(features, (size, size), (stride, stride), sides, **keywords)


def convolve_and_normalize(
    x: Array,
    names: tuple[str, str],
    features: int,
    size: int,
    stride: int = 1,
    *,
    dtype: str,
    train: bool,
    scale_init: nn.initializers.Initializer = nn.initializers.ones,
    padding: str = '',
    epsilon: float = EPSILON,
) -> Array:
    """Applies a `convolution` that keeps the size, but for the stride, and a batch normalization, with these names."""
    x = convolution(features, size, stride, padding or size // 2, use_bias=False, dtype=dtype, name=names[0])(x)
    return BatchNorm(scale_init, epsilon, name=names[1])(x, train=train).astype(x.dtype)


class Depthwise(nn.Module):
    """A convolution of each channel by itself with TensorFlow's padding 'SAME', without a bias.

    It is a sum of shifted products; on a CPU `nn.Conv` with groups takes three to ten times as long.

    Attributes:
      size: The edge of the kernel.
      stride: The stride in both directions.
    """

    size: int
    stride: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Maps [I, H, W, F] to [I, ceil(H / stride), ceil(W / stride), F]."""
        kernel = self.param('kernel', nn.initializers.he_normal(), (self.size, self.size, 1, x.shape[-1]))
        height, width = (-(-length // self.stride) for length in x.shape[1:3])
        spans = [(height - 1) * self.stride + self.size, (width - 1) * self.stride + self.size]
        padding = [max(span - length, 0) for span, length in zip(spans, x.shape[1:3], strict=True)]
        x = jnp.pad(x, ((0, 0), *((zeros // 2, zeros - zeros // 2) for zeros in padding), (0, 0)))
        shifted = (
            x[:, row :: self.stride, column :: self.stride][:, :height, :width] * kernel[row, column, 0].astype(x.dtype)
            for row, column in itertools.product(range(self.size), repeat=2)
        )
        return functools.reduce(jnp.add, shifted)
