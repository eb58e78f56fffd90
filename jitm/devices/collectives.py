"""Collectives of the devices in a step, within `data_parallel`: gathers, sums, and their gradients."""

import collections
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from chex import Array, ArrayTree, PRNGKey

from jitm.devices import parallel
from jitm.devices.parallel import AXIS

PACKED_ROW_BYTES = 1024  # arrays with smaller rows are gathered together


def _on_cpus() -> bool:
    """Whether the devices are several CPUs, where XLA adds in another order across processes than within one.

    There arrays are exchanged and then added in the order of the devices, by one program for any number of processes.
    """
    return parallel.platform() == 'cpu' and jax.device_count() > 1


def _sum_of_rows(x: Array) -> Array:
    """Adds the arrays [N * B, ...] of the N devices, and returns the rows of this device, [B, ...]."""
    if not _on_cpus():
        return jax.lax.psum_scatter(x, AXIS, tiled=True)
    rows = x.reshape(jax.lax.axis_size(AXIS), -1, *x.shape[1:])
    return jax.lax.all_to_all(rows, AXIS, 0, 0).sum(0)


@jax.custom_vjp
def _all_gather(x: Array) -> Array:
    return jax.lax.all_gather(x, AXIS, tiled=True)


def _gradient_of_rows(_: None, cotangent: Array) -> tuple[Array | None]:
    return (None if cotangent.dtype == jax.dtypes.float0 else _sum_of_rows(cotangent),)


_all_gather.defvjp(lambda x: (_all_gather(x), None), _gradient_of_rows)


def _sum_in_order(x: Array) -> Array:
    rows = jnp.pad(x.ravel(), (0, -x.size % jax.lax.axis_size(AXIS)))
    return _all_gather(_sum_of_rows(rows))[: x.size].reshape(x.shape)


def _on_one_device() -> bool:
    """Whether there is one device, where XLA on a CPU would copy the arrays of a collective."""
    return jax.lax.axis_size(AXIS) == 1


def _sum(tree: ArrayTree) -> ArrayTree:
    if _on_one_device():
        return tree
    return jax.tree.map(_sum_in_order, tree) if _on_cpus() else jax.lax.psum(tree, AXIS)


def all_gather(tree: ArrayTree) -> ArrayTree:
    """Concatenates the rows of all devices along axis 0 in `data_parallel`; gradients flow back to a row's device.

    Every operation waits for all devices, so small arrays of one dtype share an all-gather. Large ones do not: packing
    copies them, and stops XLA on TPU from gathering in the dtype of the consuming product.
    """
    if _on_one_device():
        return tree
    leaves, structure = jax.tree.flatten(tree)
    groups = collections.defaultdict(list)
    for number, leaf in enumerate(leaves):
        packed = leaf.nbytes <= PACKED_ROW_BYTES * len(leaf)
        groups[(leaf.dtype, len(leaf)) if packed else number].append(number)
    for numbers in groups.values():
        for number, gathered in zip(numbers, _gather_as_one([leaves[n] for n in numbers]), strict=True):
            leaves[number] = gathered
    return jax.tree.unflatten(structure, leaves)


def _gather_as_one(arrays: Sequence[Array]) -> list[Array]:
    if len(arrays) == 1:
        return [_all_gather(arrays[0])]
    rows = [x.reshape(len(x), math.prod(x.shape[1:])) for x in arrays]
    gathered = _all_gather(jnp.concatenate(rows, axis=1))
    parts = jnp.split(gathered, np.cumsum([x.shape[1] for x in rows])[:-1], axis=1)
    return [part.reshape(-1, *x.shape[1:]) for part, x in zip(parts, arrays, strict=True)]


@jax.custom_vjp
def gather_results(tree: ArrayTree) -> ArrayTree:
    """Concatenates the rows of all devices as `all_gather` does, for a computation that is the same on every device.

    If all devices compute the same loss from the result, its gradient is the same on all of them. Each uses that of
    its own rows, times the number of devices, which equals the sum over the devices without a transfer.
    """
    return all_gather(tree)


def _gradient_of_own_rows(_: None, cotangents: ArrayTree) -> tuple[ArrayTree]:
    devices = jax.lax.axis_size(AXIS)
    device = jax.lax.axis_index(AXIS)

    def rows_of_device(x):
        if x.dtype == jax.dtypes.float0:
            return None
        rows = len(x) // devices
        return devices * jax.lax.dynamic_slice_in_dim(x, device * rows, rows)

    return (jax.tree.map(rows_of_device, cotangents),)


gather_results.defvjp(lambda tree: (all_gather(tree), None), _gradient_of_own_rows)


def mean(tree: ArrayTree) -> ArrayTree:
    """Averages the arrays of all devices in `data_parallel`.

    In `data_parallel` gradients belong to the sum of all devices' losses. If each is the loss of the global batch, the
    mean is the gradient of this loss.
    """
    return jax.tree.map(lambda x: x / jax.lax.axis_size(AXIS), _sum(tree))


def device_key(key: PRNGKey) -> PRNGKey:
    """Returns a different random key on each device in `data_parallel`, and the key itself on a single device."""
    return key if _on_one_device() else jax.random.fold_in(key, jax.lax.axis_index(AXIS))


def _in_data_parallel() -> bool:
    return AXIS in jax.sharding.get_abstract_mesh().manual_axes


def sum_over_devices(tree: ArrayTree) -> ArrayTree:
    """Sums the arrays of all devices in `data_parallel`, and returns them elsewhere: for layers and models."""
    return _sum(tree) if _in_data_parallel() else tree


def gather_over_devices(tree: ArrayTree) -> ArrayTree:
    """Gathers rows as `all_gather` in `data_parallel`, and returns them elsewhere: for layers and models."""
    return all_gather(tree) if _in_data_parallel() else tree
