"""Convolutional networks on pixels as in torchvision, whose names their modules have, with `_` for the dot.

Networks map normalized pixels [I, H, W, 3] to features float32 [I, R, F]: one global vector (R is 1), or the cells of
the last map, row by row, as regions.
"""

import functools
from collections.abc import Sequence

import chex
import einops
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jitm.errors import ArgumentError, UserError, check_choice
from jitm.layers.normalization import BatchNorm, l2_normalize
from jitm.types import DTYPES, Count, Images

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet, RGB
MIN_SIZE = 32  # pixels
VGG19_STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))  # channels and layers between two poolings
FIRES = {3: 16, 4: 16, 6: 32, 7: 32, 9: 48, 10: 48, 11: 64, 12: 64}  # SqueezeNet 1.1: number -> squeezed channels
BOTTLENECKS = 50  # the smallest depth of a ResNet whose blocks have three convolutions
RESNETS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}  # depth -> blocks per layer
Padding = Sequence[tuple[int, int]]  # before and after, for height and width
KERNEL_INIT = nn.initializers.variance_scaling(2.0, 'fan_out', 'normal')  # He et al. (2015), as torchvision


def normalize_pixels(
    pixels: chex.Array, mean: Sequence[float] = MEAN, deviation: Sequence[float] = DEVIATION
) -> chex.Array:
    """Maps uint8 [..., 3], red green blue, to float32 with mean 0 and deviation 1 over images with these moments."""
    return (pixels.astype(jnp.float32) / 255 - np.asarray(mean)) / np.asarray(deviation)


def adaptive_average_pool(x: chex.Array, size: int) -> chex.Array:
    """Averages [I, H, W, F] to [I, size, size, F] over windows that may overlap, as `torch.nn.AdaptiveAvgPool2d`."""

    def windows(length: int) -> np.ndarray:
        position, cell = np.arange(length), np.arange(size)[:, None]
        inside = (position >= cell * length // size) & (position < -(-(cell + 1) * length // size))
        return inside / inside.sum(axis=1, keepdims=True)

    rows, columns = (jnp.asarray(windows(length), x.dtype) for length in x.shape[1:3])
    return jnp.einsum('yh,xw,ihwf->iyxf', rows, columns, x)


def max_pool(x: chex.Array, size: int, stride: int, padding: Padding = ((0, 0), (0, 0))) -> chex.Array:
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
    features: int, size: int, stride: int = 1, padding: int = 0, use_bias: bool = True, *, dtype: str, name: str
) -> nn.Conv:
    """Returns a square convolution with explicit padding; 'SAME' would pad another side at stride 2 than torch.

    Args:
      features: The number of outputs.
      size: The edge of the kernel.
      stride: The stride in both directions.
      padding: The number of zeros on each side.
      use_bias: Adds a bias.
      dtype: The type of the computation.
      name: The name of the module.
    """
    keywords = {'use_bias': use_bias, 'dtype': DTYPES[dtype], 'kernel_init': KERNEL_INIT, 'name': name}
    return nn.Conv(features, (size, size), (stride, stride), [(padding, padding)] * 2, **keywords)


def convolve_and_normalize(
    x: chex.Array,
    names: tuple[str, str],
    features: int,
    size: int,
    stride: int = 1,
    *,
    dtype: str,
    train: bool,
    scale_init: nn.initializers.Initializer = nn.initializers.ones,
) -> chex.Array:
    """Applies a `convolution` that keeps the size, but for the stride, and a batch normalization, with these names."""
    x = convolution(features, size, stride, size // 2, use_bias=False, dtype=dtype, name=names[0])(x)
    return BatchNorm(scale_init, name=names[1])(x, train=train).astype(x.dtype)


class ConvolutionalNetwork(nn.Module):
    """The base class of all networks.

    Attributes:
      pooled: Returns one global vector instead of the cells of the last map.
      dtype: The type of activations, 'float32' or 'bfloat16'; parameters and the features returned are float32.
      remat: Recomputes the activations of each block in the backward pass, which saves memory.
    """

    pooled: bool
    dtype: str
    remat: bool

    def features(self, x: chex.Array) -> chex.Array:
        """Returns [I, H, W, F] as float32 [I, H W, F], or its mean [I, 1, F]."""
        x = einops.rearrange(x.astype(jnp.float32), 'i h w f -> i (h w) f')
        return jnp.mean(x, axis=1, keepdims=True) if self.pooled else x


class VGG19(ConvolutionalNetwork):
    """VGG19 (Simonyan and Zisserman, 2015): F is 4096, fc7 after its ReLU, or 512 for the 7 x 7 cells of 224 pixels.

    It has no dropout, which VSE++ applied to the features in the first steps of each epoch only.
    """

    @nn.compact
    def __call__(self, x: chex.Array, train: bool = False) -> chex.Array:
        """Maps normalized pixels [I, H, W, 3] to float32 [I, R, F]."""
        del train
        check_choice(self.dtype, DTYPES, 'dtype')
        number = 0
        for channels, layers in VGG19_STAGES:

            def stage(self, x, channels=channels, layers=layers, first=number):
                for n in range(layers):
                    name = f'features_{first + 2 * n}'
                    x = nn.relu(convolution(channels, 3, padding=1, dtype=self.dtype, name=name)(x))
                return max_pool(x, 2, 2)

            x = (nn.remat(stage) if self.remat else stage)(self, x)
            number += 2 * layers + 1
        if self.pooled:  # the fully connected layers are convolutions over the whole map
            x = adaptive_average_pool(x, 7)
            x = nn.relu(convolution(4096, 7, dtype=self.dtype, name='classifier_0')(x))
            x = nn.relu(convolution(4096, 1, dtype=self.dtype, name='classifier_3')(x))
        return self.features(x)


class _Fire(nn.Module):
    squeezed: int
    dtype: str

    @nn.compact
    def __call__(self, x: chex.Array) -> chex.Array:
        x = nn.relu(convolution(self.squeezed, 1, dtype=self.dtype, name='squeeze')(x))
        wide = 4 * self.squeezed
        one = convolution(wide, 1, dtype=self.dtype, name='expand1x1')(x)
        three = convolution(wide, 3, padding=1, dtype=self.dtype, name='expand3x3')(x)
        return nn.relu(jnp.concatenate([one, three], axis=-1))


class SqueezeNet(ConvolutionalNetwork):
    """SqueezeNet 1.1 (Iandola et al., 2016): F is 512; 6 x 6 cells of 112 pixels."""

    @nn.compact
    def __call__(self, x: chex.Array, train: bool = False) -> chex.Array:
        """Maps normalized pixels [I, H, W, 3] to float32 [I, R, F]."""
        del train
        check_choice(self.dtype, DTYPES, 'dtype')
        x = nn.relu(convolution(64, 3, stride=2, dtype=self.dtype, name='features_0')(x))
        fire = nn.remat(_Fire) if self.remat else _Fire
        for number, squeezed in FIRES.items():
            if number - 1 not in FIRES:
                padding = [(0, (length - 3) % 2) for length in x.shape[1:3]]  # `ceil_mode`
                x = max_pool(x, 3, 2, padding)
            x = fire(squeezed, self.dtype, name=f'features_{number}')(x)
        return self.features(x)


class _Block(nn.Module):
    """Two or three convolutions with batch normalization, and their input added (He et al., 2016).

    Attributes:
      width: The number of channels of the 3 x 3 convolutions.
      bottleneck: Has three convolutions, 1 x 1, 3 x 3 and 1 x 1 with four times the width, instead of two of 3 x 3.
      stride: The stride of the first 3 x 3 convolution, in torchvision (v1.5) as in the paper's released successors.
      downsample: Maps the input to the size of the output.
      dtype: The type of the computation.
    """

    width: int
    bottleneck: bool
    stride: int
    downsample: bool
    dtype: str

    @nn.compact
    def __call__(self, x: chex.Array, train: bool) -> chex.Array:
        sizes = (1, 3, 1) if self.bottleneck else (3, 3)
        outputs = 4 * self.width if self.bottleneck else self.width
        convolve = functools.partial(convolve_and_normalize, dtype=self.dtype, train=train)
        y = x
        for number, size in enumerate(sizes, 1):
            last = number == len(sizes)
            stride = self.stride if number == sizes.index(3) + 1 else 1
            y = convolve(y, (f'conv{number}', f'bn{number}'), outputs if last else self.width, size, stride)
            y = y if last else nn.relu(y)
        if self.downsample:
            x = convolve(x, ('downsample_0', 'downsample_1'), outputs, 1, self.stride)
        return nn.relu(x + y)


class ResNet(ConvolutionalNetwork):
    """ResNet-18, 50, 101 or 152 (He et al., 2016) in torchvision's variant v1.5: F is 2048, for ResNet-18 512.

    Attributes:
      depth: A key of `RESNETS`.
      train_norm: Batch normalization uses and updates the statistics of the batch in training; otherwise it is frozen,
        as is customary when a pretrained network is fine-tuned. VSE++ trains it in the first steps of each epoch only,
        until the first evaluation.
    """

    depth: Count
    train_norm: bool

    @nn.compact
    def __call__(self, x: chex.Array, train: bool = False) -> chex.Array:
        """Maps normalized pixels [I, H, W, 3] to float32 [I, R, F]."""
        check_choice(self.dtype, DTYPES, 'dtype')
        if self.depth not in RESNETS:
            raise ArgumentError('depth', f'is {self.depth}; use one of {", ".join(map(str, RESNETS))}')
        train, bottleneck = train and self.train_norm, self.depth >= BOTTLENECKS
        x = nn.relu(convolve_and_normalize(x, ('conv1', 'bn1'), 64, 7, 2, dtype=self.dtype, train=train))
        x = max_pool(x, 3, 2, [(1, 1), (1, 1)])
        block = nn.remat(_Block, static_argnums=2) if self.remat else _Block
        for layer, blocks in enumerate(RESNETS[self.depth], 1):
            for n in range(blocks):
                first, width = n == 0, 32 * 2**layer
                stride = 2 if first and layer > 1 else 1
                downsample = first and (bottleneck or layer > 1)
                x = block(width, bottleneck, stride, downsample, self.dtype, name=f'layer{layer}_{n}')(x, train)
        return self.features(x)


class PixelEncoder(nn.Module):
    """Encodes images from their pixels (Faghri et al., 2018): a network, and an encoder of its features.

    Attributes:
      network: A module that maps normalized pixels to features [I, R, F], such as `ResNet`.
      normalize_features: L2-normalizes the features of the network, as VSE++ does.
      regions: A module that encodes the features, such as `vision.RegionEncoder`.
    """

    network: nn.Module
    normalize_features: bool
    regions: nn.Module

    reads = ('pixels',)

    def features(self, images: Images, train: bool = False) -> chex.Array:
        """Returns the features of the network, not normalized: float32 [I, R, F]."""
        height, width = images.pixels.shape[1:3]
        if min(height, width) < MIN_SIZE:
            raise UserError(f'images have {height} x {width} pixels; give at least {MIN_SIZE} x {MIN_SIZE}')
        return self.network(normalize_pixels(images.pixels), train)

    def __call__(self, images: Images, train: bool = False) -> tuple[chex.Array, chex.Array]:
        """Encodes pixels uint8 [I, H, W, 3] as [I, R, D] with a mask of the valid regions, all of them."""
        features = self.features(images, train)
        if self.normalize_features:
            features = l2_normalize(features)
        counts = jnp.full(len(features), features.shape[1], jnp.int32)
        return self.regions(Images(regions=features, counts=counts), train)
