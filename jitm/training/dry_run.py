"""What a run would train, without a step of it: `jitm train --dry_run`."""

import jax

from jitm.devices import parallel
from jitm.training.data import describe_features
from jitm.training.setup import Setup

GIGABYTE = 1e9


def describe(setup: Setup) -> str:
    """Describes the data, batches and models of a run, and the memory of a step, which is compiled for that.

    Works in a single process.
    """
    data = setup.data
    train = data.train
    validation = data.validation
    pipeline = setup.pipeline
    state = jax.eval_shape(setup.random_state)
    memory = parallel.step_bytes(setup.train_step, state, parallel.split_rows(setup.make_batch(0))) / GIGABYTE
    lines = [
        f'training     {train.num_images:,} images, {train.num_texts:,} captions ({train.name})',
        f'validation   {validation.num_images:,} images, {validation.num_texts:,} captions ({validation.name})',
        *([] if train.regions is None else [f'features     {describe_features(train)}']),
        f'vocabulary   {len(data.vocabulary):,} words',
        f'steps        {setup.plan.epochs} epochs of {pipeline.steps_per_epoch:,}, {setup.total_steps:,} in all',
        f'batches      {setup.plan.batch_size} pairs, of {pipeline.num_shapes} shapes, each compiled once',
        *(f'parameters   {_count(member.params):,} of {name}' for name, member in state.members.items()),
        f'memory       {memory:.3g} GB on each device for a step, by the compiler',
        *(f'warning      {warning}' for warning in setup.warnings),
    ]
    return '\n'.join(lines)


def _count(params: dict) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))
