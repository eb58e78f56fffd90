"""One training step, the same function on one device and on many: choose, score, objective, update."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import struct

from jitm import collectives, parallel
from jitm.models.matcher import Matcher
from jitm.training import diagnostics
from jitm.training.labels import Labels, Stored, labelled
from jitm.training.members import Member, MemberState
from jitm.training.objective import DIRECTIONS, RankingTerm, Term, objective
from jitm.training.queue import Queue
from jitm.training.queue import Stored as Queued
from jitm.types import Batch, Ranking

Models = Mapping[str, tuple[Matcher, chex.ArrayTree]]  # name of a jointly trained model -> matcher and variables
Rankings = dict[str, Ranking]
TermLosses = dict[str, chex.Array]  # name of a term -> its unreduced loss of every pair, [B]


class Source(NamedTuple):
    """A source of rankings, of losses of terms, or of both.

    Attributes:
      rank: `(matcher, images, texts, batch, chosen, train) -> (rankings, losses)`: scores candidates with a bound
        model, given the encoded images and texts and the part of the batch on this device, what `choose` returned, and
        whether the model trains. The result is that of the global batch. A model that others learn from is scored with
        `train=False`, and only by sources without `choose`.
      choose: `(models, name, batch, key) -> chosen`: chooses the candidates of this device's queries for the model of
        this name, without gradient; `models` are all models that train together. None if nothing is chosen.
      num_extra: The number of candidate pairs that the batch has besides its own, `Batch.extra`.
      mismatched: Whether the batch has `Batch.mismatched`.
      perturbations: The kinds of the captions in `Batch.perturbed`, see `jitm.data.perturbations.perturber`.
      by_term: Whether `rank` computes the losses of the ranking terms itself, which it takes as `terms`.
      queue: What is kept of the first rows that `choose` returns, for the next step; None for nothing.
      excludes: Patterns of config keys that must not be set with it, and why.
    """

    rank: Callable[..., tuple[Rankings, TermLosses]]
    choose: Callable[..., chex.ArrayTree] | None = None
    num_extra: int = 0
    mismatched: bool = False
    perturbations: tuple[str, ...] = ()
    by_term: bool = False
    queue: Queue | None = None
    excludes: Mapping[str, str] = MappingProxyType({})


class TrainState(struct.PyTreeNode):
    """Everything that training changes.

    Attributes:
      step: int32 [], the number of steps done.
      members: The state of each member by name.
      labels: What `Labels` store for each training pair; empty without.
      queue: The pairs of past steps; empty without.
    """

    step: chex.Array
    members: dict[str, MemberState]
    labels: Stored = struct.field(default_factory=dict)
    queue: Queued = struct.field(default_factory=dict)


def train_step(
    state: TrainState,
    batch: Batch,
    *,
    members: Mapping[str, Member],
    terms: Mapping[str, Term],
    sources: Sequence[Source],
    seed: int,
    steps_per_epoch: int,
    epochs: int,
    labels: Labels | None = None,
) -> tuple[TrainState, dict[str, chex.Array]]:
    """Takes one step, within `parallel.data_parallel`.

    If the loss or a gradient is not finite, the state is returned unchanged and `metrics['finite']` is False. All later
    steps return it unchanged too, because its step is no longer that of the batch.

    Args:
      state: The state before the step.
      batch: The part of the batch on this device.
      members: The models that train together; no gradient flows through the scores of another model.
      terms: The objective of each trained model, see `terms_of`.
      sources: The sources of rankings and losses, in the order in which they are computed.
      seed: The seed of dropout and sampling.
      steps_per_epoch: The number of steps of an epoch, which decides which terms are active.
      epochs: The number of epochs of the run.
      labels: How the labels of pairs are learned; None for losses without.

    Returns:
      The state after the step, and metrics: `NAME/METRIC` of each model, and `finite`.

    Raises:
      UserError: While it is traced, if the members, terms and sources do not fit together.
    """
    batch = batch.replace(queue=state.queue)
    epoch, key = state.step // steps_per_epoch, jax.random.fold_in(jax.random.key(seed), state.step)
    trained = {name: members[name] for name in sorted(members) if members[name].trains}
    keys = {name: collectives.device_key(jax.random.fold_in(key, n)) for n, name in enumerate(trained)}
    clean, rows = collectives.all_gather((batch.clean, batch.text_index if labels else None))
    learned_from = {other for member in trained.values() for other in member.learn_from}

    # Choose the candidates of each trained model, and score those of its anchors, without gradient.
    models = {name: (member.model, state.members[name].variables) for name, member in members.items()}
    chosen = {
        name: [source.choose and source.choose(models, name, batch, keys[name]) for source in sources]
        for name in trained
    }
    anchors = {
        name: score_as_anchor(*models[name], sources, batch) for name in members if name in learned_from - set(trained)
    }

    believed = {}
    if labels:
        believed = labels.of_batch(
            state.labels, rows, epoch, lambda name: score_as_anchor(*models[name], sources, batch)
        )

    def loss(params: Mapping[str, chex.ArrayTree]) -> tuple[chex.Array, tuple]:
        # Score the candidates; the scores of other models are constants.
        rankings, term_losses, batch_stats = {}, {}, {}
        for name, member in trained.items():
            variables = {'params': member.stop_frozen(params[name]), 'batch_stats': state.members[name].batch_stats}
            scored = score(member.model, variables, sources=sources, batch=batch, chosen=chosen[name], key=keys[name])
            rankings[name], term_losses[name], batch_stats[name] = scored
            for way in DIRECTIONS:
                if believed:
                    rankings[name][way] = labelled(rankings[name][way], believed[name])
                if clean is not None:
                    views = len(rankings[name][way].scores) // len(clean)
                    rankings[name][way] = rankings[name][way].replace(clean=jnp.repeat(clean, views))
        constants = anchors | jax.lax.stop_gradient(rankings)
        rankings = {
            name: with_anchors(rankings[name], [constants[anchor] for anchor in member.learn_from])
            for name, member in trained.items()
        }

        # Sum the objectives.
        total, values = 0.0, {}
        for name, member in trained.items():
            objective_terms = terms_of(member, terms)
            value, term_values = objective(objective_terms, rankings[name], epoch, term_losses[name])
            total += value
            values[f'{name}/loss'] = value
            values |= {f'{name}/terms/{term}': term_value for term, term_value in term_values.items()}
        return total, (values, rankings, batch_stats)

    params = {name: state.members[name].params for name in trained}
    (total, (values, rankings, batch_stats)), gradients = jax.value_and_grad(loss, has_aux=True)(params)
    gradients = collectives.mean(gradients)

    # Update the models: first those with a gradient, then those that follow them.
    progress = state.step / (epochs * steps_per_epoch)
    updated = {
        name: member.take_gradient_step(state.members[name], gradients[name], batch_stats[name])
        for name, member in trained.items()
    }
    following = {
        name: member.rule(state.members[name], updated, progress)
        for name, member in members.items()
        if name not in trained
    }
    metrics = values | diagnose(
        members=members, terms=terms, rankings=rankings, anchors=anchors, gradients=gradients, epoch=epoch
    )
    finite = jnp.isfinite(total + sum(metrics[f'{name}/gradient_norm'] for name in trained))
    # A state that was not updated no longer stands at the batch's step, so it stays unchanged from then on.
    proceed = finite & (batch.step == state.step)
    stored = labels.after_batch(state.labels, rows, believed, rankings) if labels else {}
    queued = [found for source, found in zip(sources, next(iter(chosen.values())), strict=True) if source.queue]
    queue = jax.tree.map(lambda old, new: new[: len(old)], state.queue, *queued)
    new = TrainState(state.step + 1, {name: (updated | following)[name] for name in members}, stored, queue)
    return jax.tree.map(lambda new, old: jnp.where(proceed, new, old), new, state), metrics | {'finite': finite}


def pair_hinges(
    state: TrainState, batch: Batch, *, members: Mapping[str, Member], sources: Sequence[Source], labels: Labels
) -> tuple[TrainState, dict[str, chex.Array]]:
    """Returns the state, and the `hinges` of the global batch in evaluation mode for each trained model."""
    pairs = len(batch.text_index) * jax.lax.axis_size(parallel.AXIS)
    hinges = {}
    for name, member in members.items():
        if member.trains:
            rankings = score_as_anchor(member.model, state.members[name].variables, sources, batch)
            hinges[name] = labels.hinges(rankings, pairs)
    return state, hinges


def score(
    model: Matcher,
    variables: chex.ArrayTree,
    *,
    sources: Sequence[Source],
    batch: Batch,
    chosen: Sequence[Any],
    key: chex.PRNGKey,
) -> tuple[Rankings, TermLosses, chex.ArrayTree]:
    """Scores the candidates of all sources with one model in training.

    Args:
      model: The matcher.
      variables: The parameters and batch statistics of the matcher.
      sources: The sources of rankings and losses.
      batch: The part of the batch on this device.
      chosen: The choices of each source, None for a source that chooses nothing.
      key: The random key for dropout.

    Returns:
      The rankings and the losses of terms of the global batch, and the batch statistics after it.
    """

    def score_all(matcher: Matcher) -> tuple[Rankings, TermLosses]:
        texts = matcher.encode_text(batch.texts, train=True)
        images = matcher.encode_image(batch.images, train=True)
        rankings, losses = {}, {}
        for source, choice in zip(sources, chosen, strict=True):
            ranked, term_losses = source.rank(matcher, images, texts, batch, choice, True)
            rankings |= ranked
            losses |= term_losses
        return rankings, losses

    outputs, changed = model.apply(variables, method=score_all, mutable=['batch_stats'], rngs={'dropout': key})
    return *outputs, changed.get('batch_stats', {})


def score_as_anchor(model: Matcher, variables: chex.ArrayTree, sources: Sequence[Source], batch: Batch) -> Rankings:
    """Scores the global batch in evaluation mode, for other models to learn from: the sources that choose nothing."""

    def score_all(matcher: Matcher) -> Rankings:
        images, texts = matcher.encode_image(batch.images), matcher.encode_text(batch.texts)
        rankings = {}
        for source in sources:
            if source.choose is None:
                rankings |= source.rank(matcher, images, texts, batch, None, False)[0]
        return rankings

    return model.apply(variables, method=score_all)


def with_anchors(rankings: Rankings, anchors: Sequence[Rankings]) -> Rankings:
    """Returns the rankings, those of both retrieval directions with the scores of the same rankings by A anchors."""
    if not anchors:
        return rankings
    scores = {direction: jnp.stack([anchor[direction].scores for anchor in anchors]) for direction in DIRECTIONS}
    return rankings | {name: rankings[name].replace(anchor_scores=stacked) for name, stacked in scores.items()}


def terms_of(member: Member, terms: Mapping[str, Term]) -> dict[str, Term]:
    """Returns the terms of a model's objective: terms with anchor scores only if it learns from others."""

    def takes_anchors(term: Term) -> bool:
        return isinstance(term, RankingTerm) and 'anchor_scores' in term.inputs

    return {name: term for name, term in terms.items() if member.learn_from or not takes_anchors(term)}


def diagnose(
    members: Mapping[str, Member],
    terms: Mapping[str, Term],
    rankings: Mapping[str, Rankings],
    anchors: Mapping[str, Rankings],
    gradients: Mapping[str, chex.ArrayTree],
    epoch: chex.Array,
) -> dict[str, chex.Array]:
    """Computes the diagnostics of every model, `NAME/METRIC`.

    Args:
      members: The models that train together.
      terms: The objective.
      rankings: The rankings of each trained model.
      anchors: The rankings of each model that others learn from and that does not train.
      gradients: The gradients of each trained model.
      epoch: The epoch, int [].
    """
    metrics = {}
    for name, model_rankings in rankings.items():
        metrics[name] = diagnostics.ranking_metrics(model_rankings, terms_of(members[name], terms), epoch)
        metrics[name] |= diagnostics.gradient_norms(gradients[name])
    epsilon = diagnostics.first_argument(terms, 'epsilon', diagnostics.EPSILON)
    for name, anchor_rankings in anchors.items():
        metrics[name] = diagnostics.gap_metrics(anchor_rankings, epsilon)
    return {f'{name}/{key}': value for name, model_metrics in metrics.items() for key, value in model_metrics.items()}
