"""Measures time and memory of a training step with an anchor model (DBL's OAS, OSS and MSS) relative to one without.

    python -m benchmarks members                                        # DBL's network and VSE++, batch 128
    python -m benchmarks members --networks vsepp --data f8k --rounds 20 --data_root data/f8k_precomp

The steps of all scenarios alternate in rounds on the same batch; times are medians of the ratios within a round. An
anchor costs at least its forward pass in evaluation mode, which is timed too: the lower bound is 1 + this pass for OAS
and MSS, and 2 for OSS, whose anchor trains. Memory covers the state, the batch and the temporary memory of the
compiled step, as reported by the compiler; the lower bound covers a single model and the anchor's weights, or its whole
state for OSS. CPU time is summed over all cores, which depends less on other work on the machine.
"""

import argparse
import dataclasses
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import chex
import jax
import jax.numpy as jnp

from benchmarks.results import Row
from benchmarks.train_step import write_random_data
from jitm import configs
from jitm.devices import parallel
from jitm.models import make as make_lib
from jitm.training.members import init_members
from jitm.training.plan import make_plan
from jitm.training.setup import compile_step as make_step
from jitm.training.setup import set_up
from jitm.training.source import score_in_evaluation
from jitm.training.step import TrainState
from jitm.types import Batch

SCENARIOS = ('single', 'oas', 'oss', 'mss')
MEGABYTE = 1e6


def load_config(network: str, scenario: str, data: str) -> dict:
    """Returns the config of a network of configs/dbl.py, with an anchor and the loss RM except in 'single'."""
    words = f'{network},max,alone,{data}' if scenario == 'single' else f'{network},rm,{scenario},{data}'
    return configs.load(f'dbl:{words}').to_dict()


def num_bytes(tree: chex.ArrayTree) -> int:
    """Returns the bytes of all arrays, or shapes, of a tree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def compile_step(config: dict, words: int, batch: Batch) -> tuple[Callable, TrainState, int]:
    """Compiles the step of a scenario; returns it, its initial state and the bytes that it needs in total.

    The batch has the layout of `parallel.split_rows`.
    """
    plan = make_plan(config | {'seed': 0})
    optimizer, _ = plan.make_optimizer(1000)
    members = {
        name: dataclasses.replace(
            member,
            model=make_lib.make_model(plan.models[name], words),
            optimizer=optimizer if member.trains else None,
        )
        for name, member in plan.members.items()
    }
    _, step, _ = make_step(plan, members, 1000)
    pairs = jax.tree.map(lambda x: x[0], batch)
    states = jax.jit(lambda: init_members(members, 0, pairs.images, pairs.texts))()
    state = parallel.put_state(TrainState(jnp.int32(0), states))
    compiled = step.lower(state, batch).compile()
    return compiled, state, num_bytes((state, batch)) + compiled.memory_analysis().temp_size_in_bytes


def compile_forward(config: dict, words: int, state: TrainState, batch: Batch) -> Callable:
    """Compiles only the forward pass of an anchor, with its own weights."""
    model, source = make_lib.make_model(config['model'], words), make_plan(config).source
    variables = jax.tree.map(jnp.copy, state.members['target'].variables)
    compiled = jax.pmap(
        functools.partial(score_in_evaluation, source, model),
        axis_name=parallel.AXIS,
        in_axes=(None, 0),
        out_axes=None,
    )
    return functools.partial(compiled.lower(variables, batch).compile(), variables, batch)


def seconds(function: Callable, *args: object) -> tuple[float, object]:
    """Returns the duration of a call until its result is ready, and the result."""
    start = time.perf_counter()
    result = jax.block_until_ready(function(*args))
    return time.perf_counter() - start, result


def measure(network: str, data: str, batch: Batch, words: int, rounds: int) -> Iterator[Row]:
    """Yields a row for each scenario."""
    configs = {scenario: load_config(network, scenario, data) for scenario in SCENARIOS}
    steps = {scenario: compile_step(config, words, batch) for scenario, config in configs.items()}
    forward = compile_forward(configs['single'], words, steps['single'][1], batch)
    states = {scenario: state for scenario, (_, state, _) in steps.items()}
    times: dict[str, list[float]] = {scenario: [] for scenario in (*SCENARIOS, 'forward')}
    of_cores: dict[str, list[float]] = {scenario: [] for scenario in SCENARIOS}
    for n in range(rounds + 1):  # the first round warms up
        for scenario, (step, _, _) in steps.items():
            start = time.process_time()
            took, (states[scenario], metrics) = seconds(
                step, states[scenario], batch.replace(step=jnp.full(1, n, jnp.int32))
            )
            assert metrics['finite']
            of_cores[scenario].append(time.process_time() - start)
            times[scenario].append(took)
        times['forward'].append(seconds(forward)[0])

    def ratio(scenario: str, times: dict[str, list[float]] = times) -> float:
        pairs = zip(times[scenario][1:], times['single'][1:], strict=True)
        return statistics.median(took / single for took, single in pairs)

    bounds = {'single': 1.0, 'oas': 1 + ratio('forward'), 'oss': 2.0, 'mss': 1 + ratio('forward')}
    state, single_memory = steps['single'][1].members['target'], steps['single'][2]
    weights = num_bytes((state.params, state.batch_stats))
    extra = {'single': 0, 'oas': weights, 'oss': num_bytes(state), 'mss': weights}
    for scenario, (_, _, memory) in steps.items():
        yield {
            'network': network,
            'scenario': scenario,
            's/step': statistics.median(times[scenario][1:]),
            'time': ratio(scenario),
            'CPU time': ratio(scenario, of_cores),
            'lower bound of time': bounds[scenario],
            'MB': memory / MEGABYTE,
            'memory': memory / single_memory,
            'lower bound of memory': 1 + extra[scenario] / single_memory,
        }


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('--networks', nargs='+', default=['baseline', 'vsepp'], help='words of configs/dbl.py')
    parser.add_argument('--data', default='f30k', help='the data set whose settings are measured')
    parser.add_argument('--data_root', help='a *_precomp folder; random data if not given')
    parser.add_argument('--batch_size', type=int, default=128)
    parser.add_argument('--rounds', type=int, default=7)


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Measures each network."""
    with tempfile.TemporaryDirectory() as folder:
        if not args.data_root:
            write_random_data(Path(folder))
        for network in args.networks:
            config = load_config(network, 'single', args.data)
            config['batch_size'], config['data']['root'] = args.batch_size, args.data_root or folder
            config['initialize']['word_vectors'] = ''
            setup = set_up(config)
            batch = parallel.put_batch(setup.make_batch(0))
            yield from measure(network, args.data, batch, len(setup.data.vocabulary), args.rounds)
