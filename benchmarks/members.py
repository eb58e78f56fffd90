"""Times the training step with an anchor branch, and its memory, against the single branch: DBL's OAS, OSS and MSS.

    python -m benchmarks.members                                        # DBL's network and VSE(FC), batch 128
    python -m benchmarks.members --configs vse_fc_max_f8k --rounds 20 --data_root data/f8k_precomp

All steps are taken in turn, in rounds, on the same batch; times are medians of the ratios within a round. An anchor
cannot cost less than its forward pass in evaluation mode, which is timed beside them: 1 + that pass is the floor of OAS
and MSS, and 2 that of OSS, whose anchor trains. Memory is that of the state, the batch and what the compiled step needs
besides, as the compiler says; its floor is the single branch and an anchor's weights, or for OSS its whole state.
"""

import argparse
import functools
import importlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import chex
import jax
import jax.numpy as jnp

from benchmarks.train_step import write_made_up_data
from configs.dbl.rm_oss_f30k import boost
from jitm import config as config_lib
from jitm.training.build.run import make_source, set_up
from jitm.training.members import init_members, make_members
from jitm.training.objective import make_terms
from jitm.training.optimizer import make_optimizer
from jitm.training.step import TrainState, evaluation_scores, make_train_step
from jitm.types import Batch

SCENARIOS = ('single', 'oas', 'oss', 'mss')
MEGABYTE = 1e6


def load_config(name: str, scenario: str) -> dict:
    """A config of configs/, with RM against an anchor unless the scenario is 'single'."""
    config = importlib.import_module(f'configs.{name}').get_config()
    if scenario != 'single':
        boost(config, scenario, 'anchored.relative_max', margin=0.2, anchor='which is not read')
    return config.to_dict()


def num_bytes(tree: chex.ArrayTree) -> int:
    """The bytes of all arrays of a tree."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def compile_step(config: dict, words: int, batch: Batch) -> tuple[Callable, TrainState, int]:
    """Compiles a scenario's step; returns it, its first state and the bytes that it needs in all."""
    models = {name: config_lib.make_model(config_lib.member_model(config, name), words) for name in config['members']}
    optimizer, _ = make_optimizer(config['optimizer'], 1000, config['epochs'])
    members = make_members(config['members'], models, optimizer)
    step = make_train_step(
        members,
        make_terms(config['terms'], supplied=('anchor_scores',)),
        make_source(config['candidates']),
        seed=0,
        steps_per_epoch=1000,
        epochs=config['epochs'],
    )
    state = TrainState(jnp.int32(0), jax.jit(lambda: init_members(members, 0, batch.images, batch.texts))())
    compiled = jax.jit(step, donate_argnums=0).lower(state, batch).compile()
    return compiled, state, num_bytes((state, batch)) + compiled.memory_analysis().temp_size_in_bytes


def compile_forward(config: dict, words: int, state: TrainState, batch: Batch) -> Callable:
    """Compiles the pass of an anchor alone, on weights of its own."""
    model, source = config_lib.make_model(config['model'], words), make_source(config['candidates'])
    target = jax.tree.map(jnp.copy, state.members['target'].replace(optimizer=()))
    return functools.partial(
        jax.jit(lambda state, batch: evaluation_scores(model, state, batch, None, source))
        .lower(target, batch)
        .compile(),
        target,
        batch,
    )


def seconds(function: Callable, *args: object) -> tuple[float, object]:
    """How long a call takes until its result is there, and the result."""
    began = time.perf_counter()
    result = jax.block_until_ready(function(*args))
    return time.perf_counter() - began, result


def measure(config_name: str, batch: Batch, words: int, rounds: int) -> None:
    """Prints one line per scenario."""
    configs = {scenario: load_config(config_name, scenario) for scenario in SCENARIOS}
    steps = {scenario: compile_step(config, words, batch) for scenario, config in configs.items()}
    forward = compile_forward(configs['single'], words, steps['single'][1], batch)
    states = {scenario: state for scenario, (_, state, _) in steps.items()}
    times: dict[str, list[float]] = {scenario: [] for scenario in (*SCENARIOS, 'forward')}
    for n in range(rounds + 1):  # the first one warms up
        for scenario, (step, _, _) in steps.items():
            took, (states[scenario], metrics) = seconds(step, states[scenario], batch.replace(step=jnp.int32(n)))
            assert metrics['finite']
            times[scenario].append(took)
        times['forward'].append(seconds(forward)[0])
    single = times['single'][1:]

    def ratio(scenario: str) -> float:
        return statistics.median(took / of for took, of in zip(times[scenario][1:], single, strict=True))

    floors = {'single': 1.0, 'oas': 1 + ratio('forward'), 'oss': 2.0, 'mss': 1 + ratio('forward')}
    print(f'{config_name}: {1000 * statistics.median(single):.0f} ms a step, its forward pass {ratio("forward"):.2f}')
    state, alone = steps['single'][1].members['target'], steps['single'][2]
    weights = num_bytes((state.params, state.batch_stats))
    held = {'single': 0, 'oas': weights, 'oss': num_bytes(state), 'mss': weights}
    print('scenario  time  floor  memory  floor       MB')
    for scenario, (_, _, memory) in steps.items():
        print(
            f'{scenario:8} {ratio(scenario):5.2f} {floors[scenario]:6.2f} {memory / alone:7.2f}'
            f' {1 + held[scenario] / alone:6.2f} {memory / MEGABYTE:8.0f}',
            flush=True,
        )


def main(argv: list[str] | None = None) -> None:
    """Prints a table for each config."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--configs', nargs='+', default=['dbl_baseline_f30k', 'vse_fc_max_f30k'])
    parser.add_argument('--data_root', help='a *_precomp folder; made-up data if not given')
    parser.add_argument('--batch_size', type=int, default=128)
    parser.add_argument('--rounds', type=int, default=7)
    args = parser.parse_args(argv)
    print(f'{args.data_root or "made-up data"}, batch {args.batch_size}: {jax.devices()}')
    with tempfile.TemporaryDirectory() as folder:
        if not args.data_root:
            write_made_up_data(Path(folder))
        for name in args.configs:
            config = load_config(name, 'single')
            config['batch_size'], config['data']['root'] = args.batch_size, args.data_root or folder
            config['initialize']['word_vectors'] = ''
            setup = set_up(config)
            measure(name, jax.device_put(setup.make_batch(0)), len(setup.vocabulary), args.rounds)


if __name__ == '__main__':
    main()
