"""Compiles training steps of large batches, encoded at once and in chunks (`encode_chunk`): their memory and time.

    python -m benchmarks gradient_cache --target h100:1                                  # memory, of a step of one GPU
    python -m benchmarks gradient_cache --target cpu --batch_sizes 32 --chunk 8 --steps 3  # and time, on this CPU

The data are random, in Flickr30K's sizes. Captions have the same padded length in every batch. Without `--steps`
nothing is run; the extra `aot` has the compilers of other devices than this computer's.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import accelerators, memory, topologies
from benchmarks.results import Row
from jitm.devices import parallel
from jitm.training.setup import Setup
from jitm.types import Batch

SETTINGS = 'clip:b32,softmax,f30k', 'scan:t2i,lse,f30k'
BATCH_SIZES = 64, 256, 1024, 4096
PAIRS = 64  # the rows that every batch repeats
CPU = 'cpu'


def compile_step(setup: Setup, device: Any, batch: Batch) -> Any:
    """Compiles the training step of a setup."""
    step = {'in_axes': (None, 0), 'out_axes': None, 'donate_argnums': 0, 'devices': [device]}
    with parallel.compiling_for([device]):
        step = jax.pmap(setup.train_step.__wrapped__, parallel.AXIS, **step)
        lowered = step.lower(jax.eval_shape(setup.random_state), parallel.split_rows(batch))
        return lowered.compile(compiler_options=accelerators.OPTIONS.get(device.platform))


def take_turns(setups: dict[str, Setup], compiled: dict[str, Any], batch: Batch, steps: int) -> dict[str, float]:
    """Returns the median CPU seconds of some steps of each setup, after a first one."""
    states = {name: parallel.put_state(setup.random_state()) for name, setup in setups.items()}
    times, batch = {name: [] for name in setups}, parallel.put_batch(batch)
    for n, name in itertools.product(range(steps + 1), setups):
        numbered = batch.replace(step=jnp.full(1, n, jnp.int32))
        start = time.process_time()
        states[name], _ = jax.block_until_ready(compiled[name](states[name], numbered))
        times[name].append(time.process_time() - start)
    return {name: statistics.median(took[1:]) for name, took in times.items()}


def compare(setups: dict[str, Setup], device: Any, batch_size: int, steps: int) -> Row:
    """Returns the columns of one batch: memory and, if steps are run, CPU seconds of each setup."""
    pairs = next(iter(setups.values())).make_batch(0)
    batch = jax.tree.map(lambda x: np.resize(x, (batch_size, *x.shape[1:])) if np.ndim(x) else x, pairs)
    compiled = {name: compile_step(setup, device, batch) for name, setup in setups.items()}
    columns = {f'GB, {name}': memory.peak_bytes(step) / memory.GIGABYTE for name, step in compiled.items()}
    if steps:
        times = take_turns(setups, compiled, batch, steps)
        at_once, chunked = times.values()
        columns |= {f'CPU s/step, {name}': took for name, took in times.items()} | {'time': chunked / at_once}
    return columns


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    targets = CPU, *(target for target in topologies.TARGETS if target in ('v5e:1x1', 'h100:1'))
    parser.add_argument('--target', nargs='+', default=['h100:1'], choices=targets)
    parser.add_argument('--settings', nargs='+', default=SETTINGS, help='NAME:OPTIONS of settings')
    parser.add_argument('--bert', nargs='*', default=SETTINGS[1:], help='settings whose captions BERT base encodes')
    parser.add_argument('--batch_sizes', type=int, nargs='+', default=BATCH_SIZES)
    parser.add_argument('--chunk', type=int, default=64)
    parser.add_argument('--steps', type=int, default=0, help='steps that are timed, for the target cpu')


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Compiles each batch of each setting for each target."""
    devices = {target: (jax.devices() if target == CPU else topologies.devices(target))[0] for target in args.target}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        accelerators.write_all(folder)
        for setting in args.settings:
            changes: dict[str, Any] = {'bert': setting in args.bert}
            setups = {
                'at once': accelerators.make_setup(setting, folder, PAIRS, **changes),
                f'in chunks of {args.chunk}': accelerators.make_setup(
                    setting, folder, PAIRS, encode_chunk=args.chunk, **changes
                ),
            }
            model = f'{setting} with BERT' if changes['bert'] else setting
            for target, batch_size in itertools.product(devices, args.batch_sizes):
                row = {'setting': model, 'target': target, 'batch': batch_size}
                yield row | compare(setups, devices[target], batch_size, args.steps)
                jax.clear_caches()
