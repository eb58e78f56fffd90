"""The gated recurrent unit with PyTorch's equations and initialization; `jitm.layers.sequences` reads texts with it."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.layers.linear import Linear


class GRUStep(NamedTuple):
    """One step of a GRU, with arrays of one shape.

    Attributes:
      state: The state before the step.
      reset, update: The gates.
      candidate: The candidate state.
      hidden_candidate: The projection of the state for the candidate, which the reset gate multiplies.
    """

    state: Array
    reset: Array
    update: Array
    candidate: Array
    hidden_candidate: Array

    @property
    def after(self) -> Array:
        """The state after the step."""
        return (1 - self.update) * self.candidate + self.update * self.state

    def gradients(self, d_after: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Returns the cotangents of `take_step`'s projections of the input and of the state, given that of `after`."""
        d_candidate = d_after * (1 - self.update) * (1 - self.candidate**2)
        d_update = d_after * (self.state - self.candidate) * self.update * (1 - self.update)
        d_reset = d_candidate * self.hidden_candidate * self.reset * (1 - self.reset)
        return (d_reset, d_update, d_candidate), (d_reset, d_update, d_candidate * self.reset)


def take_step(state: Array, inputs: Sequence[Array], hidden: Sequence[Array]) -> GRUStep:
    """Computes the gates and the candidate state of one step.

    Args:
      state: The state before, of any shape.
      inputs, hidden: The projections of the input and of the state for the reset gate, the update gate and the
        candidate.
    """
    reset = nn.sigmoid(inputs[0] + hidden[0])
    update = nn.sigmoid(inputs[1] + hidden[1])
    candidate = nn.tanh(inputs[2] + reset * hidden[2])
    return GRUStep(state, reset, update, candidate, hidden[2])


Maps = tuple[tuple[Array, Array], ...]
"""The kernels and biases for the reset gate, the update gate and the candidate."""


class Parameters(NamedTuple):
    """The maps of the input and of the state."""

    inputs: Maps
    state: Maps

    def transposed(self) -> 'Parameters':
        """Returns the parameters with transposed kernels."""
        return jax.tree.map(jnp.transpose, self)


class GRUCell(nn.Module):
    """A gated recurrent unit as in `torch.nn.GRU`, which applies the reset gate after the recurrent product.

    As there, each gate has a bias for the input and one for the state. In the reset and update gates only their sum
    matters, but under Adam the sum moves twice as fast as a single bias, and clipping counts both gradients.

    Attributes:
      features: The size H of the state.
    """

    features: int

    @nn.compact
    def parameters(self, size: int) -> Parameters:
        """Returns the parameters for inputs of a size."""
        names = ('reset', 'update', 'new')
        layer = functools.partial(Linear, self.features, fan_in=self.features)
        return Parameters(
            tuple(layer(name=f'input_{name}').parameters(size) for name in names),
            tuple(layer(name=f'hidden_{name}').parameters(self.features) for name in names),
        )

    def __call__(self, state: Array, x: Array) -> tuple[Array, Array]:
        """Maps the state [..., H] and inputs [..., D] to the new state, returned twice."""
        parameters = self.parameters(x.shape[-1])
        inputs = [x @ kernel + bias for kernel, bias in parameters.inputs]
        hidden = [state @ kernel + bias for kernel, bias in parameters.state]
        state = take_step(state, inputs, hidden).after
        return state, state
