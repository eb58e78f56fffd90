"""Convolutional networks on pixels as in torchvision, whose names their modules have, with `_` for the dot.

Networks map normalized pixels [I, H, W, 3] to features float32 [I, R, F]: one global vector (R is 1), or the cells of
the last map, row by row, as regions.
"""

import functools
import math

import einops
import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.devices.buffers import computed_once
from jitm.errors import ArgumentError, UserError, check_choice
from jitm.layers.convolutions import (
    DEVIATION,
    MEAN,
    Depthwise,
    adaptive_average_pool,
    convolution,
    convolve_and_normalize,
    max_pool,
    normalize_pixels,
)
from jitm.layers.normalization import BatchNorm, l2_normalize
from jitm.types import DTYPES, Count, Images, Index

MIN_SIZE = 32  # pixels
VGG19_STAGES = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))  # channels and layers between two poolings
FIRES = {3: 16, 4: 16, 6: 32, 7: 32, 9: 48, 10: 48, 11: 64, 12: 64}  # SqueezeNet 1.1: number -> squeezed channels
BOTTLENECKS = 50  # the smallest depth of a ResNet whose blocks have three convolutions
RESNETS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}  # depth -> blocks per layer
# EfficientNet-Lite0, with the kernel, the stride, the expansion, the channels and the blocks of each stage.
LITE_STAGES = (
    *((3, 1, 1, 16, 1), (3, 2, 6, 24, 2), (5, 2, 6, 40, 2), (3, 2, 6, 80, 3)),
    *((5, 1, 6, 112, 3), (5, 2, 6, 192, 4), (3, 1, 6, 320, 1)),
)
LITES = {0: (1.0, 1.0), 1: (1.0, 1.1), 2: (1.1, 1.2), 3: (1.2, 1.4), 4: (1.4, 1.8)}  # number -> factors of width, depth
TF_EPSILON = 1e-3  # added to the variance in networks whose weights are from TensorFlow
_normalize = functools.partial(convolve_and_normalize, padding='SAME', epsilon=TF_EPSILON)


class ConvolutionalNetwork(nn.Module):
    """The base class of all networks, whose pixels have the class's `mean` and `deviation`, as `normalize_pixels`.

    Attributes:
      pooled: Returns one global vector instead of the cells of the last map.
      dtype: The type of activations, 'float32' or 'bfloat16'; parameters and the features returned are float32.
      remat: Recomputes the activations of each block in the backward pass, which saves memory.
    """

    pooled: bool
    dtype: str
    remat: bool

    mean = MEAN
    deviation = DEVIATION

    def __call__(self, x: Array, train: bool = False) -> Array:
        """Maps normalized pixels [I, H, W, 3] to the cells of the last map, or their mean: float32 [I, R, F]."""
        check_choice(self.dtype, DTYPES, 'dtype')
        cells = einops.rearrange(self.last_map(x, train).astype(jnp.float32), 'i h w f -> i (h w) f')
        return jnp.mean(cells, axis=1, keepdims=True) if self.pooled else cells

    def last_map(self, x: Array, train: bool) -> Array:
        """Maps normalized pixels [I, H, W, 3] to [I, H, W, F]."""
        raise NotImplementedError


class VGG19(ConvolutionalNetwork):
    """VGG19 (Simonyan and Zisserman, 2015): F is 4096, fc7 after its ReLU, or 512 for the 7 x 7 cells of 224 pixels.

    It has no dropout, which VSE++ applied to the features in the first steps of each epoch only.
    """

    @nn.compact
    def last_map(self, x: Array, train: bool) -> Array:
        """See `ConvolutionalNetwork`."""
        del train
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
        return x


class _Fire(nn.Module):
    squeezed: int
    dtype: str

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = nn.relu(convolution(self.squeezed, 1, dtype=self.dtype, name='squeeze')(x))
        wide = 4 * self.squeezed
        narrow = convolution(wide, 1, dtype=self.dtype, name='expand1x1')(x)
        three = convolution(wide, 3, padding=1, dtype=self.dtype, name='expand3x3')(x)
        return nn.relu(jnp.concatenate([narrow, three], axis=-1))


class SqueezeNet(ConvolutionalNetwork):
    """SqueezeNet 1.1 (Iandola et al., 2016): F is 512; 6 x 6 cells of 112 pixels."""

    @nn.compact
    def last_map(self, x: Array, train: bool) -> Array:
        """See `ConvolutionalNetwork`."""
        del train
        x = nn.relu(convolution(64, 3, stride=2, dtype=self.dtype, name='features_0')(x))
        fire = nn.remat(_Fire) if self.remat else _Fire
        for number, squeezed in FIRES.items():
            if number - 1 not in FIRES:
                padding = [(0, (length - 3) % 2) for length in x.shape[1:3]]  # `ceil_mode`
                x = max_pool(x, 3, 2, padding)
            x = fire(squeezed, self.dtype, name=f'features_{number}')(x)
        return x


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
    def __call__(self, x: Array, train: bool) -> Array:
        x = computed_once(x)
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
    def last_map(self, x: Array, train: bool) -> Array:
        """See `ConvolutionalNetwork`."""
        if self.depth not in RESNETS:
            raise ArgumentError('depth', f'is {self.depth}; use one of {", ".join(map(str, RESNETS))}')
        train = train and self.train_norm
        bottleneck = self.depth >= BOTTLENECKS
        x = nn.relu(convolve_and_normalize(x, ('conv1', 'bn1'), 64, 7, 2, dtype=self.dtype, train=train))
        x = max_pool(x, 3, 2, [(1, 1), (1, 1)])
        block = nn.remat(_Block, static_argnums=2) if self.remat else _Block
        for layer, blocks in enumerate(RESNETS[self.depth], 1):
            for n in range(blocks):
                first = n == 0
                width = 32 * 2**layer
                stride = 2 if first and layer > 1 else 1
                downsample = first and (bottleneck or layer > 1)
                x = block(width, bottleneck, stride, downsample, self.dtype, name=f'layer{layer}_{n}')(x, train)
        return x


class _Separable(nn.Module):
    """A depthwise convolution between 1 x 1 convolutions, with batch normalization.

    The input is added where it has the shape of the output.

    Attributes:
      size: The edge of the depthwise kernel.
      stride: The stride of the depthwise convolution.
      expansion: The factor of the channels before it (Sandler et al., 2018); 1 for no convolution before it.
      channels: The number of outputs.
      dtype: The type of the computation.
    """

    size: int
    stride: int
    expansion: int
    channels: int
    dtype: str

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        pointwise = functools.partial(_normalize, size=1, dtype=self.dtype, train=train)
        x = computed_once(x)
        y = x
        if self.expansion > 1:
            y = nn.relu6(pointwise(y, ('expand', 'expand_bn'), self.expansion * x.shape[-1]))
        y = Depthwise(self.size, self.stride, name='depthwise')(y)
        y = BatchNorm(epsilon=TF_EPSILON, name='depthwise_bn')(y, train=train).astype(x.dtype)
        y = pointwise(nn.relu6(y), ('project', 'project_bn'), self.channels)
        return x + y if x.shape == y.shape else y


class EfficientNetLite(ConvolutionalNetwork):
    """EfficientNet-Lite0 to 4 (Tan and Le, 2019, without squeeze-and-excitation and with ReLU6): F is 1280.

    It has no drop connect, with which the published weights were trained.

    Attributes:
      number: A key of `LITES`; the weights were trained on photos of 224, 240, 260, 280 and 300 pixels.
      train_norm: See `ResNet`.
    """

    number: Index
    train_norm: bool

    mean = (127 / 255,) * 3
    deviation = (128 / 255,) * 3

    @nn.compact
    def last_map(self, x: Array, train: bool) -> Array:
        """See `ConvolutionalNetwork`."""
        if self.number not in LITES:
            raise ArgumentError('number', f'is {self.number}; use one of {", ".join(map(str, LITES))}')
        train = train and self.train_norm
        width, depth = LITES[self.number]
        x = nn.relu6(_normalize(x, ('conv_stem', 'bn1'), 32, 3, 2, dtype=self.dtype, train=train))
        block = nn.remat(_Separable, static_argnums=2) if self.remat else _Separable
        number = 0
        for stage, (size, stride, expansion, channels, blocks) in enumerate(LITE_STAGES):
            ends = stage in (0, len(LITE_STAGES) - 1)
            for n in range(blocks if ends else math.ceil(blocks * depth)):
                sizes = size, 1 if n else stride, expansion, _rounded(channels * width)
                x = block(*sizes, self.dtype, name=f'blocks_{number}')(x, train)
                number += 1
        return nn.relu6(_normalize(x, ('conv_head', 'bn2'), 1280, 1, dtype=self.dtype, train=train))


def _rounded(channels: float) -> int:
    """Returns the nearest multiple of 8 that is not below 90 % of a number of channels."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near


class PixelEncoder(nn.Module):
    """Encodes images from their pixels (Faghri et al., 2018): a network, and an encoder of its features.

    Attributes:
      network: A `ConvolutionalNetwork`.
      normalize_features: L2-normalizes the features of the network, as VSE++ does.
      regions: A module that encodes the features, such as `vision.RegionEncoder`.
    """

    network: nn.Module
    normalize_features: bool
    regions: nn.Module

    reads = ('pixels',)

    def features(self, images: Images, train: bool = False) -> Array:
        """Returns the features of the network, not normalized: float32 [I, R, F]."""
        height, width = images.pixels.shape[1:3]
        if min(height, width) < MIN_SIZE:
            raise UserError(f'images have {height} x {width} pixels; give at least {MIN_SIZE} x {MIN_SIZE}')
        return self.network(normalize_pixels(images.pixels, self.network.mean, self.network.deviation), train)

    def __call__(self, images: Images, train: bool = False) -> tuple[Array, Array]:
        """Encodes pixels uint8 [I, H, W, 3] as [I, R, D] with a mask of the valid regions, all of them."""
        features = self.features(images, train)
        if self.normalize_features:
            features = l2_normalize(features)
        counts = jnp.full(len(features), features.shape[1], jnp.int32)
        return self.regions(Images(regions=features, counts=counts), train)
