"""One training step, the same function on one device and on many."""

from collections.abc import Callable, Mapping

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct

from jitm import parallel
from jitm.losses.ranking import hardest_negative, hardest_positive
from jitm.matcher import Matcher
from jitm.training.members import Member, MemberState, Outcome
from jitm.training.objective import Term, objective
from jitm.types import Batch, Pairs, Ranking, TokenPredictions

SELHN_EPSILON = 0.01  # as published, to look at losses that have none of their own


class TrainState(struct.PyTreeNode):
    """Everything that training changes.

    Attributes:
      step: int32 [], steps done.
      members: name -> MemberState.
    """

    step: chex.Array
    members: dict[str, MemberState]


def score_offline(
    matcher: Matcher, images: chex.ArrayTree, texts: chex.ArrayTree, offline: tuple[Pairs, Pairs]
) -> dict[str, tuple[chex.Array, chex.Array]]:
    """Scores mined negatives, each pair of batches encoded by itself as in the released code of AOQ (paper 000).

    Args:
      matcher: in training.
      images: of N matching pairs, encoded.
      texts: of these.
      offline: mined negatives of each pair, and what corresponds to these.

    Returns:
      Direction -> scores [N] of each query with its negative, and of a pair without the query: both negatives for
      images, what corresponds to them for texts.
    """
    negatives, partners = (
        (matcher.encode_image(pairs.images, train=True), matcher.encode_text(pairs.texts, train=True))
        for pairs in offline
    )
    pairs = [(images, negatives[1]), negatives, (negatives[0], texts), partners]
    of_image, of_negatives, of_text, of_partners = (matcher.similarity_pairwise(*pair, train=True) for pair in pairs)
    return {'i2t': (of_image, of_negatives), 't2i': (of_text, of_partners)}


def forward(
    model: Matcher,
    variables: chex.ArrayTree,
    batch: Batch,
    key: chex.PRNGKey,
    axis: str | None,
    token_terms: Mapping[str, Term],
) -> tuple[chex.Array, dict[str, tuple[chex.Array, chex.Array]] | None, dict[str, chex.Array], chex.ArrayTree]:
    """Scores every image of the global batch with every text of it, on every device.

    Each device encodes its rows, scores its images against all texts, predicts the tokens of its own pairs, and rows
    and losses are gathered.

    Returns:
      float32 [B, B], the scores of mined negatives as `score_offline` has them for [B], of each token term the loss of
      every text [B], and the batch statistics after this batch.
    """

    def score(matcher: Matcher) -> tuple[chex.Array, dict | None, dict[str, TokenPredictions]]:
        own_texts = matcher.encode_text(batch.texts, train=True)
        texts = parallel.all_gather(own_texts, axis)
        images = matcher.encode_image(batch.images, train=True)
        predictions = matcher.predict_tokens(images, batch.texts, train=True) if token_terms else {}
        rows = matcher.similarity(images, texts, train=True)
        offline = None if batch.offline is None else score_offline(matcher, images, own_texts, batch.offline)
        return rows, offline, predictions

    (rows, offline, predictions), changed = model.apply(
        variables, method=score, mutable=['batch_stats'], rngs={'dropout': key}
    )
    losses = {name: term.per_text(predictions) for name, term in token_terms.items()}
    return *parallel.all_gather((rows, offline, losses), axis), changed.get('batch_stats', {})


def evaluation_scores(model: Matcher, state: MemberState, batch: Batch, axis: str | None) -> chex.Array:
    """Scores every image of the global batch with every text of it, float32 [B, B], as in evaluation."""

    def score(matcher: Matcher) -> chex.Array:
        texts = parallel.all_gather(matcher.encode_text(batch.texts), axis)
        return matcher.similarity(matcher.encode_image(batch.images), texts)

    rows = model.apply({'params': state.params, 'batch_stats': state.batch_stats}, method=score)
    return parallel.all_gather(rows, axis)


def gap_metrics(rankings: Mapping[str, Ranking], epsilon: float) -> dict[str, chex.Array]:
    """How far the scores of positives and hardest negatives are apart (paper 004, figures 3 and 7).

    Args:
      rankings: direction -> Ranking.
      epsilon: the difference of scores above which SelHN mines the hardest negative.

    Returns:
      gap: mean over the queries of both directions of the positive's score less the hardest negative's.
      absolute_gap: mean of that difference's absolute value.
      hard_share: share of queries with an absolute difference above epsilon, the hard branch of SelHN.
    """
    gap = jnp.stack(
        [hardest_positive(r.scores, r.positives) - hardest_negative(r.scores, r.negatives) for r in rankings.values()]
    )
    return {
        'gap': jnp.mean(gap),
        'absolute_gap': jnp.mean(jnp.abs(gap)),
        'hard_share': jnp.mean(jnp.abs(gap) > epsilon),
    }


def collapse_metrics(rankings: Mapping[str, Ranking], terms: Mapping[str, Term], epoch: chex.Numeric) -> dict:
    """What shows that a model collapses or that its gradient vanishes (paper 004, figure 5).

    Args:
      rankings: direction -> Ranking.
      terms: an objective, of which token terms are left out.
      epoch: for terms that come and go.

    Returns:
      active_hinges: share of queries with a loss above 0.
      ranking_loss: sum of the terms.
      collapsed_loss: what it would be if all scores were equal (2 x batch x margin for max of hinges).
    """
    terms = {name: term for name, term in terms.items() if term.predictions is None}
    losses = [sum(t.active(epoch) * t.per_query(r) for t in terms.values()) for r in rankings.values()]
    equal = {name: r.replace(**_zeros(r)) for name, r in rankings.items()}
    return {
        'active_hinges': jnp.mean(jnp.stack(losses) > 0),
        'ranking_loss': objective(terms, rankings, epoch)[0],
        'collapsed_loss': objective(terms, equal, epoch)[0],
    }


def _zeros(ranking: Ranking) -> dict[str, chex.Array]:
    """All scores of a ranking, as if the model saw no difference."""
    given = {name: getattr(ranking, name) for name in ('scores', 'offline_scores', 'offline_pair_scores')}
    return {name: jnp.zeros_like(scores) for name, scores in given.items() if scores is not None}


def gradient_norms(gradients: chex.ArrayTree) -> dict[str, chex.Array]:
    """The norm of a member's gradient before the clip, and that of its image FC layer if it has one."""
    image_fc = [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(gradients)
        if jax.tree_util.DictKey('image_fc') in path
    ]
    norms = {'gradient_norm': optax.tree.norm(gradients)}
    return norms | ({'image_fc_gradient_norm': optax.tree.norm(image_fc)} if image_fc else {})


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
    make_rankings: Callable,
    *,
    seed: int,
    steps_per_epoch: int,
    epochs: int,
) -> Callable:
    """Builds `train_step(state, batch, axis=None) -> (state, metrics)`.

    Args:
      members: who trains, and learning from whom; scores of others never carry a gradient to them.
      terms: the objective of each that trains, but those that take anchor scores only of one that learns from others.
      make_rankings: `(scores [B, B], image_index [B], relevance [B, B] or None, offline or None, anchor_scores
        [A, B, B] or None) -> {direction: Ranking}`.
      seed: of dropout.
      steps_per_epoch: turns the step into the epoch the terms ask for.
      epochs: of the whole run.

    Returns:
      The step. It leaves the state alone if the loss or a gradient is not finite, and from then on, since the state no
      longer stands at the step the next batch is for; `metrics['finite']` says so.
    """

    epsilons = [term.keywords['epsilon'] for term in terms.values() if 'epsilon' in term.keywords]
    epsilon = epsilons[0] if epsilons else SELHN_EPSILON
    token_terms = {name: term for name, term in terms.items() if term.predictions}
    training = {name: members[name] for name in sorted(members) if members[name].trains}
    own_terms = {name: terms_of(member, terms) for name, member in training.items()}

    def train_step(state: TrainState, batch: Batch, axis: str | None = None) -> tuple[TrainState, dict]:
        epoch = state.step // steps_per_epoch
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        keys = {name: parallel.device_key(jax.random.fold_in(key, n), axis) for n, name in enumerate(training)}
        image_index, relevance = parallel.all_gather((batch.image_index, batch.relevance), axis)
        still = {
            name: evaluation_scores(member.model, state.members[name], batch, axis)
            for name, member in members.items()
            if not member.trains
        }

        def loss(params):
            passes = {}
            for name, member in training.items():
                variables = {'params': params[name], 'batch_stats': state.members[name].batch_stats}
                passes[name] = forward(member.model, variables, batch, keys[name], axis, token_terms)
            scores = jax.lax.stop_gradient({name: scores for name, (scores, *_) in passes.items()}) | still
            total, statistics, metrics = 0.0, {}, {}
            for name, (own_scores, offline, token_losses, statistics[name]) in passes.items():
                anchors = [scores[anchor] for anchor in training[name].learn_from]
                rankings = make_rankings(
                    own_scores, image_index, relevance, offline, jnp.stack(anchors) if anchors else None
                )
                value, values = objective(own_terms[name], rankings, epoch, token_losses)
                total += value
                told = {'loss': value} | {f'terms/{term}': value for term, value in values.items()}
                told |= gap_metrics(rankings, epsilon) | collapse_metrics(rankings, own_terms[name], epoch)
                metrics |= {f'{name}/{what}': value for what, value in told.items()}
            return total, (statistics, metrics)

        params = {name: state.members[name].params for name in training}
        (total, (statistics, metrics)), gradients = parallel.value_and_mean_gradient(loss, axis)(params)
        for name, scores in still.items():
            told = gap_metrics(make_rankings(scores, image_index), epsilon)
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
