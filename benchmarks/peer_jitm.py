"""The side of jitm of `python -m benchmarks peers`: trains and evaluates the config of a folder."""

import pickle
import time
from pathlib import Path

import jax
import numpy as np

from benchmarks import workers
from jitm.devices import parallel
from jitm.training.loop import validate
from jitm.training.setup import set_up


def make(folder: Path, cores: int) -> workers.Work:
    """Returns what trains on the batches of some steps, or for None evaluates as `jitm eval` does, on all cores."""
    del cores
    config, evaluates = pickle.loads((folder / 'jitm.pkl').read_bytes())
    if evaluates:
        parallel.use_all_cores()
    setup = set_up(config)
    state, done = parallel.put_state(setup.initial_state()), 0

    def do(steps: list[int] | None) -> tuple[float, list[float]]:
        nonlocal state, done
        if steps is None:
            start = time.perf_counter()
            numbers = [validate(setup, state)['rsum']]
            return time.perf_counter() - start, numbers
        batches = [setup.make_batch(step).replace(step=np.int32(done + n)) for n, step in enumerate(steps)]
        start, losses = time.perf_counter(), []
        for batch in batches:
            state, metrics = setup.train_step(state, parallel.put_batch(batch))
            losses.append(metrics['target/loss'])
        jax.block_until_ready(state)
        seconds, done = time.perf_counter() - start, done + len(steps)
        return seconds, [float(loss) for loss in losses]

    return do


if __name__ == '__main__':
    workers.main(make)
