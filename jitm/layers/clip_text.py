"""CLIP's text encoder: a causal transformer whose state at the end of a text is projected (Radford et al., 2021)."""

import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.layers.blocks import layer_norm
from jitm.layers.lengths import check_length
from jitm.layers.vit import TransformerTower
from jitm.types import DTYPES, SequenceLength, TextFormat, Texts


class CausalTransformer(TransformerTower):
    """Reads a text from left to right; each token attends to itself and those before it.

    A text is encoded by the state of its last token, which is the end. The `features` are the states of all tokens,
    before the projection.

    Attributes:
      embed_dim, hidden_dim, num_layers, num_heads, mlp_dim, activation, dtype: See `TransformerTower`.
      vocab_size: The number V of byte pairs, or of words if trained from scratch.
      max_length: The maximum length of a text, in tokens; 77 as published.
    """

    vocab_size: int
    max_length: SequenceLength

    @property
    def text_format(self) -> TextFormat:
        """Texts of any kind."""
        return TextFormat(None, self.max_length, skips_padding=True)

    def _embed(self, ids: Array) -> Array:
        """Embeds tokens and their positions: [T, L, H]; raises a UserError if there are more than `max_length`."""
        check_length(ids.shape[1], self.max_length)
        words = nn.Embed(self.vocab_size, self.hidden_dim, embedding_init=nn.initializers.normal(0.02), name='words')
        positions = self.param('positions', nn.initializers.normal(0.01), (self.max_length, self.hidden_dim))
        return (words(ids) + positions[: ids.shape[1]]).astype(DTYPES[self.dtype])

    def _project(self, states: Array, use_bias: bool) -> Array:
        """Maps states [T, H] to [T, D]."""
        scale = nn.initializers.normal(self.hidden_dim**-0.5)
        return nn.Dense(self.embed_dim, use_bias=use_bias, kernel_init=scale, name='projection')(states)

    @nn.compact
    def _encode(self, texts: Texts, train: bool, pooled: bool) -> Array:
        """Returns the projected state of the last token, or the states of all."""
        del train
        blocks = self._blocks()
        mask = jnp.tri(texts.ids.shape[1], dtype=bool)[None]
        tokens = blocks(self._embed(texts.ids), mask, texts=texts)
        norm_out = layer_norm(None, 'norm_out', self.epsilon)
        if not pooled:
            return norm_out(tokens.astype(jnp.float32))
        last = norm_out(tokens[jnp.arange(len(tokens)), texts.lengths - 1].astype(jnp.float32))
        return self._project(last, use_bias=False)
