"""The objective: a weighted sum of terms, each a reduced loss of rankings or of token predictions."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

import jax
import jax.numpy as jnp
from chex import Array, Numeric

from jitm.config.hints import is_array
from jitm.config.section import Bound, Section
from jitm.errors import ArgumentError, UserError, did_you_mean
from jitm.losses.ranking import masked_mean, masked_sum
from jitm.types import Count, Index, QueryValues, Ranking, TokenPredictions, Weight

Rankings = dict[str, Ranking]
Metrics = dict[str, Array]  # name -> a scalar

DIRECTIONS = ('i2t', 't2i')
REDUCTIONS = {'sum': jnp.sum, 'mean': jnp.mean}

SCORED = 'scores', 'positives', 'negatives'  # the arguments of every loss of rankings
LEARNED = {  # inputs of losses that a model learns or the config of a term sets -> how a user supplies them
    'temperature': 'set it, or use a model that learns it, from model.initial_temperature',
    'bias': 'set it, or use a model that learns it, from model.initial_bias',
}
ANCHORED = {'anchor_scores': 'add an anchor model to members and name it in learn_from'}


class MissingInput(UserError):
    """A term needs an input or a prediction, `name`, that no source gives."""

    def __init__(self, term: str, name: str):
        super().__init__(f"'terms.{term}' needs {name}")
        self.name = name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Term:
    """One term of the objective.

    Attributes:
      loss: The unreduced loss.
      weight: The factor of the reduced loss.
      start_epoch: The first epoch in which the term is active.
      end_epoch: The first epoch in which it is no longer active; None for no end.
      reduction: The reduction over queries or captions, 'sum' or 'mean'.
      name: The key of the term in `terms`, for messages.

    Raises:
      ArgumentError: If the term is never active.
    """

    loss: Callable
    weight: Weight
    start_epoch: Index
    end_epoch: Count | None
    reduction: Literal[*REDUCTIONS]
    name: str = ''

    def __post_init__(self):
        if self.end_epoch is not None and self.end_epoch <= self.start_epoch:
            raise ArgumentError(
                'end_epoch', f'is {self.end_epoch}, not above start_epoch {self.start_epoch}: raise it, or leave it out'
            )

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The keyword arguments of the loss from the config."""
        return getattr(self.loss, 'keywords', {})

    def is_active(self, epoch: Numeric) -> Array:
        """Returns whether the term is active in an epoch, bool []."""
        return (epoch >= self.start_epoch) & (True if self.end_epoch is None else epoch < self.end_epoch)

    def reduce(self, losses: Iterable[Array], epoch: Numeric) -> Array:
        """Reduces, adds and weights unreduced losses.

        Args:
          losses: The unreduced losses: an array [Q] per ranking, or one array [N] for a token term.
          epoch: int [].

        Returns:
          The value of the term, a scalar; 0 while it is not active.
        """
        value = sum(map(REDUCTIONS[self.reduction], losses))
        return jnp.where(self.is_active(epoch), self.weight * value, 0)


Terms = Mapping[str, Term]  # an objective


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankingTerm(Term):
    """A loss of rankings, `(scores, positives, negatives, **inputs) -> [Q]`.

    Attributes:
      rankings: The names of the rankings it is computed for, by default both retrieval directions.
    """

    rankings: tuple[str, ...] = DIRECTIONS

    def __post_init__(self):
        super().__post_init__()
        if not self.rankings:
            raise ArgumentError('rankings', 'is empty; give a tuple of names of rankings')

    @property
    def inputs(self) -> list[str]:
        """The arguments of the loss that the config does not set and that have no default."""
        parameters = inspect.signature(self.loss).parameters.values()
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        return [p.name for p in named if p.name not in SCORED and p.default is p.empty]

    def per_query(self, ranking: Ranking) -> Array:
        """Returns the unreduced loss [Q], the mean over the anchors if there are several."""
        if self.name in ranking.query_values:
            return ranking.query_values[self.name].loss
        check_scores(ranking)
        inputs = {name: ranking.inputs[name] for name in self.inputs}

        def loss(anchor):
            losses = self.loss(ranking.scores, ranking.positives, ranking.negatives, **inputs | anchor)
            check_losses(self.name, losses, len(ranking.scores))
            return losses

        if 'anchor_scores' not in inputs:
            return loss({})
        return jax.vmap(loss)({'anchor_scores': inputs['anchor_scores']}).mean(axis=0)

    def query_values(self, ranking: Ranking) -> QueryValues:
        """Returns the loss of each query and what the diagnostics need; only the loss has a gradient."""
        if self.name in ranking.query_values:
            return ranking.query_values[self.name]
        fixed = jax.lax.stop_gradient(ranking)
        gradient = jax.grad(lambda scores: self.per_query(fixed.replace(scores=scores)).sum())(fixed.scores)
        pull = masked_sum(jnp.abs(gradient), fixed.positives)
        return QueryValues(self.per_query(ranking), self.per_query(with_constant_scores(fixed)), pull)

    def __call__(self, rankings: Rankings, epoch: Numeric) -> Array:
        """Returns the value of the term, a scalar."""
        return self.reduce([self.per_query(rankings[name]) for name in self.rankings], epoch)


def check_scores(ranking: Ranking) -> None:
    """Raises a UserError unless a model scores every image with every text."""
    scores = list(ranking.scores.shape)
    pairs = list(ranking.positives.shape)
    if scores != pairs:
        raise UserError(f'the similarity of the model returns {scores} for {pairs} pairs; it must return [I, T]')


def check_losses(name: str, losses: Any, queries: int) -> None:
    """Raises a UserError unless the term of a name returns a float for each query."""
    shape = getattr(losses, 'shape', None)
    if shape != (queries,) or not jnp.issubdtype(losses.dtype, jnp.floating):
        returned = type(losses).__name__ if shape is None else f'{losses.dtype} of shape {shape}'
        raise UserError(
            f"'terms.{name}' returns {returned} for {queries} queries; a loss returns one float per query, of shape "
            f'({queries},)'
        )


def with_constant_scores(ranking: Ranking) -> Ranking:
    """Returns a ranking in which all scores of a query are the mean of its candidates, also those of mined pairs."""
    mean = masked_mean(ranking.scores, ranking.positives | ranking.negatives)
    constant = ranking.replace(scores=jnp.broadcast_to(mean[:, None], ranking.scores.shape))
    scores = [name for name, values in ranking.inputs.items() if name.endswith('_scores') and values.ndim == 1]
    return constant.with_inputs(**dict.fromkeys(scores, mean))


def is_row_by_row(term: RankingTerm) -> bool:
    """Returns whether the loss of a query is the same without the other queries, for random scores."""
    scores = jax.random.uniform(jax.random.key(0), (4, 4))
    positives = jnp.eye(4, dtype=bool)

    def loss(rows):
        learned = {'temperature': jnp.ones(()), 'bias': jnp.zeros(())}
        return term.per_query(Ranking(scores[rows], positives[rows], ~positives[rows], learned))

    losses = loss(slice(None))
    try:
        single = jnp.concatenate([loss(slice(n, n + 1)) for n in range(len(scores))])
    except Exception:  # raised by a loss that needs as many queries as candidates
        return False
    return bool(jnp.allclose(single, losses, rtol=1e-4, atol=1e-5, equal_nan=True))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenTerm(Term):
    """A loss of token predictions, `(logits, labels, mask) -> [N]`.

    Attributes:
      predictions: The name of its predictions, which is the name of its loss in `jitm.losses.tokens`.
    """

    predictions: str

    def per_text(self, predictions: TokenPredictions) -> Array:
        """Returns the unreduced loss [N]."""
        return self.loss(predictions.logits, predictions.labels, predictions.mask)


def ranking_terms(terms: Terms) -> dict[str, RankingTerm]:
    """Returns the terms that are losses of rankings."""
    return {name: term for name, term in terms.items() if isinstance(term, RankingTerm)}


def token_terms(terms: Terms) -> dict[str, TokenTerm]:
    """Returns the terms that are losses of token predictions."""
    return {name: term for name, term in terms.items() if isinstance(term, TokenTerm)}


def terms_of_predictions(terms: Terms, kinds: Collection[str]) -> dict[str, TokenTerm]:
    """Returns the terms that are losses of token predictions of these kinds."""
    return {name: term for name, term in token_terms(terms).items() if term.predictions in kinds}


def terms_of(learn_from: Collection[str], terms: Terms) -> dict[str, Term]:
    """Returns the terms of a model's objective: those with anchor scores only if it learns from others."""
    anchored = {name for name, term in ranking_terms(terms).items() if 'anchor_scores' in term.inputs}
    return {name: term for name, term in terms.items() if learn_from or name not in anchored}


def first_argument(terms: Terms, name: str, published: float) -> float:
    """Returns an argument of the first loss that sets it, else the published value."""
    return next((term.arguments[name] for term in terms.values() if name in term.arguments), published)


def make_terms(names: Collection[str], parts: Mapping[str, Bound | None]) -> dict[str, Term]:
    """Makes the terms with these names from the bound sections `terms.NAME`.

    Raises:
      UserError: If there is none, or a term is never active.
    """
    if not names:
        raise UserError("config key 'terms' is empty; name at least one loss")
    return {name: parts[f'terms.{name}'](name=name) for name in names}


def kind_of(loss: Callable) -> Callable[..., Term]:
    """Returns the kind of the terms of a loss, `RankingTerm`, or `TokenTerm` for a loss in `jitm.losses.tokens`.

    Raises:
      ArgumentError: If the arguments of the loss are not those of a loss, or one has the name of a key of every term.
    """
    if loss.__module__ == 'jitm.losses.tokens':
        return functools.partial(TokenTerm, predictions=loss.__name__)
    arguments = list(inspect.signature(loss).parameters)
    if arguments[:3] != [*SCORED]:
        problem = f'has the arguments {", ".join(arguments)}; it must have scores, positives and negatives first'
        raise ArgumentError('loss', problem)
    clash = {field.name for field in dataclasses.fields(RankingTerm)} & {*arguments}
    if clash:
        raise ArgumentError('loss', f'has the argument {min(clash)}, a key of every term; rename the argument')
    return RankingTerm


def is_input(parameter: inspect.Parameter) -> bool:
    """Returns whether an argument of a loss may be an input: it has no default, and no hint or that of an array."""
    hint = parameter.annotation
    return parameter.default is parameter.empty and (hint in (parameter.empty, Array, jax.Array) or is_array(hint))


DECLARED = Section(
    'loss',
    'jitm.losses',
    own=callable,
    takes=(*SCORED, 'name'),
    settable=LEARNED,
    inputs=is_input,
    wrapper=kind_of,
)


def check_inputs(terms: Terms, rankings: Rankings, losses: Mapping[str, Array] = MappingProxyType({})) -> None:
    """Raises a UserError if a term names a ranking that does not exist, and a MissingInput if it lacks an input."""
    for name, term in token_terms(terms).items():
        if name not in losses:
            raise MissingInput(name, term.predictions)
    for name, term in ranking_terms(terms).items():
        for ranking in term.rankings:
            if ranking not in rankings:
                raise UserError(
                    f"'terms.{name}.rankings' names '{ranking}', which is not a ranking"
                    f'{did_you_mean(ranking, rankings)}'
                )
            for key in term.inputs:
                if key not in rankings[ranking].inputs:
                    if ranking not in DIRECTIONS:
                        raise UserError(f"'terms.{name}' needs {key}, which only rankings i2t and t2i have")
                    raise MissingInput(name, key)


def objective(
    terms: Terms,
    rankings: Rankings,
    epoch: Numeric,
    losses: Mapping[str, Array] = MappingProxyType({}),
) -> tuple[Array, dict[str, Array]]:
    """Computes the sum of all terms.

    Args:
      terms: The terms by name.
      rankings: The rankings by name.
      epoch: int [].
      losses: The unreduced losses [B] of the token terms, by their names.

    Returns:
      The sum, a scalar, and the value of each term by name.

    Raises:
      UserError, MissingInput: See `check_inputs`.
    """
    check_inputs(terms, rankings, losses)
    values = {
        name: term(rankings, epoch) if isinstance(term, RankingTerm) else term.reduce([losses[name]], epoch)
        for name, term in terms.items()
    }
    return sum(values.values()), values
