"""Image encoders: one vector for each region of an image."""

import einops
import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.devices import collectives
from jitm.errors import ArgumentError, check_choice
from jitm.layers.linear import Linear, XavierLinear
from jitm.layers.normalization import BatchNorm, zero_padding
from jitm.types import Count, Images

MLPS = ('none', 'plain', 'residual', 'residual_on_input')


class MLP(nn.Module):
    """W_2 relu(BN(W_1 x)), half as many hidden units as outputs (Li et al., 2023, figure 9; VSE-infinity, released).

    Figure 9 has a second batch normalization at the end, which the released module never applies; nor does this one.

    Attributes:
      features: The number of outputs.
      norm_padding: Includes padded rows in the statistics, up to the last valid row of any image of the global batch,
        as in the released code, where batches are padded to this length.
    """

    features: int
    norm_padding: bool

    @nn.compact
    def __call__(self, x: Array, mask: Array, train: bool = False) -> Array:
        """Maps [N, K, inputs] with a mask [N, K] of the valid rows to [N, K, features]."""
        counted = collectives.sum_over_devices(jnp.sum(mask, axis=0)) > 0 if self.norm_padding and train else mask
        hidden = BatchNorm(name='norm')(Linear(self.features // 2, name='linear_1')(x), counted[..., None], train)
        return Linear(self.features, name='linear_2')(nn.relu(hidden))


class RegionEncoder(nn.Module):
    """Applies a fully connected layer and optionally an MLP to each region (Li et al., 2023, figure 2).

    Attributes:
      embed_dim: The size D of the result.
      mlp: 'none' (VSE(FC)); 'plain', an MLP of the layer's output (VSE(MLP)); 'residual', added to that output
        (RVSE(MLP), RVSE++); 'residual_on_input', an MLP of the raw features, added to that output (VSE-infinity, ESA).
      norm_padding: See `MLP`.
    """

    embed_dim: Count
    mlp: str
    norm_padding: bool

    reads = ('regions',)

    @property
    def scale_matters(self) -> bool:
        """Whether the output of the MLP, which is batch-normalized, is added to that of the linear layer."""
        return self.mlp in ('residual', 'residual_on_input')

    def setup(self):
        """Checks the options and creates the layers."""
        check_choice(self.mlp, MLPS, 'mlp')
        if self.mlp != 'none' and self.embed_dim < 2:
            raise ArgumentError('embed_dim', f'is {self.embed_dim}; with an MLP it must be at least 2')
        self.image_fc = XavierLinear(self.embed_dim)
        if self.mlp != 'none':
            self.image_mlp = MLP(self.embed_dim, self.norm_padding)

    def __call__(self, images: Images, train: bool = False) -> tuple[Array, Array]:
        """Encodes every region of I images.

        Returns:
          [N, R, D], and a mask bool [N, R] of the regions that are valid and kept. N is I, or I E with E views of each
          image.
        """
        regions, mask = self.encode(images, train)
        if images.kept is not None:
            regions = einops.repeat(regions, 'i r d -> (i e) r d', e=images.kept.shape[1])
            mask = einops.rearrange(mask[:, None] & images.kept, 'i e r -> (i e) r')
        return regions, mask

    def encode(self, images: Images, train: bool) -> tuple[Array, Array]:
        """Encodes every region of every image once: [I, R, D] and bool [I, R]."""
        mask = images.mask
        regions = zero_padding(images.regions.astype(jnp.float32), mask)
        linear = self.image_fc(regions)
        if self.mlp == 'none':
            return linear, mask
        nonlinear = self.image_mlp(regions if self.mlp == 'residual_on_input' else linear, mask, train)
        return nonlinear if self.mlp == 'plain' else linear + nonlinear, mask
