"""Measures time and memory of a training step of RVSE++ with BERT-base, in float32 and bfloat16.

    python -m benchmarks bert_step
    python -m benchmarks bert_step --batch_size 32 --length 32 --steps 3

Features, word pieces and weights are random, with the sizes of vse:rvsepp,selhn,f30k. Memory is the
temporary memory of the compiled step, as reported by the compiler, besides the state that it updates in place.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.results import Row
from jitm import configs
from jitm.devices import parallel
from jitm.models import make as make_lib
from jitm.training.members import init_members
from jitm.training.plan import make_plan
from jitm.training.setup import compile_step
from jitm.training.step import TrainState
from jitm.types import Batch, Images, Texts

SETTING = 'vse:rvsepp,selhn,f30k'
WORD_PIECES = 30522
GIGABYTE, MILLION = 1e9, 1e6


def random_batch(batch_size: int, length: int, num_regions: int = 36, vocabulary: int = WORD_PIECES) -> Batch:
    """Returns regions of 2048 features and captions between half and all of the length."""
    rng = np.random.default_rng(0)
    regions = rng.random((batch_size, num_regions, 2048), np.float32).astype(np.float16)
    lengths = rng.integers(length // 2, length + 1, batch_size).astype(np.int32)
    ids = np.where(np.arange(length) < lengths[:, None], rng.integers(1, vocabulary, (batch_size, length)), 0)
    images = Images(regions, np.full(batch_size, num_regions, np.int32))
    return Batch(np.int32(0), images, Texts(ids.astype(np.int32), lengths), np.arange(batch_size, dtype=np.int32))


def measure(dtype: str, batch: Batch, steps: int) -> Row:
    """Compiles the training step and times `steps` of them."""
    config = configs.load(SETTING)
    config.model.text.dtype = dtype
    plan = make_plan(config.to_dict())
    model, (optimizer, _) = make_lib.make_model(plan.models['target'], WORD_PIECES), plan.make_optimizer(1000)
    members = {'target': dataclasses.replace(plan.members['target'], model=model, optimizer=optimizer)}
    _, step, _ = compile_step(plan, members, 1000)
    init = jax.jit(lambda: init_members(members, 0, batch.images, batch.texts))
    state = parallel.put_state(TrainState(jnp.int32(0), init()))
    parameters = jax.tree.leaves(state.members['target'].params)
    start = time.perf_counter()
    batch = parallel.put_batch(batch)
    compiled = step.lower(state, batch).compile()
    compile_seconds = time.perf_counter() - start
    times = []
    for n in range(steps + 1):
        start = time.perf_counter()
        state, metrics = jax.block_until_ready(compiled(state, batch.replace(step=np.full(1, n, np.int32))))
        times.append(time.perf_counter() - start)
        assert metrics['finite']
    return {
        'parameter dtype': ', '.join(sorted({str(leaf.dtype) for leaf in parameters})),
        'million parameters': sum(leaf.size for leaf in parameters) / MILLION,
        'state GB': sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / GIGABYTE,
        'temporary GB': compiled.memory_analysis().temp_size_in_bytes / GIGABYTE,
        'compiling s': compile_seconds,
        's/step': statistics.median(times[1:]),
        'pairs/s': len(batch.image_index) / statistics.median(times[1:]),
        'loss': float(metrics['target/loss']),
    }


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('--batch_size', type=int, default=128)
    parser.add_argument('--length', type=int, default=32, help='word pieces of the longest caption')
    parser.add_argument('--steps', type=int, default=3)
    parser.add_argument('--dtypes', nargs='+', default=['float32', 'bfloat16'])


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Measures each dtype, and its time as a multiple of the first one's."""
    batch, first = random_batch(args.batch_size, args.length), None
    for dtype in args.dtypes:
        row = measure(dtype, batch, args.steps)
        first = first or row['s/step']
        yield {'compute dtype': dtype, **row, 'ratio': row['s/step'] / first}
