"""BERT's encoder (Devlin et al., 2019): learned positions, post-norm blocks, exact GELU.

Its variants differ in sizes only: RoBERTa (Liu et al., 2019b), XLM-R (Conneau et al., 2020), DistilBERT (Sanh et al.,
2019), MiniLM (Wang et al., 2020), and MPNet (Song et al., 2020), which adds a bias of relative positions.
"""

import dataclasses
import re
from typing import Literal

import jax.numpy as jnp
from chex import Array, ArrayDType
from flax import linen as nn

from jitm.errors import ArgumentError
from jitm.layers.blocks import ACTIVATIONS, EPSILON, BlockOptions, Transformer, layer_norm
from jitm.layers.lengths import check_length
from jitm.layers.normalization import zero_padding
from jitm.layers.positions import RelativePositions
from jitm.types import Count, Index, Positive, Texts


@dataclasses.dataclass(frozen=True)
class BERTSize:
    """The sizes of a BERT, and what distinguishes its variants.

    Attributes:
      hidden: The size H of the hidden states.
      layers: The number of blocks.
      heads: The number of attention heads, each with H / heads dimensions.
      mlp_dim: The hidden size of the two-layer network in each block.
      max_positions: The number of embeddings of positions.
      token_types: The number of segment embeddings, 0 for none.
      deviation: The standard deviation of the initial weights.
      first_position: The position of the first token; 2 in RoBERTa, XLM-R and MPNet.
      activation: The activation of the two-layer networks, a key of `ACTIVATIONS`.
      epsilon: The epsilon of the normalizations.
      relative_positions: Whether a bias of the distance of two tokens is added to their attention, see
        `RelativePositions`.
    """

    hidden: Count
    layers: Count
    heads: Count
    mlp_dim: Count
    max_positions: Count = 512
    token_types: Index = 2
    deviation: Positive = 0.02
    first_position: Index = 0
    activation: Literal[*ACTIVATIONS] = 'gelu'
    epsilon: Positive = EPSILON
    relative_positions: bool = False

    @property
    def max_length(self) -> int:
        """The maximum length of a text, in tokens."""
        return self.max_positions - self.first_position

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


def size_named(name: str) -> BERTSize:
    """Returns the sizes of a BERT by their name: a key of `SIZES`, or such as 'L-6_H-384_A-12', with an MLP of 4 H.

    Raises:
      ArgumentError: If there is no such size.
    """
    numbers = re.fullmatch(r'L-([1-9]\d*)_H-([1-9]\d*)_A-([1-9]\d*)', name)
    layers, hidden, heads = map(int, numbers.groups() if numbers else (0, 0, 0))
    if name not in SIZES and (not numbers or hidden % heads):
        raise ArgumentError('size', f"is '{name}'; use one of {', '.join(SIZES)}, or such as 'L-6_H-384_A-12'")
    return SIZES.get(name) or BERTSize(hidden, layers, heads, 4 * hidden)


class BERTEmbeddings(nn.Module):
    """drop(LN(word + position + type)) (Devlin et al., 2019, figure 2).

    The tables are attributes: a model may tie a decoder to `words`, or add a type embedding to its regions.

    Attributes:
      vocab_size: The number of word pieces V.
      size: The sizes of the BERT.
      dropout: The rate of dropout.
      dtype: The type of the result; the sum and the parameters are float32.
    """

    vocab_size: int
    size: BERTSize
    dropout: float
    dtype: ArrayDType | None = None

    def setup(self):
        """Creates the three tables and the normalization."""
        self.words = nn.Embed(self.vocab_size, self.size.hidden, embedding_init=self.size.kernel_init)
        self.positions = nn.Embed(self.size.max_positions, self.size.hidden, embedding_init=self.size.kernel_init)
        if self.size.token_types:
            self.token_types = nn.Embed(self.size.token_types, self.size.hidden, embedding_init=self.size.kernel_init)
        self.norm = layer_norm(self.dtype, epsilon=self.size.epsilon)
        self.drop = nn.Dropout(self.dropout)

    def __call__(self, ids: Array, train: bool = False, types: Array | None = None) -> Array:
        """Embeds word pieces int [T, L] as [T, L, H].

        Args:
          ids: The word pieces.
          train: Applies dropout, from the stream 'dropout'.
          types: int [T, L], the segment of each position; None for segment 0.

        Raises:
          UserError: If L is more than `max_length`.
        """
        length = ids.shape[1]
        first = self.size.first_position
        check_length(length, self.size.max_length)
        total = self.words(ids) + self.positions(jnp.arange(first, first + length))
        if self.size.token_types == 1:  # nn.Embed looks up no scalar in such a table
            total += self.token_types.embedding[0]
        elif self.size.token_types:
            total += self.token_types(jnp.zeros((), jnp.int32) if types is None else types)
        return self.drop(self.norm(total), deterministic=not train)


class BERT(nn.Module):
    """The encoder of BERT, or of a variant, without its pooler and heads.

    Attributes:
      vocab_size: The number of word pieces V.
      size: The sizes, such as `BASE` or `LARGE`.
      dropout: The rate of dropout of embeddings, attention weights and hidden states; 0.1 as published.
      dtype: The type of the computation, such as `jnp.bfloat16`; parameters are float32.
    """

    vocab_size: int
    size: BERTSize
    dropout: float
    dtype: ArrayDType | None = None

    def setup(self):
        """Creates the embeddings and the blocks."""
        size = self.size
        self.embeddings = BERTEmbeddings(self.vocab_size, size, self.dropout, self.dtype)
        variant = {'activation': size.activation, 'epsilon': size.epsilon}
        options = BlockOptions(size.heads, size.mlp_dim, self.dropout, self.dtype, size.kernel_init, **variant)
        self.encoder = Transformer(size.layers, options)
        if size.relative_positions:
            self.relative = RelativePositions(size.heads, size.kernel_init)

    def __call__(self, texts: Texts, train: bool = False) -> Array:
        """Returns the last hidden states [T, L, H] of T texts, zero where padded, of `dtype`."""
        bias = self.relative(texts.ids.shape[1]) if self.size.relative_positions else None
        tokens = self.embeddings(texts.ids, train)
        states = self.encoder(tokens, texts.mask, train, bias, texts=texts)
        return zero_padding(states, texts.mask)
