"""GRUs over sequences, with a gradient that has one product for each parameter.

States and inputs are columns, [H, N] and [D, N]: for few sequences a CPU multiplies a kernel by columns up to six times
as fast as rows by a kernel.
"""

import functools
from collections.abc import Callable, Sequence

import einops
import jax
import jax.numpy as jnp
from chex import Array, ArrayTree
from flax import linen as nn

from jitm.devices import policy
from jitm.layers.recurrent import GRUCell, GRUStep, Parameters, take_step
from jitm.types import Profile, Segment, Texts


class GRU(nn.Module):
    """Reads sequences forward, or in both directions with averaged states, as in the SCAN lineage.

    Attributes:
      features: The size H of the states.
      bidirectional: Also reads backward, from the last valid element.
    """

    features: int
    bidirectional: bool = False

    @nn.compact
    def __call__(self, x: Array, lengths: Array, profile: Profile | None = None) -> Array:
        """Reads every sequence of [N, L, D] up to its length, int [N].

        On a CPU, sequences that have a profile are sorted by their lengths, and those that have ended are read no
        further. A profile of another number of sequences is ignored.

        Returns the state after each element [N, L, H], zero where padded; for two directions the mean of both states.
        """
        count, length = x.shape[:2]
        order = None
        if profile and profile[0].count == count and policy.cut_sequences():
            order = jnp.argsort(lengths, descending=True)
            x = x[order]
            lengths = jnp.asarray(lengths)[order]
        else:
            profile = (Segment(0, length, count),)
        x = einops.rearrange(x, 'n l d -> l d n')
        mask = einops.rearrange(jnp.arange(length), 'l -> l 1 1') < lengths
        directions = ('forward', 'backward') if self.bidirectional else ('forward',)
        states = []
        for name in directions:
            reverse = name == 'backward'
            parameters = GRUCell(self.features, name=name).parameters(x.shape[1])
            # Backward, padding comes first and must not change the state; forward, it comes last.
            states.append(run_gru(reverse, profile, x, mask if reverse else None, parameters))
        states = einops.rearrange(jnp.where(mask, sum(states) / len(states), 0), 'l h n -> n l h')
        return states if order is None else states[jnp.argsort(order)]

    def read(self, words: Array, texts: Texts) -> Array:
        """Reads the words [T, L, D] of texts, see `__call__`."""
        return self(words, texts.lengths, texts.profile)


def affine(x: Array, maps: tuple[tuple[Array, Array], ...]) -> tuple[Array, ...]:
    """Returns W x + b of the columns of x for each map."""
    return tuple(kernel @ x + bias[:, None] for kernel, bias in maps)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def run_gru(reverse: bool, profile: Profile, x: Array, mask: Array | None, parameters: Parameters) -> Array:
    """Runs a GRU over sequences from a state of zero.

    The gradient of each parameter is one product over all elements; a scan would add one product per element.

    Args:
      reverse: Whether it runs from the last element to the first.
      profile: The segments of the elements that are read.
      x: The inputs [L, D, N].
      mask: bool [L, 1, N]; the state does not change where it is False. None changes it at every element.
      parameters: The kernels and biases.

    Returns:
      The state after each element [L, H, N], zero where the profile has none.
    """
    return _run_gru_forward(reverse, profile, x, mask, parameters)[0]


def _run_gru_forward(
    reverse: bool, profile: Profile, x: Array, mask: Array | None, parameters: Parameters
) -> tuple[Array, tuple[list[Array], Parameters, list[GRUStep]]]:
    # Without the barrier XLA transposes the kernels again in each step.
    transposed = jax.lax.optimization_barrier(parameters.transposed())

    def step(state, inputs):
        x, mask = inputs
        next_step = take_step(state, affine(x, transposed.inputs), affine(state, transposed.state), mask)
        return next_step.after, (next_step.after, next_step)

    parts = _split(profile, (x, mask))
    kernel = parameters.state[0][0]
    states, steps = zip(*_scan(step, parts, len(kernel), jnp.result_type(x, kernel), reverse), strict=True)
    return _join(states), ([part for part, _ in parts], parameters, list(steps))


def _run_gru_backward(
    reverse: bool,
    profile: Profile,
    residuals: tuple[list[Array], Parameters, list[GRUStep]],
    gradients: Array,
) -> tuple[Array, None, Parameters]:
    """Returns the cotangents of `x` and of the parameters.

    The scan computes those of the gates; then each parameter needs one product over all elements.
    """
    x, parameters, steps = residuals
    kernels = [kernel for kernel, _ in parameters.state]

    def step(carry, parts_of_step):
        d_after, (state, reset, update, candidate, hidden_candidate) = parts_of_step
        d_after += carry
        d_candidate = d_after * (1 - update) * (1 - candidate**2)
        d_update = d_after * (state - candidate) * update * (1 - update)
        d_reset = d_candidate * hidden_candidate * reset * (1 - reset)
        d_hidden_candidate = d_candidate * reset
        carry = kernels[0] @ d_reset + kernels[1] @ d_update + kernels[2] @ d_hidden_candidate + d_after * update
        return carry, (d_reset, d_update, d_candidate, d_hidden_candidate)

    parts = list(zip(_split(profile, gradients), steps, strict=True))
    cotangents = _scan(step, parts, gradients.shape[1], gradients.dtype, not reverse)
    d_reset, d_update, d_candidate, d_hidden_candidate = map(_columns, zip(*cotangents, strict=True))
    transposed = parameters.transposed()
    states = _columns([part.state for part in steps])
    d_x_columns, d_input_parameters = jax.vjp(affine, _columns(x), transposed.inputs)[1](
        (d_reset, d_update, d_candidate)
    )
    _, d_state_parameters = jax.vjp(affine, states, transposed.state)[1]((d_reset, d_update, d_hidden_candidate))
    d_x = []
    start = 0
    for part in x:
        stop = start + part.shape[0] * part.shape[2]
        d_x.append(einops.rearrange(d_x_columns[:, start:stop], 'd (l n) -> l d n', n=part.shape[2]))
        start = stop
    return _join(d_x), None, Parameters(d_input_parameters, d_state_parameters).transposed()


run_gru.defvjp(_run_gru_forward, _run_gru_backward)


def _split(profile: Profile, tree: ArrayTree) -> list[ArrayTree]:
    """Splits leaves [L, K, N] into the segments of a profile."""
    return [
        jax.tree.map(lambda x, start=start, stop=stop, count=count: x[start:stop, :, :count], tree)
        for start, stop, count in profile
    ]


def _join(parts: Sequence[Array]) -> Array:
    """Concatenates segments to [L, H, N], padded with zeros."""
    return jnp.concatenate([_resize(part, parts[0].shape[-1]) for part in parts])


def _resize(x: Array, count: int) -> Array:
    """Trims or pads the columns of [..., H, n] to a number of them; padding is zero."""
    padding = count - x.shape[-1]
    return x[..., :count] if padding <= 0 else jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, padding)])


def _columns(parts: Sequence[Array]) -> Array:
    """Returns all elements of segments as the columns of one matrix [H, elements]."""
    return jnp.concatenate([einops.rearrange(part, 'l h n -> h (l n)') for part in parts], axis=1)


def _scan(step: Callable, parts: Sequence[ArrayTree], size: int, dtype: jnp.dtype, reverse: bool) -> list[ArrayTree]:
    """Scans the segments, the last one first if `reverse`; returns their results in the order of the segments.

    The initial state is zero, also of columns that the segment before lacks.
    """
    carry = None
    results = []
    for part in reversed(parts) if reverse else parts:
        count = jax.tree.leaves(part)[0].shape[-1]
        carry = jnp.zeros((size, count), dtype) if carry is None else _resize(carry, count)
        carry, result = jax.lax.scan(step, carry, part, reverse=reverse)
        results.append(result)
    return results[::-1] if reverse else results
