"""Measures the VSE++ training step: steps per second, compilations, and the fraction of time spent waiting for data.

    python -m benchmarks.train_step                                  # 1024 dimensions, batch 128, random data
    python -m benchmarks.train_step --data_root data/f8k_precomp     # real features and captions
    python -m benchmarks.train_step --against_loop scan_t2i saf      # only scores and gradients, see scoring

Prints one line per padding rule, all measured in one process. Every step is waited for, so the devices are idle while
the loop waits for data.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from benchmarks import scoring
from benchmarks.lengths import random_lengths
from configs import default
from jitm import parallel
from jitm.training.build.run import set_up

COMPILED = '/jax/core/compile/backend_compile_duration'


def write_random_data(folder: Path) -> None:
    """Writes 1,000 images of 36 x 2048 half-precision regions and captions as long as Flickr's, with 8,000 words."""
    rng = np.random.default_rng(0)
    for split, images in (('train', 1000), ('dev', 10)):
        np.save(folder / f'{split}_ims.npy', rng.random((images, 36, 2048), np.float32).astype(np.float16))
        lengths = random_lengths(5 * images)
        words = rng.zipf(1.3, (len(lengths), 76)) % 8000
        lines = (' '.join(f'w{word}' for word in row[:n]) for row, n in zip(words, lengths, strict=True))
        (folder / f'{split}_caps.txt').write_text('\n'.join(lines))


def measure(config: dict, steps: int) -> dict[str, float]:
    """Trains for `2 * steps` steps and times the second half, when nearly all padded lengths are compiled."""
    setup, compile_seconds = set_up(config), []

    def listen(event, seconds, **_):
        if event == COMPILED:
            compile_seconds.append(seconds)

    state = parallel.put_state(setup.initial_state())
    batches = parallel.prefetch(setup.make_batch, range(2 * steps), config['run']['prefetch'])
    waits, times, lengths = [], [], []
    jax.monitoring.register_event_duration_secs_listener(listen)
    for _ in range(2 * steps):
        start = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - start)
        state, metrics = setup.train_step(state, batch)
        jax.block_until_ready((state, metrics))
        times.append(time.perf_counter() - start)
        lengths.append(batch.texts.ids.shape[-1])
    jax.monitoring.unregister_event_duration_listener(listen)
    return {
        'length': statistics.mean(lengths),
        'steps_per_second': 1 / statistics.median(times[steps:]),
        'compilations': len(compile_seconds),
        'compile_seconds': sum(compile_seconds),
        'waiting': sum(waits[steps:]) / sum(times[steps:]),
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--data_root', help='a *_precomp folder; random data if not given')
    parser.add_argument('--embed_dim', type=int, default=1024)
    parser.add_argument('--batch_size', type=int, default=128)
    parser.add_argument('--steps', type=int, default=20)
    parser.add_argument('--length_multiples', type=int, nargs='+', default=[80, 16, 8, 4, 1])
    parser.add_argument(
        '--against_loop', nargs='+', metavar='MODEL', help='compare with a loop over captions in PyTorch'
    )
    parser.add_argument('--torch_python', default=sys.executable, help='an interpreter with PyTorch')
    args = parser.parse_args()
    if args.against_loop:
        sizes = [f'--batch={args.batch_size}', f'--dim={args.embed_dim}', f'--torch_python={args.torch_python}']
        scoring.main(['--train', *sizes, '--models', *args.against_loop])
        return
    config = default.get_config()
    config.batch_size, config.model.embed_dim = args.batch_size, args.embed_dim
    with tempfile.TemporaryDirectory() as folder:
        if not args.data_root:
            write_random_data(Path(folder))
        config.data.root = args.data_root or folder
        print(
            f'{args.data_root or "random data"}, batch {args.batch_size}, {args.embed_dim} dimensions: {jax.devices()}'
        )
        print('texts padded to  mean length  steps/s  pairs/s  compilations  compiling  waiting for data')
        for multiple in args.length_multiples:
            config.length_multiple = multiple
            r = measure(config.to_dict(), args.steps)
            print(
                f'multiples of {multiple:2} {r["length"]:12.1f} {r["steps_per_second"]:8.2f}'
                f' {r["steps_per_second"] * args.batch_size:8.0f} {r["compilations"]:13.0f}'
                f' {r["compile_seconds"]:8.1f} s {100 * r["waiting"]:15.2f} %',
                flush=True,
            )


if __name__ == '__main__':
    main()
