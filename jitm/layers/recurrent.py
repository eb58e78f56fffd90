"""Gated recurrent units with PyTorch's equations and initialization."""

import functools
from typing import NamedTuple

import chex
import einops
import jax
import jax.numpy as jnp
from flax import linen as nn

from jitm.layers.linear import Linear


class Parameters(NamedTuple):
    """The kernels and biases of the inputs and of the state for the reset gate, the update gate and the new state."""

    inputs: tuple[tuple[chex.Array, chex.Array], ...]
    state: tuple[tuple[chex.Array, chex.Array], ...]


class Step(NamedTuple):
    """The state before a step, its gates, the new state, and the part of it that the reset gate scales: [..., H]."""

    before: chex.Array
    reset: chex.Array
    update: chex.Array
    new: chex.Array
    scaled: chex.Array

    @property
    def after(self) -> chex.Array:
        """The state after the step."""
        return (1 - self.update) * self.new + self.update * self.before


def affine(x: chex.Array, maps: tuple[tuple[chex.Array, chex.Array], ...]) -> tuple[chex.Array, ...]:
    """Returns x W + b for each map."""
    return tuple(x @ kernel + bias for kernel, bias in maps)


def take_step(state: chex.Array, x: chex.Array, parameters: Parameters, mask: chex.Array | None = None) -> Step:
    """Computes a step from the state [..., H] with inputs [..., D]; where the mask is False it keeps the state."""
    inputs, hidden = affine(x, parameters.inputs), affine(state, parameters.state)
    reset = nn.sigmoid(inputs[0] + hidden[0])
    update = nn.sigmoid(inputs[1] + hidden[1])
    if mask is not None:
        update = jnp.where(mask, update, 1)
    return Step(state, reset, update, nn.tanh(inputs[2] + reset * hidden[2]), hidden[2])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def read(reverse: bool, x: chex.Array, mask: chex.Array | None, parameters: Parameters) -> chex.Array:
    """Returns the states [L, N, H] after each element of [L, N, D], from zero; for the mask [L, N, 1] see `take_step`.

    The gradient of each parameter is one product over all elements; a scan would add one product per element.
    """
    return _read(reverse, x, mask, parameters)[0]


def _read(
    reverse: bool, x: chex.Array, mask: chex.Array | None, parameters: Parameters
) -> tuple[chex.Array, tuple[chex.Array, Parameters, Step]]:
    def step(state, one):
        taken = take_step(state, one[0], parameters, one[1])
        return taken.after, (taken.after, taken)

    kernel, _ = parameters.state[0]
    zero = jnp.zeros((x.shape[1], len(kernel)), jnp.result_type(x, kernel))
    _, (states, steps) = jax.lax.scan(step, zero, (x, mask), reverse=reverse)
    return states, (x, parameters, steps)


def _pull_back(
    reverse: bool, residuals: tuple[chex.Array, Parameters, Step], gradients: chex.Array
) -> tuple[chex.Array, None, Parameters]:
    x, parameters, steps = residuals
    kernels = [kernel.T for kernel, _ in parameters.state]

    def step(carry, one):
        gradient, (before, reset, update, new, scaled) = one
        gradient += carry
        to_new = gradient * (1 - update) * (1 - new**2)
        to_update = gradient * (before - new) * update * (1 - update)
        to_reset = to_new * scaled * reset * (1 - reset)
        to_scaled = to_new * reset
        carry = to_reset @ kernels[0] + to_update @ kernels[1] + to_scaled @ kernels[2] + gradient * update
        return carry, (to_reset, to_update, to_new, to_scaled)

    scan = functools.partial(jax.lax.scan, step, jnp.zeros_like(gradients[0]), reverse=not reverse)
    _, (to_reset, to_update, to_new, to_scaled) = scan((gradients, steps))
    to_x, to_inputs = jax.vjp(affine, x, parameters.inputs)[1]((to_reset, to_update, to_new))
    _, to_state = jax.vjp(affine, steps.before, parameters.state)[1]((to_reset, to_update, to_scaled))
    return to_x, None, Parameters(to_inputs, to_state)


read.defvjp(_read, _pull_back)


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
        names, layer = ('reset', 'update', 'new'), functools.partial(Linear, self.features, fan_in=self.features)
        return Parameters(
            tuple(layer(name=f'input_{name}').parameters(size) for name in names),
            tuple(layer(name=f'hidden_{name}').parameters(self.features) for name in names),
        )

    def __call__(self, state: chex.Array, x: chex.Array) -> tuple[chex.Array, chex.Array]:
        """Maps the state [..., H] and inputs [..., D] to the new state, returned twice."""
        state = take_step(state, x, self.parameters(x.shape[-1])).after
        return state, state


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
        x = einops.rearrange(x, 'n l d -> l n d')
        mask = einops.rearrange(jnp.arange(len(x)), 'l -> l 1 1') < einops.rearrange(lengths, 'n -> n 1')
        directions = ('forward', 'backward') if self.bidirectional else ('forward',)
        states = []
        for name in directions:
            reverse = name == 'backward'
            parameters = GRUCell(self.features, name=name).parameters(x.shape[-1])
            # Padding keeps the zero that reading backward starts from; reading forward it comes last.
            states.append(read(reverse, x, mask if reverse else None, parameters))
        return einops.rearrange(jnp.where(mask, sum(states) / len(states), 0), 'l n h -> n l h')
