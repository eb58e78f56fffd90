"""Recurrent text encoders with PyTorch's equations and initialisation."""

import chex
import einops
import jax
import jax.numpy as jnp
from flax import linen as nn

from jitm.types import Texts


def symmetric_uniform(bound: float) -> nn.initializers.Initializer:
    """U(-bound, bound)."""

    def init(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


class GRUCell(nn.RNNCellBase):
    """A gated recurrent unit as in `torch.nn.GRU`, which applies the reset gate after the recurrent product.

    PyTorch adds two biases to the reset and update gates, each U(-1/sqrt(H), 1/sqrt(H)); here their sum is one
    parameter, drawn as that sum. The new gate keeps both.

    Attributes:
      features: H, the size of the state.
    """

    features: int

    @nn.compact
    def __call__(self, carry: chex.Array, inputs: chex.Array) -> tuple[chex.Array, chex.Array]:
        """Takes one step: state [..., H] and inputs [..., D] to the new state, twice."""
        uniform = symmetric_uniform(self.features**-0.5)

        def sum_of_two(key, shape, dtype=jnp.float32):
            return sum(uniform(k, shape, dtype) for k in jax.random.split(key))

        def dense(name, bias_init=None):
            return nn.Dense(
                self.features,
                use_bias=bias_init is not None,
                kernel_init=uniform,
                bias_init=bias_init or nn.initializers.zeros,
                name=name,
            )

        reset = nn.sigmoid(dense('input_reset', sum_of_two)(inputs) + dense('hidden_reset')(carry))
        update = nn.sigmoid(dense('input_update', sum_of_two)(inputs) + dense('hidden_update')(carry))
        new = nn.tanh(dense('input_new', uniform)(inputs) + reset * dense('hidden_new', uniform)(carry))
        carry = (1 - update) * new + update * carry
        return carry, carry

    def initialize_carry(self, rng: chex.PRNGKey, input_shape: tuple[int, ...]) -> chex.Array:
        """Returns the zero state [..., H]."""
        return jnp.zeros((*input_shape[:-1], self.features))

    @property
    def num_feature_axes(self) -> int:
        """The inputs have one feature axis."""
        return 1


class GRUEncoder(nn.Module):
    """Embeds words and reads them with a uni- or bidirectional GRU (VSE++, section 3).

    Attributes:
      vocab_size: V.
      word_dim: size of the word embeddings, drawn from U(-0.1, 0.1).
      features: H.
      bidirectional: reads backward from the last real word as well and averages the two directions.
    """

    vocab_size: int
    word_dim: int
    features: int
    bidirectional: bool = False

    @nn.compact
    def __call__(self, texts: Texts) -> tuple[chex.Array, chex.Array]:
        """Reads every text up to its length.

        Args:
          texts: ids [T, L] and lengths [T].

        Returns:
          The state after each word [T, L, H], zero where padded, and the final state [T, H]; for two directions
          each is their mean, the final state being what each direction holds when it has read the whole text.
        """
        words = nn.Embed(self.vocab_size, self.word_dim, embedding_init=symmetric_uniform(0.1), name='embedding')(
            texts.ids
        )
        directions = ('forward', 'backward') if self.bidirectional else ('forward',)
        states, finals = [], []
        for name in directions:
            reader = nn.RNN(
                GRUCell(self.features, name=name),
                return_carry=True,
                reverse=name == 'backward',
                keep_order=True,
                name=f'{name}_rnn',
            )
            final, state = reader(words, seq_lengths=texts.lengths)
            states.append(state)
            finals.append(final)
        mask = jnp.arange(texts.ids.shape[1]) < einops.rearrange(texts.lengths, 't -> t 1')
        state = jnp.where(einops.rearrange(mask, 't l -> t l 1'), sum(states) / len(states), 0)
        return state, sum(finals) / len(finals)
