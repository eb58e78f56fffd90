"""Positions of tokens relative to each other."""

import einops
import numpy as np
from chex import Array
from flax import linen as nn


class RelativePositions(nn.Module):
    """A bias for each head and bucket of distances, the same in all blocks (Raffel et al., 2020, as MPNet has it).

    Distances below 8 have buckets of their own, longer ones share some, and keys on the right have others.

    Attributes:
      heads: The number of attention heads.
      kernel_init: The initializer of the bias.
    """

    heads: int
    kernel_init: nn.initializers.Initializer

    FIRST = (*range(8), *8 * 2 ** (np.arange(8) / 2))  # the smallest distance of each bucket

    @nn.compact
    def __call__(self, length: int) -> Array:
        """Returns the bias of each query with each key, [heads, L, L]."""
        table = nn.Embed(2 * len(self.FIRST), self.heads, embedding_init=self.kernel_init, name='buckets')
        distance = np.arange(length)[:, None] - np.arange(length)
        buckets = np.searchsorted(self.FIRST, np.abs(distance), side='right') - 1
        return einops.rearrange(table(buckets + len(self.FIRST) * (distance < 0)), 'q k h -> h q k')
