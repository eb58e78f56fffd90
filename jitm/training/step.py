"""One training step: look without a gradient, score, sum the objectives, update; the same on one device and on many."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from chex import Array, ArrayTree, PRNGKey
from flax import struct

from jitm.devices import buffers, collectives
from jitm.models.matcher import Matcher
from jitm.training import diagnostics
from jitm.training.members import Member, MemberState
from jitm.training.objective import DIRECTIONS, Metrics, Terms, objective
from jitm.training.source import Losses, Memory, Rankings, Source, View, score_in_evaluation
from jitm.types import Batch


class RunConstants(NamedTuple):
    """The numbers that the randomness and the schedules of a step depend on, besides its own number.

    Attributes:
      seed: The seed of dropout and sampling.
      steps_per_epoch: The number of steps of an epoch, which decides which terms are active.
      epochs: The number of epochs of the run.
    """

    seed: int
    steps_per_epoch: int
    epochs: int


class TrainState(struct.PyTreeNode):
    """Everything that training changes.

    Attributes:
      step: int32 [], the number of steps done.
      members: The state of each member by name.
      memory: The memory of the source between steps; empty for most sources.
    """

    step: Array
    members: dict[str, MemberState]
    memory: Memory = struct.field(default_factory=dict)


def train_step(
    state: TrainState,
    batch: Batch,
    *,
    members: Mapping[str, Member],
    terms: Mapping[str, Terms],
    source: Source,
    constants: RunConstants,
) -> tuple[TrainState, Metrics]:
    """Trains for one step, within `parallel.data_parallel`.

    If the loss or a gradient is not finite, the state is returned unchanged and `metrics['finite']` is False. All later
    steps return it unchanged too, because its step number no longer matches the batch.

    Args:
      state: The state before the step.
      batch: The part of the batch on this device.
      members: All members of the run, trained or not; no gradient flows through the scores of another member.
      terms: The objective of each trained model.
      source: The source of rankings and losses.
      constants: The seed and the lengths of the run.

    Returns:
      The state after the step, and metrics: `NAME/METRIC` of each model, and `finite`.

    Raises:
      UserError: While it is traced, if the members, terms and the source do not fit together.
    """
    epoch = state.step // constants.steps_per_epoch
    key = jax.random.fold_in(jax.random.key(constants.seed), state.step)
    trained = {name: members[name] for name in sorted(members) if members[name].trains}
    keys = {name: collectives.device_key(jax.random.fold_in(key, n)) for n, name in enumerate(trained)}
    models = {name: (member.model, state.members[name].variables) for name, member in members.items()}

    # Look, without gradient: the source decides for each trained model, for instance on its candidates, and untrained
    # models that others learn from are scored. Models that train are scored below.
    seen = source.look(View(models, batch, state.memory, epoch), keys)
    untrained_anchors = set().union(*(member.learn_from for member in trained.values())) - trained.keys()
    untrained_rankings = {
        name: score_in_evaluation(source, *models[name], batch) for name in members if name in untrained_anchors
    }

    def loss(params):
        # Score, with gradient. The scores of other models are constants, so that the gradient of the sum is each
        # model's own.
        rankings = {}
        losses = {}
        batch_stats = {}
        for name, member in trained.items():
            variables = member.variables(params[name], state.members[name])
            scored = score_in_training(source, member.model, variables, batch, seen[name], keys[name])
            rankings[name], losses[name], batch_stats[name] = scored
        fixed_rankings = untrained_rankings | jax.lax.stop_gradient(rankings)
        for name, member in trained.items():
            rankings[name] = with_anchors(rankings[name], [fixed_rankings[anchor] for anchor in member.learn_from])
        # Sum the objectives.
        values = {name: objective(terms[name], rankings[name], epoch, losses[name]) for name in trained}
        return sum(total for total, _ in values.values()), (values, rankings, batch_stats)

    params = {name: state.members[name].params for name in trained}
    (total, (values, rankings, batch_stats)), gradients = jax.value_and_grad(loss, has_aux=True)(params)
    gradients = collectives.mean(gradients)  # each device has that of its own rows, see `gather_results`

    # Update: first the models with a gradient, then the models that follow them, with the source's memory.
    metrics = diagnostics.step_metrics(
        values, rankings, untrained_rankings, gradients, terms, epoch, batch, source.metrics
    )
    finite = jnp.isfinite(total + sum(metrics[f'{name}/gradient_norm'] for name in trained))
    memory = source.remember(state.memory, seen, rankings)
    progress = state.step / (constants.epochs * constants.steps_per_epoch)

    def update(state):
        updated = {
            name: member.take_gradient_step(state.members[name], gradients[name], batch_stats[name])
            for name, member in trained.items()
        }
        following = {n: m.rule(state.members[n], updated, progress) for n, m in members.items() if n not in trained}
        return TrainState(state.step + 1, {name: (updated | following)[name] for name in members}, memory)

    # After a skipped update `state.step` is below `batch.step`, so that all later updates are skipped, too.
    state = buffers.update_if(finite & (batch.step == state.step), update, state)
    return state, metrics | {'finite': finite}


def score_in_training(
    source: Source, model: Matcher, variables: ArrayTree, batch: Batch, seen: Any, key: PRNGKey
) -> tuple[Rankings, Losses, ArrayTree]:
    """Scores the global batch with one model in training.

    Args:
      source: The source of rankings and losses.
      model: The matcher.
      variables: The parameters and batch statistics of the matcher.
      batch: The part of the batch on this device.
      seen: The source's decisions for this model.
      key: The random key for dropout.

    Returns:
      The rankings and the losses of terms of the global batch, and the batch statistics after it.
    """

    def score_all(matcher):
        texts = matcher.encode_text(batch.texts, train=True)
        images = matcher.encode_image(batch.images, train=True)
        return source.score(matcher, images, texts, batch, seen, True)

    outputs, updates = model.apply(variables, method=score_all, mutable=['batch_stats'], rngs={'dropout': key})
    return *outputs, updates.get('batch_stats', {})


def with_anchors(rankings: Rankings, anchors: Sequence[Rankings]) -> Rankings:
    """Adds the scores of the anchors, stacked as [A, Q, C], to the rankings of both directions."""
    if not anchors:
        return rankings
    anchored = dict(rankings)
    for direction in DIRECTIONS:
        scores = jnp.stack([anchor[direction].scores for anchor in anchors])
        anchored[direction] = rankings[direction].with_inputs(anchor_scores=scores)
    return anchored
