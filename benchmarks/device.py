"""Measures training steps of jitm and of PyTorch on a GPU, or of jitm on a TPU, and runs the tests of several devices.

    pip install -e '.[cuda13,dev,parity]'                   # or cuda12 or tpu in the place of cuda13
    python -m benchmarks device --json device.jsonl         # ten minutes; please send this file in an issue
    python -m benchmarks device --systems clip --minutes 5
    python -m benchmarks device --dry_run                   # tiny models, also on a CPU

The data are random in the sizes of Flickr30K, so that nothing is downloaded; batches have 128 pairs, and on several
chips of a TPU the next multiple of their number. Both sides have the same parameters and the same batch, which lies on
the device, and train in turns in processes of their own, on the first GPU or on all chips of a TPU. Steps are counted
per second in three rounds of about a second, without the first steps, which compile; the ratio is that of the medians.
GB are the peak of the allocators, without what the libraries take. A failure stands in the place of the steps.

The share of the peak relates the operations that the products of a step need, see `benchmarks.products`, per second to
the peak rate by the data sheet of the device, in the precision in which jitm computes them. In rows of bfloat16 this is
TF32 for networks of jitm without a `dtype`. The losses are those before the first update, of networks without dropout.

The tests of several devices compare steps, scores, mining and search on accelerators with those on a CPU. They need at
least two devices. Systems are measured until the minutes are over.
"""

import argparse
import contextlib
import json
import math
import os
import pickle
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import accelerators, memory, peers, topologies, train_step
from benchmarks.results import ROOT, Row
from benchmarks.workers import Answer, Worker, WorkerError
from jitm.errors import UserError

TESTS = (
    'tests/serving/test_search.py::test_several_devices_find_the_same',
    'tests/inference/test_scoring.py::test_several_devices_give_the_scores_of_one',
    'tests/mining/test_mining.py::test_devices_do_not_change_mined_lists',
    'tests/devices/test_parallel.py::test_devices_agree',
)
TESTED = 2, 4, 8  # numbers of devices over which the tests can split their rows
SHARE_OF_TESTS = 0.5  # the largest share of the time
PRECISIONS = {  # platform -> precision of a row -> that of jitm's config
    'gpu': {'float32': 'highest', 'TF32': 'high', 'bfloat16': 'default'},
    'tpu': {'float32': 'highest', topologies.THREE_PASSES: 'high', 'bfloat16': 'default'},
    'cpu': {'float32': 'highest', 'bfloat16': 'default'},
}
AMPERE = 8  # the compute capability from which on GPUs of NVIDIA have TF32 and bfloat16
ROUNDS, ROUND_SECONDS, TRIED, MAX_STEPS = 3, 1.0, 4, 1000  # rounds, and the steps by which their length is estimated
GIGA = 1e9
SIDES = {'jitm': 'device_jitm', 'PyTorch': 'device_torch'}
REASONS = {'OutOfMemoryError': 'out of memory'}


def with_minilm(config: ConfigDict, batch_size: int) -> None:
    """Encodes texts with a BERT of the sizes of all-MiniLM-L6-v2, without its weights."""
    peers.at_one_rate(config, batch_size)
    config.model.text = {'name': 'text.BERTEncoder', 'size': 'L-6_H-384_A-12', 'dropout': 0.1, 'dtype': 'float32'}


SYSTEMS = {name: peers.SYSTEMS[name]._replace(batch_size=128) for name in ('vsepp', 'scan', 'sgr', 'clip')}
SYSTEMS['minilm'] = peers.SYSTEMS['vse_bert']._replace(
    preset='vse:fc,softmax,minilm,f30k', batch_size=128, change=with_minilm
)
VOCABULARIES = {'clip': 'merges.txt', 'minilm': 'vocab.txt'}  # files of `write_data`; others have the words of the data
WORD_PIECES = 30522  # the size of MiniLM's vocabulary
LETTERS = str.maketrans('0123456789', 'abcdefghij')  # in the place of digits, which CLIP separates


class Sizes(NamedTuple):
    """Sizes of the data and of the networks; None for those of a preset."""

    images: int = 1000
    photos: int = 40
    pixels: int = 224
    features: int = 2048
    batch_size: int = 128
    embed_dim: int | None = None


TINY = Sizes(images=4, photos=2, pixels=32, features=6, batch_size=4, embed_dim=8)
TINY_TOWER = {'hidden_dim': 8, 'num_layers': 1, 'num_heads': 2, 'mlp_dim': 16}


# Inputs.


def write_photos(folder: Path, captions: list[str], sizes: Sizes) -> None:
    """Writes random photos as an imagefolder, with five of the captions each."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for split in ('train', 'dev'):
        (folder / split).mkdir(parents=True)
        lines = []
        for n in range(sizes.photos):
            name = f'{n}.png'
            pixels = rng.integers(0, 256, (sizes.pixels, sizes.pixels, 3), np.uint8)
            Image.fromarray(pixels).save(folder / split / name, compress_level=1)
            lines.append(json.dumps({'file_name': name, 'captions': captions[5 * n : 5 * n + 5]}))
        (folder / split / 'metadata.jsonl').write_text('\n'.join(lines) + '\n')


def write_data(folder: Path, sizes: Sizes) -> None:
    """Writes random features, captions and photos, and vocabularies in which each word is one piece."""
    captions = folder / 'captions'
    captions.mkdir()
    for split in ('train', 'dev'):
        train_step.write_captions(captions / f'{split}_caps.txt', sizes.images, np.random.default_rng(0))
    peers.write_data(folder, captions, sizes.features, sizes.images)
    lines = (captions / 'train_caps.txt').read_text().translate(LETTERS).splitlines()
    write_photos(folder / 'photos', lines, sizes)
    memory.write_pieces(folder / 'vocab.txt', WORD_PIECES)
    starts = ['w', *(f'w{n}' for n in range(train_step.WORDS // 10))]
    merges = [f'{start} {digit}{end}' for start in starts for digit in range(10) for end in ('', '</w>')]
    accelerators.write_merges(folder / 'merges.txt', [merge.translate(LETTERS) for merge in merges])


def make_config(name: str, sizes: Sizes, batch_size: int, folder: Path) -> dict[str, Any]:
    """Returns the config that both sides train, with the data of a folder."""
    args = argparse.Namespace(batch_size=batch_size, embed_dim=sizes.embed_dim, photos_root=folder / 'photos')
    config = peers.make_config(SYSTEMS[name], args, folder)
    if name in VOCABULARIES:
        config['vocabulary']['path'] = str(folder / VOCABULARIES[name])
    return shrink(config) if sizes is TINY else config


def shrink(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a config with tiny transformers."""
    model = dict(config['model'])
    if 'size' in model['text']:
        model['text'] = model['text'] | {'size': 'L-1_H-8_A-2'}
    if 'mlp_dim' in model['text']:
        model['text'] = model['text'] | TINY_TOWER
        model['image'] = model['image'] | TINY_TOWER | {'image_size': TINY.pixels}
        config = config | {'data': config['data'] | {'image_size': TINY.pixels, 'short_side': TINY.pixels}}
    return config | {'model': model}


def at_precision(config: dict[str, Any], precision: str, dtype: str) -> tuple[dict[str, Any], list[str]]:
    """Sets the precision of products, and the dtype of the parts of the model that have one.

    Returns:
      The config, and the keys that were set with their values.
    """
    model, keys = dict(config['model']), [f'precision={precision}']
    for name, part in model.items():
        if isinstance(part, dict) and part.get('dtype', dtype) != dtype:
            model[name] = part | {'dtype': dtype}
            keys.append(f'model.{name}.dtype={dtype}')
    return config | {'precision': precision, 'model': model}, keys


# Devices.


def find() -> dict[str, Any]:
    """Returns what `device_found` prints in a process that ends, so that others can use the devices.

    Raises:
      UserError: If it fails.
    """
    command = [sys.executable, '-m', 'benchmarks.device_found']
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if result.returncode:
        raise UserError('jax cannot use the devices of this machine; its error is above')
    return json.loads(result.stdout.splitlines()[-1])


def precisions(found: Mapping[str, Any]) -> dict[str, str]:
    """Returns the precisions of a device -> those of jitm's config."""
    known = PRECISIONS.get(found['platform'], PRECISIONS['gpu'])
    capability = re.match(r'\d+', found['capability'])  # a GPU of AMD has a name
    return {'float32': known['float32']} if capability and int(capability[0]) < AMPERE else known


def run_tests(count: int, seconds: float) -> str:
    """Runs the tests of several devices on some accelerators for a time, and returns how they ended."""
    if count < TESTED[0]:
        return f'left out, because they need {TESTED[0]} devices'
    used = max(number for number in TESTED if number <= count)
    visible = os.environ.get('CUDA_VISIBLE_DEVICES') or ','.join(map(str, range(count)))
    variables = {'JITM_TEST_ACCELERATORS': str(used), 'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'}
    variables['CUDA_VISIBLE_DEVICES'] = ','.join(visible.split(',')[:used])
    command = [sys.executable, '-m', 'pytest', '-q', '--tb=short', '-p', 'no:cacheprovider', *TESTS]
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT, 'text': True, 'start_new_session': True}
    with subprocess.Popen(command, cwd=ROOT, env=os.environ | variables, **pipes) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes of the tests
            return f'not finished after {seconds:.0f} s'
    if process.returncode:
        print(output, file=sys.stderr)
    return f'{output.splitlines()[-1]} on {used} devices'


# Steps.


class Side:
    """A process of one side and its answers, until it fails.

    Attributes:
      error: Why it failed, or ''.
      loss: The loss before the first update.
      rates: Steps per second of each round.
      num_bytes: The peak of the device's memory, 0 if it is unknown.
    """

    def __init__(self, worker: Worker):
        """Takes a process, which has done nothing."""
        self._worker = worker
        self._steps = 1
        self.error = ''
        self.loss = math.nan
        self.rates: list[float] = []
        self.num_bytes = 0

    def _ask(self, work: int | str) -> Answer | None:
        if self.error:
            return None
        try:
            return self._worker(work)
        except WorkerError as error:
            self.error = REASONS.get(error.reason, error.reason)
            return None

    def prepare(self, seconds: float) -> None:
        """Compiles, and estimates how many steps take some seconds; a single one is enough for 0 seconds."""
        if first := self._ask(1):
            self.loss = first.number
        if not seconds:
            return
        if tried := self._ask(TRIED):
            self._steps = min(MAX_STEPS, max(TRIED, int(TRIED * seconds / tried.seconds)))

    def time(self) -> None:
        """Times a round."""
        if answer := self._ask(self._steps):
            self.rates.append(self._steps / answer.seconds)

    def read_memory(self) -> None:
        """Reads the peak of the memory."""
        if answer := self._ask('memory'):
            self.num_bytes = int(answer.number)

    @property
    def rate(self) -> float | str:
        """The median of the steps per second, or the error."""
        return self.error or statistics.median(self.rates)


def take_turns(folder: Path, names: list[str], precision: str, seconds: float) -> dict[str, Side]:
    """Measures the sides of some names in turns, in rounds of some seconds."""
    with contextlib.ExitStack() as stack:
        sides = {}
        for name in names:
            worker = Worker(SIDES[name], folder, os.cpu_count(), precision)
            sides[name] = Side(stack.enter_context(worker))
        for side in sides.values():
            side.prepare(seconds)
        for _ in range(ROUNDS):
            for side in sides.values():
                side.time()
        for side in sides.values():
            side.read_memory()
    return sides


def columns(sides: Mapping[str, Side], operations: float, peak: float | None, compares_losses: bool) -> Row:
    """Returns the measured columns of a row; those that are unknown are ''.

    Args:
      sides: The sides by name.
      operations: The operations that the products of a step need on a device.
      peak: The peak rate of the products, TFLOP/s.
      compares_losses: Whether both sides should have the same loss.
    """
    measured = {name: side for name, side in sides.items() if not side.error}
    ours = measured.get('jitm')
    both = len(measured) == len(SIDES)
    row = {f'{name} steps/s': sides[name].rate if name in sides else '' for name in SIDES}
    row['ratio'] = row['jitm steps/s'] / row['PyTorch steps/s'] if both else ''
    for name in SIDES:
        num_bytes = measured[name].num_bytes if name in measured else 0
        row[f'{name} GB'] = num_bytes / GIGA if num_bytes else ''
    row['% of the peak'] = 100 * operations * ours.rate / (peak * 1e12) if ours and peak else ''
    losses = [side.loss for side in measured.values()]
    row['difference of losses'] = abs(losses[0] / losses[1] - 1) if both and compares_losses else ''
    return row


def measure(name: str, sizes: Sizes, folder: Path, found: Mapping[str, Any], seconds: float) -> Iterator[Row]:
    """Yields a row for each precision of a system, measured in rounds of some seconds."""
    count = found['count'] if found['platform'] == 'tpu' else 1
    config = make_config(name, sizes, -(-sizes.batch_size // count) * count, folder)
    peaks = topologies.peak_tflops(found['kind'])
    available = found['torch device'] == ('cuda' if found['platform'] == 'gpu' else found['platform'])
    names = list(SIDES) if available else ['jitm']
    with tempfile.TemporaryDirectory() as inputs:
        (operations,) = peers.write_inputs(Path(inputs), SYSTEMS[name], config, 1).values()
        for precision, chosen in precisions(found).items():
            dtype = 'bfloat16' if precision == 'bfloat16' else 'float32'
            changed, keys = at_precision(config, chosen, dtype)
            (Path(inputs) / 'config.pkl').write_bytes(pickle.dumps(changed))
            sides = take_turns(Path(inputs), names, precision, seconds)
            computed = 'TF32' if precision == 'bfloat16' and 'TF32' in peaks and len(keys) == 1 else precision
            yield {
                'device': found['kind'] if count == 1 else f'{count} x {found["kind"]}',
                'system': name,
                'batch': config['batch_size'],
                'precision': precision,
                'keys of jitm': ', '.join(keys),
                **columns(sides, operations / count, peaks.get(computed), config == peers.without_dropout(config)),
            }


# The command.


def tables(path: Path) -> dict[str, list[Row]]:
    """Returns the table of docs/speed.md by its name, from a file of results that were sent.

    The last row of a device, a system and a precision counts.
    """
    rows = {}
    for line in path.read_text(encoding='utf-8').splitlines() if path.exists() else ():
        for row in json.loads(line)['rows']:
            rows[row['device'], row['system'], row['precision']] = row
    return {'device': list(rows.values())}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('--systems', nargs='+', choices=SYSTEMS, default=[*SYSTEMS], help='all if not given')
    parser.add_argument('--minutes', type=float, default=10.0, help='no measurement starts later')
    parser.add_argument('--dry_run', action='store_true', help='use tiny sizes and single steps, on any device')


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Runs the tests, and measures each system at each precision."""
    end = time.monotonic() + 60 * args.minutes
    found = find()
    if found['platform'] == 'cpu' and not args.dry_run:
        raise UserError("jax finds no GPU or TPU: pip install -e '.[cuda13]', cuda12 or tpu, or add --dry_run")
    jax.config.update('jax_platforms', 'cpu')  # this process writes inputs, and leaves the devices to others
    tests = run_tests(found['count'], SHARE_OF_TESTS * (end - time.monotonic()))
    args.environment = {**found, 'cores': os.cpu_count(), 'tests': tests}
    for key, value in args.environment.items():
        print(f'{key}: {value}', file=sys.stderr)
    sizes, seconds = (TINY, 0.0) if args.dry_run else (Sizes(), ROUND_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder), sizes)
        for name in args.systems:
            for row in measure(name, sizes, Path(folder), found, seconds):
                yield row
                if time.monotonic() > end:
                    print(f'the time is over after {name} in {row["precision"]}', file=sys.stderr)
                    return
