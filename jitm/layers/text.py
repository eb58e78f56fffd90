"""Text encoders: one vector for each word of a text."""

import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.errors import UserError, check_choice
from jitm.layers.linear import LINEAR, symmetric_uniform
from jitm.layers.normalization import zero_padding
from jitm.layers.sequences import GRU
from jitm.layers.transformer import BERT, BERTSize, size_named
from jitm.layers.vit import Tower
from jitm.types import DTYPES, Count, Rate, SequenceLength, TextFormat, Texts

WORD_INIT = {'uniform': symmetric_uniform(0.1), 'normal': nn.initializers.normal(1.0)}


class GRUEncoder(nn.Module):
    """Embeds words and reads them with a uni- or bidirectional GRU (Faghri et al., 2018, section 3).

    Without the GRU a linear layer maps each word, so that a pooled caption is a bag of words. Such models train several
    times as fast on a CPU.

    Attributes:
      vocab_size: The number of words V.
      embed_dim: The size D of the states.
      word_dim: The size of the word embeddings.
      bidirectional: Also reads backward from the last valid word and averages the two directions.
      dropout: The rate of dropout of the word embeddings (0.1 in ESA, 0.4 in SGRAF).
      word_init: The distribution of the initial embeddings of words without a given vector: 'uniform', U(-0.1, 0.1), or
        'normal', N(0, 1), as in the code of ESA.
      recurrent: False replaces the GRU by a linear layer; `bidirectional` then has no effect.
    """

    vocab_size: int
    embed_dim: Count
    word_dim: Count
    bidirectional: bool
    dropout: Rate
    word_init: str = 'uniform'
    recurrent: bool = True

    @property
    def text_format(self) -> TextFormat:
        """Words."""
        return TextFormat('words', skips_padding=self.recurrent)

    @nn.compact
    def __call__(self, texts: Texts, train: bool = False) -> Array:
        """Returns the state after each word of T texts, or its linear map: [T, L, D], zero where padded."""
        check_choice(self.word_init, WORD_INIT, 'word_init')
        init = WORD_INIT[self.word_init]
        embedding = nn.Embed(self.vocab_size, self.word_dim, embedding_init=init, name='embedding')
        words = nn.Dropout(self.dropout, deterministic=not train)(embedding(texts.ids))
        if self.recurrent:
            return GRU(self.embed_dim, self.bidirectional, name='gru').read(words, texts)
        return zero_padding(LINEAR['xavier'](self.embed_dim, name='linear')(words), texts.mask)


class BERTEncoder(Tower):
    """Maps the last hidden states of BERT with a linear layer (VSE-infinity; Li et al., 2023, section 3.4).

    The `features` are the last hidden states. In a config, `path` names a folder of Hugging Face or
    sentence-transformers in place of `size` and `max_length`, see `jitm.importers.named_folders`.

    Attributes:
      vocab_size: The number of word pieces V.
      embed_dim: The size D of the result.
      size: The sizes of the BERT, or their name, see `size_named`.
      max_length: The number of ids to which captions are cut; None for an error of longer ones than the model reads.
      dropout: The rate of dropout inside BERT, 0.1 as published.
      output_dropout: The rate of dropout after the linear layer, 0.1 in ESA.
      dtype: The type of BERT's computation, 'float32' or 'bfloat16'; parameters are float32.
      linear_init: A key of `LINEAR` for the linear layer: 'uniform' in the code of VSE-infinity, 'xavier' in ESA's.
      dense: A `pooling.Dense`, whose vector of a text then stands in the place of the state of each of its words; None
        for the states.
    """

    vocab_size: int
    embed_dim: Count
    size: str | BERTSize
    max_length: SequenceLength | None = None
    dropout: Rate = 0.1
    output_dropout: Rate = 0.0
    dtype: str = 'float32'
    linear_init: str = 'uniform'
    dense: nn.Module | None = None

    @property
    def text_format(self) -> TextFormat:
        """Word pieces where only the name of the sizes is known, else texts of any kind."""
        if isinstance(self.size, str):
            return TextFormat('word pieces', self.max_length or BERTSize.max_positions, skips_padding=True)
        return TextFormat(None, self.max_length or self.size.max_length, skips_padding=True)

    @property
    def sizes(self) -> BERTSize:
        """The sizes of the BERT; an ArgumentError if their name is unknown."""
        return size_named(self.size) if isinstance(self.size, str) else self.size

    @property
    def hidden_dim(self) -> int:
        """The size H of the hidden states."""
        return self.sizes.hidden

    @nn.compact
    def _encode(self, texts: Texts, train: bool, pooled: bool) -> Array:
        """Maps the pieces of T texts, special ones included, to float32 [T, L, D], or their states; 0 where padded."""
        check_choice(self.dtype, DTYPES, 'dtype')
        check_choice(self.linear_init, LINEAR, 'linear_init')
        bert = BERT(self.vocab_size, self.sizes, self.dropout, DTYPES[self.dtype], name='bert')
        states = bert(texts, train).astype(jnp.float32)
        if not pooled:
            return states
        if self.dense is not None:
            states = self.dense(states, texts.mask)[:, None]
        words = LINEAR[self.linear_init](self.embed_dim, name='linear')(states)
        words = nn.Dropout(self.output_dropout, deterministic=not train)(words)
        return zero_padding(words, texts.mask)


class TokenEncoder(nn.Module):
    """Maps vectors of tokens, which a frozen encoder has computed, with a linear layer.

    Attributes:
      embed_dim: The size D of the result.
      dropout: The rate of dropout of the vectors.
    """

    embed_dim: Count
    dropout: Rate

    text_format = TextFormat(None, vectors=True)

    @nn.compact
    def __call__(self, texts: Texts, train: bool = False) -> Array:
        """Maps the vectors of the tokens of T texts to float32 [T, L, D], zero where padded.

        Raises:
          UserError: If the texts have no vectors.
        """
        if texts.vectors is None:
            raise UserError(
                'the model reads vectors of tokens, which only captions of a data set have that jitm encode --texts '
                "wrote: set config key 'data.token_vectors' to True, or use a model of words"
            )
        vectors = nn.Dropout(self.dropout, deterministic=not train)(texts.vectors.astype(jnp.float32))
        return zero_padding(LINEAR['xavier'](self.embed_dim, name='linear')(vectors), texts.mask)
