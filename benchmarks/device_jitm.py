"""The side of jitm of `python -m benchmarks device`: trains again and again on one batch, which lies on the device."""

import pickle
import time
from pathlib import Path

import jax

from benchmarks import workers
from benchmarks.device_found import use_first_gpu
from benchmarks.workers import Answer
from jitm.devices import parallel
from jitm.training.setup import set_up


class OutOfMemoryError(Exception):
    """The memory of the device does not suffice, which jax reports among other errors."""


class Side:
    """Does the commands: a number takes so many steps, and `memory` returns the peak of the device in bytes.

    The result of steps is the loss of the last one. The first command also sets up the config.
    """

    def __init__(self, folder: Path):
        """Remembers the folder of the config."""
        self._folder = folder
        self._step = None

    def _set_up(self) -> None:
        setup = set_up(pickle.loads((self._folder / 'config.pkl').read_bytes()))
        state = jax.device_get(setup.initial_state())  # the device has one state at a time, as in the steps
        self._state = parallel.put_state(state)
        self._step = setup.train_step
        self._batch = parallel.put_batch(setup.make_batch(0))

    def __call__(self, work: int | str) -> Answer:
        """Does a command.

        Raises:
          OutOfMemoryError: If the memory of the device does not suffice.
        """
        if work == 'memory':
            peak = (jax.local_devices()[0].memory_stats() or {}).get('peak_bytes_in_use', 0)
            return Answer(0.0, peak, compiled=False)
        try:
            return self._train(work)
        except jax.errors.JaxRuntimeError as error:
            if 'RESOURCE_EXHAUSTED' in str(error):
                raise OutOfMemoryError from error
            raise

    def _train(self, steps: int) -> Answer:
        first = self._step is None
        if first:
            self._set_up()
        start = time.perf_counter()
        for _ in range(steps):
            self._state, metrics = self._step(self._state, self._batch)
        jax.block_until_ready((self._state, metrics))
        return Answer(time.perf_counter() - start, float(metrics['target/loss']), compiled=first)


def make(folder: Path, cores: int, precision: str) -> workers.Work:
    """Returns what takes steps on one GPU, or on all chips of a TPU; the config has the precision."""
    del cores, precision
    use_first_gpu()
    return Side(folder)


if __name__ == '__main__':
    workers.main(make)
