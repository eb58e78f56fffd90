"""BERT's encoder (Devlin et al., 2019): learned positions, blocks that normalise after the sum, exact GELU."""

import dataclasses

import chex
import einops
import jax.numpy as jnp
from flax import linen as nn

from jitm.errors import UserError
from jitm.types import Texts


@dataclasses.dataclass(frozen=True)
class BERTSize:
    """How large a BERT is.

    Attributes:
      hidden: H of the hidden states.
      layers: number of blocks.
      heads: of the attention, each of H / heads dimensions.
      mlp_dim: hidden size of the two-layer network in each block.
      max_positions: the longest text, in tokens.
      token_types: how many segments the embeddings tell apart.
      deviation: of the weights that are drawn.
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
        """Draws weights and embeddings."""
        return nn.initializers.normal(self.deviation)


# With 0.02 and so few dimensions, attention adds a twentieth of what is there, and regions are long overlooked.
TINY = BERTSize(hidden=128, layers=2, heads=2, mlp_dim=512, deviation=0.08)
BASE = BERTSize(hidden=768, layers=12, heads=12, mlp_dim=3072)
LARGE = BERTSize(hidden=1024, layers=24, heads=16, mlp_dim=4096)
SIZES = {'tiny': TINY, 'base': BASE, 'large': LARGE}


def layer_norm(dtype: chex.ArrayDType | None = None, name: str | None = None) -> nn.LayerNorm:
    """A normalisation with BERT's eps."""
    # The fast variance, E[x^2] - E[x]^2, loses digits that BERT's eps would keep.
    return nn.LayerNorm(epsilon=1e-12, use_fast_variance=False, dtype=dtype, name=name)


class TransformerBlock(nn.Module):
    """h = LN(x + drop(W_o attention(x))), y = LN(h + drop(W_2 gelu(W_1 h))) (Vaswani et al., 2017, 3.1 to 3.3).

    Attributes:
      heads: of the attention.
      mlp_dim: rows of W_1.
      dropout: rate, of the attention's weights too.
      dtype: of the computation; parameters, softmax and its product with the values, and the
        statistics of LN are float32.
      kernel_init: draws W.
    """

    heads: int
    mlp_dim: int
    dropout: float
    dtype: chex.ArrayDType | None = None
    kernel_init: nn.initializers.Initializer = BASE.kernel_init

    @nn.compact
    def __call__(self, tokens: chex.Array, mask: chex.Array, train: bool = False) -> chex.Array:
        """Mixes each sequence's tokens.

        Args:
          tokens: [N, L, H].
          mask: bool [N, L], which tokens may be looked at.
          train: drops out, from the stream 'dropout'.

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
    """Blocks on top of each other; the tokens may be words, regions or both.

    Attributes:
      layers: number of blocks.
      heads: see `TransformerBlock`, as for the rest.
      mlp_dim: rows of W_1.
      dropout: rate.
      dtype: of the computation.
      kernel_init: draws W.
    """

    layers: int
    heads: int
    mlp_dim: int
    dropout: float
    dtype: chex.ArrayDType | None = None
    kernel_init: nn.initializers.Initializer = BASE.kernel_init

    @nn.compact
    def __call__(self, tokens: chex.Array, mask: chex.Array, train: bool = False) -> chex.Array:
        """Turns [N, L, H] tokens, of which those in mask [N, L] may be looked at, into [N, L, H]."""
        for n in range(self.layers):
            block = TransformerBlock(
                self.heads, self.mlp_dim, self.dropout, self.dtype, self.kernel_init, name=f'block_{n}'
            )
            tokens = block(tokens, mask, train)
        return tokens


class BERTEmbeddings(nn.Module):
    """drop(LN(word + position + type 0)) (Devlin et al., 2019, figure 2).

    The tables are attributes, so that a model can tie a decoder to `words` or give its regions a type.

    Attributes:
      vocab_size: V.
      size: of the BERT.
      dropout: rate.
      dtype: of the result; the sum and the parameters are float32.
    """

    vocab_size: int
    size: BERTSize
    dropout: float
    dtype: chex.ArrayDType | None = None

    def setup(self):
        """Makes the three tables and the normalisation."""
        self.words = nn.Embed(self.vocab_size, self.size.hidden, embedding_init=self.size.kernel_init)
        self.positions = nn.Embed(self.size.max_positions, self.size.hidden, embedding_init=self.size.kernel_init)
        self.token_types = nn.Embed(self.size.token_types, self.size.hidden, embedding_init=self.size.kernel_init)
        self.norm = layer_norm(self.dtype)
        self.drop = nn.Dropout(self.dropout)

    def __call__(self, ids: chex.Array, train: bool = False) -> chex.Array:
        """Embeds word pieces.

        Args:
          ids: int [T, L].
          train: drops out, from the stream 'dropout'.

        Returns:
          [T, L, H].

        Raises:
          UserError: L is more than there are positions.
        """
        length, most = ids.shape[1], self.size.max_positions
        if length > most:
            raise UserError(
                f'a batch has texts padded to {length} word pieces, BERT takes {most}: shorten the captions'
            )
        total = self.words(ids) + self.positions(jnp.arange(length)) + self.token_types(jnp.zeros((), jnp.int32))
        return self.drop(self.norm(total), deterministic=not train)


class BERT(nn.Module):
    """The encoder of BERT without its pooler and heads.

    Attributes:
      vocab_size: V.
      size: `BASE`, `LARGE` or another.
      dropout: rate, of embeddings, attention weights and hidden states; published models take 0.1.
      dtype: of the computation, such as `jnp.bfloat16`; parameters are float32.
    """

    vocab_size: int
    size: BERTSize
    dropout: float
    dtype: chex.ArrayDType | None = None

    def setup(self):
        """Makes the embeddings and the blocks."""
        size = self.size
        self.embeddings = BERTEmbeddings(self.vocab_size, size, self.dropout, self.dtype)
        self.encoder = Transformer(size.layers, size.heads, size.mlp_dim, self.dropout, self.dtype, size.kernel_init)

    def __call__(self, texts: Texts, train: bool = False) -> chex.Array:
        """Reads every text up to its length.

        Args:
          texts: ids [T, L] and lengths [T].
          train: drops out, from the stream 'dropout'.

        Returns:
          The last hidden states [T, L, H], zero where padded, of `dtype`.
        """
        mask = texts.mask
        states = self.encoder(self.embeddings(texts.ids, train), mask, train)
        return jnp.where(einops.rearrange(mask, 't l -> t l 1'), states, 0)


class TokenHead(nn.Module):
    """LN(gelu(W h)) E^T + b: which word stands at each place, E being the word embeddings (Devlin et al., 2019, 3.1).

    Attributes:
      kernel_init: draws W.
    """

    kernel_init: nn.initializers.Initializer = BASE.kernel_init

    @nn.compact
    def __call__(self, states: chex.Array, words: chex.Array) -> chex.Array:
        """From states [..., H] and words [V, H] to logits [..., V]."""
        dense = nn.Dense(states.shape[-1], kernel_init=self.kernel_init, name='dense')
        hidden = layer_norm(name='norm')(nn.gelu(dense(states), approximate=False))
        return hidden @ words.T + self.param('bias', nn.initializers.zeros, (len(words),))
