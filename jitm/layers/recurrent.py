"""The gated recurrent unit with PyTorch's equations and initialization; `jitm.layers.sequences` reads texts with it."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import linen as nn

from jitm.layers.linear import Linear


class Step(NamedTuple):
    """The state before a step, its gates, the new state, and the part of it that the reset gate scales."""

    before: chex.Array
    reset: chex.Array
    update: chex.Array
    new: chex.Array
    scaled: chex.Array

    @property
    def after(self) -> chex.Array:
        """The state after the step."""
        return (1 - self.update) * self.new + self.update * self.before


def take_step(
    state: chex.Array, inputs: Sequence[chex.Array], hidden: Sequence[chex.Array], mask: chex.Array | None = None
) -> Step:
    """Computes a step.

    Args:
      state: The state before, of any shape.
      inputs, hidden: What the inputs and the state add to the reset gate, the update gate and the new state.
      mask: Where it is False, the state is kept.
    """
    reset = nn.sigmoid(inputs[0] + hidden[0])
    update = nn.sigmoid(inputs[1] + hidden[1])
    if mask is not None:
        update = jnp.where(mask, update, 1)
    return Step(state, reset, update, nn.tanh(inputs[2] + reset * hidden[2]), hidden[2])


class Parameters(NamedTuple):
    """The kernels and biases of the inputs and of the state for the reset gate, the update gate and the new state."""

    inputs: tuple[tuple[chex.Array, chex.Array], ...]
    state: tuple[tuple[chex.Array, chex.Array], ...]

    def transposed(self) -> 'Parameters':
        """Returns the parameters with transposed kernels."""
        return jax.tree.map(jnp.transpose, self)


class GRUCell(nn.Module):
    """A gated recurrent unit as in `torch.nn.GRU`, which applies the reset gate after the recurrent product.

    As there, each gate has a bias for the inputs and one for the state. In the reset and update gates only their sum
    matters, but with Adam it moves twice as fast as one bias, and the norm that clips the gradient counts both.

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

    def __call__(self, state: chex.Array, x: chex.Array) -> tuple[chex.Array, chex.Array]:
        """Maps the state [..., H] and inputs [..., D] to the new state, returned twice."""
        inputs, hidden = (
            [x @ kernel + bias for kernel, bias in maps]
            for x, maps in zip((x, state), self.parameters(x.shape[-1]), strict=True)
        )
        state = take_step(state, inputs, hidden).after
        return state, state
