"""GRUs over sequences, with a gradient that has one product for each parameter.

States and inputs are columns, [H, N] and [D, N]: for few sequences a CPU multiplies a kernel by columns up to six times
as fast as rows by a kernel. A step computes only what needs the state before it, in few operations: on a TPU an
operation of a step that is no product waits a microsecond for its operands.
"""

import functools
from collections.abc import Callable, Sequence

import einops
import jax
import jax.numpy as jnp
import numpy as np
from chex import Array, ArrayTree
from flax import linen as nn

from jitm.devices import policy
from jitm.layers.recurrent import GRUCell, GRUStep, Maps, Parameters, take_step
from jitm.types import Profile, Segment, Segments, Texts


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
        """Reads every sequence of [N, L, D] up to its length, int [N]; [1, L, D] are equal sequences.

        On a CPU, sequences that have a profile are sorted by their lengths, and those that have ended are read no
        further. A profile of another number of sequences is ignored.

        Returns the state after each element [N, L, H], zero where padded; for two directions the mean of both states.
        """
        count, length = x.shape[:2]
        order = None
        if profile and profile.texts == count and policy.cut_sequences():
            segments = profile.segments
            order = jnp.argsort(lengths, descending=True)
            x = x[order]
            lengths = jnp.asarray(lengths)[order]
        else:
            segments = (Segment(0, length, len(lengths)),)
        x = einops.rearrange(x, 'n l d -> l d n')
        mask = einops.rearrange(jnp.arange(length), 'l -> l 1 1') < lengths
        directions = ('forward', 'backward') if self.bidirectional else ('forward',)
        states = []
        for name in directions:
            parameters = GRUCell(self.features, name=name).parameters(x.shape[1]).transposed()
            states.append(run_gru(name == 'backward', segments, x, mask, parameters))
        states = einops.rearrange(jnp.where(mask, sum(states) / len(states), 0), 'l h n -> n l h')
        return states if order is None else states[jnp.argsort(order)]

    def read(self, words: Array, texts: Texts) -> Array:
        """Reads the words [T, L, D] of texts, see `__call__`."""
        return self(words, texts.lengths, texts.profile)


def affine(x: Array, maps: Maps) -> tuple[Array, ...]:
    """Returns W x + b of the columns of x for each map."""
    return tuple(kernel @ x + bias[:, None] for kernel, bias in maps)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def run_gru(reverse: bool, segments: Segments, x: Array, mask: Array, parameters: Parameters) -> Array:
    """Runs a GRU over sequences from a state of zero.

    The gradient of each parameter is one product over all elements; a scan would add one product per element.

    Args:
      reverse: Whether it runs from the last element to the first.
      segments: The segments of the elements that are read.
      x: The inputs [L, D, N], or [L, D, 1] of equal sequences.
      mask: Whether an element is valid, bool [L, 1, N].
      parameters: The transposed kernels and the biases.

    Returns:
      The state after each element [L, H, N], zero where no segment has one.
    """
    if not policy.projects_within_steps():
        return _run_gru_forward(reverse, segments, x, mask, parameters)[0]
    maps = jax.lax.optimization_barrier(parameters.inputs)

    def project(part, place):
        x, mask = part
        reset, update, candidate = affine(x[place], maps)
        return reset, _keep(update, mask[place]) if reverse else update, candidate

    parts = list(zip(_split(segments, x), _split(segments, mask), strict=True))
    states, _ = _run_steps(reverse, segments, parts, project, parameters.state)
    return states


def _run_gru_forward(
    reverse: bool, segments: Segments, x: Array, mask: Array, parameters: Parameters
) -> tuple[Array, tuple[list[GRUStep], Callable, Maps]]:
    project_all = functools.partial(_project_all, reverse, segments, mask)
    parts, pullback = jax.vjp(project_all, x, parameters.inputs)

    def project(part, place):
        return [x[:, place] for x in part]

    states, steps = _run_steps(reverse, segments, parts, project, parameters.state)
    return states, (steps, pullback, parameters.state)


def _run_gru_backward(
    reverse: bool,
    segments: Segments,
    residuals: tuple[list[GRUStep], Callable, Maps],
    gradients: Array,
) -> tuple[Array, None, Parameters]:
    """Returns the cotangents of the inputs and of the parameters.

    The loops compute those of the states; then each map needs one product over all elements. A step adds the gradient
    of the state before it, and counts its place, since on a TPU it would wait for a sum or a number of its own.
    """
    steps, pullback, maps = residuals
    kernels = [kernel.T for kernel, _ in maps]
    ahead = 1 if reverse else -1

    def read(carry, length, part):
        gradients, steps = part
        count = gradients.shape[-1]
        # The barrier and the merged axes decide how a TPU lays them out; else it may gather the columns in each step.
        rows = jax.lax.optimization_barrier(einops.rearrange(gradients, 'l h n -> (l n) h'))

        def gradient(place):
            return jax.lax.dynamic_slice_in_dim(rows, place * count, count).T

        def read_back(place, d_after):
            next_step = jax.tree.map(lambda x: x[place], steps)
            _, d_hidden = next_step.gradients(d_after)
            products = [kernel @ d_gate for kernel, d_gate in zip(kernels, d_hidden, strict=True)]
            return sum(products) + d_after * next_step.update

        def step(carry, _):
            place, d_after = carry
            d_before = read_back(place, d_after) + gradient(place + ahead)
            return (place + ahead, d_before), d_before

        first = 0 if reverse else length - 1
        d_first = carry + gradient(first)
        (last, d_last), d_others = jax.lax.scan(step, (first, d_first), length=length - 1, reverse=not reverse)
        d_states = [d_first[None], d_others] if reverse else [d_others, d_first[None]]
        return read_back(last, d_last), jnp.concatenate(d_states)

    parts = list(zip(_split(segments, gradients), steps, strict=True))
    d_states = _scan(read, segments, parts, gradients[0, :, :0], not reverse)
    d_inputs, d_hidden = zip(*map(GRUStep.gradients, steps, d_states), strict=True)
    states = _columns([part.state for part in steps])
    d_columns = tuple(map(_columns, zip(*d_hidden, strict=True)))
    d_inputs = [tuple(einops.rearrange(x, 'l h n -> h l n') for x in part) for part in d_inputs]
    d_x, d_input_maps = pullback(d_inputs)
    d_maps = jax.vjp(functools.partial(affine, states), maps)[1](d_columns)[0]
    return d_x, None, Parameters(d_input_maps, d_maps)


run_gru.defvjp(_run_gru_forward, _run_gru_backward)


def _project_all(reverse: bool, segments: Segments, mask: Array, x: Array, maps: Maps) -> list[tuple[Array, ...]]:
    """Returns, for each part, the projections [H, l, n] of its inputs for both gates and the candidate."""
    parts = _split(segments, x)
    valid = [einops.rearrange(part, 'l 1 n -> 1 l n') for part in _split(segments, mask)]
    reset, update, candidate = [_split_columns(y, parts) for y in affine(_columns(parts), maps)]
    if reverse:
        update = [_keep(part, keeps) for part, keeps in zip(update, valid, strict=True)]
    inputs = zip(reset, update, candidate, valid, strict=True)
    return [tuple(jnp.broadcast_arrays(*part)[:-1]) for part in inputs]


def _keep(update: Array, valid: Array) -> Array:
    """Keeps the state at padding, which comes first when reading backward: an infinite projection makes the gate 1."""
    return update + jnp.where(valid, 0, jnp.inf)


def _run_steps(
    reverse: bool, segments: Segments, parts: Sequence[ArrayTree], project: Callable, maps: Maps
) -> tuple[Array, list[GRUStep]]:
    """Reads parts from a state of zero.

    Args:
      reverse: Whether it reads from the last element to the first.
      segments: The segments of the elements that are read.
      parts: The arrays of each segment.
      project: Maps the arrays of a part and a place to the projections [H, n] of the inputs for both gates and the
        candidate.
      maps: The transposed kernels and the biases of the state.

    Returns:
      The state after each element [L, H, N], and the steps of each part.
    """
    # Without the barrier XLA transposes the kernels again in each step.
    transposed = jax.lax.optimization_barrier(maps)

    def read(state, length, part):
        def step(carry, _):
            place, state = carry
            next_step = take_step(state, project(part, place), affine(state, transposed))
            return (place - 1 if reverse else place + 1, next_step.after), (next_step.after, next_step)

        first = length - 1 if reverse else 0
        (_, state), result = jax.lax.scan(step, (first, state), length=length, reverse=reverse)
        return state, result

    kernel, _ = maps[0]
    start = jnp.zeros((len(kernel), 0), jnp.result_type(kernel, *jax.tree.leaves(parts)))
    states, steps = zip(*_scan(read, segments, parts, start, reverse), strict=True)
    return _join(states), list(steps)


def _split(segments: Segments, tree: ArrayTree) -> list[ArrayTree]:
    """Splits leaves [L, K, N] into their parts in each segment."""
    return [
        jax.tree.map(lambda x, start=start, stop=stop, count=count: x[start:stop, :, :count], tree)
        for start, stop, count in segments
    ]


def _join(parts: Sequence[Array]) -> Array:
    """Concatenates parts to [L, H, N], padded with zeros."""
    return jnp.concatenate([_resize(part, parts[0].shape[-1]) for part in parts])


def _resize(x: Array, count: int) -> Array:
    """Trims or pads the columns of [..., H, n] to a number of them; padding is zero."""
    padding = count - x.shape[-1]
    return x[..., :count] if padding <= 0 else jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, padding)])


def _columns(parts: Sequence[Array]) -> Array:
    """Returns all elements of parts as the columns of one matrix [H, elements]."""
    return jnp.concatenate([einops.rearrange(part, 'l h n -> h (l n)') for part in parts], axis=1)


def _split_columns(columns: Array, parts: Sequence[Array]) -> list[Array]:
    """Splits the columns [H, elements] of some parts [l, D, n] into [H, l, n]."""
    stops = np.cumsum([len(part) * part.shape[-1] for part in parts])
    pairs = zip(jnp.split(columns, stops[:-1], axis=1), parts, strict=True)
    return [einops.rearrange(block, 'h (l n) -> h l n', l=len(part)) for block, part in pairs]


def _scan(
    read: Callable, segments: Segments, parts: Sequence[ArrayTree], carry: Array, reverse: bool
) -> list[ArrayTree]:
    """Reads the parts, the last one first if `reverse`; returns their results in the order of the parts.

    Args:
      read: Maps a carry [H, n], the length of a part of n columns, and its arrays to the next carry and a result.
      segments: The segments of the elements that are read.
      parts: The arrays of each segment.
      carry: The first carry. Columns that a carry lacks are zero.
      reverse: Whether the last part is the first.
    """
    results = []
    bounded = list(zip(segments, parts, strict=True))
    for (start, stop, count), part in reversed(bounded) if reverse else bounded:
        carry, result = read(_resize(carry, count), stop - start, part)
        results.append(result)
    return results[::-1] if reverse else results
