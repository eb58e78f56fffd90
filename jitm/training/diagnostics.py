"""Diagnostics logged at each training step, computed from its scores and gradients after differentiation."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import optax
from chex import Array, ArrayTree, Numeric
from flax import traverse_util

from jitm.devices import collectives
from jitm.losses.ranking import hardest_negative, hardest_positive, masked_mean
from jitm.training.objective import DIRECTIONS, Metrics, Rankings, Terms, first_argument, objective, ranking_terms
from jitm.types import Batch

EPSILON = 0.01  # selective hard negatives as published (Li et al., 2023), for losses without an epsilon
MODULES = ('image_fc',)  # gradient norms of these modules are logged where a model has them (Li et al., 2023, figure 5)


def step_metrics(
    values: Mapping[str, tuple[Array, Metrics]],
    rankings: Mapping[str, Rankings],
    untrained: Mapping[str, Rankings],
    gradients: Mapping[str, ArrayTree],
    terms: Mapping[str, Terms],
    epoch: Numeric,
    batch: Batch,
    of_source: Callable[[Rankings, Terms], Metrics],
) -> Metrics:
    """Returns the metrics of a step, `NAME/METRIC`.

    Args:
      values: The loss of each trained model, and the value of each of its terms.
      rankings: The rankings of each trained model.
      untrained: The rankings of each model that others learn from and that does not train.
      gradients: The gradients of each trained model.
      terms: The objective of each trained model.
      epoch: int [].
      batch: The part of the batch on this device.
      of_source: The metrics of the source, from the rankings and the terms of a model.

    Returns:
      The losses and norms, and the results of `gap_metrics`, `collapse_metrics`, `noise_metrics` and the source.
    """
    metrics = {}
    clean = collectives.all_gather(batch.clean)
    all_terms = {}
    for name, (total, of_terms) in values.items():
        ranking = rankings[name]
        objective_terms = terms[name]
        metrics[name] = {'loss': total, 'terms': of_terms}
        metrics[name] |= gap_metrics(ranking, first_argument(objective_terms, 'epsilon', EPSILON))
        metrics[name] |= collapse_metrics(ranking, objective_terms, epoch) | gradient_norms(gradients[name])
        metrics[name] |= {} if clean is None else noise_metrics(ranking, objective_terms, epoch, clean)
        metrics[name] |= of_source(ranking, objective_terms)
        all_terms |= objective_terms
    epsilon = first_argument(all_terms, 'epsilon', EPSILON)
    metrics |= {name: gap_metrics(anchor, epsilon) for name, anchor in untrained.items()}
    return traverse_util.flatten_dict(metrics, sep='/')


def gap_metrics(rankings: Rankings, epsilon: float) -> Metrics:
    """Computes the gap between the scores of positives and hardest negatives (Li et al., 2023, figures 3 and 7).

    Args:
      rankings: The rankings by name; only both retrieval directions count, and only queries with a positive and a
        negative.
      epsilon: The absolute gap above which SelHN mines the hardest negative.

    Returns:
      gap: The mean over the queries of the positive's score minus the hardest negative's.
      absolute_gap: The mean of its absolute value.
      hard_share: The share of queries with an absolute gap above epsilon, the hard branch of SelHN.
    """
    gaps = []
    valid = []
    for ranking in (rankings[direction] for direction in DIRECTIONS):
        match = hardest_positive(ranking.scores, ranking.positives)
        gaps.append(match - hardest_negative(ranking.scores, ranking.negatives))
        valid.append(ranking.positives.any(axis=1) & ranking.negatives.any(axis=1))
    gap = jnp.stack(gaps)
    valid = jnp.stack(valid)
    values = {'gap': gap, 'absolute_gap': jnp.abs(gap), 'hard_share': jnp.abs(gap) > epsilon}
    return {name: masked_mean(value, valid, axis=None) for name, value in values.items()}


def noise_metrics(rankings: Rankings, terms: Terms, epoch: Numeric, clean: Array) -> Metrics:
    """Compares mismatched pairs, mixed by noise, with clean ones.

    Args:
      rankings: The rankings by name.
      terms: An objective.
      epoch: int [].
      clean: bool [B], the pairs of the global batch that noise did not mix.

    Returns:
      For each direction,
      noise/DIRECTION/gradient: The share of mixed pairs in the gradient, by the absolute value of that of each term at
        the score of each pair. Above the rate of the noise a loss follows mixed pairs more than clean ones.
      noise/DIRECTION/separation: The probability that a clean pair of the batch scores above a mixed one, ties as half:
        the area under the ROC curve; 0.5 in a batch without pairs of both kinds.
    """
    metrics = {}
    for way in DIRECTIONS:
        ranking = rankings[way]
        genuine = jnp.repeat(clean, len(ranking.scores) // len(clean))  # each view of a pair is a query
        mixed = total = 0
        for term in ranking_terms(terms).values():
            if way in term.rankings:
                pull = term.query_values(ranking).pull
                mixed += term.reduce([jnp.where(genuine, 0, pull)], epoch)
                total += term.reduce([pull], epoch)
        mixed_share = mixed / jnp.maximum(total, 1e-30)
        scores = hardest_positive(ranking.scores, ranking.positives)
        compared = genuine[:, None] & ~genuine
        above = (jnp.sign(scores[:, None] - scores) + 1) / 2
        separation = jnp.where(compared.any(), masked_mean(above, compared, axis=None), 0.5)
        metrics |= {f'noise/{way}/gradient': mixed_share, f'noise/{way}/separation': separation}
    return metrics


def collapse_metrics(rankings: Rankings, terms: Terms, epoch: Numeric) -> dict:
    """Computes indicators of a collapse or a vanishing gradient (Li et al., 2023, figure 5).

    Args:
      rankings: The rankings of the model by name.
      terms: An objective; token terms are left out.
      epoch: int [].

    Returns:
      active_hinges: The share of queries with a loss above 0.
      ranking_loss: The sum of the ranking terms.
      collapsed_loss: Its value for constant scores, see `QueryValues`: 2 x batch x margin for max of hinges, log 2 for
        `matching_cross_entropy` of probabilities around 1/2.
    """
    terms = ranking_terms(terms)
    losses = {}
    collapsed = 0
    for term in terms.values():
        values = {way: term.query_values(rankings[way]) for way in term.rankings}
        collapsed += term.reduce([numbers.constant for numbers in values.values()], epoch)
        for way, numbers in values.items():
            losses[way] = losses.get(way, 0) + term.is_active(epoch) * numbers.loss
    return {
        'active_hinges': jnp.mean(jnp.stack([*losses.values()]) > 0) if losses else jnp.zeros(()),
        'ranking_loss': objective(terms, rankings, epoch)[0],
        'collapsed_loss': collapsed,
    }


def gradient_norms(gradients: ArrayTree) -> Metrics:
    """Returns the norm of a model's gradient before clipping, and `MODULE_gradient_norm` for each of `MODULES`."""
    norms = {'gradient_norm': optax.tree.norm(gradients)}
    leaves = jax.tree_util.tree_leaves_with_path(gradients)
    for name in MODULES:
        below = [leaf for path, leaf in leaves if jax.tree_util.DictKey(name) in path]
        if below:
            norms[f'{name}_gradient_norm'] = optax.tree.norm(below)
    return norms
