"""GRUs over sequences, with a gradient that has one product for each parameter.

States and inputs are columns, [H, N] and [D, N]: for few sequences a CPU multiplies a kernel by columns up to six times
as fast as rows by a kernel.
"""

import functools
import itertools
from collections.abc import Callable, Sequence

import chex
import einops
import jax
import jax.numpy as jnp
from flax import linen as nn

from jitm.devices import policy
from jitm.layers.recurrent import GRUCell, Parameters, Step, take_step
from jitm.types import Profile


class GRU(nn.Module):
    """Reads sequences forward, or in both directions with averaged states, as in the SCAN lineage.

    Attributes:
      features: The size H of the states.
      bidirectional: Also reads backward, from the last valid element.
    """

    features: int
    bidirectional: bool = False

    @nn.compact
    def __call__(self, x: chex.Array, lengths: chex.Array, profile: Profile | None = None) -> chex.Array:
        """Reads every sequence of [N, L, D] up to its length, int [N].

        On a CPU, sequences that have a profile are sorted by their lengths, and those that have ended are read no
        further. A profile of another number of sequences is ignored.

        Returns the state after each element [N, L, H], zero where padded; for two directions the mean of both states.
        """
        count, length = x.shape[:2]
        order = None
        if profile and profile[0][1] == count and policy.cut_sequences():
            order = jnp.argsort(lengths, descending=True)
            x = x[order]
            lengths = jnp.asarray(lengths)[order]
        else:
            profile = ((length, count),)
        x = einops.rearrange(x, 'n l d -> l d n')
        mask = einops.rearrange(jnp.arange(length), 'l -> l 1 1') < lengths
        directions = ('forward', 'backward') if self.bidirectional else ('forward',)
        states = []
        for name in directions:
            reverse = name == 'backward'
            parameters = GRUCell(self.features, name=name).parameters(x.shape[1])
            # Padding keeps the zero that reading backward starts from; reading forward it comes last.
            states.append(read(reverse, profile, x, mask if reverse else None, parameters))
        states = einops.rearrange(jnp.where(mask, sum(states) / len(states), 0), 'l h n -> n l h')
        return states if order is None else states[jnp.argsort(order)]


def affine(x: chex.Array, maps: tuple[tuple[chex.Array, chex.Array], ...]) -> tuple[chex.Array, ...]:
    """Returns W x + b of the columns of x for each map."""
    return tuple(kernel @ x + bias[:, None] for kernel, bias in maps)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def read(reverse: bool, profile: Profile, x: chex.Array, mask: chex.Array | None, parameters: Parameters) -> chex.Array:
    """Reads the elements [L, D, N] that a profile has, from the state zero, which the mask bool [L, 1, N] keeps.

    The gradient of each parameter is one product over all elements; a scan would add one product per element.

    Returns:
      The state after each element [L, H, N], zero where the profile has none.
    """
    return _read(reverse, profile, x, mask, parameters)[0]


def _read(
    reverse: bool, profile: Profile, x: chex.Array, mask: chex.Array | None, parameters: Parameters
) -> tuple[chex.Array, tuple[list[chex.Array], Parameters, list[Step]]]:
    # Without the barrier XLA transposes the kernels again in each step.
    transposed = jax.lax.optimization_barrier(parameters.transposed())

    def step(state, inputs):
        x, mask = inputs
        next_step = take_step(state, affine(x, transposed.inputs), affine(state, transposed.state), mask)
        return next_step.after, (next_step.after, next_step)

    parts = _cut(profile, (x, mask))
    kernel = parameters.state[0][0]
    states, steps = zip(*_scan(step, parts, len(kernel), jnp.result_type(x, kernel), reverse), strict=True)
    return _fill(states), ([part for part, _ in parts], parameters, list(steps))


def _pull_back(
    reverse: bool,
    profile: Profile,
    residuals: tuple[list[chex.Array], Parameters, list[Step]],
    gradients: chex.Array,
) -> tuple[chex.Array, None, Parameters]:
    x, parameters, steps = residuals
    kernels = [kernel for kernel, _ in parameters.state]

    def step(carry, parts_of_step):
        gradient, (before, reset, update, new, scaled) = parts_of_step
        gradient += carry
        to_new = gradient * (1 - update) * (1 - new**2)
        to_update = gradient * (before - new) * update * (1 - update)
        to_reset = to_new * scaled * reset * (1 - reset)
        to_scaled = to_new * reset
        carry = kernels[0] @ to_reset + kernels[1] @ to_update + kernels[2] @ to_scaled + gradient * update
        return carry, (to_reset, to_update, to_new, to_scaled)

    parts = list(zip(_cut(profile, gradients), steps, strict=True))
    pulled = _scan(step, parts, gradients.shape[1], gradients.dtype, not reverse)
    to_reset, to_update, to_new, to_scaled = map(_columns, zip(*pulled, strict=True))
    transposed = parameters.transposed()
    before = _columns([part.before for part in steps])
    to_columns, to_inputs = jax.vjp(affine, _columns(x), transposed.inputs)[1]((to_reset, to_update, to_new))
    _, to_state = jax.vjp(affine, before, transposed.state)[1]((to_reset, to_update, to_scaled))
    ends = itertools.accumulate(tokens * rows for tokens, rows in profile)
    to_x = [
        einops.rearrange(to_columns[:, end - tokens * rows : end], 'd (l n) -> l d n', n=rows)
        for end, (tokens, rows) in zip(ends, profile, strict=True)
    ]
    return _fill(to_x), None, Parameters(to_inputs, to_state).transposed()


read.defvjp(_read, _pull_back)


def _cut(profile: Profile, tree: chex.ArrayTree) -> list[chex.ArrayTree]:
    """Returns the segments of leaves [L, ..., N]."""
    ends = itertools.accumulate(tokens for tokens, _ in profile)
    return [
        jax.tree.map(lambda x, end=end, size=size: x[end - size[0] : end, :, : size[1]], tree)
        for end, size in zip(ends, profile, strict=True)
    ]


def _fill(parts: Sequence[chex.Array]) -> chex.Array:
    """Concatenates segments [., H, n] as one array [L, H, N], filled up with zeros."""
    return jnp.concatenate([_resize(part, parts[0].shape[-1]) for part in parts])


def _resize(x: chex.Array, count: int) -> chex.Array:
    """Returns the first columns of [..., H, n], filled up with zeros."""
    padding = count - x.shape[-1]
    return x[..., :count] if padding <= 0 else jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, padding)])


def _columns(parts: Sequence[chex.Array]) -> chex.Array:
    """Returns all elements of some segments [., H, n] as the columns of one matrix."""
    return jnp.concatenate([einops.rearrange(part, 'l h n -> h (l n)') for part in parts], axis=1)


def _scan(
    step: Callable, parts: Sequence[chex.ArrayTree], size: int, dtype: jnp.dtype, reverse: bool
) -> list[chex.ArrayTree]:
    """Scans segments one after the other, from zeros; columns that start in a later segment start from zero."""
    carry = None
    results = []
    for part in reversed(parts) if reverse else parts:
        count = jax.tree.leaves(part)[0].shape[-1]
        carry = jnp.zeros((size, count), dtype) if carry is None else _resize(carry, count)
        carry, result = jax.lax.scan(step, carry, part, reverse=reverse)
        results.append(result)
    return results[::-1] if reverse else results
