"""Builds the models that train together, and loads the weights they are initialized from."""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np
import optax
from flax import traverse_util

from jitm import config as config_lib
from jitm.data.reading import check_images, check_lengths
from jitm.data.vocabularies import Tokenizer, kind_of
from jitm.errors import UserError, did_you_mean
from jitm.importers.pretrained import Replacements, load_pretrained
from jitm.models.joint import JointEncoder
from jitm.models.make import make_model, member_model
from jitm.models.matcher import Matcher
from jitm.runs.run import Run, load_run
from jitm.training.build.data import Data
from jitm.training.members import RULES, Frozen, Member, MemberState
from jitm.training.objective import INPUTS, Term, ranking_terms
from jitm.training.step import terms_of

VOCABULARY_OF = {'words': "a JSON vocabulary, or '' to build one", 'word pieces': 'the vocab.txt of a BERT'}


def make_models(config: Mapping[str, Any], data: Data) -> dict[str, Matcher]:
    """Makes the matcher of each member.

    Raises:
      UserError: if one is unknown, or cannot read the vocabulary, captions or images of the data.
    """
    models, path = {}, config['vocabulary']['path']
    for name in config['members']:
        section = member_model(config, name)
        models[name] = make_model(section, len(data.vocabulary), own=True, imports=True)
        check_vocabulary(data.vocabulary, path, models[name], section)
        for split, tokens in ((data.train, data.train_tokens), (data.validation, data.validation_tokens)):
            check_lengths(split, tokens, models[name].text_format)
            check_images(split, models[name].reads)
    return models


def check_vocabulary(vocabulary: Tokenizer, path: str, model: Matcher, section: Mapping[str, Any]) -> None:
    """Raises a UserError if the vocabulary from a path is not of the kind that a model, from its config, reads."""
    given, wanted = kind_of(vocabulary), model.text_format.kind
    if wanted not in (given, None):
        key = 'text.name' if 'text' in section else 'name'
        raise UserError(
            f"config key 'vocabulary.path' is '{path}', which gives {given}, but 'model.{key}' is "
            f"'{config_lib.flatten(section)[key]}', which reads {wanted}: give {VOCABULARY_OF[wanted]}, or change the "
            'model'
        )


def make_members(
    configs: Mapping[str, Mapping[str, Any]],
    models: Mapping[str, Matcher],
    optimizer: optax.GradientTransformation,
    frozen: tuple[str, ...] = (),
) -> dict[str, Member]:
    """Makes the members of a config.

    Args:
      configs: name -> dict(rule=, optionally learn_from=, init_from=, model=, and the rule's arguments).
      models: the matcher of each.
      optimizer: of every member with a gradient.
      frozen: names of modules for which no gradient is computed.

    Returns:
      Name -> Member.

    Raises:
      UserError: if a rule, an argument or a member is unknown, or no member has a gradient.
    """
    members = {name: _make_member(name, section, models[name], optimizer, frozen) for name, section in configs.items()}
    if not any(member.trains for member in members.values()):
        raise UserError("config key 'members' has no member with rule 'gradient'; one must train")
    for name, member in members.items():
        _check_others(name, member, members)
    return members


def _make_member(
    name: str,
    section: Mapping[str, Any],
    model: Matcher,
    optimizer: optax.GradientTransformation,
    frozen: tuple[str, ...],
) -> Member:
    where, keywords = f'members.{name}', dict(section)
    learn_from, init_from = keywords.pop('learn_from', ()), keywords.pop('init_from', '')
    own_model, rule_name = keywords.pop('model', None), keywords.pop('rule', 'gradient')
    if len({*learn_from}) < len(learn_from):
        raise UserError(f"config key '{where}.learn_from' is {learn_from!r}; give a tuple of names, each once")
    if rule_name not in RULES:
        raise UserError(f"config key '{where}.rule' is '{rule_name}'; take one of {', '.join(RULES)}")
    rule = config_lib.bind(RULES[rule_name], keywords, where=where)()
    if rule_name == 'frozen' and not (init_from or rule.of):
        raise UserError(
            f"config key '{where}.init_from' is missing; give the run directory of this member, or with 'of' a member"
        )
    if rule.of and (own_model or init_from):
        raise UserError(
            f"config key '{where}' must have no model and no init_from: it is initialized as a copy of '{rule.of}'"
        )
    return Member(model, rule, optimizer if rule.trains else None, tuple(learn_from), init_from, frozen)


def _check_others(name: str, member: Member, members: Mapping[str, Member]) -> None:
    """Raises a UserError if a member learns from or copies one that does not exist or does not allow it."""
    for key, others in (('learn_from', member.learn_from), ('of', (member.copy_of,) if member.copy_of else ())):
        for other in others:
            if other not in members or other == name:
                known = [n for n in members if n != name]
                raise UserError(
                    f"config key 'members.{name}.{key}' names '{other}', which is no other member"
                    f'{did_you_mean(other, known)}'
                )
    if member.learn_from and not member.trains:
        raise UserError(f"config key 'members.{name}.learn_from' must be empty: it does not train")
    if member.copy_of and not members[member.copy_of].trains:
        raise UserError(f"config key 'members.{name}.of' names '{member.copy_of}', which does not train")


def check_members(config: Mapping[str, Any], members: Mapping[str, Member], terms: Mapping[str, Term]) -> None:
    """Raises a UserError if members do not fit the terms, or the evaluated member does not train.

    Args:
      config: the whole config.
      members: name -> Member.
      terms: the objective.
    """
    trained = {name: member for name, member in members.items() if member.trains}
    if config['evaluation']['member'] not in trained:
        raise UserError(
            f"config key 'evaluation.member' is '{config['evaluation']['member']}', not one of {list(trained)}, which "
            'train'
        )
    learning = [name for name, member in members.items() if member.learn_from]
    anchored = [name for name, term in ranking_terms(terms).items() if 'anchor_scores' in term.inputs]
    if anchored and not learning:
        raise UserError(f"'terms.{anchored[0]}' needs anchor_scores: {INPUTS['anchor_scores']}")
    if not anchored:
        for name in learning:
            raise UserError(
                f"'members.{name}' has learn_from, but no term takes anchor_scores: add one of jitm.losses.anchored"
            )
    read = {config['synthesis']['generator']}.union(*(member.learn_from for member in members.values()))
    for name in (name for name, member in members.items() if isinstance(member.rule, Frozen) and name not in read):
        raise UserError(
            f"config key 'members.{name}' is set but unused: it does not train, no member learns from it and it "
            'generates no captions; leave it out'
        )
    for name, member in trained.items():
        check_epochs(name, terms_of(member, terms).values(), config['epochs'])


def check_epochs(name: str, terms: Collection[Term], epochs: int) -> None:
    """Raises a UserError if a member, called `name`, has an epoch in which none of its terms is active."""
    for epoch in range(epochs):
        if not any(term.is_active(epoch) for term in terms):
            raise UserError(
                f"no term is active in epoch {epoch} of {epochs} for 'members.{name}': change the start_epoch or "
                'end_epoch of a term'
            )


def check_initialize(config: Mapping[str, Any]) -> None:
    """Raises a UserError if a config names published weights that no member is initialized with."""
    members = config['members']
    runs = {name: member['init_from'] for name, member in members.items() if member.get('init_from')}
    unread = [key for key, path in config['initialize'].items() if path]
    if unread and all(name in runs or member.get('of') for name, member in members.items()):
        name, run = next(iter(runs.items()))
        raise UserError(
            f"config key 'initialize.{unread[0]}' is set but unused: 'members.{name}' is initialized from {run}; set "
            "it to ''"
        )


def load_weights(
    config: Mapping[str, Any],
    members: Mapping[str, Member],
    states: Mapping[str, MemberState],
    vocabulary: Tokenizer,
) -> dict[str, dict[str, Replacements]]:
    """Loads the weights that members are initialized from instead of randomly.

    Args:
      config: the whole config.
      members: name -> Member.
      states: of each member; only shapes are read.
      vocabulary: of the run.

    Returns:
      Name -> 'params' and 'batch_stats' -> path of a parameter -> its values.

    Raises:
      UserError: if weights cannot be read, or do not fit.
    """
    load = config_lib.bind(load_pretrained, config['initialize'], where='initialize', later=('variables', 'words'))
    weights = {}
    for name, member in members.items():
        if member.init_from:
            weights[name] = load_from_run(name, member, states[name], config, vocabulary)
        elif member.trains:
            weights[name] = load(states[name].variables, vocabulary.words)
    check_generator(config['synthesis']['generator'], members, states, weights)
    return weights


def check_generator(
    name: str,
    members: Mapping[str, Member],
    states: Mapping[str, MemberState],
    weights: Mapping[str, Mapping[str, Replacements]],
) -> None:
    """Raises a UserError if the generator, called `name`, is frozen with a head of random parameters."""
    if not name or not isinstance(members[name].rule, Frozen):
        return
    source = members[name].copy_of or name
    head = {path for path in traverse_util.flatten_dict(states[source].params) if path[0] == 'mlm_head'}
    if not head <= weights[source]['params'].keys():
        raise UserError(
            f"config key 'synthesis.generator' is '{name}', which does not train and has no weights for its head "
            f"'mlm': set members.{source}.init_from to a run whose model.heads have it"
        )


def load_from_run(
    name: str, member: Member, state: MemberState, config: Mapping[str, Any], vocabulary: Tokenizer
) -> dict[str, Replacements]:
    """Loads the parameters and statistics of the evaluated model in a member's `init_from`.

    Heads that the run lacks are initialized as `JointEncoder.add_heads` does, or randomly.

    Args:
      name: name of the member.
      member: with `init_from`.
      state: of the member; only shapes are read.
      config: of the current run.
      vocabulary: of the current run.

    Returns:
      'params' and 'batch_stats' -> path of a parameter -> its values.

    Raises:
      UserError: if the run does not exist, or has another model or vocabulary.
    """
    key = f"config key 'members.{name}.init_from'"
    try:
        run = load_run(member.init_from)
    except UserError as error:
        raise UserError(f'{key}: {error}') from None
    if run.vocabulary.hash != vocabulary.hash:
        raise UserError(f'{key}: {member.init_from} has another vocabulary; set vocabulary.path to its')
    changed = _model_differences(run, member_model(config, name))
    loaded = {part: traverse_util.flatten_dict(values) for part, values in run.variables.items()}
    wanted = {part: traverse_util.flatten_dict(getattr(state, part)) for part in loaded}
    if isinstance(member.model, JointEncoder):
        loaded['params'] = member.model.add_heads(loaded['params'])
        kept = {path for path in wanted['params'] if path in loaded['params'] or not member.model.is_head(path)}
        wanted['params'] = {path: wanted['params'][path] for path in kept}  # other heads stay randomly initialized
    if changed or _shapes(loaded) != _shapes(wanted):
        reason = '; '.join(changed) or 'its parameters have other shapes'
        raise UserError(f'{key}: {member.init_from} is of another model ({reason}); set members.{name}.model to its')
    return loaded


def _model_differences(run: Run, section: Mapping[str, Any]) -> list[str]:
    """Lists how the model of a run differs from a config's, heads that are added and precision left aside."""
    old = member_model(run.config, run.member)
    changed = config_lib.differences({'model': {**old, 'heads': ()}}, {'model': {**section, 'heads': ()}})
    changed = [line for line in changed if not line.partition(':')[0].endswith('.dtype')]
    if lost := set(old.get('heads', ())) - set(section.get('heads', ())):
        changed.append(f'model.heads: without {", ".join(sorted(lost))}')
    return changed


def _shapes(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {part: jax.tree.map(np.shape, values) for part, values in parts.items()}
