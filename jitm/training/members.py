"""Members: who trains, by which rule, and learning from whom.

A member is a named matcher with its own parameters, statistics and update rule. One training step serves every
scenario: plain training, an anchor that is frozen (OAS of DBL, paper 002), trains itself (OSS) or averages its target
(MSS), mutual learning. A new rule is one more function here, and its name in `RULES`.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
from flax import struct

from jitm import config as config_lib
from jitm.errors import UserError, did_you_mean
from jitm.models.matcher import Matcher
from jitm.types import Images, Texts, TokenPredictions


class MemberState(struct.PyTreeNode):
    """What a member carries from step to step; without gradient it has no optimizer."""

    params: chex.ArrayTree
    batch_stats: chex.ArrayTree
    optimizer: chex.ArrayTree = ()

    @property
    def variables(self) -> dict[str, chex.ArrayTree]:
        """What a model is applied with."""
        return {'params': self.params, 'batch_stats': self.batch_stats}


class Outcome(NamedTuple):
    """What a step has come to for a member, for its update rule.

    Attributes:
      optimizer: the member's; None if it does not train.
      gradients: of the objective, like the member's parameters; None if it does not train.
      batch_stats: of the member after the forward pass; None if it does not train.
      progress: float32 [], the share of the run's steps that were done before this one.
      updated: the new states of the members that train.
    """

    optimizer: optax.GradientTransformation | None
    gradients: chex.ArrayTree | None
    batch_stats: chex.ArrayTree | None
    progress: chex.Array
    updated: Mapping[str, MemberState]


@dataclasses.dataclass(frozen=True)
class Member:
    """A matcher and how it changes.

    Attributes:
      model: the matcher.
      update: `(state, outcome) -> state`, a rule of this module with its own arguments bound.
      optimizer: an optax transformation, whose norm clip sees this member's gradients only; None if it does not train.
      learn_from: the members whose scores are the `anchor_scores` of its losses.
      copies: the member that it begins as a copy of; '' to begin by itself.
      init_from: the run directory whose parameters and statistics it begins with; '' to be drawn.
    """

    model: Matcher
    update: Callable[[MemberState, Outcome], MemberState]
    optimizer: optax.GradientTransformation | None = None
    learn_from: tuple[str, ...] = ()
    copies: str = ''
    init_from: str = ''

    @property
    def trains(self) -> bool:
        """Whether it has an objective, and so a gradient; the others are scored in evaluation mode."""
        return self.optimizer is not None

    def init(self, key: chex.PRNGKey, images: Images, texts: Texts) -> MemberState:
        """Draws parameters; the arrays give shapes only."""
        variables = dict(self.model.init(key, images, texts))
        params = variables.pop('params')
        return MemberState(params, variables.get('batch_stats', {}), self.optimizer.init(params) if self.trains else ())

    def predicted_tokens(self, images: Images, texts: Texts) -> set[str]:
        """Names what the model predicts of matching pairs, for token terms; the arrays give shapes only."""

        def predict(model: Matcher) -> dict[str, TokenPredictions]:
            return model.predict_tokens(model.encode_image(images, train=True), texts, train=True)

        predictions, _ = jax.eval_shape(lambda key: self.model.init_with_output(key, method=predict), jax.random.key(0))
        return set(predictions)


def gradient(state: MemberState, outcome: Outcome) -> MemberState:
    """The rule of a member that trains: one optimizer step along its own gradient.

    Every rule takes a state and the step's outcome, may have keyword arguments of its own from the config, and gives
    the state after the step.

    Args:
      state: before the step.
      outcome: of the step.
    """
    updates, optimizer = outcome.optimizer.update(outcome.gradients, state.optimizer, state.params)
    return MemberState(optax.apply_updates(state.params, updates), outcome.batch_stats, optimizer)


def frozen(state: MemberState, outcome: Outcome, *, of: str = '') -> MemberState:
    """The rule of a member that stays as it is: DBL's anchor in OAS (paper 002, III-C), TAGS' static generator.

    Args:
      state: before the step.
      outcome: of the step.
      of: the member that it begins as a copy of; '' if it begins with its `init_from`.
    """
    del outcome, of
    return state


def ema(state: MemberState, outcome: Outcome, *, of: str, momentum: float) -> MemberState:
    """The rule of an exponential moving average of another member: the anchor of DBL's MSS (paper 002, eq. 22).

    theta_a <- beta theta_a + (1 - beta) theta_t, beta from `momentum` to 1 along half a cosine over the run. Statistics
    of normalisation are averaged like parameters, so that both lag behind alike; released code leaves the first ones.

    Args:
      state: before the step.
      outcome: of the step.
      of: the member that it averages, and begins as a copy of.
      momentum: beta at the first step, 0.99995 as published.
    """
    share = (1 - momentum) * (1 + jnp.cos(jnp.pi * outcome.progress)) / 2
    target = outcome.updated[of]
    old, new = (state.params, state.batch_stats), (target.params, target.batch_stats)
    params, batch_stats = optax.incremental_update(new, old, share)
    return state.replace(params=params, batch_stats=batch_stats)


RULES = {'gradient': gradient, 'frozen': frozen, 'ema': ema}


def make_members(
    configs: Mapping[str, Mapping[str, Any]],
    models: Mapping[str, Matcher],
    optimizer: optax.GradientTransformation,
) -> dict[str, Member]:
    """Builds the members of a config.

    Args:
      configs: name -> dict(rule=, and if wanted learn_from=, init_from=, model=, and the rule's own).
      models: the matcher of each.
      optimizer: of every member that trains.

    Raises:
      UserError: if a rule, an argument or a member is unknown, or no member trains.
    """
    members = {name: _make_member(name, keywords, models[name], optimizer) for name, keywords in configs.items()}
    if not any(member.trains for member in members.values()):
        raise UserError("config key 'members' has no member with rule 'gradient'; one must train")
    for name, member in members.items():
        for key, others in (('learn_from', member.learn_from), ('of', (member.copies,) if member.copies else ())):
            for other in others:
                if other not in members or other == name:
                    known = [n for n in members if n != name]
                    raise UserError(
                        f"config key 'members.{name}.{key}' names '{other}', which is no other member"
                        f'{did_you_mean(other, known)}'
                    )
        if member.learn_from and not member.trains:
            raise UserError(f"config key 'members.{name}.learn_from' must be empty: it does not train")
        if member.copies and not members[member.copies].trains:
            raise UserError(f"config key 'members.{name}.of' names '{member.copies}', which does not train")
    return members


def _make_member(
    name: str, keywords: Mapping[str, Any], model: Matcher, optimizer: optax.GradientTransformation
) -> Member:
    where, keywords = f'members.{name}', dict(keywords)
    learn_from, init_from = keywords.pop('learn_from', ()), keywords.pop('init_from', '')
    own_model = keywords.pop('model', None)
    if not isinstance(learn_from, (tuple, list)) or len({*learn_from}) < len(learn_from):
        raise UserError(f"config key '{where}.learn_from' is {learn_from!r}; give a tuple of names, each once")
    momentum = keywords.get('momentum', 0)
    if not isinstance(momentum, (int, float)) or not 0 <= momentum <= 1:
        raise UserError(f"config key '{where}.momentum' is {momentum!r}; it must be in [0, 1]")
    rule = RULES.get(keywords.pop('rule', 'gradient'))
    if rule is None:
        raise UserError(f"config key '{where}.rule' is unknown; take one of {', '.join(RULES)}")
    copies = keywords.get('of', '')
    if rule is frozen and not (init_from or copies):
        raise UserError(
            f"config key '{where}.init_from' is missing; give the run directory of this member, or with 'of' a member"
        )
    if copies and (own_model or init_from):
        raise UserError(f"config key '{where}' must have no model and no init_from: it begins as a copy of '{copies}'")
    optimizer = optimizer if rule is gradient else None
    update = config_lib.bind(rule, keywords, where=where, later=('state', 'outcome'))
    return Member(model, update, optimizer, tuple(learn_from), copies, init_from)


def init_members(members: Mapping[str, Member], seed: int, images: Images, texts: Texts) -> dict[str, MemberState]:
    """Draws every member's first state.

    Member n of those that train, in the order of their names, is drawn from (seed, n), so that the first is what it
    would be alone.
    """
    ordered = sorted(members, key=lambda name: (not members[name].trains, name))
    keys = {name: jax.random.fold_in(jax.random.key(seed), n) for n, name in enumerate(ordered)}
    return copy_members(members, {name: member.init(keys[name], images, texts) for name, member in members.items()})


def copy_members(members: Mapping[str, Member], states: Mapping[str, MemberState]) -> dict[str, MemberState]:
    """Makes the members that begin as copies equal to those they copy."""
    return {
        name: states[member.copies].replace(optimizer=()) if member.copies else states[name]
        for name, member in members.items()
    }
