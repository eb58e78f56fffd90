"""BERT's encoder (Devlin et al., 2019): learned positions, post-norm blocks, exact GELU."""

import dataclasses

import chex
import einops
import jax.numpy as jnp
from flax import linen as nn

from jitm.errors import UserError
from jitm.types import Texts


@dataclasses.dataclass(frozen=True)
class BERTSize:
    """The sizes of a BERT.

    Attributes:
      hidden: H of the hidden states.
      layers: number of blocks.
      heads: number of attention heads, each with H / heads dimensions.
      mlp_dim: hidden size of the two-layer network in each block.
      max_positions: maximum length of a text, in tokens.
      token_types: number of segment embeddings.
      deviation: standard deviation of the initial weights.
    """

    hidden: int
    layers: int
    heads: int
    mlp_dim: int
    max_positions: int = 512
    token_types: int = 2
    deviation: float = 0.02

    @property
    def kernel_init(self) -> nn.initializers.Initializer:
        """Initializer of weights and embeddings."""
        return nn.initializers.normal(self.deviation)


# With a deviation of 0.02 and so few dimensions, the output of the attention is a twentieth of its input, and the model
# takes long to use the regions.
TINY = BERTSize(hidden=128, layers=2, heads=2, mlp_dim=512, deviation=0.08)
BASE = BERTSize(hidden=768, layers=12, heads=12, mlp_dim=3072)
LARGE = BERTSize(hidden=1024, layers=24, heads=16, mlp_dim=4096)
SIZES = {'tiny': TINY, 'base': BASE, 'large': LARGE}


def layer_norm(dtype: chex.ArrayDType | None = None, name: str | None = None) -> nn.LayerNorm:
    """Returns a layer normalization with BERT's epsilon."""
    # The fast variance, E[x^2] - E[x]^2, is less precise than this epsilon.
    return nn.LayerNorm(epsilon=1e-12, use_fast_variance=False, dtype=dtype, name=name)


class TransformerBlock(nn.Module):
    """h = LN(x + drop(W_o attention(x))), y = LN(h + drop(W_2 gelu(W_1 h))) (Vaswani et al., 2017, 3.1 to 3.3).

    Attributes:
      heads: number of attention heads.
      mlp_dim: rows of W_1.
      dropout: rate, also of the attention weights.
      dtype: of the computation; parameters, softmax and its product with the values, and the
        statistics of LN are float32.
      kernel_init: initializer of W.
    """

    heads: int
    mlp_dim: int
    dropout: float
    dtype: chex.ArrayDType | None = None
    kernel_init: nn.initializers.Initializer = BASE.kernel_init

    @nn.compact
    def __call__(self, tokens: chex.Array, mask: chex.Array, train: bool = False) -> chex.Array:
        """Applies the block to each sequence.

        Args:
          tokens: [N, L, H].
          mask: bool [N, L], the tokens that are attended to.
          train: applies dropout, from the stream 'dropout'.

        Returns:
          [N, L, H], of `dtype`.
        """
        drop = nn.Dropout(self.dropout, deterministic=not train)
        attention = nn.MultiHeadDotProductAttention(
            self.heads,
            dtype=self.dtype,
            kernel_init=self.kernel_init,
            dropout_rate=self.dropout,
            broadcast_dropout=False,
            deterministic=not train,
            force_fp32_for_softmax=True,
            name='attention',
        )
        mixed = attention(tokens, mask=einops.rearrange(mask, 'n l -> n 1 1 l'))
        tokens = layer_norm(self.dtype, 'attention_norm')(tokens + drop(mixed))
        wide = nn.Dense(self.mlp_dim, dtype=self.dtype, kernel_init=self.kernel_init, name='mlp_in')(tokens)
        wide = nn.gelu(wide, approximate=False)
        narrow = nn.Dense(tokens.shape[-1], dtype=self.dtype, kernel_init=self.kernel_init, name='mlp_out')(wide)
        return layer_norm(self.dtype, 'mlp_norm')(tokens + drop(narrow))


class Transformer(nn.Module):
    """A stack of `TransformerBlock`; the tokens may be words, regions or both.

    Attributes:
      layers: number of blocks.
      heads: see `TransformerBlock`.
      mlp_dim: see `TransformerBlock`.
      dropout: see `TransformerBlock`.
      dtype: see `TransformerBlock`.
      kernel_init: see `TransformerBlock`.
    """

    layers: int
    heads: int
    mlp_dim: int
    dropout: float
    dtype: chex.ArrayDType | None = None
    kernel_init: nn.initializers.Initializer = BASE.kernel_init

    @nn.compact
    def __call__(self, tokens: chex.Array, mask: chex.Array, train: bool = False) -> chex.Array:
        """Maps tokens [N, L, H] with a mask [N, L] of those that are attended to, to [N, L, H]."""
        for n in range(self.layers):
            block = TransformerBlock(
                self.heads, self.mlp_dim, self.dropout, self.dtype, self.kernel_init, name=f'block_{n}'
            )
            tokens = block(tokens, mask, train)
        return tokens


class BERTEmbeddings(nn.Module):
    """drop(LN(word + position + type)) (Devlin et al., 2019, figure 2).

    The tables are attributes: a model may tie a decoder to `words`, or add a type embedding to its regions.

    Attributes:
      vocab_size: V.
      size: sizes of the BERT.
      dropout: rate.
      dtype: of the result; the sum and the parameters are float32.
    """

    vocab_size: int
    size: BERTSize
    dropout: float
    dtype: chex.ArrayDType | None = None

    def setup(self):
        """Creates the three tables and the normalization."""
        self.words = nn.Embed(self.vocab_size, self.size.hidden, embedding_init=self.size.kernel_init)
        self.positions = nn.Embed(self.size.max_positions, self.size.hidden, embedding_init=self.size.kernel_init)
        self.token_types = nn.Embed(self.size.token_types, self.size.hidden, embedding_init=self.size.kernel_init)
        self.norm = layer_norm(self.dtype)
        self.drop = nn.Dropout(self.dropout)

    def __call__(self, ids: chex.Array, train: bool = False, types: chex.Array | None = None) -> chex.Array:
        """Embeds word pieces.

        Args:
          ids: int [T, L].
          train: applies dropout, from the stream 'dropout'.
          types: int [T, L], the segment of each position; None for segment 0.

        Returns:
          [T, L, H].

        Raises:
          UserError: if L is more than `max_positions`.
        """
        length, maximum = ids.shape[1], self.size.max_positions
        if length > maximum:
            raise UserError(
                f'a batch has texts padded to {length} word pieces, BERT takes {maximum}: shorten the captions'
            )
        types = jnp.zeros((), jnp.int32) if types is None else types
        total = self.words(ids) + self.positions(jnp.arange(length)) + self.token_types(types)
        return self.drop(self.norm(total), deterministic=not train)


class BERT(nn.Module):
    """The encoder of BERT without its pooler and heads.

    Attributes:
      vocab_size: V.
      size: `BASE`, `LARGE` or another.
      dropout: rate, of embeddings, attention weights and hidden states; 0.1 as published.
      dtype: of the computation, such as `jnp.bfloat16`; parameters are float32.
    """

    vocab_size: int
    size: BERTSize
    dropout: float
    dtype: chex.ArrayDType | None = None

    def setup(self):
        """Creates the embeddings and the blocks."""
        size = self.size
        self.embeddings = BERTEmbeddings(self.vocab_size, size, self.dropout, self.dtype)
        self.encoder = Transformer(size.layers, size.heads, size.mlp_dim, self.dropout, self.dtype, size.kernel_init)

    def __call__(self, texts: Texts, train: bool = False) -> chex.Array:
        """Reads every text up to its length.

        Args:
          texts: ids [T, L] and lengths [T].
          train: applies dropout, from the stream 'dropout'.

        Returns:
          The last hidden states [T, L, H], zero where padded, of `dtype`.
        """
        mask = texts.mask
        states = self.encoder(self.embeddings(texts.ids, train), mask, train)
        return jnp.where(einops.rearrange(mask, 't l -> t l 1'), states, 0)


class TokenHead(nn.Module):
    """LN(gelu(W h)) E^T + b, logits of the word at each position; E are word embeddings (Devlin et al., 2019, 3.1).

    Attributes:
      kernel_init: initializer of W.
    """

    kernel_init: nn.initializers.Initializer = BASE.kernel_init

    @nn.compact
    def __call__(self, states: chex.Array, words: chex.Array) -> chex.Array:
        """Maps states [..., H] and word embeddings [V, H] to logits [..., V]."""
        dense = nn.Dense(states.shape[-1], kernel_init=self.kernel_init, name='dense')
        hidden = layer_norm(name='norm')(nn.gelu(dense(states), approximate=False))
        return hidden @ words.T + self.param('bias', nn.initializers.zeros, (len(words),))
