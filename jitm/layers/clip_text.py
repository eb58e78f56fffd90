"""CLIP's text encoders: a causal transformer whose state at the end of a text is projected (Radford et al., 2021).

Or a BERT, such as XLM-R, whose mean state is, as in open_clip's models of many languages.
"""

import chex
import jax.numpy as jnp
from flax import linen as nn

from jitm.errors import UserError, check_choice
from jitm.layers.lengths import in_order
from jitm.layers.pooling import mean
from jitm.layers.transformer import ACTIVATIONS, BERT, BERTSize, layer_norm
from jitm.layers.vit import Tower, TransformerTower
from jitm.types import DTYPES, Count, Rate, SequenceLength, TextFormat, Texts

KEPT = 20  # positions that Long-CLIP does not change


def stretch_positions(positions: chex.Array, factor: int, kept: int = KEPT) -> chex.Array:
    """Interpolates positions for longer texts, after the first ones, which are trained best (Zhang et al., 2024b).

    Args:
      positions: [L, H].
      factor: The number of new positions for each one after the first.
      kept: K, the number of positions at the start that stay as they are.

    Returns:
      [factor (L - K) + K, H]; those after the last one are extrapolated. 77 become 248 with a factor of 4.

    Raises:
      UserError: If fewer than two positions are interpolated.
    """
    first, rest = positions[:kept], positions[kept:]
    if len(rest) < 2:
        raise UserError(f'the text encoder has {len(positions)} positions: stretch one with at least {kept + 2}')
    index, step = jnp.divmod(jnp.arange(factor * len(rest)), factor)
    slope = jnp.diff(rest, axis=0)[jnp.minimum(index, len(rest) - 2)]
    return jnp.concatenate([first, rest[index] + step[:, None] / factor * slope])


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
        return TextFormat(None, self.max_length, profile=True)

    def _check_length(self, length: int) -> None:
        """Raises a UserError if texts are padded to more tokens than the model reads."""
        if length > self.max_length:
            raise UserError(
                f'a batch has texts padded to {length} tokens, the model reads {self.max_length}: shorten the captions'
            )

    def _embed(self, ids: chex.Array) -> chex.Array:
        """Embeds tokens and their positions: [T, L, H]."""
        words = nn.Embed(self.vocab_size, self.hidden_dim, embedding_init=nn.initializers.normal(0.02), name='words')
        positions = self.param('positions', nn.initializers.normal(0.01), (self.max_length, self.hidden_dim))
        return (words(ids) + positions[: ids.shape[1]]).astype(DTYPES[self.dtype])

    def _project(self, states: chex.Array, use_bias: bool) -> chex.Array:
        """Maps states [T, H] to [T, D]."""
        scale = nn.initializers.normal(self.hidden_dim**-0.5)
        return nn.Dense(self.embed_dim, use_bias=use_bias, kernel_init=scale, name='projection')(states)

    @nn.compact
    def _encode(self, texts: Texts, train: bool, whole: bool) -> chex.Array:
        """Returns the projected state of the last token, or the states of all."""
        del train
        blocks, length = self._blocks(), texts.ids.shape[1]
        self._check_length(length)
        mask = jnp.tri(length, dtype=bool)[None]
        tokens = in_order(lambda texts: blocks(self._embed(texts.ids), mask, profile=texts.profile), texts)
        norm_out = layer_norm(None, 'norm_out', self.epsilon)
        if not whole:
            return norm_out(tokens.astype(jnp.float32))
        last = norm_out(tokens[jnp.arange(len(tokens)), texts.lengths - 1].astype(jnp.float32))
        return self._project(last, use_bias=False)


class PooledBERT(Tower):
    """Projects the mean of a BERT's last states, special tokens included, by two layers without biases (open_clip).

    The `features` are the last states.

    Attributes:
      vocab_size: The number of pieces V.
      embed_dim: The size D of the result.
      size: The sizes of the BERT.
      max_length: The number of ids to which captions are cut; 77 as published.
      dropout: The rate of dropout inside of the BERT.
      dtype: The type of the BERT's computation, 'float32' or 'bfloat16'; parameters are float32.
    """

    vocab_size: int
    embed_dim: Count
    size: BERTSize
    max_length: SequenceLength
    dropout: Rate = 0.1
    dtype: str = 'float32'

    @property
    def text_format(self) -> TextFormat:
        """Texts of any kind."""
        return TextFormat(None, self.max_length, profile=True)

    @property
    def hidden_dim(self) -> int:
        """The size H of the hidden states."""
        return self.size.hidden

    @nn.compact
    def _encode(self, texts: Texts, train: bool, whole: bool) -> chex.Array:
        """Returns the projected mean of the states, or the states of all tokens."""
        check_choice(self.dtype, DTYPES, 'dtype')
        bert = BERT(self.vocab_size, self.size, self.dropout, DTYPES[self.dtype], name='bert')
        states = bert(texts, train).astype(jnp.float32)
        if not whole:
            return states
        hidden = nn.Dense((self.hidden_dim + self.embed_dim) // 2, use_bias=False, name='mlp_in')
        out = nn.Dense(self.embed_dim, use_bias=False, name='mlp_out')
        return out(ACTIVATIONS['gelu'](hidden(mean(states, texts.mask))))
