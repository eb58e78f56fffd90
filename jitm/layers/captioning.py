"""Captioning of an image, word by word (Venugopalan et al., 2015, with attention)."""

import einops
import jax
import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.layers.linear import Linear, symmetric_uniform
from jitm.layers.pooling import last
from jitm.layers.recurrent import GRUCell
from jitm.layers.sequences import GRU
from jitm.types import Texts

XAVIER_NORMAL = nn.initializers.variance_scaling(1.0, 'fan_avg', 'normal')


def next_words(texts: Texts, max_length: int, end: int) -> tuple[Array, Array, Array]:
    """Splits every text into input words and their labels, the next words; padding follows the last word.

    Args:
      texts: N texts of L ids.
      max_length: The number of ids to which longer texts are truncated. The last one becomes `end`, which no label
        follows.
      end: The id of `<end>`.

    Returns:
      Words and labels int32 [N, K] and a mask bool [N, K] of the valid labels, with K = min(L, max_length - 1).
    """
    position = jnp.arange(min(texts.ids.shape[1] + 1, max_length))
    lengths = einops.rearrange(texts.lengths, 'n -> n 1')
    ids = jnp.pad(texts.ids, [(0, 0), (0, 1)])[:, : len(position)]
    ids = jnp.where(position < lengths, ids, 0)
    ids = jnp.where((position == max_length - 1) & (lengths > max_length), end, ids)
    return ids[:, :-1], ids[:, 1:], position[1:] <= lengths


class DecoderStep(nn.Module):
    """Reads one word and the attended regions with a GRU; the attention energy is w . tanh(W1 [region_r; state]).

    Attributes:
      features: The size H of the state.
      dropout: The rate of dropout of the inputs of the GRU.
      train: Applies dropout, from the stream 'dropout'.
    """

    features: int
    dropout: float
    train: bool

    @nn.compact
    def __call__(self, state: Array, word: Array, regions: Array, keys: Array, mask: Array) -> tuple[Array, Array]:
        """Computes the step and returns the new state [N, H], twice.

        Args:
          state: [N, H].
          word: [N, E], the embedded word.
          regions: [N, R, H].
          keys: [N, R, H], the regions' part of W1 [region; state].
          mask: bool [N, R], the valid regions.
        """
        uniform = symmetric_uniform((2 * self.features) ** -0.5)
        query = nn.Dense(self.features, use_bias=False, kernel_init=uniform, name='query')(state)
        hidden = nn.tanh(keys + einops.rearrange(query, 'n h -> n 1 h'))
        energy = Linear(1, use_bias=False, name='energy')(hidden)
        weights = jax.nn.softmax(energy[..., 0], axis=1, where=mask)
        context = jnp.einsum('nr,nrh->nh', weights, regions)
        inputs = nn.Dropout(self.dropout, deterministic=not self.train)(jnp.concatenate([word, context], axis=-1))
        return GRUCell(self.features, name='gru')(state, inputs)


class Captioner(nn.Module):
    """Encodes the regions with a GRU and decodes the caption with another, which attends to them (VSRN, section 3.4).

    Attributes:
      vocab_size: The number of words V.
      word_dim: The size of the word embeddings, which are not shared with the text encoder.
      features: The size H of the states of both GRUs.
      dropout: The rate of dropout of the inputs of both GRUs, from the stream 'dropout'.
    """

    vocab_size: int
    word_dim: int
    features: int
    dropout: float

    @nn.compact
    def __call__(self, regions: Array, counts: Array, words: Array, train: bool = False) -> Array:
        """Predicts the next word at each word of a text, given the words up to it (teacher forcing).

        Args:
          regions: [N, R, D].
          counts: int [N], the number of valid regions.
          words: int [N, L].
          train: Applies dropout.

        Returns:
          Logits [N, L, V].
        """
        narrow = nn.Dense(
            self.features,
            kernel_init=XAVIER_NORMAL,
            bias_init=symmetric_uniform(regions.shape[-1] ** -0.5),
            name='region_fc',
        )(regions)
        narrow = nn.Dropout(self.dropout, deterministic=not train)(narrow)
        read = GRU(self.features, name='encoder')(narrow, counts)
        uniform = symmetric_uniform((2 * self.features) ** -0.5)
        keys = nn.Dense(self.features, kernel_init=uniform, bias_init=uniform, name='key')(read)
        mask = jnp.arange(regions.shape[1]) < einops.rearrange(counts, 'n -> n 1')
        embed = nn.Embed(self.vocab_size, self.word_dim, embedding_init=nn.initializers.normal(1.0), name='embedding')
        decode = nn.scan(
            DecoderStep,
            variable_broadcast='params',
            split_rngs={'params': False, 'dropout': True},
            in_axes=(1, nn.broadcast, nn.broadcast, nn.broadcast),
            out_axes=1,
        )
        _, states = decode(self.features, self.dropout, train, name='decoder')(
            last(read, mask), embed(words), read, keys, mask
        )
        bias_init = symmetric_uniform(self.features**-0.5)
        return nn.Dense(self.vocab_size, kernel_init=XAVIER_NORMAL, bias_init=bias_init, name='word_fc')(states)
