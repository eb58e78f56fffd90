"""The plan of a training run: one object for each section of its config."""

import dataclasses
import fnmatch
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import optax

from jitm.config.build import check_member, flatten
from jitm.config.schema import EvaluationKeys, RunKeys
from jitm.config.section import Bound, build, own_names
from jitm.data.load import change_train, load_whole
from jitm.data.pairs.augmentation import Augmentation
from jitm.data.splits import Split
from jitm.data.text.vocabularies import Tokenizer
from jitm.devices import parallel
from jitm.errors import UserError
from jitm.importers.pretrained import Replacements
from jitm.models.make import member_model
from jitm.training.members import Frozen, Member, make_members
from jitm.training.objective import (
    ANCHORED,
    LEARNED,
    Terms,
    is_row_by_row,
    make_terms,
    ranking_terms,
    terms_of,
    token_terms,
)
from jitm.training.optimizer import frozen_modules
from jitm.training.sections import ADDITIONS, PARTS, SECTIONS, Config, with_defaults
from jitm.training.source import OPTIONS, Conditions, Context, Source, merge, together
from jitm.training.sources import predicted

# Inputs and predictions of terms -> how a user supplies them.
REMEDIES = LEARNED | ANCHORED | merge(addition.CONDITIONS.gives for addition in ADDITIONS)
STARTS = 'start_epoch', 'warm_up_epochs', 'noisy_epoch'  # keys of the labels and of terms
UNSET = {'augmentation.num_views': 1}  # values that count as unset; for other keys False, 0, '' and ()
VECTORS = Conditions(OPTIONS.keys() - {'augmentation.change_words'})  # vectors of tokens do not follow changed words
# Sources read scene graphs; no term has an input of this name.
GRAPHS = Conditions(gives={'scene graphs': ''}, reader='masked captions (masking.num_views)')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A training run, before its data are read.

    Attributes:
      config: The whole config, for the files of the run.
      seed, epochs, batch_size, encode_chunk, drop_last, length_multiple, precision: The keys of these names.
      load_split: The function that loads a split as it is stored, by its name.
      change_train: The function that changes the training split, without noise where `noisy` is False.
      make_vocabulary: The function `(whole training split, max_length) -> vocabulary`.
      augmentation: The augmentation of the examples.
      load_scene_graphs: The function that loads the scene graphs of a split; None without.
      masks: Whether captions are masked.
      models: The section of the model of each member.
      members: The members, without their models and optimizers.
      terms: The objective of each member that trains.
      source: The source of the pairs.
      make_optimizer: The function `(steps_per_epoch) -> (optimizer, schedule)`.
      load_pretrained: The function `(variables, words, model) -> values` that loads published weights.
      generator: The member that generates captions; '' for none.
      own: The functions and classes of the user that the config names, by their keys.
      evaluation: The section `evaluation`.
      run: The section `run`.
      warnings: The settings that are allowed but suspicious.
    """

    config: Config
    seed: int
    epochs: int
    batch_size: int
    encode_chunk: int | None
    drop_last: bool
    length_multiple: int
    precision: str
    load_split: Callable[[str], Split]
    change_train: Callable[..., Split]
    make_vocabulary: Callable[[Split, int | None], Tokenizer]
    augmentation: Augmentation
    load_scene_graphs: Callable | None
    masks: bool
    models: Mapping[str, Mapping[str, Any]]
    members: Mapping[str, Member]
    terms: Mapping[str, Terms]
    source: Source
    make_optimizer: Callable[[int], tuple[optax.GradientTransformation, optax.Schedule]]
    load_pretrained: Callable[..., Mapping[str, Replacements]]
    generator: str
    own: Mapping[str, str]
    evaluation: EvaluationKeys
    run: RunKeys
    warnings: tuple[str, ...]


def make_plan(config: Config, pending: bool = False) -> Plan:
    """Makes the plan of a config.

    Args:
      config: A nested dict, checked by `config.schema.check`.
      pending: Whether this is a second stage whose first one has not written its files yet; all else is checked.

    Raises:
      UserError: If a key or a name is wrong, or two keys do not fit together.
    """
    config = with_defaults(config, imports=True)
    parts = build(config, PARTS)
    terms = make_terms(config['terms'], parts)
    factors = config['optimizer'].get('factors', {})
    members = make_members(config['members'], parts, frozen_modules(factors))
    check_initialized(config['initialize'], members)
    parallel.check_batch_size(config['batch_size'])
    source, conditions = make_source(Context(terms, config['batch_size'], parts, pending))
    check_conditions(config, terms, conditions)
    plan = Plan(
        config=config,
        seed=config['seed'],
        epochs=config['epochs'],
        batch_size=config['batch_size'],
        encode_chunk=config['encode_chunk'],
        drop_last=config['drop_last'],
        length_multiple=config['length_multiple'],
        precision=config['precision'],
        load_split=functools.partial(load_whole, parts['data'], data=config['data']),
        change_train=functools.partial(change_train, data=config['data']),
        make_vocabulary=parts['vocabulary'],
        augmentation=parts['augmentation'](),
        load_scene_graphs=parts['scene_graphs'],
        masks=config['masking']['num_views'] > 0,
        models={name: member_model(config, name) for name in members},
        members=members,
        terms={name: terms_of(member.learn_from, terms) for name, member in members.items() if member.trains},
        source=source,
        make_optimizer=functools.partial(make_optimizer, parts['optimizer'], config['epochs']),
        load_pretrained=parts['initialize'],
        generator=config['synthesis']['generator'],
        own=own_names(config, SECTIONS),
        evaluation=config['evaluation'],
        run=config['run'],
        warnings=tuple(unreached_epochs(config)),
    )
    keys_of_members = itertools.chain(*(condition.members for condition in conditions.values()))
    check_members(plan, terms, read={flatten(config)[key] for key in keys_of_members})
    return plan


def make_source(context: Context) -> tuple[Source, dict[str, Conditions]]:
    """Makes the source of the pairs, and the conditions of its parts by the config key that sets each."""
    source = context.parts['candidates'](context=context)
    conditions = {'candidates.source': source.conditions}
    for addition in ADDITIONS:
        source = addition.add(source, context.parts[addition.SECTION], context)
        conditions[addition.SWITCH] = addition.CONDITIONS
    terms = {name: term for name, term in token_terms(context.terms).items() if term.predictions not in REMEDIES}
    if terms:
        source = together(predicted.predict_words(terms), source)
    return source, conditions | predicted.conditions(terms)


def make_optimizer(
    make: Bound, epochs: int, steps_per_epoch: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Makes the optimizer and its schedule from the section `optimizer`."""
    made = make(steps_per_epoch=steps_per_epoch, total_steps=epochs * steps_per_epoch)
    match made:
        case optax.GradientTransformation(), schedule if callable(schedule):
            return made
    description = 'an optax.GradientTransformation and its schedule'
    raise UserError(f'{make.setting}, but it returns {type(made).__name__}: return {description}')


def check_initialized(section: Mapping[str, Any], members: Mapping[str, Member]) -> None:
    """Raises a UserError if published weights are named that no member is initialized with."""
    runs = {name: member.init_from for name, member in members.items() if member.init_from}
    keys = [key for key, path in section.items() if path]
    if keys and all(name in runs or member.copy_of for name, member in members.items()):
        name, run = next(iter(runs.items()))
        raise UserError(
            f"config key 'initialize.{keys[0]}' is set but unused: 'members.{name}' is initialized from {run}; set "
            "it to ''"
        )


def check_conditions(config: Config, terms: Terms, conditions: Mapping[str, Conditions]) -> None:
    """Raises a UserError if a key is set that another key excludes, that needs another key, or that nothing reads.

    Args:
      config: The whole config.
      terms: The objective.
      conditions: The conditions of each part of the source, by the config key that sets it.
    """
    values = flatten(config)
    conditions = {**conditions, 'data.token_vectors': VECTORS, 'scene_graphs.source': GRAPHS}
    read = {term.predictions for term in token_terms(terms).values()}
    for term in ranking_terms(terms).values():
        read.update(term.inputs, term.rankings)

    def is_set(key):
        return bool(values.get(key)) and values[key] != UNSET.get(key)

    conditions = {key: condition for key, condition in conditions.items() if is_set(key)}
    used = set().union(*((*condition.needs, *condition.uses) for condition in conditions.values()))
    for key, condition in conditions.items():
        for member in condition.members:
            check_member(config, member)
        if condition.row_by_row:
            check_row_by_row(terms)
        for needed_key, remedy in condition.needs.items():
            if not is_set(needed_key):
                raise UserError(f"config key '{needed_key}' is {values[needed_key]!r}, but {remedy}")
        if condition.gives and key not in used and read.isdisjoint(condition.gives):
            empty = 'set it to 0' if key.endswith('num_views') else "set it to ''"
            raise UserError(f"config key '{key}' is set but unused: add {condition.reader}, or {empty}")
        for pattern, reason in OPTIONS.items():
            if pattern in condition.accepts:
                continue
            for excluded in filter(is_set, fnmatch.filter(values, pattern)):
                empty = UNSET.get(excluded, type(values[excluded])())
                raise UserError(f"config key '{excluded}' must be {empty!r} where '{key}' is {values[key]!r}: {reason}")


def check_row_by_row(terms: Terms) -> None:
    """Raises a UserError if the loss of a query depends on other queries.

    Losses with other inputs are not checked here; they stop when the step is traced.
    """
    for name, term in ranking_terms(terms).items():
        if {*term.inputs} <= {*LEARNED} and not is_row_by_row(term):
            raise UserError(
                f"'terms.{name}' has a loss that reads the scores of other queries, which are computed a few at a "
                'time: use candidates.source=in_batch'
            )


def check_members(plan: Plan, terms: Terms, read: set[str]) -> None:
    """Raises a UserError if members, terms and `evaluation.member` do not fit, or no term is active in an epoch.

    Args:
      plan: The plan.
      terms: The objective.
      read: The members that the source reads.
    """
    members = plan.members
    evaluated = plan.evaluation['member']
    changing = [name for name, member in members.items() if member.rule.changes]
    if evaluated not in changing:
        raise UserError(f"config key 'evaluation.member' is '{evaluated}', not one of {changing}, which change")
    learning = [name for name, member in members.items() if member.learn_from]
    anchored = [name for name, term in ranking_terms(terms).items() if 'anchor_scores' in term.inputs]
    if anchored and not learning:
        raise UserError(f"'terms.{anchored[0]}' needs anchor_scores: {REMEDIES['anchor_scores']}")
    if learning and not anchored:
        raise UserError(
            f"'members.{learning[0]}' has learn_from, but no term uses anchor_scores: add one of jitm.losses.anchored"
        )
    read = read.union(*(member.learn_from for member in members.values()))
    for name in (name for name, member in members.items() if isinstance(member.rule, Frozen) and name not in read):
        raise UserError(
            f"config key 'members.{name}' is set but unused: it does not train, no member learns from it and no "
            'other key names it, such as synthesis.generator; leave it out'
        )
    for name, objective in plan.terms.items():
        for epoch in range(plan.epochs):
            if not any(term.is_active(epoch) for term in objective.values()):
                raise UserError(
                    f"no term is active in epoch {epoch} of {plan.epochs} for 'members.{name}': change the "
                    'start_epoch or end_epoch of a term'
                )


def unreached_epochs(config: Config) -> list[str]:
    """Returns a warning for each key of the terms and the labels that names an epoch after the run."""
    return [
        f"config key '{key}' is {value}, which a run of {config['epochs']} epochs does not reach"
        for key, value in flatten({name: config[name] for name in ('labels', 'terms')}).items()
        if key.rpartition('.')[2] in STARTS and value >= config['epochs']
    ]
