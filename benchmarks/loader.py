"""Measures how fast photos are decoded and cropped, or features are read, and how long training waits for them.

    python -m benchmarks loader                                        # random photos of 640 x 480 pixels
    python -m benchmarks loader --root data/f8k_photos --image_size 112 --short_side 112
    python -m benchmarks loader --setting vsepp:vsepp,squeezenet,f8k
    python -m benchmarks loader --features 3000 --setting vsepp:vsepp,f30k             # not in the page cache
    python -m benchmarks loader --features 113000 --sparse --setting vsepp:vsepp,f30k  # as large as COCO, without disk

With a setting, its training steps are timed too, on all cores that the process may use: the last column is the share of
their time in which they wait for a batch. For features the ratio is that of the batches per second that one thread
reads and the steps per second.
"""

import argparse
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.memory import with_files
from benchmarks.results import Row
from benchmarks.train_step import Trainer, write_captions
from jitm import configs
from jitm.data import precomp
from jitm.data.images import photos
from jitm.data.images.pixels import Photos, in_threads
from jitm.data.images.transforms import check_image
from jitm.data.splits import Split


def write_random_photos(folder: Path, images: int) -> None:
    """Writes JPEGs of 640 x 480 pixels, smooth with some noise, so that they are as large as photos, about 100 kB."""
    rng = np.random.default_rng(0)
    (folder / 'train').mkdir()
    rows = []
    for n in range(images):
        smooth = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8)).resize(
            (640, 480), Image.Resampling.BICUBIC
        )
        pixels = np.asarray(smooth, int) + rng.integers(-12, 13, (480, 640, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / 'train' / f'{n}.jpg', quality=90)
        rows.append(f'{{"file_name": "{n}.jpg", "text": "a caption"}}\n')
    (folder / 'train' / 'metadata.jsonl').write_text(''.join(rows))


def work(pixels: Photos, index: np.ndarray) -> dict[str, Callable[[], object]]:
    """Returns the measured functions by name."""
    return {
        'check at the start': lambda: in_threads(lambda n: check_image(pixels.files[index[n]]), len(index)),
        'centre crops': lambda: pixels[index],
        'random crops': lambda: pixels.sample(index, list(map(np.random.default_rng, index))),
        'ten crops': lambda: pixels.crops(index),
    }


def measure(split: Split, images: int, cores: int) -> Iterator[Row]:
    """Yields the speed of each kind of work on some cores."""
    index = np.arange(images) % split.num_images
    for name, function in work(split.pixels, index).items():
        wall, cpu = time.perf_counter(), time.process_time()
        function()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        yield {
            'cores': cores,
            'work': name,
            'images/s': images / wall,
            'ms of CPU per image': 1000 * cpu / images,
            '% waiting for data': '',
        }


def train(setting: str, steps: int, cores: int) -> Row:
    """Times the training steps of a setting after the first one, which compiles."""
    trainer = Trainer(configs.load(setting).to_dict(), steps + 1)
    cpu = time.process_time()
    for _ in range(steps + 1):
        trainer.step()
    images = steps * trainer.batch_size
    return {
        'cores': cores,
        'work': f'training, {setting}',
        'images/s': images / sum(trainer.times[1:]),
        'ms of CPU per image': 1000 * (time.process_time() - cpu) / images,
        '% waiting for data': 100 * sum(trainer.waits[1:]) / sum(trainer.times[1:]),
    }


def write_features(folder: Path, images: int, sparse: bool) -> None:
    """Writes float32 features 36 x 2048 of images, random, or zeros that take no disk; and their captions."""
    rng = np.random.default_rng(0)
    for split, number in (('train', images), ('dev', 10)):
        array = np.lib.format.open_memmap(folder / f'{split}_ims.npy', 'w+', np.float32, (number, 36, 2048))
        for row in () if sparse else array:
            row[:] = rng.random(row.shape, np.float32)
        write_captions(folder / f'{split}_caps.txt', number, rng)


def drop_from_cache(array: np.memmap) -> None:
    """Writes a memory-mapped file to disk, and drops it from the page cache."""
    array._mmap.madvise(mmap.MADV_DONTNEED)  # pages in use would be kept
    with open(array.filename, 'rb') as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds_per_batch(array: np.memmap, batch_size: int, batches: int) -> float:
    """Returns the mean time in which one thread reads a random batch from disk."""
    rows = np.resize(np.random.default_rng(0).permutation(len(array)), (batches, batch_size))
    drop_from_cache(array)
    start = time.perf_counter()
    for index in rows:
        array[index]
    return (time.perf_counter() - start) / len(rows)


def train_on_features(setting: str, folder: Path, args: argparse.Namespace) -> Row:
    """Times the reading of batches, and the steps of a setting after the first one, which compiles."""
    split = precomp.load('train', root=str(folder))
    read = seconds_per_batch(split.regions, args.batch_size, args.steps)
    trainer = Trainer(with_files(setting, folder, args.batch_size), args.steps + 1)
    for regions in (split.regions, trainer.setup.data.train.regions):
        drop_from_cache(regions)
    for _ in range(args.steps + 1):
        trainer.step()
    step = statistics.median(trainer.times[1:])
    return {
        'setting': setting,
        'images': split.num_images,
        'batch': args.batch_size,
        'MB/s': args.batch_size * split.regions[0].nbytes / read / 1e6,
        'batches/s': 1 / read,
        'steps/s': 1 / step,
        'ratio': step / read,
        '% waiting for data': 100 * sum(trainer.waits[1:]) / sum(trainer.times[1:]),
    }


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('--root', help='a folder of photos; random photos if not given')
    parser.add_argument('--split', default='train')
    parser.add_argument('--image_size', type=int, default=224)
    parser.add_argument('--short_side', type=int, default=256)
    parser.add_argument('--images', type=int, default=512, help='images decoded for each row')
    parser.add_argument('--cores', type=int, nargs='+', default=[1, 2])
    parser.add_argument('--setting', nargs='+', default=(), help='settings whose training is timed')
    parser.add_argument('--features', type=int, help='images of 36 x 2048 features, instead of photos')
    parser.add_argument('--sparse', action='store_true', help='features without content, which take no disk')
    parser.add_argument('--batch_size', type=int, default=128, help='of features')
    parser.add_argument('--steps', type=int, default=10, help='training steps')


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Measures on each number of cores available to this process, or features with each setting."""
    if args.features:
        with tempfile.TemporaryDirectory() as folder:
            write_features(Path(folder), args.features, args.sparse)
            for setting in args.setting:
                yield train_on_features(setting, Path(folder), args)
        return
    available = os.sched_getaffinity(0)
    with tempfile.TemporaryDirectory() as folder:
        if not args.root:
            write_random_photos(Path(folder), min(args.images, 128))
        keywords = {'image_size': args.image_size, 'short_side': args.short_side}
        split = photos.load(args.split, root=args.root or folder, **keywords)
        in_threads(lambda n: n, 2)  # imports modules for the threads
        for cores in args.cores:
            os.sched_setaffinity(0, set(sorted(available)[:cores]))
            try:
                yield from measure(split, args.images, cores)
            finally:
                os.sched_setaffinity(0, available)
    for setting in args.setting:
        yield train(setting, args.steps, len(available))
