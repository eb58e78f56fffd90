"""CLIP's text encoder: a causal transformer whose state at the end of a text is projected (Radford et al., 2021)."""

import chex
import jax.numpy as jnp
from flax import linen as nn

from jitm.errors import UserError, check_choice
from jitm.layers.transformer import layer_norm
from jitm.layers.vit import EPSILON, pre_norm_transformer
from jitm.types import DTYPES, Count, SequenceLength, TextFormat, Texts


def check_length(length: int, maximum: int) -> None:
    """Raises a UserError if texts are padded to more tokens than a model reads."""
    if length > maximum:
        raise UserError(f'a batch has texts padded to {length} tokens, the model reads {maximum}: shorten the captions')


class CausalTransformer(nn.Module):
    """Reads a text from left to right; each token attends to itself and those before it.

    Attributes:
      vocab_size: The number V of byte pairs, or of words if trained from scratch.
      embed_dim: The size D of the result.
      max_length: The maximum length of a text, in tokens; 77 as published.
      hidden_dim, num_layers, num_heads, mlp_dim, activation, dtype: See `jitm.layers.vit.ViT`.
    """

    vocab_size: int
    embed_dim: Count
    max_length: SequenceLength
    hidden_dim: Count
    num_layers: Count
    num_heads: Count
    mlp_dim: Count
    activation: str
    dtype: str

    @property
    def text_format(self) -> TextFormat:
        """Texts of any kind."""
        return TextFormat(None, self.max_length)

    def __call__(self, texts: Texts, train: bool = False) -> chex.Array:
        """Encodes T texts as float32 [T, D], each by the state of its last token, which is the end.

        Raises:
          UserError: if L is more than `max_length`.
        """
        del train
        return self._encode(texts, whole=True)

    def features(self, texts: Texts, train: bool = False) -> chex.Array:
        """Returns the last states of the tokens, without the projection: float32 [T, L, H].

        The state of the last token is the one that is projected.
        """
        del train
        return self._encode(texts, whole=False)

    @nn.compact
    def _encode(self, texts: Texts, whole: bool) -> chex.Array:
        """Returns the projected state of the last token, or the states of all."""
        check_choice(self.dtype, DTYPES, 'dtype')
        length, dtype = texts.ids.shape[1], DTYPES[self.dtype]
        check_length(length, self.max_length)
        words = nn.Embed(self.vocab_size, self.hidden_dim, embedding_init=nn.initializers.normal(0.02), name='words')
        positions = self.param('positions', nn.initializers.normal(0.01), (self.max_length, self.hidden_dim))
        tokens = (words(texts.ids) + positions[:length]).astype(dtype)
        tokens = pre_norm_transformer(self)(tokens, jnp.tri(length, dtype=bool)[None])
        norm_out = layer_norm(None, 'norm_out', EPSILON)
        if not whole:
            return norm_out(tokens.astype(jnp.float32))
        last = norm_out(tokens[jnp.arange(len(tokens)), texts.lengths - 1].astype(jnp.float32))
        scale = nn.initializers.normal(self.hidden_dim**-0.5)
        return nn.Dense(self.embed_dim, use_bias=False, kernel_init=scale, name='projection')(last)
