"""Builds the objective: sources of rankings and token predictions, terms, and the optimizer."""

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jitm import config as config_lib
from jitm import names
from jitm.errors import UserError, did_you_mean
from jitm.synthesis.generator import Synthesis
from jitm.training.candidates import SOURCES, InBatch
from jitm.training.generated import GENERATED, HEADS, MASKED, GeneratedCaptions, MaskedCaptions, MatcherPredictions
from jitm.training.objective import (
    DIRECTIONS,
    INPUTS,
    SETTABLE,
    RankingTerm,
    Term,
    TokenTerm,
    inputs_of,
    ranking_terms,
    token_terms,
)
from jitm.training.source import Source
from jitm.types import Ranking, TokenPredictions

VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
)
TRACEABLE = 'use jax.numpy instead of numpy, and jnp.where instead of if or boolean indices'
COMMON_KEYS = ('weight', 'start_epoch', 'end_epoch', 'reduction')  # of every term
TERM_KEYS = (*COMMON_KEYS, 'rankings')


def make_objective(config: Mapping[str, Any]) -> tuple[dict[str, Term], tuple[Source, ...]]:
    """Builds the terms of a config and the sources of their inputs.

    Args:
      config: the whole config, a nested dict.

    Returns:
      The terms by name, and the sources in the order in which they are scored.

    Raises:
      UserError: if a key is wrong, or terms and sources do not fit together.
    """
    sources = (make_retrieval(config['candidates']), *make_masked(config), *make_generated(config))
    supplied = set().union(*(source.supplies(config) for source in sources))
    rankings = [name for source in sources for name in source.rankings]
    if isinstance(sources[0], InBatch):
        terms = make_terms(config['terms'], supplied, rankings)
    else:
        need = "set candidates.source to 'in_batch', which alone supplies it"
        terms = make_terms(config['terms'], supplied, rankings, dict.fromkeys(INPUTS, need))
    predicted = {name for source in sources for name in source.predictions}
    check_token_sources(terms, predicted)
    check_options(config, terms)
    own = {term.predictions for term in token_terms(terms).values()} - predicted
    return terms, ((MatcherPredictions(tuple(sorted(own))), *sources) if own else sources)


def make_retrieval(section: Mapping[str, Any]) -> Source:
    """Makes the source of retrieval candidates: dict(source='in_batch', ...) -> InBatch."""
    name, keywords = config_lib.choose(section, 'source', where='candidates')
    if name not in SOURCES:
        raise UserError(f"config key 'candidates.source' is '{name}'; take one of {', '.join(SOURCES)}")
    for key in keywords:
        of = [other for other, source in SOURCES.items() if key in inspect.signature(source).parameters]
        if of and name not in of:
            raise UserError(f"config key 'candidates.{key}' is for source '{of[0]}', not for '{name}': leave it out")
    return config_lib.bind(SOURCES[name], keywords, where='candidates')()


def make_masked(config: Mapping[str, Any]) -> tuple[Source, ...]:
    """Makes the source of masked captions, if captions are masked."""
    return (MaskedCaptions(),) if config['masking']['num_views'] else ()


def make_generated(config: Mapping[str, Any]) -> tuple[Source, ...]:
    """Makes the source of synthetic captions, if the config names a generator.

    Raises:
      UserError: if the generator is not a model of `members`, or captions are not masked for it.
    """
    section, num_views = config['synthesis'], config['masking']['num_views']
    synthesis = config_lib.bind(Synthesis, section, where='synthesis')
    generator = section['generator']
    if not generator:
        return ()
    if generator not in config['members']:
        raise UserError(
            f"config key 'synthesis.generator' is '{generator}', no member{did_you_mean(generator, config['members'])}"
        )
    if not num_views:
        raise UserError(
            "config key 'masking.num_views' is 0, but config key 'synthesis' refills masked captions: set it"
        )
    made, most = synthesis(), num_views * section['num_samples']
    if section['num_hard'] > most:
        raise UserError(
            f"config key 'synthesis.num_hard' is {section['num_hard']}, more than the synthetic captions of an image "
            f"('masking.num_views' x 'synthesis.num_samples' = {most})"
        )
    return (GeneratedCaptions(made),)


def make_terms(
    configs: Mapping[str, Mapping[str, Any]],
    supplied: Collection[str] = (),
    rankings: Collection[str] = DIRECTIONS,
    remedies: Mapping[str, str] = INPUTS,
) -> dict[str, Term]:
    """Makes the terms of a config.

    Args:
      configs: name -> dict(loss='ranking.max_of_hinges', weight=, start_epoch=, end_epoch=, reduction=, optionally
        rankings=, and the loss' own arguments); a loss in `tokens` takes the predictions of its name.
      supplied: the names in `INPUTS` that the rankings hold.
      rankings: the names of the rankings.
      remedies: how each of `INPUTS` is supplied, for messages.

    Returns:
      Name -> RankingTerm or TokenTerm.

    Raises:
      UserError: if a loss or an argument is unknown or missing, or a loss needs an input that is not supplied.
    """
    if not configs:
        raise UserError("config key 'terms' is empty; name at least one loss")
    terms = {}
    for name, section in configs.items():
        loss_name, keywords = config_lib.choose(section, 'loss', where=f'terms.{name}')
        where = f'terms.{name}'
        if loss_name.startswith('tokens.'):
            terms[name] = _make_token_term(where, loss_name, keywords)
        else:
            terms[name] = _make_ranking_term(where, loss_name, keywords, supplied, rankings, remedies)
    return terms


def _make_ranking_term(
    where: str,
    loss_name: str,
    keywords: dict[str, Any],
    supplied: Collection[str],
    rankings: Collection[str],
    remedies: Mapping[str, str],
) -> RankingTerm:
    loss = names.resolve('jitm.losses', loss_name, where=f'{where}.loss', own=callable)
    _check_arguments(where, loss)
    inputs = [name for name in inputs_of(loss) if name not in {*SETTABLE} & {*keywords}]
    ranked = _named_rankings(where, keywords.pop('rankings', DIRECTIONS), rankings)
    if inputs and not set(ranked) <= set(DIRECTIONS):
        raise UserError(f"'{where}' needs {inputs[0]}, which only rankings {' and '.join(DIRECTIONS)} have")
    if missing := [name for name in inputs if name not in supplied]:
        raise UserError(f"'{where}' needs {missing[0]}: {remedies[missing[0]]}")
    term = _bind_term(
        RankingTerm, where, loss, keywords, ('scores', 'positives', 'negatives', *inputs), rankings=ranked
    )
    scores, own = np.zeros((4, 4), np.float32), np.eye(4, dtype=bool)
    example = Ranking(scores, own, ~own, scores[None], scores, scores[0], scores[0], np.float32(1))
    _check_loss(where, term.per_query, example)
    return term


def _make_token_term(where: str, loss_name: str, keywords: dict[str, Any]) -> TokenTerm:
    loss = names.resolve('jitm.losses', loss_name, where=f'{where}.loss')
    predictions = loss_name.partition('.')[2]
    term = _bind_term(TokenTerm, where, loss, keywords, ('logits', 'labels', 'mask'), predictions=predictions)
    logits, labels, mask = np.zeros((4, 4, 2), np.float32), np.zeros((4, 4), np.int32), np.eye(4, dtype=bool)
    _check_loss(where, term.per_text, TokenPredictions(logits, labels, mask))
    return term


def _check_arguments(where: str, loss: Any) -> None:
    """Raises a UserError unless a loss takes scores and masks first, and no argument with the name of a term's key."""
    arguments = list(inspect.signature(loss).parameters)
    if arguments[:3] != ['scores', 'positives', 'negatives']:
        raise UserError(
            f"'{where}' has a loss with the arguments {', '.join(arguments)}; it must have scores, positives and "
            'negatives first'
        )
    if clash := {*TERM_KEYS} & {*arguments}:
        raise UserError(
            f"'{where}' has a loss with the argument {min(clash)}, a key of every term; rename the argument"
        )


def _bind_term(
    kind: type[Term], where: str, loss: Any, keywords: Mapping[str, Any], inputs: Sequence[str], **given: Any
) -> Term:
    """Splits keywords into those of the term and those of its loss, and makes the term."""
    common = {key: value for key, value in keywords.items() if key in COMMON_KEYS}
    arguments = {key: value for key, value in keywords.items() if key not in COMMON_KEYS}
    bound = config_lib.bind(loss, arguments, where=where, later=inputs)
    make = config_lib.bind(kind, common, where=where, later=('loss', 'arguments', *given))
    return make(loss=bound, arguments=arguments, **given)


def _named_rankings(where: str, named: Any, known: Collection[str]) -> tuple[str, ...]:
    """Returns the rankings that a term names, at least one of the known ones."""
    if not isinstance(named, tuple | list) or not named:
        raise UserError(f"config key '{where}.rankings' is {named!r}; give a tuple of some of {', '.join(known)}")
    if unknown := [name for name in named if name not in known]:
        raise UserError(f"'{where}.rankings' names '{unknown[0]}', which is no ranking; known are {', '.join(known)}")
    return tuple(named)


def _check_loss(where: str, loss: Any, example: Any) -> None:
    """Raises a UserError if a loss cannot be traced with its arguments, or does not return one value per query [4]."""
    try:
        result = jax.eval_shape(loss, example)
    except VALUE_ERRORS as error:
        raise UserError(f"'{where}' reads values while it is traced, {names.last_line(error)}; {TRACEABLE}") from None
    except (TypeError, ValueError) as error:
        first, *_ = str(error).splitlines()
        raise UserError(f"'{where}' cannot be computed with its arguments, {names.last_line(error)}: {first}") from None
    except Exception as error:  # a loss is the user's program and can raise anything
        raise UserError(f"'{where}' fails {names.last_line(error)}: {type(error).__name__}: {error}") from None
    if getattr(result, 'shape', None) != (4,) or not jnp.issubdtype(result.dtype, jnp.floating):
        got = f'{result.dtype} of shape {result.shape}' if hasattr(result, 'shape') else type(result).__name__
        raise UserError(f"'{where}' returns {got} for 4 queries; a loss returns one float per query, of shape (4,)")


def check_token_sources(terms: Mapping[str, Term], predicted: Collection[str]) -> None:
    """Raises a UserError if a term of masked or generated captions has no source of its predictions."""
    needed = {MASKED: 'masking.num_views'} | dict.fromkeys(HEADS, 'synthesis.generator')
    for name, term in token_terms(terms).items():
        if term.predictions in needed and term.predictions not in predicted:
            raise UserError(f"'terms.{name}' needs '{needed[term.predictions]}': set it, or leave the term out")


def check_options(config: Mapping[str, Any], terms: Mapping[str, Term]) -> None:
    """Raises a UserError if a config names data, or an auxiliary input, that no part of the training reads."""
    inputs = {name for term in ranking_terms(terms).values() for name in (*term.inputs, *term.rankings)}
    predictions = {term.predictions for term in token_terms(terms).values()}
    generator = config['synthesis']['generator']
    readers = {
        'relevance.source': ('margins' in inputs, 'a term with margins'),
        'offline.path': (any(name.startswith('offline') for name in inputs), 'a term of mined negatives'),
        'synthesis.generator': (not predictions.isdisjoint(HEADS) or GENERATED in inputs, 'a term of these captions'),
        'masking.num_views': (generator or MASKED in predictions, 'a term of masked words'),
        'scene_graphs.source': (config['masking']['num_views'], 'masked captions (masking.num_views)'),
    }
    for key, (is_read, reader) in readers.items():
        section, name = key.split('.')
        if config[section][name] and not is_read:
            empty = 'set it to 0' if name == 'num_views' else "set it to ''"
            raise UserError(f"config key '{key}' is set but unused: add {reader}, or {empty}")


def unreached_terms(terms: Mapping[str, Term], epochs: int) -> list[str]:
    """Returns a warning for each term that is not active in any epoch, though others are."""
    return [
        f"'terms.{name}' is never active: its start_epoch is {term.start_epoch} of {epochs} epochs"
        for name, term in terms.items()
        if term.start_epoch >= epochs
    ]


def make_optimizer(
    section: Mapping[str, Any], steps_per_epoch: int, epochs: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Makes the optimizer and its learning-rate schedule: dict(name='adamw', ...), a function of `training.optimizer`.

    Raises:
      UserError: if the name or an argument is unknown, missing or out of its range.
    """
    name, keywords = config_lib.choose(section, 'name', where='optimizer')
    make = names.resolve('jitm.training.optimizer', name, where='optimizer.name')
    lengths = {'steps_per_epoch': steps_per_epoch, 'total_steps': epochs * steps_per_epoch}
    asked = {key: steps for key, steps in lengths.items() if key in inspect.signature(make).parameters}
    return config_lib.bind(make, keywords, where='optimizer', later=asked)(**asked)
