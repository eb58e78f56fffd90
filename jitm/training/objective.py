"""The objective: a weighted sum of terms, each a loss of both rankings or of the texts' tokens, reduced."""

import dataclasses
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jitm import config as config_lib
from jitm.errors import UserError
from jitm.types import Ranking, TokenPredictions

DIRECTIONS = ('i2t', 't2i')
REDUCTIONS = {'sum': jnp.sum, 'mean': jnp.mean}

# What a loss may ask for besides scores and masks, by an argument of this name: fields that not every Ranking has, and
# what a user does to have them.
INPUTS = {
    'anchor_scores': 'add an anchor member and name it in learn_from',
    'offline_scores': 'mine negatives with jitm.mining and set offline.path to their folder, or set stages',
    'offline_pair_scores': 'mine negatives with jitm.mining and set offline.path to their folder, or set stages',
    'margins': "set relevance.source, such as 'cider.from_captions'",
}


def inputs_of(loss: Callable) -> list[str]:
    """Those of `INPUTS` that a loss takes."""
    return [name for name in inspect.signature(loss).parameters if name in INPUTS]


@dataclasses.dataclass(frozen=True)
class Term:
    """One term of the objective.

    Attributes:
      loss: `(scores, positives, negatives) -> [Q]`, and by keyword those of `INPUTS` it has as arguments; of a token
        term `(logits, labels, mask) -> [N]`.
      weight: factor.
      start_epoch: first epoch in which the term counts.
      end_epoch: first epoch in which it no longer does, None for never.
      reduction: 'sum' or 'mean' over the queries of each ranking, the rankings being added, or over the texts.
      keywords: the loss' own arguments, from the config.
      predictions: of a token term the name of the model's predictions it takes; None for a loss of rankings.
      rankings: those it is a loss of: both directions of retrieval, or `generated`.
    """

    loss: Callable
    weight: float
    start_epoch: int
    end_epoch: int | None
    reduction: str
    keywords: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    predictions: str | None = None
    rankings: tuple[str, ...] = DIRECTIONS

    @property
    def inputs(self) -> list[str]:
        """Those of `INPUTS` that its loss takes."""
        return inputs_of(self.loss)

    def __call__(self, rankings: Mapping[str, Ranking], epoch: chex.Numeric) -> chex.Array:
        """The value of a term of rankings, a scalar; 0 outside of its epochs."""
        return self.reduce([self.per_query(rankings[name]) for name in self.rankings], epoch)

    def per_text(self, predictions: Mapping[str, TokenPredictions]) -> chex.Array:
        """The loss [N] of a token term, unreduced."""
        taken = predictions[self.predictions]
        return self.loss(taken.logits, taken.labels, taken.mask)

    def reduce(self, losses: Iterable[chex.Array], epoch: chex.Numeric) -> chex.Array:
        """Weighs and adds up unreduced losses, one array per ranking; 0 outside of the term's epochs."""
        value = sum(map(REDUCTIONS[self.reduction], losses))
        return jnp.where(self.active(epoch), self.weight * value, 0)

    def per_query(self, ranking: Ranking) -> chex.Array:
        """The loss of each query, [Q], without weight and epochs; of several anchors the mean."""
        inputs = {name: getattr(ranking, name) for name in self.inputs}

        def loss(anchor: Mapping[str, chex.Array]) -> chex.Array:
            return self.loss(ranking.scores, ranking.positives, ranking.negatives, **inputs | anchor)

        if 'anchor_scores' not in inputs:
            return loss({})
        return jax.vmap(loss)({'anchor_scores': inputs['anchor_scores']}).mean(axis=0)

    def active(self, epoch: chex.Numeric) -> chex.Array:
        """Whether the term counts in an epoch."""
        return (epoch >= self.start_epoch) & (True if self.end_epoch is None else epoch < self.end_epoch)


def make_terms(
    configs: Mapping[str, Mapping[str, Any]], supplied: Collection[str] = (), rankings: Collection[str] = DIRECTIONS
) -> dict[str, Term]:
    """Builds the terms of a config.

    Args:
      configs: name -> dict(loss='ranking.max_of_hinges', weight=, start_epoch=, end_epoch=, reduction=, if wanted rankings=, and
        the loss' own); a loss in `tokens` takes the model's predictions of that name.
      supplied: those of `INPUTS` that the rankings will hold.
      rankings: the names of the rankings that there will be.

    Raises:
      UserError: if a loss is unknown, an argument is unknown or missing, or a loss needs an input nobody supplies.
    """
    if not configs:
        raise UserError("config key 'terms' is empty; name at least one loss")
    terms = {}
    for name, keywords in configs.items():
        keywords = dict(keywords)
        where = f'terms.{name}'
        own = {key: keywords.pop(key) for key in ('weight', 'start_epoch', 'end_epoch', 'reduction') if key in keywords}
        loss_name = keywords.pop('loss', None)
        if loss_name is None:
            raise UserError(f"config key '{where}.loss' is missing; name a loss, such as 'ranking.max_of_hinges'")
        loss = config_lib.resolve('jitm.losses', loss_name)
        inputs = inputs_of(loss)
        if missing := [name for name in inputs if name not in supplied]:
            raise UserError(f"'{where}' needs {missing[0]}: {INPUTS[missing[0]]}")
        module, _, function = loss_name.rpartition('.')
        predictions = function if module == 'tokens' else None
        ranked = DIRECTIONS if predictions else _named_rankings(where, keywords.pop('rankings', DIRECTIONS), rankings)
        if inputs and not set(ranked) <= set(DIRECTIONS):
            raise UserError(f"'{where}' needs {inputs[0]}, which only rankings {' and '.join(DIRECTIONS)} have")
        later = ('logits', 'labels', 'mask') if predictions else ('scores', 'positives', 'negatives', *inputs)
        loss = config_lib.bind(loss, keywords, where=where, later=later)
        if own.get('reduction') not in REDUCTIONS:
            raise UserError(f"config key '{where}.reduction' is {own.get('reduction')!r}; take 'sum' or 'mean'")
        make_term = config_lib.bind(Term, own, where=where, later=('loss', 'keywords', 'predictions', 'rankings'))
        terms[name] = make_term(loss=loss, keywords=keywords, predictions=predictions, rankings=ranked)
        if terms[name].end_epoch is not None and terms[name].end_epoch <= terms[name].start_epoch:
            raise UserError(
                f"'{where}' is never active: start_epoch {terms[name].start_epoch} is not before end_epoch {terms[name].end_epoch}"
            )
        _check_arguments(where, terms[name])
    return terms


def _named_rankings(where: str, named: Any, known: Collection[str]) -> tuple[str, ...]:
    """The rankings that a term names, at least one.

    Raises:
      UserError: if it names none, or others than there are.
    """
    if not isinstance(named, (tuple, list)) or not named:
        raise UserError(f"config key '{where}.rankings' is {named!r}; give a tuple of some of {', '.join(known)}")
    if unknown := [name for name in named if name not in known]:
        raise UserError(f"'{where}.rankings' names '{unknown[0]}'; there are {', '.join(known)}")
    return tuple(named)


def _check_arguments(where: str, term: Term) -> None:
    """Raises a UserError if the loss refuses its arguments, which it says only when it is computed."""
    scores, own = jnp.zeros((4, 4)), jnp.eye(4, dtype=bool)
    if term.predictions is None:
        loss, example = term.per_query, Ranking(scores, own, ~own, scores[None], scores, scores[0], scores[0])
    else:
        predictions = TokenPredictions(jnp.zeros((4, 4, 2)), jnp.zeros((4, 4), int), own)
        loss, example = term.per_text, {term.predictions: predictions}
    try:
        jax.eval_shape(loss, example)
    except (TypeError, ValueError) as error:
        raise UserError(f"'{where}' cannot be computed with its arguments: {str(error).splitlines()[0]}") from None


def objective(
    terms: Mapping[str, Term],
    rankings: Mapping[str, Ranking],
    epoch: chex.Numeric,
    token_losses: Mapping[str, chex.Array] | None = None,
) -> tuple[chex.Array, dict[str, chex.Array]]:
    """Sums the terms.

    Args:
      terms: name -> Term.
      rankings: name -> Ranking.
      epoch: int [], for terms that come and go.
      token_losses: of each token term by name the loss of every text [B].

    Returns:
      The total, a scalar, and each term's value by name.
    """
    values = {
        name: term(rankings, epoch) if term.predictions is None else term.reduce([token_losses[name]], epoch)
        for name, term in terms.items()
    }
    return sum(values.values()), values
