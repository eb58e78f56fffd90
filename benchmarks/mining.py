"""Measures mining: pairs per second, the achieved fraction of the rate of plain matrix products, and peak memory.

    python -m benchmarks mining                                   # the size of Flickr30K: 29,000 x 145,000 x 1024
    python -m benchmarks mining --model scan_t2i                  # cross-attention, 1,000 x 5,000, and extrapolated

Vectors are random. A product search has two directions, and each multiplies all images with all texts.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.lengths import random_lengths
from benchmarks.results import Row
from benchmarks.scoring import SETTINGS, make_elements, make_model
from jitm.data.splits import LENGTH_MULTIPLE, Split, bucket
from jitm.files.outputs import OutputFolder
from jitm.inference.memory import BlockShape
from jitm.mining.resumable_job import search_all
from jitm.mining.top_h import PairSearch, ProductSearch
from jitm.types import DTYPES

FLICKR30K_PAIRS = 29_000 * 145_000  # pairs of Flickr30K's training split


def make_split(images: int, texts: int) -> Split:
    """Returns images without content, and equally many texts for each."""
    image_of_text = np.arange(texts, dtype=np.int32) * images // texts
    empty = np.zeros((images, 1, 1), np.float32), np.ones(images, np.int32)
    return Split('random', *empty, ('',) * texts, image_of_text, ('',) * images)


def unit_vectors(count: int, dim: int, dtype: str, seed: int) -> np.ndarray:
    """Returns random unit vectors [count, dim]."""
    vectors = np.random.default_rng(seed).standard_normal((count, dim), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(DTYPES[dtype])


def product_gflops(images: np.ndarray, texts: np.ndarray, queries: int = 512, blocks: int = 4) -> float:
    """Measures the rate of plain products of some images with all texts: the best of several."""
    multiply = jax.jit(lambda a, b: jnp.sum(jnp.matmul(a, b.T, preferred_element_type=jnp.float32)[0]))
    texts, times = jax.device_put(texts), []
    for start in range(0, (blocks + 1) * queries, queries):
        rows = jax.device_put(images[start % len(images) :][:queries])
        start_time = time.perf_counter()
        jax.block_until_ready(multiply(rows, texts))
        times.append(time.perf_counter() - start_time)
    return 2 * len(rows) * texts.shape[0] * texts.shape[1] / min(times[1:]) / 1e9


class RandomScorer:
    """A replacement of `Scorer` with random encodings, so that only similarities are timed."""

    def __init__(self, name: str, split: Split, dim: int, dtype: str, images: int = 1000, texts: int = 128):
        """Makes a model and its encoded images."""
        self.shape, self._split = BlockShape(images, texts), split
        self._model, self._dim, self._dtype = make_model(name, dim), dim, dtype
        self._lengths = np.sort(random_lengths(split.num_texts) + 2)
        self._regions = make_elements(images, np.full(images, 36), 36, dim, dtype)
        pair = jax.tree.map(lambda x: x[:2], self._regions)
        self._variables = self._model.init(jax.random.key(0), pair, pair, method='similarity')
        self._score = jax.jit(lambda *args: self._model.apply(*args, method='similarity'))

    def blocks(self):
        """See `Scorer.blocks`; the shortest texts first."""
        for start in range(0, self._split.num_images, self.shape.images):
            rows = np.arange(start, min(start + self.shape.images, self._split.num_images))
            for first in range(0, self._split.num_texts, self.shape.texts):
                yield rows, np.arange(first, min(first + self.shape.texts, self._split.num_texts))

    def score_block(self, rows: np.ndarray, columns: np.ndarray) -> jax.Array:
        """Scores random words."""
        lengths = np.pad(self._lengths[columns], (0, self.shape.texts - len(columns)), mode='edge')
        words = make_elements(self.shape.texts, lengths, bucket(lengths.max(), LENGTH_MULTIPLE), self._dim, self._dtype)
        return self._score(self._variables, self._regions, words)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('--model', choices=SETTINGS, help='a cross-attention model, 1,000 x 5,000 pairs')
    parser.add_argument('--images', type=int)
    parser.add_argument('--texts', type=int)
    parser.add_argument('--dim', type=int, default=1024)
    parser.add_argument('--top_h_texts', type=int, default=300)
    parser.add_argument('--top_h_images', type=int, default=60)
    parser.add_argument('--dtype', choices=DTYPES, default='float32')
    parser.add_argument('--memory_mb', type=int, default=640, help='MiB for blocks of scores')


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Measures the search of products, or of a model, including compilation."""
    sizes = (1000, 5000) if args.model else (29_000, 145_000)
    split = make_split(args.images or sizes[0], args.texts or sizes[1])
    if args.model:
        search = PairSearch([RandomScorer(args.model, split, args.dim, args.dtype)], split)
    else:
        vectors = [unit_vectors(n, args.dim, args.dtype, n) for n in (split.num_images, split.num_texts)]
        product = product_gflops(*vectors)
        search = ProductSearch(*vectors, split, memory_mb=args.memory_mb, precision='highest')
    pairs = sum(search.blocks().values())
    with tempfile.TemporaryDirectory() as folder:
        start_time = time.perf_counter()
        job = OutputFolder(Path(folder), 'a benchmark').begin('benchmark')
        search_all(search, split, job, args.top_h_texts, args.top_h_images)
        seconds = time.perf_counter() - start_time
    gflops = 2 * pairs * args.dim / seconds / 1e9
    yield {
        'scores': args.model or 'products',
        'images': split.num_images,
        'captions': split.num_texts,
        'dtype': args.dtype,
        's': seconds,
        'million pairs/s': pairs / seconds / 1e6,
        'GFLOP/s': '' if args.model else gflops,
        '% of the plain product': '' if args.model else 100 * gflops / product,
        'GiB': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "hours for Flickr30K's training split": FLICKR30K_PAIRS / pairs * seconds / 3600 if args.model else '',
    }
