"""Builds the objective: sources of rankings and token predictions, terms, and the optimizer."""

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jitm import config as config_lib
from jitm import names
from jitm.errors import UserError, did_you_mean
from jitm.hints import check_keys, check_value
from jitm.synthesis.generator import Synthesis
from jitm.training.candidates import Source, choose_hardest, in_batch, sampled, shortlist
from jitm.training.generated import HEADS, MASKED, generate, generated_captions, masked_captions, matcher_predictions
from jitm.training.objective import (
    DIRECTIONS,
    GENERATED,
    INPUTS,
    RankingTerm,
    Term,
    TokenTerm,
    ranking_terms,
    token_terms,
)
from jitm.types import Index, Ranking, TokenPredictions

VALUE_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerArrayConversionError,
)
TRACEABLE = 'use jax.numpy instead of numpy, and jnp.where instead of if or boolean indices'
CANDIDATES = {'in_batch': ('same_image',), 'shortlist': ('num_extra', 'num_hard'), 'sampled': ()}
COMMON_KEYS = ('weight', 'start_epoch', 'end_epoch', 'reduction')  # of every term
TERM_KEYS = (*COMMON_KEYS, 'rankings')


def make_objective(config: Mapping[str, Any]) -> tuple[dict[str, Term], tuple[Source, ...]]:
    """Builds the terms of a config and the sources of their inputs.

    Args:
      config: the whole config, a nested dict.

    Returns:
      The terms by name, and the sources in the order in which they are computed.

    Raises:
      UserError: if a key is wrong.
    """
    terms, retrieval = make_terms(config['terms']), make_retrieval(config['candidates'])
    synthesis = make_synthesis(config)
    check_options(config, terms)
    return terms, make_sources(terms, retrieval, bool(config['masking']['num_views']), synthesis)


def make_sources(
    terms: Mapping[str, Term], retrieval: Source, masked: bool, synthesis: Synthesis | None
) -> tuple[Source, ...]:
    """Makes all sources, each with the token terms whose predictions it makes.

    Args:
      terms: the objective.
      retrieval: the source of retrieval candidates.
      masked: whether captions are masked.
      synthesis: how synthetic captions are generated; None for none.
    """

    def of(*predictions: str) -> dict[str, TokenTerm]:
        return {name: term for name, term in token_terms(terms).items() if term.predictions in predictions}

    sources, own = [retrieval], {term.predictions for term in token_terms(terms).values()} - {MASKED, *HEADS}
    if masked:
        sources.append(Source(functools.partial(masked_captions, terms=of(MASKED))))
    if synthesis:
        rank = functools.partial(generated_captions, terms=of(*HEADS))
        sources.append(Source(rank, functools.partial(generate, synthesis=synthesis)))
    if own:
        sources.insert(0, Source(functools.partial(matcher_predictions, terms=of(*own))))
    return tuple(sources)


def make_retrieval(section: Mapping[str, Any]) -> Source:
    """Makes the source of retrieval candidates from a config's `candidates`: dict(source='in_batch', ...)."""
    name, keywords = config_lib.choose(section, 'source', where='candidates')
    if name not in CANDIDATES:
        raise UserError(f"config key 'candidates.source' is '{name}'; take one of {', '.join(CANDIDATES)}")
    for key in keywords:
        of = [other for other, keys in CANDIDATES.items() if key in keys]
        if of and name not in of:
            raise UserError(f"config key 'candidates.{key}' is for source '{of[0]}', not for '{name}': leave it out")
    if name == 'shortlist':
        check_keys(keywords, ('num_extra', 'num_hard'), where='candidates')
        check_value('candidates.num_extra', keywords.pop('num_extra'), Index)
        later = 'models', 'name', 'batch', 'key'
        return Source(shortlist, config_lib.bind(choose_hardest, keywords, where='candidates', later=later))
    rank = {'in_batch': in_batch, 'sampled': sampled}[name]
    later = 'matcher', 'images', 'texts', 'batch', 'chosen', 'train'
    return Source(config_lib.bind(rank, keywords, where='candidates', later=later))


def check_candidates(config: Mapping[str, Any], num_texts: int) -> None:
    """Raises a UserError if the config's `candidates` do not fit its other sections.

    Args:
      config: the whole config.
      num_texts: the number of training captions.
    """
    section, augmentation = config['candidates'], config['augmentation']
    if section['source'] == 'in_batch':
        return
    source = f"'candidates.source' '{section['source']}'"
    if augmentation['num_views'] != 1:
        raise UserError(f"config key 'augmentation.num_views' must be 1: {source} has each pair once")
    if section['source'] == 'sampled' or section['num_extra']:
        # Augmentation would tell the pairs of a batch from the negatives that the source adds to it.
        for key in ('drop_regions', 'change_words'):
            if augmentation[key]:
                raise UserError(f"config key 'augmentation.{key}' must be 0: {source} does not change its negatives")
    if section['source'] == 'sampled':
        return
    for name, member in config['members'].items():
        if member.get('learn_from'):
            raise UserError(
                f"config key 'members.{name}.learn_from' needs 'candidates.source' 'in_batch' or 'sampled': models "
                'with a shortlist score different candidates'
            )
    if section['num_extra'] > num_texts:
        raise UserError(
            f"config key 'candidates.num_extra' is {section['num_extra']}, but there are {num_texts} texts for training"
        )
    candidates = config['batch_size'] + section['num_extra'] - 1
    if section['num_hard'] > candidates:
        raise UserError(
            f"config key 'candidates.num_hard' is {section['num_hard']}, but a query has {candidates} candidates"
        )


def make_synthesis(config: Mapping[str, Any]) -> Synthesis | None:
    """Makes the synthesis of captions; None if the config names no generator.

    Raises:
      UserError: if the generator is not a model of `members`, or captions are not masked for it.
    """
    section, num_views = config['synthesis'], config['masking']['num_views']
    synthesis = config_lib.bind(Synthesis, section, where='synthesis')
    generator = section['generator']
    if not generator:
        return None
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
    return made


def make_terms(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, Term]:
    """Makes the terms of a config.

    Args:
      configs: name -> dict(loss='ranking.max_of_hinges', weight=, start_epoch=, end_epoch=, reduction=, optionally
        rankings=, and the loss' own arguments); a loss in `tokens` takes the predictions of its name.

    Returns:
      Name -> RankingTerm or TokenTerm.

    Raises:
      UserError: if a loss or an argument is unknown or missing.
    """
    if not configs:
        raise UserError("config key 'terms' is empty; name at least one loss")
    terms = {}
    for name, section in configs.items():
        where = f'terms.{name}'
        loss_name, keywords = config_lib.choose(section, 'loss', where=where)
        make = _make_token_term if loss_name.startswith('tokens.') else _make_ranking_term
        terms[name] = make(where, loss_name, keywords)
    return terms


def _make_ranking_term(where: str, loss_name: str, keywords: dict[str, Any]) -> RankingTerm:
    loss = names.resolve('jitm.losses', loss_name, where=f'{where}.loss', own=callable)
    _check_arguments(where, loss)
    inputs = [name for name in INPUTS if name != 'temperature' or name not in keywords]  # which may be set or learned
    ranked = keywords.pop('rankings', DIRECTIONS)
    if not isinstance(ranked, tuple | list) or not ranked:
        raise UserError(f"config key '{where}.rankings' is {ranked!r}; give a tuple of names of rankings")
    term = _bind_term(
        RankingTerm, where, loss, keywords, ('scores', 'positives', 'negatives', *inputs), rankings=tuple(ranked)
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


def check_options(config: Mapping[str, Any], terms: Mapping[str, Term]) -> None:
    """Raises a UserError if a config names data that no term reads, or a term reads data that it does not name."""
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
    needed = {MASKED: 'masking.num_views'} | dict.fromkeys(HEADS, 'synthesis.generator')
    for name, term in token_terms(terms).items():
        section, _, key = needed.get(term.predictions, '').partition('.')
        if section and not config[section][key]:
            raise UserError(f"'terms.{name}' needs '{section}.{key}': set it, or leave the term out")
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
