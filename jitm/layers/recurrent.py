"""Gated recurrent units with PyTorch's equations and initialization."""

import chex
import einops
import jax.numpy as jnp
from flax import linen as nn

from jitm.layers.linear import symmetric_uniform


class GRUCell(nn.RNNCellBase):
    """A gated recurrent unit as in `torch.nn.GRU`, which applies the reset gate after the recurrent product.

    As there, each gate has a bias for the inputs and one for the state. In the reset and update gates only their sum
    matters, but with Adam it moves twice as fast as one bias, and the norm that clips the gradient counts both.

    Attributes:
      features: The size H of the state.
    """

    features: int

    @nn.compact
    def __call__(self, carry: chex.Array, inputs: chex.Array) -> tuple[chex.Array, chex.Array]:
        """Maps the state [..., H] and inputs [..., D] to the new state, returned twice."""
        uniform = symmetric_uniform(self.features**-0.5)

        def dense(name):
            return nn.Dense(self.features, kernel_init=uniform, bias_init=uniform, name=name)

        reset = nn.sigmoid(dense('input_reset')(inputs) + dense('hidden_reset')(carry))
        update = nn.sigmoid(dense('input_update')(inputs) + dense('hidden_update')(carry))
        new = nn.tanh(dense('input_new')(inputs) + reset * dense('hidden_new')(carry))
        carry = (1 - update) * new + update * carry
        return carry, carry

    def initialize_carry(self, rng: chex.PRNGKey, input_shape: tuple[int, ...]) -> chex.Array:
        """Returns the zero state [..., H]."""
        return jnp.zeros((*input_shape[:-1], self.features))

    @property
    def num_feature_axes(self) -> int:
        """Number of feature axes of the inputs."""
        return 1


class GRU(nn.Module):
    """Reads sequences forward, or in both directions with averaged states, as in the SCAN lineage.

    Attributes:
      features: The size H of the states.
      bidirectional: Also reads backward, from the last valid element.
    """

    features: int
    bidirectional: bool = False

    @nn.compact
    def __call__(self, x: chex.Array, lengths: chex.Array) -> chex.Array:
        """Reads every sequence of [N, L, D] up to its length, int [N].

        Returns the state after each element [N, L, H], zero where padded; for two directions the mean of both states.
        """
        directions = ('forward', 'backward') if self.bidirectional else ('forward',)
        states = []
        for name in directions:
            cell = GRUCell(self.features, name=name)
            reader = nn.RNN(cell, reverse=name == 'backward', keep_order=True, name=f'{name}_rnn')
            states.append(reader(x, seq_lengths=lengths))
        mask = jnp.arange(x.shape[1]) < einops.rearrange(lengths, 'n -> n 1')
        return jnp.where(einops.rearrange(mask, 'n l -> n l 1'), sum(states) / len(states), 0)
