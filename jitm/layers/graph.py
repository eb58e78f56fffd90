"""Graph reasoning over the relations of regions."""

import einops
import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.layers.linear import Linear
from jitm.layers.normalization import BatchNorm


class RegionGraph(nn.Module):
    """V + BN(W R g(V)) with R_ij = theta(v_i) . phi(v_j) / N over N regions (VSRN, section 3.2).

    The paper normalizes the rows of R; the released code, which produced the published numbers, divides by N, and so
    does this. The scale of BN is initialized as 0, so the layer is initialized as the identity. W has no bias, which
    BN would cancel.
    """

    @nn.compact
    def __call__(self, regions: Array, mask: Array, train: bool = False) -> Array:
        """Updates every region of [I, R, D] from all regions of the mask [I, R]; the rows of others are undefined.

        In training, BN normalizes with the statistics of the batch.
        """
        size = regions.shape[-1]
        query, key, value = (Linear(size, name=name)(regions) for name in ('theta', 'phi', 'g'))
        relations = jnp.einsum('ird,isd->irs', query, key) / einops.reduce(mask, 'i r -> i 1 1', 'sum')
        relations = jnp.where(einops.rearrange(mask, 'i s -> i 1 s'), relations, 0)
        mixed = jnp.einsum('irs,isd->ird', relations, value)
        update = Linear(size, use_bias=False, name='w')(mixed)
        return regions + BatchNorm(nn.initializers.zeros, name='norm')(update, mask[..., None], train)
