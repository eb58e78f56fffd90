"""Text encoders: a vector for each word of a text."""

import chex
from flax import linen as nn

from jitm.errors import UserError
from jitm.layers.linear import symmetric_uniform
from jitm.layers.recurrent import GRU
from jitm.types import Texts


class GRUEncoder(nn.Module):
    """Embeds words and reads them with a uni- or bidirectional GRU (VSE++, section 3).

    Attributes:
      vocab_size: V.
      embed_dim: D, of the states.
      word_dim: size of the word embeddings, drawn from U(-0.1, 0.1).
      bidirectional: reads backward from the last real word as well and averages the two directions.
      dropout: rate, of the word embeddings (0.1 in ESA, 0.4 in SGRAF).
    """

    vocab_size: int
    embed_dim: int
    word_dim: int
    bidirectional: bool
    dropout: float

    @nn.compact
    def __call__(self, texts: Texts, train: bool = False) -> chex.Array:
        """Reads every text up to its length.

        Args:
          texts: ids [T, L] and lengths [T].
          train: drops out, from the stream 'dropout'.

        Returns:
          The state after each word [T, L, D], zero where padded.
        """
        if self.word_dim < 1:
            raise UserError(f"config key 'model.text.word_dim' is {self.word_dim}; it must be at least 1")
        embedding = nn.Embed(self.vocab_size, self.word_dim, embedding_init=symmetric_uniform(0.1), name='embedding')
        words = nn.Dropout(self.dropout, deterministic=not train)(embedding(texts.ids))
        return GRU(self.embed_dim, self.bidirectional, name='gru')(words, texts.lengths)
