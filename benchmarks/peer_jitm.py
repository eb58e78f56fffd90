"""The side of jitm of `python -m benchmarks peers`: trains and evaluates the config of a folder."""

import pickle
import time
from pathlib import Path

import jax
import numpy as np
from jax import monitoring

from benchmarks import workers
from benchmarks.scoring import matmul_gflops
from benchmarks.workers import Answer
from jitm.devices import parallel
from jitm.training.loop import validate
from jitm.training.setup import set_up

COMPILATION = '/jax/core/compile/backend_compile_duration'  # an event of jax


class Side:
    """Does the commands: a number trains on a batch, `evaluate` evaluates, and `product` measures the product rate.

    The result is the loss, rsum, or GFLOP/s.
    """

    def __init__(self, folder: Path):
        """Sets up the config in the folder; an evaluation uses all cores, as in `jitm eval`."""
        config, evaluates = pickle.loads((folder / 'jitm.pkl').read_bytes())
        if evaluates:
            parallel.use_all_cores()
        self._setup = set_up(config)
        self._state = parallel.put_state(self._setup.initial_state())
        self._steps = 0
        self._compilations = 0
        monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, *_: object, **__: object) -> None:
        self._compilations += event == COMPILATION

    def __call__(self, work: int | str) -> Answer:
        """Does a command."""
        if work == 'product':
            return Answer(0.0, matmul_gflops(), compiled=False)
        before = self._compilations
        seconds, number = self._evaluate() if work == 'evaluate' else self._train(work)
        return Answer(seconds, number, self._compilations > before)

    def _train(self, number: int) -> tuple[float, float]:
        batch = self._setup.make_batch(number).replace(step=np.int32(self._steps))
        start = time.perf_counter()
        self._state, metrics = self._setup.train_step(self._state, parallel.put_batch(batch))
        jax.block_until_ready(self._state)
        self._steps += 1
        return time.perf_counter() - start, float(metrics['target/loss'])

    def _evaluate(self) -> tuple[float, float]:
        start = time.perf_counter()
        rsum = validate(self._setup, self._state)['rsum']
        return time.perf_counter() - start, rsum


def make(folder: Path, cores: int) -> workers.Work:
    """Returns what trains and evaluates."""
    del cores
    return Side(folder)


if __name__ == '__main__':
    workers.main(make)
