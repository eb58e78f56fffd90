"""The objective: a weighted sum of terms, each a loss of both rankings, reduced."""

import dataclasses
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import chex
import jax.numpy as jnp

from jitm import config as config_lib
from jitm.errors import UserError
from jitm.types import Ranking

REDUCTIONS = {'sum': jnp.sum, 'mean': jnp.mean}

# What a loss may ask for besides scores and masks, by an argument of this name: fields that not every Ranking has, and
# what a user does to have them.
INPUTS = {
    'anchor_scores': 'add an anchor member and name it in learn_from',
    'margins': "set relevance.source, such as 'cider.from_captions'",
}


def _inputs(loss: Callable) -> list[str]:
    return [name for name in inspect.signature(loss).parameters if name in INPUTS]


@dataclasses.dataclass(frozen=True)
class Term:
    """One term of the objective.

    Attributes:
      loss: `(scores, positives, negatives) -> [Q]`, and by keyword those of `INPUTS` it has as arguments.
      weight: factor.
      since: first epoch in which the term counts.
      until: first epoch in which it no longer does, None for never.
      reduction: 'sum' or 'mean' over the queries of each direction; the two directions are added.
      keywords: the loss' own arguments, from the config.
    """

    loss: Callable
    weight: float
    since: int
    until: int | None
    reduction: str
    keywords: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __call__(self, rankings: Mapping[str, Ranking], epoch: chex.Numeric) -> chex.Array:
        """The term's value, a scalar; 0 outside of its epochs."""
        reduce = REDUCTIONS[self.reduction]
        value = sum(reduce(self.per_query(r)) for r in rankings.values())
        return jnp.where(self.active(epoch), self.weight * value, 0)

    def per_query(self, ranking: Ranking) -> chex.Array:
        """The loss of each query, [Q], without weight and epochs."""
        inputs = {name: getattr(ranking, name) for name in _inputs(self.loss)}
        return self.loss(ranking.scores, ranking.positives, ranking.negatives, **inputs)

    def active(self, epoch: chex.Numeric) -> chex.Array:
        """Whether the term counts in an epoch."""
        return (epoch >= self.since) & (True if self.until is None else epoch < self.until)


def make_terms(configs: Mapping[str, Mapping[str, Any]], supplied: Collection[str] = ()) -> dict[str, Term]:
    """Builds the terms of a config.

    Args:
      configs: name -> dict(loss='ranking.max_of_hinges', weight=, since=, until=, reduction=, and the loss' own).
      supplied: those of `INPUTS` that the rankings will hold.

    Raises:
      UserError: if a loss is unknown, an argument is unknown or missing, or a loss needs an input nobody supplies.
    """
    if not configs:
        raise UserError("config key 'terms' is empty; name at least one loss")
    terms = {}
    for name, keywords in configs.items():
        keywords = dict(keywords)
        where = f'terms.{name}'
        own = {key: keywords.pop(key) for key in ('weight', 'since', 'until', 'reduction') if key in keywords}
        loss_name = keywords.pop('loss', None)
        if loss_name is None:
            raise UserError(f"config key '{where}.loss' is missing; name a loss, such as 'ranking.max_of_hinges'")
        loss = config_lib.resolve('jitm.losses', loss_name)
        inputs = _inputs(loss)
        if missing := [name for name in inputs if name not in supplied]:
            raise UserError(f"'{where}' needs {missing[0]}: {INPUTS[missing[0]]}")
        loss = config_lib.bind(loss, keywords, where=where, later=('scores', 'positives', 'negatives', *inputs))
        if own.get('reduction') not in REDUCTIONS:
            raise UserError(f"config key '{where}.reduction' is {own.get('reduction')!r}; take 'sum' or 'mean'")
        terms[name] = config_lib.bind(Term, own, where=where, later=('loss', 'keywords'))(loss=loss, keywords=keywords)
        if terms[name].until is not None and terms[name].until <= terms[name].since:
            raise UserError(
                f"'{where}' never counts: since {terms[name].since} is not before until {terms[name].until}"
            )
    return terms


def objective(
    terms: Mapping[str, Term], rankings: Mapping[str, Ranking], epoch: chex.Numeric
) -> tuple[chex.Array, dict[str, chex.Array]]:
    """Sums the terms.

    Args:
      terms: name -> Term.
      rankings: direction -> Ranking.
      epoch: int [], for terms that come and go.

    Returns:
      The total, a scalar, and each term's value by name.
    """
    values = {name: term(rankings, epoch) for name, term in terms.items()}
    return sum(values.values()), values
