"""Measures the VSE++ training step with padded captions and with a profile of their lengths, and waiting for data.

    python -m benchmarks train_step                                  # 1024 dimensions, batch 128, random data
    python -m benchmarks train_step --data_root data/f8k_precomp     # real features and captions

The rules take turns, step by step: captions are padded to the longest of a batch in multiples of some tokens, at last
with a profile of every four tokens. Every step is waited for, so that the devices are idle while the loop waits for
data. The first half of the steps is not timed: it compiles nearly all shapes.
"""

import argparse
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.lengths import random_lengths
from benchmarks.results import Row
from jitm.configs import default
from jitm.devices import parallel
from jitm.training.setup import set_up

COMPILED = '/jax/core/compile/backend_compile_duration'
WORDS = 8000  # the size of the vocabulary of random captions


def write_random_data(folder: Path) -> None:
    """Writes 1,000 images of 36 x 2048 half-precision regions and captions as long as Flickr's, with 8,000 words."""
    rng = np.random.default_rng(0)
    for split, images in (('train', 1000), ('dev', 10)):
        np.save(folder / f'{split}_ims.npy', rng.random((images, 36, 2048), np.float32).astype(np.float16))
        write_captions(folder / f'{split}_caps.txt', images, rng)


def write_captions(path: Path, images: int, rng: np.random.Generator) -> None:
    """Writes five captions for each image."""
    lengths = random_lengths(5 * images)
    words = rng.zipf(1.3, (len(lengths), 76)) % WORDS
    lines = (' '.join(f'w{word}' for word in row[:n]) for row, n in zip(words, lengths, strict=True))
    path.write_text('\n'.join(lines))


class Trainer:
    """A run that does one step at a time.

    Attributes:
      setup: the parts of the run.
      batch_size: pairs of a batch.
      waits: seconds until each batch.
      times: seconds of each step, with its wait.
      lengths: mean padded length of the captions of each batch.
      compiling: seconds of each compilation.
    """

    def __init__(self, config: dict[str, Any], steps: int, profiled: bool = True):
        """Sets up a run and its first state; without a profile each batch is padded to its longest caption."""
        self.setup, self.batch_size = set_up(config), config['batch_size']
        if not profiled:
            pipeline = dataclasses.replace(self.setup.pipeline, skips_padding=False)
            self.setup = dataclasses.replace(self.setup, pipeline=pipeline)
        self._state = parallel.put_state(self.setup.initial_state())
        self._batches = parallel.prefetch(self.setup.make_batch, range(steps), config['run']['prefetch'])
        self.waits, self.times, self.lengths, self.compiling = [], [], [], []

    def step(self) -> None:
        """Waits for a batch, trains with it and waits for the result."""
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        start = time.perf_counter()
        batch = next(self._batches)
        self.waits.append(time.perf_counter() - start)
        self._state, metrics = self.setup.train_step(self._state, batch)
        jax.block_until_ready((self._state, metrics))
        self.times.append(time.perf_counter() - start)
        *_, count, length = batch.texts.ids.shape
        profile = batch.texts.profile
        segments = profile.segments if profile else ((0, length, count),)
        self.lengths.append(sum(rows * (stop - first) for first, stop, rows in segments) / count)
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def _listen(self, event: str, seconds: float, **_: object) -> None:
        if event == COMPILED:
            self.compiling.append(seconds)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('--data_root', help='a *_precomp folder; random data if not given')
    parser.add_argument('--embed_dim', type=int, default=1024)
    parser.add_argument('--batch_size', type=int, default=128)
    parser.add_argument('--steps', type=int, default=20)
    parser.add_argument('--length_multiples', type=int, nargs='+', default=[80, 16, 8, 4, 1])


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Trains with every rule in turns; the ratio compares steps per second with the first rule's."""
    config, trainers = default.get_config(), {}
    config.batch_size, config.model.embed_dim = args.batch_size, args.embed_dim
    with tempfile.TemporaryDirectory() as folder:
        if not args.data_root:
            write_random_data(Path(folder))
        config.data.root = args.data_root or folder
        for multiple in args.length_multiples:
            padded = config.to_dict() | {'length_multiple': multiple}
            trainers[multiple] = Trainer(padded, 2 * args.steps, profiled=False)
        trainers['4, by a profile'] = Trainer(config.to_dict(), 2 * args.steps)
        for _ in range(2 * args.steps):
            for trainer in trainers.values():
                trainer.step()
    timed = {rule: trainer.times[args.steps :] for rule, trainer in trainers.items()}
    first = next(iter(timed.values()))
    for rule, trainer in trainers.items():
        speed = 1 / statistics.median(timed[rule])
        yield {
            'padded to multiples of': rule,
            'mean padded length': statistics.mean(trainer.lengths),
            'steps/s': speed,
            'ratio': statistics.median(a / b for a, b in zip(first, timed[rule], strict=True)),
            'pairs/s': speed * args.batch_size,
            'compilations': len(trainer.compiling),
            'compiling s': sum(trainer.compiling),
            '% waiting for data': 100 * sum(trainer.waits[args.steps :]) / sum(timed[rule]),
        }
