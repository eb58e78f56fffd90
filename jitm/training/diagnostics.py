"""What a training step tells of itself besides its loss."""

from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp
import optax

from jitm.losses.ranking import hardest_negative, hardest_positive
from jitm.training.objective import DIRECTIONS, Term, objective
from jitm.types import Ranking

BINS = 20  # of the histogram of difficulty


def gap_metrics(rankings: Mapping[str, Ranking], epsilon: float) -> dict[str, chex.Array]:
    """How far the scores of positives and hardest negatives are apart (paper 004, figures 3 and 7).

    Args:
      rankings: name -> Ranking; those of both directions count.
      epsilon: the difference of scores above which SelHN mines the hardest negative.

    Returns:
      gap: mean over the queries of both directions of the positive's score less the hardest negative's.
      absolute_gap: mean of that difference's absolute value.
      hard_share: share of queries with an absolute difference above epsilon, the hard branch of SelHN.
    """
    gap = jnp.stack(
        [
            hardest_positive(ranking.scores, ranking.positives) - hardest_negative(ranking.scores, ranking.negatives)
            for ranking in map(rankings.get, DIRECTIONS)
        ]
    )
    return {
        'gap': jnp.mean(gap),
        'absolute_gap': jnp.mean(jnp.abs(gap)),
        'hard_share': jnp.mean(jnp.abs(gap) > epsilon),
    }


def difficulty(ranking: Ranking) -> dict[str, chex.Array]:
    """How close the scores of wrong sentences come to that of the true one (paper 001, figure 2).

    Args:
      ranking: of each image's sentences, the first of which is true.

    Returns:
      gap: mean of a wrong sentence's score less the true one's.
      count: how many wrong sentences an image has, on average.
      share_00 and so on: share of the wrong sentences in each of `BINS` equal parts of [-1, 1] by that difference.
    """
    gaps, there = ranking.scores - ranking.scores[:, :1], ranking.negatives
    number = jnp.sum(there)
    part = jnp.clip((gaps + 1) / 2 * BINS, 0, BINS - 1).astype(jnp.int32)
    counts = jnp.sum(jax.nn.one_hot(part, BINS) * there[..., None], axis=(0, 1))
    shares = {f'share_{n:02}': count / jnp.maximum(number, 1) for n, count in enumerate(counts)}
    gap = jnp.sum(jnp.where(there, gaps, 0)) / jnp.maximum(number, 1)
    return {'gap': gap, 'count': number / len(there)} | shares


def collapse_metrics(rankings: Mapping[str, Ranking], terms: Mapping[str, Term], epoch: chex.Numeric) -> dict:
    """What shows that a model collapses or that its gradient vanishes (paper 004, figure 5).

    Args:
      rankings: name -> Ranking, each of the objective.
      terms: an objective, of which token terms are left out.
      epoch: for terms that come and go.

    Returns:
      active_hinges: share of queries with a loss above 0.
      ranking_loss: sum of the terms.
      collapsed_loss: what it would be if all scores were equal (2 x batch x margin for max of hinges).
    """
    terms = {name: term for name, term in terms.items() if term.predictions is None}
    losses = [
        sum(t.active(epoch) * t.per_query(ranking) for t in terms.values() if name in t.rankings)
        for name, ranking in rankings.items()
        if any(name in t.rankings for t in terms.values())
    ]
    equal = {name: r.replace(**_zeros(r)) for name, r in rankings.items()}
    return {
        'active_hinges': jnp.mean(jnp.stack(losses) > 0) if losses else jnp.zeros(()),
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
