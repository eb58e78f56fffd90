"""Compares the compiled scoring of cross-attention models with a loop over captions in PyTorch.

    python -m benchmarks scoring --captions data/f8k_precomp/dev_caps.txt
    python -m benchmarks scoring --models saf sgr --dtype bfloat16

Both sides score 1,000 images and 5,000 captions of random unit vectors in alternating processes; the ratio is the
median over the rounds. Blocks of texts are sampled evenly over all lengths until the time limit. The loop requires
PyTorch, which another interpreter may provide (`--torch_python`).
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import results
from benchmarks.lengths import caption_lengths
from benchmarks.results import Row
from jitm import configs
from jitm.data.splits import LENGTH_MULTIPLE, bucket
from jitm.devices import parallel
from jitm.errors import UserError
from jitm.inference.engine import score
from jitm.inference.memory import MAX_TEXTS
from jitm.models import make as make_lib
from jitm.models.matcher import Matcher
from jitm.types import DTYPES, Elements

SETTINGS = {
    'scan_t2i': 'scan:t2i,lse,f30k',
    'scan_i2t': 'scan:i2t,lse,f30k',
    'bfan_equal': 'bfan:equal,f30k',
    'bfan_prob': 'bfan:prob,f30k',
    'sgr': 'sgraf:sgr,f30k',
    'saf': 'sgraf:saf,f30k',
    'naaf': 'naaf:f30k',
    'dbl': 'dbl:baseline,max,alone,f30k',
}


def product_flops(model: str, regions: int, dim: int, length: float) -> float:
    """Returns the floating-point operations of the matrix products required for one pair."""
    similarities = 2 * regions * dim * length
    if model in ('saf', 'sgr', 'dbl'):
        nodes, size = length + (model != 'dbl'), 256
        graph = 2 * 2 * (2 * size * size + 2 * size * nodes) * nodes if model == 'sgr' else 0
        return 2 * similarities + 2 * dim * size * nodes + graph
    return similarities


def matmul_gflops(size: int = 2048, products: int = 5) -> float:
    """Measures the rate of float32 products of two square matrices on all devices."""
    a = np.ones((bucket(size, parallel.num_local_devices()), size), np.float32)
    rows, shared = parallel.put_rows(a), parallel.put_everywhere(a[:size])
    product = parallel.map_rows(jnp.matmul, precision='highest')
    jax.block_until_ready(product(rows, shared))
    times = []
    for _ in range(products):
        start = time.perf_counter()
        jax.block_until_ready(product(rows, shared))
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times) / 1e9


def make_elements(count: int, lengths: np.ndarray, length: int, dim: int, dtype: str) -> Elements:
    """Returns random unit vectors [count, length, dim], zero where padded, and global vectors [count, dim]."""
    rng = np.random.default_rng(0)
    mask = np.arange(length) < lengths[:, None]
    vectors = rng.standard_normal((count, length, dim), np.float32) * mask[..., None]
    vectors /= np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)
    cast = DTYPES[dtype]
    return Elements(jnp.asarray(vectors, cast), jnp.asarray(mask), jnp.asarray(vectors[:, 0], cast))


def make_model(name: str, dim: int) -> Matcher:
    """Returns a published model with another embedding size."""
    config = configs.load(SETTINGS[name]).to_dict()
    return make_lib.make_model(config['model'] | {'embed_dim': dim}, vocab_size=8)


def pairs_per_second(args: argparse.Namespace, model: Matcher, lengths: np.ndarray) -> tuple[float, float]:
    """Scores blocks like `inference.scoring`; returns pairs per second and the mean length of the scored texts."""
    lengths = np.sort(lengths)
    blocks = [lengths[n : n + MAX_TEXTS] for n in range(0, len(lengths), MAX_TEXTS)]
    counts = np.full(bucket(args.images, parallel.num_local_devices()), args.regions)
    images = make_elements(len(counts), counts, args.regions, args.dim, args.dtype)
    pair = jax.tree.map(lambda x: x[:2], images)
    variables = jax.device_get(model.init(jax.random.key(0), pair, pair, method='similarity'))
    images = parallel.put_rows(jax.device_get(images))
    scorer = parallel.map_rows(score, model, precision='highest')
    # The golden ratio samples all lengths evenly at any time limit.
    order = [int(n * 0.618033988749895 * len(blocks)) % len(blocks) for n in range(4 * len(blocks))]
    spent, pairs, words = 0.0, 0, 0
    for n in order:
        length = bucket(blocks[n].max(), LENGTH_MULTIPLE)
        texts = make_elements(len(blocks[n]), blocks[n], length, args.dim, args.dtype)
        arguments = images, *parallel.put_everywhere((variables, texts))
        scorer.lower(*arguments).compile()
        start = time.perf_counter()
        jax.block_until_ready(scorer(*arguments))
        spent += time.perf_counter() - start
        pairs += len(counts) * len(blocks[n])
        words += len(counts) * blocks[n].sum()
        if spent > args.seconds:
            break
    return pairs / spent, words / pairs


def measure(args: argparse.Namespace, name: str) -> Row:
    """Measures our implementation, scoring with the devices that `jitm eval` uses."""
    parallel.use_all_cores()
    lengths, model = caption_lengths(args.captions, args.texts), make_model(name, args.dim)
    gflops = matmul_gflops()
    speed, length = pairs_per_second(args, model, lengths)
    share = speed * product_flops(name, args.regions, args.dim, length) / gflops / 1e9
    return {'model': name, 'pairs/s': speed, 'MiB': _peak_mib(), '% of the float32 product rate': 100 * share}


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_in_process(args: argparse.Namespace, name: str, ours: bool) -> Row:
    """Measures our implementation or the loop in a separate process."""
    python, benchmark = (sys.executable, 'scoring') if ours else (args.torch_python, 'torch_loops')
    flags = [f'--{key}={getattr(args, key)}' for key in ('images', 'texts', 'regions', 'dim', 'seconds')]
    flags += [f'--captions={args.captions}'] if args.captions else []
    flags += ['--models', name, '--ours', f'--dtype={args.dtype}'] if ours else ['--model', name]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, 'result.jsonl')
        command = [python, '-m', 'benchmarks', benchmark, *flags, f'--json={file}']
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode:
            raise UserError(f'{" ".join(command)} failed: {ran.stderr.strip()[-500:]}')
        [[row]] = results.read(file).values()
    return row


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('--models', nargs='+', choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument('--images', type=int, default=1000)
    parser.add_argument('--texts', type=int, default=5000)
    parser.add_argument('--regions', type=int, default=36)
    parser.add_argument('--dim', type=int, default=1024)
    parser.add_argument('--captions', type=Path, help='a text file, one caption per line; random lengths if not given')
    parser.add_argument('--dtype', choices=DTYPES, default='float32', help='dtype of our encodings')
    parser.add_argument('--seconds', type=float, default=10.0, help='duration of each measurement')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--torch_python', default=sys.executable, help='an interpreter with PyTorch')
    parser.add_argument('--ours', action='store_true', help='measure jitm alone, in this process')


def compare(args: argparse.Namespace, name: str) -> Row:
    """Measures a model and its loop in turns; returns the medians over the rounds and the largest memory."""
    rounds = [[measure_in_process(args, name, ours) for ours in (True, False)] for _ in range(args.rounds)]
    ours, loops = zip(*rounds, strict=True)
    return {
        'model': name,
        'dtype': args.dtype,
        'jitm pairs/s': statistics.median(measured['pairs/s'] for measured in ours),
        'loop pairs/s': statistics.median(measured['pairs/s'] for measured in loops),
        'ratio': statistics.median(measured['pairs/s'] / loop['pairs/s'] for measured, loop in rounds),
        'jitm MiB': max(measured['MiB'] for measured in ours),
        'loop MiB': max(measured['MiB'] for measured in loops),
        '% of the float32 product rate': statistics.median(
            measured['% of the float32 product rate'] for measured in ours
        ),
    }


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Measures each model."""
    for name in args.models:
        yield measure(args, name) if args.ours else compare(args, name)
