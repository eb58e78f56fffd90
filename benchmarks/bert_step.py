"""Measures time and memory of a training step of RVSE++ with BERT-base, in float32 and bfloat16.

    python -m benchmarks.bert_step
    python -m benchmarks.bert_step --batch_size 32 --length 32 --steps 3

Features, word pieces and weights are random; their sizes are those of configs/vse.py:rvsepp,selhn,f30k. Memory is the
temporary memory of the compiled step, as reported by the compiler, besides the state that it updates in place.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.settings import load_config
from jitm import config as config_lib
from jitm import parallel
from jitm.training.build.objective import make_optimizer, make_terms
from jitm.training.candidates import InBatch
from jitm.training.members import Gradient, Member, init_members
from jitm.training.step import TrainState, TrainStep
from jitm.types import Batch, Images, Texts

SETTING = 'configs/vse.py:rvsepp,selhn,f30k'
WORD_PIECES = 30522
GIGABYTE = 1e9


def random_batch(batch_size: int, length: int, num_regions: int = 36, vocabulary: int = WORD_PIECES) -> Batch:
    """Returns regions of 2048 features and captions between half and all of the length."""
    rng = np.random.default_rng(0)
    regions = rng.random((batch_size, num_regions, 2048), np.float32).astype(np.float16)
    lengths = rng.integers(length // 2, length + 1, batch_size).astype(np.int32)
    ids = np.where(np.arange(length) < lengths[:, None], rng.integers(1, vocabulary, (batch_size, length)), 0)
    images = Images(regions, np.full(batch_size, num_regions, np.int32))
    return Batch(np.int32(0), images, Texts(ids.astype(np.int32), lengths), np.arange(batch_size, dtype=np.int32))


def measure(dtype: str, batch: Batch, steps: int) -> dict[str, float]:
    """Compiles the training step and times `steps` of them."""
    config = load_config(SETTING)
    config.model.text.dtype = dtype
    config = config.to_dict()
    model = config_lib.make_model(config['model'], WORD_PIECES)
    optimizer, _ = make_optimizer(config['optimizer'], 1000, config['epochs'])
    members = {'target': Member(model, Gradient(), optimizer)}
    step = TrainStep(
        members,
        make_terms(config['terms']),
        (InBatch(same_image='negative'),),
        seed=0,
        steps_per_epoch=1000,
        epochs=1,
    )
    init = jax.jit(lambda: init_members(members, 0, batch.images, batch.texts))
    state = parallel.put_state(TrainState(jnp.int32(0), init()))
    parameters = jax.tree.leaves(state.members['target'].params)
    start = time.perf_counter()
    compiled = jax.jit(step, donate_argnums=0).lower(state, batch).compile()
    compile_seconds = time.perf_counter() - start
    times = []
    for n in range(steps + 1):
        start = time.perf_counter()
        state, metrics = jax.block_until_ready(compiled(state, batch.replace(step=np.int32(n))))
        times.append(time.perf_counter() - start)
        assert metrics['finite']
    return {
        'parameters': sum(leaf.size for leaf in parameters),
        'parameter_types': ', '.join(sorted({str(leaf.dtype) for leaf in parameters})),
        'state': sum(leaf.nbytes for leaf in jax.tree.leaves(state)),
        'memory': compiled.memory_analysis().temp_size_in_bytes,
        'compile_seconds': compile_seconds,
        'step_seconds': statistics.median(times[1:]),
        'loss': float(metrics['target/loss']),
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--batch_size', type=int, default=128)
    parser.add_argument('--length', type=int, default=32, help='word pieces of the longest caption')
    parser.add_argument('--steps', type=int, default=3)
    parser.add_argument('--dtypes', nargs='+', default=['float32', 'bfloat16'])
    args = parser.parse_args()
    batch = random_batch(args.batch_size, args.length)
    print(f'RVSE++ with BERT-base, batch {args.batch_size}, {args.length} word pieces: {jax.devices()}')
    print('dtype        parameters in  parameters  state  temporary  compiling  s/step  pairs/s  loss')
    for dtype in args.dtypes:
        r = measure(dtype, batch, args.steps)
        print(
            f'{dtype:11}  {r["parameter_types"]:13}  {r["parameters"] / 1e6:8.1f} M {r["state"] / GIGABYTE:3.1f} GB'
            f' {r["memory"] / GIGABYTE:5.1f} GB {r["compile_seconds"]:8.0f} s {r["step_seconds"]:7.2f}'
            f' {args.batch_size / r["step_seconds"]:8.1f} {r["loss"]:6.3f}',
            flush=True,
        )


if __name__ == '__main__':
    main()
