"""Compiles training steps that keep more or less for their gradient (`run.activations_mb`): their memory and time.

    python -m benchmarks activations --target v5e:1x1 h100:1                        # nothing is run
    python -m benchmarks activations --target cpu --batch_size 32 --steps 3         # and times it

The data are random, in Flickr30K's sizes. The extra `aot` has the compilers of other devices than this computer's.
"""

import argparse
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax

from benchmarks import accelerators, gradient_cache, memory, topologies
from benchmarks.gradient_cache import CPU
from benchmarks.results import Row

SETTINGS = (
    *('sgraf:saf,f30k', 'sgraf:sgr,f30k', 'dbl:baseline,rm,oss,f30k', 'bfan:equal,f30k', 'scan:t2i,lse,f30k'),
    'uniter:uniter,base,f30k',
)
BUDGETS = 0, 2048, 16384  # MiB
TERA = 1e12


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    targets = CPU, *(target for target in topologies.TARGETS if target in ('v5e:1x1', 'h100:1'))
    parser.add_argument('--target', nargs='+', default=targets[1:], choices=targets)
    parser.add_argument('--settings', nargs='+', default=SETTINGS, help='NAME:OPTIONS of settings')
    parser.add_argument('--budgets', type=int, nargs='+', default=BUDGETS, help='values of run.activations_mb')
    parser.add_argument('--batch_size', type=int, help='the published one if not given')
    parser.add_argument('--steps', type=int, default=0, help='steps that are timed, for the target cpu')


def compare(setting: str, target: str, folder: Path, args: argparse.Namespace) -> Iterator[Row]:
    """Compiles the step of a setting for each budget; on a CPU it may be run, in turns."""
    device = jax.devices()[0] if target == CPU else topologies.devices(target)[0]
    setups = {
        budget: accelerators.make_setup(setting, folder, args.batch_size, activations_mb=budget)
        for budget in args.budgets
    }
    programs = {budget: accelerators.compile_step(setup, [device]) for budget, setup in setups.items()}
    times = {}
    if args.steps and target == CPU:
        compiled = {budget: program.compiled for budget, program in programs.items()}
        times = gradient_cache.take_turns(setups, compiled, next(iter(setups.values())).make_batch(0), args.steps)
    for budget, program in programs.items():
        estimated = accelerators.measure(program, target)['estimated ms'] if target != CPU else None
        yield {
            'setting': setting,
            'target': target,
            'batch': setups[budget].plan.batch_size,
            'activations_mb': budget,
            'peak GB': memory.peak_bytes(program.compiled) / memory.GIGABYTE,
            'TFLOP': sum(program.flops.values()) / TERA,
            'estimated ms': estimated,
            'CPU s/step': times.get(budget),
        }


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Compiles the steps of each setting for each target."""
    with tempfile.TemporaryDirectory() as name:
        accelerators.write_all(Path(name))
        for setting, target in itertools.product(args.settings, args.target):
            yield from compare(setting, target, Path(name), args)
            jax.clear_caches()
