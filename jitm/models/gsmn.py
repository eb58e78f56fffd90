"""Block-wise cosines of words and regions with their attended vectors (GSMN; Liu et al., 2020), without its graphs."""

import einops
import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.errors import ArgumentError
from jitm.layers import attention
from jitm.layers.linear import Linear, WeightNormLinear, product
from jitm.layers.normalization import l2_normalize
from jitm.models.tiled import CrossAttentionMatcher
from jitm.types import Count, Elements, InverseTemperature

HIDDEN = 32  # units of a layer; in the released code four for each of eight kernels of the graph


class Readout(nn.Module):
    """Maps the block cosines of each node [..., B] to its score [...]: tanh(x W_1 W_2 + b_2) W_3 + b_3.

    W_2 and W_3 are weight-normalized. As in the released code, there is no activation between W_1 and W_2.
    """

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """See the class."""
        hidden = Linear(HIDDEN, use_bias=False, name='kernels')(x)
        hidden = nn.tanh(WeightNormLinear(HIDDEN, name='hidden')(hidden))
        return WeightNormLinear(1, name='score')(hidden)[..., 0]


class GSMN(CrossAttentionMatcher):
    """Compares words with attended regions, and regions with attended words, in blocks of their dimensions.

    The score is the sum of both directions' mean over nodes, words or regions, of a small network's output. The graphs
    are left out: in the released code no node receives anything from its neighbours (docs/models.md).

    Attributes:
      embed_dim, image, text: See `CrossAttentionMatcher`.
      lambda_softmax: The attention's inverse temperature.
      blocks: The number of blocks, 16 as published; it divides `embed_dim`.
    """

    lambda_softmax: InverseTemperature
    blocks: Count

    directions = ('t2i', 'i2t')
    reads_gram = False

    def setup(self):
        """Checks the options and creates the networks of both directions."""
        if self.embed_dim % self.blocks:
            raise ArgumentError('blocks', f'is {self.blocks}, which does not divide embed_dim, {self.embed_dim}')
        self.t2i = Readout()
        self.i2t = Readout()

    def score_block(self, images: Elements, texts: Elements) -> Array:
        """Scores every image of a block with every text of it: [I, T]."""
        return attention.add_directions(self._mean_score, images, texts)

    def _mean_score(self, direction: str, scores: Array, context: Elements, queries: Elements) -> Array:
        weights = attention.normalize(self.weights(scores, context, queries))
        attended = attention.attended(weights, context.vectors)
        # The cosine of each block is 0 if either part is zero.
        blocks = (einops.rearrange(x, '... (b d) -> ... b d', b=self.blocks) for x in (queries.vectors, attended))
        nodes = product('qmbd,cqmbd->cqmb', *map(l2_normalize, blocks))
        readout = getattr(self, direction)
        return jnp.mean(readout(nodes), axis=-1, where=queries.mask)

    def floats_per_pair(self, images: Elements, texts: Elements) -> int:
        """Returns the size of the attended vectors, or of the units of a layer, of all words or all regions."""
        return max(images.mask.shape[1], texts.mask.shape[1]) * max(self.embed_dim, HIDDEN)
