"""Members: who trains, by which rule, and with whom.

A member is a named matcher with its own parameters, statistics, optimizer and update rule. One training step serves
every scenario; a new rule is one more function here.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import chex
import jax
import optax
from flax import struct

from jitm import config as config_lib
from jitm.errors import UserError
from jitm.matcher import Matcher
from jitm.types import Images, Texts, TokenPredictions

RULE_ARGUMENTS = ('state', 'member', 'gradients', 'batch_stats', 'step', 'updated')


class MemberState(struct.PyTreeNode):
    """What a member carries from step to step."""

    params: chex.ArrayTree
    batch_stats: chex.ArrayTree
    optimizer: chex.ArrayTree


@dataclasses.dataclass(frozen=True)
class Member:
    """A matcher with its optimizer and update rule.

    Attributes:
      model: the matcher.
      optimizer: an optax transformation; its norm clip sees this member's gradients only.
      update: a rule of this module, such as `gradient`.
    """

    model: Matcher
    optimizer: optax.GradientTransformation
    update: Callable

    def init(self, key: chex.PRNGKey, images: Images, texts: Texts) -> MemberState:
        """Draws parameters; the arrays give shapes only."""
        variables = dict(self.model.init(key, images, texts))
        params = variables.pop('params')
        return MemberState(params, variables.get('batch_stats', {}), self.optimizer.init(params))

    def predicted_tokens(self, images: Images, texts: Texts) -> set[str]:
        """Names what the model predicts of matching pairs, for token terms; the arrays give shapes only."""

        def predict(model: Matcher) -> dict[str, TokenPredictions]:
            return model.predict_tokens(model.encode_image(images, train=True), texts, train=True)

        predictions, _ = jax.eval_shape(lambda key: self.model.init_with_output(key, method=predict), jax.random.key(0))
        return set(predictions)


def gradient(
    state: MemberState,
    *,
    member: Member,
    gradients: chex.ArrayTree,
    batch_stats: chex.ArrayTree,
    step: chex.Array,
    updated: Mapping[str, MemberState],
) -> MemberState:
    """The rule of a member that trains: one optimizer step along its own gradient.

    Every rule has this signature and may have keyword arguments of its own, from the config.

    Args:
      state: before the step.
      member: the member itself.
      gradients: of the objective, like `state.params`.
      batch_stats: after the forward pass of this step.
      step: int32 [], steps done before this one.
      updated: the new states of the members listed before this one.

    Returns:
      The state after the step.
    """
    del step, updated
    updates, optimizer = member.optimizer.update(gradients, state.optimizer, state.params)
    return MemberState(optax.apply_updates(state.params, updates), batch_stats, optimizer)


def make_members(
    configs: Mapping[str, Mapping[str, Any]], model: Matcher, optimizer: optax.GradientTransformation
) -> dict[str, Member]:
    """Builds the members of a config.

    Args:
      configs: name -> dict(update='gradient', learn_from=()).
      model: the matcher of every member.
      optimizer: of every member that trains.

    Raises:
      UserError: if an update rule is unknown, or a member has `learn_from`: no loss here takes anchor scores yet.
    """
    if not configs:
        raise UserError("config key 'members' is empty; one member must train")
    members = {}
    for name, keywords in configs.items():
        keywords = dict(keywords)
        if keywords.pop('learn_from', ()):
            raise UserError(f"'members.{name}' has learn_from, but no term of the objective takes anchor_scores")
        rule = config_lib.resolve('jitm.training.members', keywords.pop('update', 'gradient'))
        update = config_lib.bind(rule, keywords, where=f'members.{name}', later=RULE_ARGUMENTS)
        members[name] = Member(model, optimizer, update)
    return members


def init_members(members: Mapping[str, Member], seed: int, images: Images, texts: Texts) -> dict[str, MemberState]:
    """Draws every member's first state, member n from (seed, n)."""
    keys = jax.random.split(jax.random.key(seed), len(members))
    return {name: member.init(key, images, texts) for (name, member), key in zip(members.items(), keys, strict=True)}
