"""One training step, the same function on one device and on many."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import struct

from jitm import parallel
from jitm.models.matcher import Matcher
from jitm.synthesis.generator import Synthesis, Synthetic
from jitm.training.candidates import ShortlistScores, Source
from jitm.training.diagnostics import collapse_metrics, difficulty, gap_metrics, gradient_norms
from jitm.training.generated import GENERATED, HEADS, MASKED, masked_losses, score_synthetic
from jitm.training.members import Member, MemberState, Outcome
from jitm.training.objective import Term, objective
from jitm.types import Batch, Ranking

SELHN_EPSILON = 0.01  # as published, to look at losses that have none of their own


class TrainState(struct.PyTreeNode):
    """Everything that training changes.

    Attributes:
      step: int32 [], steps done.
      members: name -> MemberState.
    """

    step: chex.Array
    members: dict[str, MemberState]


class Choice(NamedTuple):
    """What a member is trained on in a step, chosen without gradient.

    Attributes:
      candidates: of each query, as the source chose them.
      synthetic: wrong sentences of this device's images; None without.
    """

    candidates: chex.ArrayTree
    synthetic: Synthetic | None = None


class Scores(NamedTuple):
    """A member's scores of a global batch.

    Attributes:
      retrieved: as the source scores.
      generated: of each image with its own and with its wrong sentences; None without.
    """

    retrieved: chex.ArrayTree
    generated: ShortlistScores | None = None

    def rankings(
        self, source: Source, image_index: chex.Array, relevance: chex.Array | None, anchors: Sequence['Scores']
    ) -> dict[str, Ranking]:
        """Makes the rankings of the global batch."""
        rankings = source.rank(self.retrieved, image_index, relevance, tuple(anchor.retrieved for anchor in anchors))
        return rankings if self.generated is None else rankings | {GENERATED: self.generated.ranking()}


def forward(
    model: Matcher,
    variables: chex.ArrayTree,
    batch: Batch,
    choice: Choice,
    key: chex.PRNGKey,
    axis: str | None,
    source: Source,
    token_terms: Mapping[str, Term],
) -> tuple[Scores, dict[str, chex.Array], chex.ArrayTree]:
    """Scores the candidates of the global batch's queries, and its words, on every device.

    Each device encodes its rows, scores its queries, reads the words of its own pairs, and scores and losses are
    gathered.

    Returns:
      The scores, of each token term the loss of every text [B], and the batch statistics after this batch.
    """

    def terms_for(*predictions: str) -> dict[str, Term]:
        return {name: term for name, term in token_terms.items() if term.predictions in predictions}

    def score(matcher: Matcher) -> tuple[Scores, dict[str, chex.Array]]:
        texts = matcher.encode_text(batch.texts, train=True)
        images = matcher.encode_image(batch.images, train=True)
        losses, generated = {}, None
        if predicted := {n: t for n, t in token_terms.items() if t.predictions not in (MASKED, *HEADS)}:
            predictions = matcher.predict_tokens(images, batch.texts, train=True)
            losses |= {name: term.per_text(predictions) for name, term in predicted.items()}
        retrieved = source.score(matcher, images, texts, batch, choice.candidates, axis)
        if masked := terms_for(MASKED):
            losses |= masked_losses(matcher, images, batch, masked)
        if choice.synthetic is not None:
            generated, of_words = score_synthetic(matcher, images, batch, choice.synthetic, terms_for(*HEADS))
            losses |= of_words
        return Scores(retrieved, generated), losses

    (scores, losses), changed = model.apply(variables, method=score, mutable=['batch_stats'], rngs={'dropout': key})
    return *parallel.all_gather((scores, losses), axis), changed.get('batch_stats', {})


def evaluation_scores(model: Matcher, state: MemberState, batch: Batch, axis: str | None, source: Source) -> Scores:
    """Scores the global batch as in evaluation, for others to learn from."""

    def score(matcher: Matcher) -> Scores:
        images, texts = matcher.encode_image(batch.images), matcher.encode_text(batch.texts)
        return Scores(source.score(matcher, images, texts, batch, None, axis, train=False))

    return parallel.all_gather(model.apply(state.variables, method=score), axis)


def terms_of(member: Member, terms: Mapping[str, Term]) -> dict[str, Term]:
    """The terms of a member's objective: all, but those that take anchor scores only if it learns from others."""
    return {name: term for name, term in terms.items() if member.learn_from or 'anchor_scores' not in term.inputs}


def update_members(
    members: Mapping[str, Member],
    states: Mapping[str, MemberState],
    gradients: Mapping[str, chex.ArrayTree],
    batch_stats: Mapping[str, chex.ArrayTree],
    progress: chex.Array,
) -> dict[str, MemberState]:
    """Applies every member's rule; those that do not train may look at the new states of those that do."""

    def update(name: str, updated: Mapping[str, MemberState]) -> MemberState:
        member = members[name]
        outcome = Outcome(member.optimizer, gradients.get(name), batch_stats.get(name), progress, updated)
        return member.update(states[name], outcome)

    updated = {name: update(name, {}) for name, member in members.items() if member.trains}
    return {name: updated[name] if member.trains else update(name, updated) for name, member in members.items()}


def make_train_step(
    members: Mapping[str, Member],
    terms: Mapping[str, Term],
    source: Source,
    *,
    seed: int,
    steps_per_epoch: int,
    epochs: int,
    synthesis: Synthesis | None = None,
) -> Callable:
    """Builds `train_step(state, batch, axis=None) -> (state, metrics)`.

    Args:
      members: who trains, and learning from whom; scores of others never carry a gradient to them.
      terms: the objective of each that trains, but those that take anchor scores only of one that learns from others.
      source: of the candidates.
      seed: of dropout and of generated sentences.
      steps_per_epoch: turns the step into the epoch the terms ask for.
      epochs: of the whole run.
      synthesis: how wrong sentences are written; None for none.

    Returns:
      The step. It leaves the state alone if the loss or a gradient is not finite, and from then on, since the state no
      longer stands at the step the next batch is for; `metrics['finite']` says so.
    """

    epsilons = [term.keywords['epsilon'] for term in terms.values() if 'epsilon' in term.keywords]
    epsilon = epsilons[0] if epsilons else SELHN_EPSILON
    token_terms = {name: term for name, term in terms.items() if term.predictions}
    training = {name: members[name] for name in sorted(members) if members[name].trains}
    own_terms = {name: terms_of(member, terms) for name, member in training.items()}
    anchors = [
        name for name in members if any(name in m.learn_from for m in training.values()) and name not in training
    ]

    def choose(state: TrainState, batch: Batch, name: str, key: chex.PRNGKey, axis: str | None) -> Choice:
        model, variables = training[name].model, state.members[name].variables
        candidates = model.apply(variables, batch, axis, method=source.choose)
        if synthesis is None:
            return Choice(candidates)
        writer = members[synthesis.generator].model, state.members[synthesis.generator].variables
        keys = jax.random.split(jax.random.fold_in(key, 1), len(batch.image_index))
        return Choice(candidates, synthesis.choose(model, variables, writer, batch, keys))

    def train_step(state: TrainState, batch: Batch, axis: str | None = None) -> tuple[TrainState, dict]:
        epoch = state.step // steps_per_epoch
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        keys = {name: parallel.device_key(jax.random.fold_in(key, n), axis) for n, name in enumerate(training)}
        image_index, relevance = parallel.all_gather((batch.image_index, batch.relevance), axis)
        choices = {name: choose(state, batch, name, keys[name], axis) for name in training}
        still = {
            name: evaluation_scores(members[name].model, state.members[name], batch, axis, source) for name in anchors
        }

        def loss(params):
            passes = {}
            for name, member in training.items():
                variables = {'params': params[name], 'batch_stats': state.members[name].batch_stats}
                passes[name] = forward(
                    member.model, variables, batch, choices[name], keys[name], axis, source, token_terms
                )
            scores = jax.lax.stop_gradient({name: scores for name, (scores, *_) in passes.items()}) | still
            total, statistics, metrics = 0.0, {}, {}
            for name, (own_scores, token_losses, statistics[name]) in passes.items():
                learned_from = [scores[anchor] for anchor in training[name].learn_from]
                rankings = own_scores.rankings(source, image_index, relevance, learned_from)
                value, values = objective(own_terms[name], rankings, epoch, token_losses)
                total += value
                told = {'loss': value} | {f'terms/{term}': value for term, value in values.items()}
                told |= gap_metrics(rankings, epsilon) | collapse_metrics(rankings, own_terms[name], epoch)
                if GENERATED in rankings:
                    told |= {f'{GENERATED}/{what}': value for what, value in difficulty(rankings[GENERATED]).items()}
                metrics |= {f'{name}/{what}': value for what, value in told.items()}
            return total, (statistics, metrics)

        params = {name: state.members[name].params for name in training}
        (total, (statistics, metrics)), gradients = parallel.value_and_mean_gradient(loss, axis)(params)
        for name, scores in still.items():
            told = gap_metrics(scores.rankings(source, image_index, None, ()), epsilon)
            metrics |= {f'{name}/{what}': value for what, value in told.items()}
        norms = {f'{name}/{what}': norm for name in training for what, norm in gradient_norms(gradients[name]).items()}
        finite = jnp.isfinite(total + sum(norms.values()))
        progress = state.step / (epochs * steps_per_epoch)
        updated = update_members(members, state.members, gradients, statistics, progress)
        proceed = finite & (batch.step == state.step)
        new = TrainState(state.step + 1, updated)
        state = jax.tree.map(lambda new, old: jnp.where(proceed, new, old), new, state)
        return state, metrics | norms | {'finite': finite}

    return train_step
