"""The towers of SigLIP and SigLIP 2 (Zhai et al., 2023; Tschannen et al., 2025), as in big_vision."""

import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.errors import ArgumentError
from jitm.layers.blocks import ACTIVATIONS, layer_norm
from jitm.layers.clip_text import CausalTransformer
from jitm.layers.lengths import check_length
from jitm.layers.vit import ViT
from jitm.types import Images, Index, TextFormat, Texts

EPSILON = 1e-6  # layer normalizations
MEAN = DEVIATION = (0.5, 0.5, 0.5)  # pixels


class AttentionPooling(nn.Module):
    """y + MLP(LN(y)), where y is the attention of a learned probe to all tokens (Zhai et al., 2022, the MAP head).

    Attributes:
      num_heads: The number of attention heads.
      mlp_dim: The hidden size of the two-layer network.
      activation: The activation of this network, a key of `ACTIVATIONS`.
    """

    num_heads: int
    mlp_dim: int
    activation: str

    @nn.compact
    def __call__(self, tokens: Array) -> Array:
        """Maps [I, R, H] to [I, H]."""
        init = nn.initializers.xavier_uniform()
        size = tokens.shape[-1]
        probe = jnp.broadcast_to(self.param('probe', init, (1, 1, size)), (len(tokens), 1, size))
        attention = nn.MultiHeadDotProductAttention(self.num_heads, kernel_init=init, name='attention')
        pooled = attention(probe, tokens)[:, 0]
        wide = nn.Dense(self.mlp_dim, kernel_init=init, name='mlp_in')(layer_norm(None, 'norm', EPSILON)(pooled))
        return pooled + nn.Dense(size, kernel_init=init, name='mlp_out')(ACTIVATIONS[self.activation](wide))


class PooledViT(ViT):
    """A `ViT` without a class token and a projection: attention pools the last states of the patches.

    `hidden_dim` is `embed_dim`. Pixels beyond a multiple of `patch_size` are not read.
    """

    epsilon = EPSILON

    @nn.compact
    def _encode(self, images: Images, train: bool, pooled: bool) -> Array:
        """Returns the pooled states of the patches, or the states."""
        del train
        blocks = self._blocks()
        if self.hidden_dim != self.embed_dim:
            raise ArgumentError('hidden_dim', f'is {self.hidden_dim}; without a projection it is embed_dim')
        tokens = self._patches(images, use_bias=True)
        scale = nn.initializers.normal(self.hidden_dim**-0.5)
        positions = self.param('positions', scale, (tokens.shape[1], self.hidden_dim))
        tokens = blocks(tokens + positions.astype(tokens.dtype), None).astype(jnp.float32)
        tokens = layer_norm(None, 'norm_out', EPSILON)(tokens)
        if not pooled:
            return tokens
        return AttentionPooling(self.num_heads, self.mlp_dim, self.activation, name='pooling')(tokens)


class PaddedTransformer(CausalTransformer):
    """Reads a text padded to `max_length`, where every token attends to all, padding included.

    The state of the last position, which is padding unless the text is cut, is projected. `max_length` is 64 as
    published, and 16 for So400m/14 at 224 pixels.

    Attributes:
      pad: The id of the padding: 1, which is the end too, for SigLIP, and 0 for SigLIP 2.
    """

    pad: Index

    epsilon = EPSILON

    @property
    def text_format(self) -> TextFormat:
        """Texts of any kind, whose padding is read."""
        return TextFormat(None, self.max_length)

    @nn.compact
    def _encode(self, texts: Texts, train: bool, pooled: bool) -> Array:
        """Returns the projected state of the last position, or states of the tokens: for the last token that state."""
        del train
        blocks = self._blocks()
        length = texts.ids.shape[1]
        check_length(length, self.max_length)
        ids = jnp.where(texts.mask, texts.ids, self.pad)
        ids = jnp.pad(ids, [(0, 0), (0, self.max_length - length)], constant_values=self.pad)
        states = blocks(self._embed(ids), None).astype(jnp.float32)
        norm_out = layer_norm(None, 'norm_out', EPSILON)
        if not pooled:
            states = states.at[jnp.arange(len(states)), texts.lengths - 1].set(states[:, -1])
            return norm_out(states[:, :length])
        return self._project(norm_out(states[:, -1]), use_bias=True)
