"""One training step, the same function on one device and on many: choose, score, objective, update."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import struct

from jitm import parallel
from jitm.models.matcher import Matcher
from jitm.training import diagnostics
from jitm.training.members import Member, MemberState, Outcome
from jitm.training.objective import RankingTerm, Term, objective, token_terms
from jitm.training.source import GlobalBatch, Inputs, Source
from jitm.types import Batch, Ranking

Scores = tuple[Any, ...]  # scores of the global batch, one entry per source; None for a source that was left out


class TrainState(struct.PyTreeNode):
    """Everything that training changes.

    Attributes:
      step: int32 [], steps done.
      members: name -> MemberState.
    """

    step: chex.Array
    members: dict[str, MemberState]


class Forward(NamedTuple):
    """The outputs of a model's forward pass over the global batch.

    Attributes:
      scores: of every source.
      token_losses: name of a token term -> its loss [B] of every pair.
      batch_stats: the batch statistics after this batch.
    """

    scores: Scores
    token_losses: dict[str, chex.Array]
    batch_stats: chex.ArrayTree


def score(
    model: Matcher,
    variables: chex.ArrayTree,
    sources: Sequence[Source],
    terms: Mapping[str, Term],
    batch: Batch,
    chosen: Sequence[Any],
    key: chex.PRNGKey,
    axis: str | None,
) -> Forward:
    """Scores the candidates of all sources with one model in training.

    Each device encodes its rows and scores its queries; scores and token losses are gathered.

    Args:
      model: the matcher.
      variables: its parameters and batch statistics.
      sources: of rankings and token predictions.
      terms: the objective, for the token terms.
      batch: this device's part of the batch.
      chosen: the candidates chosen by each source.
      key: random key for dropout.
      axis: name of the device axis; None on one device.
    """

    def score_all(matcher: Matcher) -> tuple[Scores, dict[str, chex.Array]]:
        texts = matcher.encode_text(batch.texts, train=True)
        images = matcher.encode_image(batch.images, train=True)
        scores, losses = [], {}
        for source, choice in zip(sources, chosen, strict=True):
            own = {name: term for name, term in token_terms(terms).items() if term.predictions in source.predictions}
            of_source, token_losses = source.score(matcher, Inputs(images, texts, batch, choice, own, axis))
            scores.append(of_source)
            losses |= token_losses
        return tuple(scores), losses

    outputs, changed = model.apply(variables, method=score_all, mutable=['batch_stats'], rngs={'dropout': key})
    return Forward(*parallel.all_gather(outputs, axis), changed.get('batch_stats', {}))


def score_as_anchor(
    model: Matcher, state: MemberState, sources: Sequence[Source], batch: Batch, axis: str | None
) -> Scores:
    """Scores the candidates of the global batch in evaluation mode, for other models to learn from."""

    def score_batch(matcher: Matcher) -> Scores:
        images, texts = matcher.encode_image(batch.images), matcher.encode_text(batch.texts)
        inputs = Inputs(images, texts, batch, axis=axis, train=False)
        scores = tuple(source.score(matcher, inputs)[0] if source.for_anchors else None for source in sources)
        return jax.tree.map(lambda x: x if x.dtype == bool else matcher.training_scores(x), scores)

    return parallel.all_gather(model.apply(state.variables, method=score_batch), axis)


def rank(
    sources: Sequence[Source], scores: Scores, batch: GlobalBatch, anchors: Sequence[Scores] = ()
) -> dict[str, Ranking]:
    """Makes the rankings of all sources from their scores, and from those of anchor models."""
    rankings = {}
    for n, (source, of_source) in enumerate(zip(sources, scores, strict=True)):
        if of_source is not None:
            rankings |= source.rank(of_source, batch, [anchor[n] for anchor in anchors])
    return rankings


def terms_of(member: Member, terms: Mapping[str, Term]) -> dict[str, Term]:
    """Returns the terms of a model's objective: terms with anchor scores only if it learns from others."""

    def takes_anchors(term: Term) -> bool:
        return isinstance(term, RankingTerm) and 'anchor_scores' in term.inputs

    return {name: term for name, term in terms.items() if member.learn_from or not takes_anchors(term)}


@dataclasses.dataclass(frozen=True, eq=False)
class TrainStep:
    """The training step `(state, batch, axis=None) -> (state, metrics)`.

    If the loss or a gradient is not finite it returns the state unchanged and `metrics['finite']` is False. All later
    steps return it unchanged too, because its step is no longer that of the batch.

    Attributes:
      members: the models that train together; no gradient flows through the scores of another model.
      terms: the objective of each trained model, see `terms_of`.
      sources: of rankings and token predictions, in the order in which they are scored.
      seed: seed for dropout and sampling.
      steps_per_epoch: turns the step into the epoch, which decides which terms are active.
      epochs: total number of epochs of the run.
    """

    members: Mapping[str, Member]
    terms: Mapping[str, Term]
    sources: Sequence[Source]
    seed: int
    steps_per_epoch: int
    epochs: int

    @property
    def trained(self) -> dict[str, Member]:
        """The models with a gradient, by name."""
        return {name: self.members[name] for name in sorted(self.members) if self.members[name].trains}

    @property
    def anchors(self) -> list[str]:
        """Names of the models without a gradient that others learn from."""
        learned_from = {anchor for member in self.trained.values() for anchor in member.learn_from}
        return [name for name, member in self.members.items() if name in learned_from and not member.trains]

    def keys(self, step: chex.Array, axis: str | None) -> dict[str, chex.PRNGKey]:
        """Makes the random key of each trained model for this device and step."""
        key = jax.random.fold_in(jax.random.key(self.seed), step)
        return {name: parallel.device_key(jax.random.fold_in(key, n), axis) for n, name in enumerate(self.trained)}

    def choose(
        self, state: TrainState, batch: Batch, keys: Mapping[str, chex.PRNGKey], axis: str | None
    ) -> dict[str, tuple[Any, ...]]:
        """Chooses candidates for each trained model from every source, without gradient."""
        models = {name: (member.model, state.members[name].variables) for name, member in self.members.items()}
        return {
            name: tuple(source.choose(models, name, batch, keys[name], axis) for source in self.sources)
            for name in self.trained
        }

    def score(
        self,
        params: Mapping[str, chex.ArrayTree],
        state: TrainState,
        batch: Batch,
        chosen: Mapping[str, tuple[Any, ...]],
        keys: Mapping[str, chex.PRNGKey],
        axis: str | None,
    ) -> dict[str, Forward]:
        """Scores the candidates with each trained model, from parameters that carry the gradient."""
        forward = {}
        for name, member in self.trained.items():
            variables = {'params': member.stop_frozen(params[name]), 'batch_stats': state.members[name].batch_stats}
            given = self.sources, self.terms, batch, chosen[name], keys[name], axis
            forward[name] = score(member.model, variables, *given)
        return forward

    def rankings(
        self, forward: Mapping[str, Forward], anchors: Mapping[str, Scores], index: GlobalBatch
    ) -> dict[str, dict[str, Ranking]]:
        """Makes the rankings of each trained model; scores of other models in them carry no gradient."""
        scores = jax.lax.stop_gradient({name: out.scores for name, out in forward.items()}) | anchors
        return {
            name: rank(self.sources, out.scores, index, [scores[other] for other in self.trained[name].learn_from])
            for name, out in forward.items()
        }

    def objective(
        self, forward: Mapping[str, Forward], anchors: Mapping[str, Scores], index: GlobalBatch, epoch: chex.Array
    ) -> tuple[chex.Array, dict[str, chex.Array]]:
        """Computes the sum of the objectives of all trained models, and `NAME/loss` and `NAME/terms/TERM` of each."""
        total, values = 0.0, {}
        for name, rankings in self.rankings(forward, anchors, index).items():
            terms = terms_of(self.members[name], self.terms)
            loss, of_terms = objective(terms, rankings, epoch, forward[name].token_losses)
            total += loss
            values |= {f'{name}/loss': loss} | {f'{name}/terms/{term}': value for term, value in of_terms.items()}
        return total, values

    def diagnose(
        self,
        forward: Mapping[str, Forward],
        anchors: Mapping[str, Scores],
        index: GlobalBatch,
        epoch: chex.Array,
        gradients: Mapping[str, chex.ArrayTree],
    ) -> dict[str, chex.Array]:
        """Computes the diagnostics of every model, `NAME/METRIC`."""
        metrics = {}
        for name, rankings in self.rankings(forward, anchors, index).items():
            metrics[name] = diagnostics.ranking_metrics(rankings, terms_of(self.members[name], self.terms), epoch)
            metrics[name] |= diagnostics.gradient_norms(gradients[name])
        for name, scores in anchors.items():
            rankings = rank(self.sources, scores, index)
            metrics[name] = diagnostics.gap_metrics(rankings, diagnostics.hard_epsilon(self.terms))
        return {f'{name}/{key}': value for name, of_model in metrics.items() for key, value in of_model.items()}

    def update(
        self, state: TrainState, gradients: Mapping[str, chex.ArrayTree], forward: Mapping[str, Forward]
    ) -> TrainState:
        """Applies each model's update rule; models without a gradient see the new states of those with one."""
        progress = state.step / (self.epochs * self.steps_per_epoch)

        def apply(name: str, updated: Mapping[str, MemberState]) -> MemberState:
            member = self.members[name]
            batch_stats = forward[name].batch_stats if name in forward else None
            outcome = Outcome(member.optimizer, gradients.get(name), batch_stats, progress, updated)
            return member.rule(state.members[name], outcome)

        updated = {name: apply(name, {}) for name in self.trained}
        states = {name: updated[name] if name in updated else apply(name, updated) for name in self.members}
        return TrainState(state.step + 1, states)

    def __call__(self, state: TrainState, batch: Batch, axis: str | None = None) -> tuple[TrainState, dict]:
        """Takes one step; see the class."""
        epoch, keys = state.step // self.steps_per_epoch, self.keys(state.step, axis)
        index = GlobalBatch(*parallel.all_gather((batch.image_index, batch.relevance), axis))
        chosen = self.choose(state, batch, keys, axis)
        anchors = {
            name: score_as_anchor(self.members[name].model, state.members[name], self.sources, batch, axis)
            for name in self.anchors
        }

        def loss(params: Mapping[str, chex.ArrayTree]) -> tuple[chex.Array, tuple]:
            forward = self.score(params, state, batch, chosen, keys, axis)
            total, values = self.objective(forward, anchors, index, epoch)
            return total, (forward, values)

        params = {name: state.members[name].params for name in self.trained}
        (total, (forward, values)), gradients = parallel.value_and_mean_gradient(loss, axis)(params)
        metrics = values | self.diagnose(forward, anchors, index, epoch, gradients)
        finite = jnp.isfinite(total + sum(metrics[f'{name}/gradient_norm'] for name in self.trained))
        # A state that was not updated no longer stands at the batch's step, so it stays unchanged from then on.
        proceed = finite & (batch.step == state.step)
        new = self.update(state, gradients, forward)
        return jax.tree.map(lambda new, old: jnp.where(proceed, new, old), new, state), metrics | {'finite': finite}
