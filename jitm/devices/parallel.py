"""All that depends on devices and processes: pmap, shard_map, transfers, collectives of processes."""

import collections
import concurrent.futures
import contextlib
import functools
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import jax
import numpy as np
from chex import ArrayTree
from jax.experimental import multihost_utils

from jitm.errors import UserError
from jitm.types import Precision

T = TypeVar('T')
AXIS = 'batch'

_target: tuple[jax.Device, ...] = ()  # see `compiling_for`


def use_all_cores() -> None:
    """Makes every core a device, where there is no accelerator; must come before any other use of jax.

    XLA computes the small arrays of a tile on one core, so several devices score more pairs. A number that is already
    set, as by JAX_NUM_CPU_DEVICES, is kept.
    """
    if jax.config.jax_num_cpu_devices >= 0:
        return
    with contextlib.suppress(RuntimeError):  # the devices of this process are already in use
        cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
        jax.config.update('jax_num_cpu_devices', cores)


def is_primary() -> bool:
    """Whether this process prints and writes logs."""
    return jax.process_index() == 0


@contextlib.contextmanager
def compiling_for(devices: Sequence[jax.Device]) -> Iterator[None]:
    """Traces and compiles within the block for other devices than this process', such as a topology's."""
    global _target
    previous = _target
    _target = tuple(devices)
    map_rows.cache_clear()
    try:
        yield
    finally:
        _target = previous
        map_rows.cache_clear()


def _local_devices() -> Sequence[jax.Device]:
    return _target or jax.local_devices()


def platform() -> str:
    """Returns the platform for which programs are traced: 'cpu', 'gpu' or 'tpu'."""
    return _local_devices()[0].platform


def memory_bytes() -> int:
    """Returns the memory of a device in bytes; 0 where it is not known."""
    device = _local_devices()[0]
    return (device.memory_stats() or {}).get('bytes_limit', 0) if device in jax.local_devices() else 0


def any_process(flag: bool) -> bool:
    """Returns whether the flag is set in any process; all processes must call this at the same step."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.process_allgather(np.asarray(flag)).any())


def barrier(name: str) -> None:
    """Waits for all processes."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def share(items: Sequence[T], function: Callable[[T], ArrayTree]) -> Iterator[ArrayTree]:
    """Applies a function to each item in one of the processes; all of them must call this with the same items.

    Args:
      items: The items, which are dealt to the processes in turn.
      function: A function that returns numpy arrays, whose shapes are the same for all items.

    Yields:
      The result of each item in order, in every process.
    """
    processes = jax.process_count()
    process = jax.process_index()
    for first in range(0, len(items), processes):
        turn = items[first : first + processes]
        result = function(turn[min(process, len(turn) - 1)])
        if processes == 1:
            yield result
            continue
        results = multihost_utils.process_allgather(result)
        for number in range(len(turn)):
            yield jax.tree.map(lambda x, n=number: x[n], results)


def check_batch_size(batch_size: int, name: str = 'batch_size') -> None:
    """Raises a UserError unless a number of rows, called `name`, can be split evenly over all devices."""
    devices = jax.device_count()
    if batch_size % devices:
        raise UserError(
            f'{name} {batch_size} cannot be split over {devices} devices: '
            f'make it a multiple of {devices}, such as {-(-batch_size // devices) * devices}'
        )


def data_parallel(step: Callable, precision: Precision) -> Callable:
    """Compiles `step(state, batch)` for all devices of all processes by `pmap`, donating the state.

    The state is not stacked: input and output are one copy on each device. The batch has the layout of `put_batch`.

    Args:
      step: The function.
      precision: The precision of float32 products that do not state one, see `jax.default_matmul_precision`.
    """
    step = jax.default_matmul_precision(precision)(step)  # while it is traced
    return jax.pmap(step, axis_name=AXIS, in_axes=(None, 0), out_axes=None, donate_argnums=0)


def trace_step(step: Callable, state: ArrayTree, batch: ArrayTree) -> None:
    """Traces a function of `data_parallel`, which checks it.

    In a single process the first call with arguments of `put_state` and of `put_batch` reuses the trace.

    Args:
      step: The function.
      state: Arrays or shapes.
      batch: Arrays in the layout of `split_rows`.
    """
    if jax.process_count() == 1:
        step.lower(_shapes(state, _sharding()), _shapes(batch, _sharding(AXIS)))
    else:  # pmap lowers for arrays only
        jax.eval_shape(step, state, batch)


def step_bytes(step: Callable, state: ArrayTree, batch: ArrayTree) -> int:
    """Returns the bytes that a function of `data_parallel` needs on each device; compiles it, in a single process.

    Args:
      step: The function.
      state: Arrays or shapes.
      batch: Arrays in the layout of `split_rows`.
    """
    sizes = step.lower(_shapes(state, _sharding()), _shapes(batch, _sharding(AXIS))).compile().memory_analysis()
    own_outputs = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    return sizes.argument_size_in_bytes + sizes.temp_size_in_bytes + own_outputs


def _shapes(tree: ArrayTree, sharding: jax.sharding.NamedSharding) -> ArrayTree:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)


def _local_mesh() -> jax.sharding.Mesh:
    return jax.sharding.Mesh(_local_devices(), (AXIS,))


def _sharding(*axes: str) -> jax.sharding.NamedSharding:
    """Returns the layout of rows that are split over an axis of the local devices, or without one of copies."""
    return jax.sharding.NamedSharding(_local_mesh(), jax.P(*axes))


def put_state(state: ArrayTree) -> ArrayTree:
    """Copies a state to every device of this process, in memory of its own, so that it can be donated."""
    return put_everywhere(jax.tree.map(np.array, jax.device_get(state)))


def split_rows(batch: ArrayTree) -> ArrayTree:
    """Returns this process' rows of a batch in the layout of `data_parallel`: a leading axis of devices.

    Args:
      batch: A tree of numpy arrays; scalars are repeated, axis 0 of the others is split evenly.
    """
    devices = num_local_devices()

    def split(x):
        return np.full(devices, x) if np.ndim(x) == 0 else x.reshape(devices, -1, *x.shape[1:])

    return jax.tree.map(split, batch)


def put_batch(batch: ArrayTree) -> ArrayTree:
    """Moves this process' rows of a batch, see `split_rows`, onto its devices."""
    return put_rows(split_rows(batch))


def num_local_devices() -> int:
    """Returns the number of devices of this process."""
    return len(_local_devices())


@functools.lru_cache(maxsize=128)
def map_rows(function: Callable, *static: Hashable, precision: Precision) -> Callable:
    """Compiles `function(*static, rows, *shared)` for the devices of this process, with the rows split evenly.

    Calls with equal arguments return the same function, so that it is compiled once for each shape in a process.

    Args:
      function: A function of a module. It maps rows, leaves [N, ...], and shared arguments to results, leaves [N, ...].
      *static: Its first arguments, such as a model.
      precision: The precision of its products, see `data_parallel`.

    Returns:
      A function of rows in the layout of `put_rows` and shared arguments in the layout of `put_everywhere`.
    """
    split = jax.P(AXIS)
    replicated = jax.P()

    @jax.default_matmul_precision(precision)
    def mapped(rows, *shared):
        specs = {'in_specs': (split, *[replicated] * len(shared)), 'out_specs': split, 'check_vma': False}
        return jax.shard_map(functools.partial(function, *static), mesh=_local_mesh(), **specs)(rows, *shared)

    return jax.jit(mapped)


def put_rows(rows: ArrayTree) -> ArrayTree:
    """Splits rows, numpy leaves [N, ...], evenly over the devices of this process, see `map_rows`."""
    return jax.device_put(rows, _sharding(AXIS))


def put_everywhere(tree: ArrayTree) -> ArrayTree:
    """Copies arrays to every device of this process, for the shared arguments of `map_rows`."""
    return jax.device_put(tree, _sharding())


def memory_of(mapped: Callable, rows: ArrayTree, *shared: ArrayTree) -> int:
    """Returns the bytes that a function of `map_rows` needs on all devices of this process, besides its arguments.

    This compiles the function; a later call with arguments of these shapes is not compiled again.

    Args:
      mapped: A function returned by `map_rows`.
      rows: The shapes, leaves [N, ...].
      *shared: Arrays or shapes.
    """
    stats = mapped.lower(_shapes(rows, _sharding(AXIS)), *shared).compile().memory_analysis()
    return num_local_devices() * (stats.temp_size_in_bytes + stats.output_size_in_bytes)


def prefetch(make_batch: Callable[[int], ArrayTree], steps: Iterable[int], depth: int) -> Iterator:
    """Makes the batches of the next steps in a thread and moves them to the devices in advance.

    Args:
      make_batch: A pure function of the step.
      steps: The steps, in order.
      depth: The number of batches made in advance.

    Yields:
      The batch of each step, on the devices.
    """
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pending = collections.deque()
        try:
            for step in steps:
                pending.append(pool.submit(lambda s: put_batch(make_batch(s)), step))
                if len(pending) > depth:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
