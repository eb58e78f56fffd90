"""Models that train together: which of them train, by which rule, and which learn from which.

A member is a named matcher with its own parameters, batch statistics and update rule. One training step serves all
scenarios: plain training; an anchor that is frozen (OAS of Diao et al., 2024), trains itself (OSS) or averages its
target (MSS); mutual learning. A new rule without a gradient is one more class here, and its name in `RULES`.
"""

import dataclasses
import operator
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import optax
from chex import Array, ArrayTree, PRNGKey
from flax import struct, traverse_util

from jitm.config.section import Bound, Section
from jitm.errors import UserError, did_you_mean
from jitm.layers.lora import NO_ADAPTERS, LoRA, merge, select_frozen
from jitm.models.matcher import Matcher
from jitm.training.modules import select_modules
from jitm.types import Images, Probability, Texts


class MemberState(struct.PyTreeNode):
    """The state of a member: parameters, batch statistics and optimizer state (empty without a gradient)."""

    params: ArrayTree
    batch_stats: ArrayTree
    optimizer: ArrayTree = ()

    @property
    def variables(self) -> dict[str, ArrayTree]:
        """The variables that the model is applied with; adapters are merged."""
        return {'params': merge(self.params), 'batch_stats': self.batch_stats}


@dataclasses.dataclass(frozen=True)
class Gradient:
    """One optimizer step along the member's own gradient, see `Member.take_gradient_step`."""

    of = ''
    trains = changes = True


@dataclasses.dataclass(frozen=True)
class Frozen:
    """No change: DBL's anchor in OAS (Diao et al., 2024, III-C), the static generator of TAGS (Fan et al., 2022).

    Attributes:
      of: The member it is initialized as a copy of; '' if it is initialized from its `init_from`.
    """

    of: str = ''
    trains = changes = False

    def __call__(self, state: MemberState, trained: Mapping[str, MemberState], progress: Array) -> MemberState:
        """Returns the state unchanged."""
        del trained, progress
        return state


@dataclasses.dataclass(frozen=True, kw_only=True)
class EMA:
    """An exponential moving average of another member: the anchor of DBL's MSS (Diao et al., 2024, eq. 22).

    theta_a <- beta theta_a + (1 - beta) theta_t, with beta from `momentum` to 1 along half a cosine over the run. Batch
    statistics are averaged like parameters, so that both lag equally; released code keeps the initial statistics.

    Attributes:
      of: The member it averages, and is initialized as a copy of.
      momentum: The beta of the first step, 0.99995 as published.
      constant: Whether beta stays at `momentum`, as in open_clip.
    """

    of: str
    momentum: Probability
    constant: bool = False
    trains = False
    changes = True

    def __call__(self, state: MemberState, trained: Mapping[str, MemberState], progress: Array) -> MemberState:
        """Returns the average of the state and the new state of the other member.

        Args:
          state: The state of this member.
          trained: The new states of the members with a gradient.
          progress: float32 [], the share of the run's steps done before this one.
        """
        step_size = (1 - self.momentum) * (2 if self.constant else 1 + jnp.cos(jnp.pi * progress)) / 2
        target = trained[self.of]
        old = (state.params, state.batch_stats)
        new = (target.params, target.batch_stats)
        params, batch_stats = optax.incremental_update(new, old, step_size)
        return state.replace(params=params, batch_stats=batch_stats)


Rule = Gradient | Frozen | EMA
RULES = {'gradient': Gradient, 'frozen': Frozen, 'ema': EMA}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """A matcher and its update rule.

    Attributes:
      rule: The rule by which its state changes.
      model: The matcher; None in a plan.
      optimizer: An optax transformation of this member's gradients; None without a gradient.
      learn_from: The members whose scores are the `anchor_scores` of its losses.
      init_from: The run directory whose parameters and statistics it is initialized from; '' for random initialization.
      frozen: The patterns of modules for which no gradient is computed, see `modules.select_modules`.
      lora: The adapters of its transformers.
    """

    rule: Rule
    model: Matcher | None = None
    optimizer: optax.GradientTransformation | None = None
    learn_from: tuple[str, ...] = ()
    init_from: str = ''
    frozen: tuple[str, ...] = ()
    lora: LoRA = NO_ADAPTERS

    @property
    def trains(self) -> bool:
        """Whether it has an objective and a gradient; other members are scored in evaluation mode."""
        return self.rule.trains

    @property
    def copy_of(self) -> str:
        """The member it is initialized as a copy of; '' for none."""
        return self.rule.of

    def with_parts(self, model: Matcher, optimizer: optax.GradientTransformation) -> 'Member':
        """Returns the member with its model and, if it trains, the optimizer of its parameters or adapters."""
        if self.lora.modules:  # what they freeze needs no moments
            optimizer = optax.masked(optimizer, lambda params: jax.tree.map(operator.not_, select_frozen(params)))
        return dataclasses.replace(self, model=model, optimizer=optimizer if self.trains else None)

    def init(self, key: PRNGKey, images: Images, texts: Texts) -> MemberState:
        """Initializes a state randomly; only the shapes of the images and texts matter."""
        variables = self.model.init(key, images, texts)
        params = self.lora.add(jax.random.fold_in(key, 0), variables['params'])
        return MemberState(params, variables.get('batch_stats', {}), self.optimizer.init(params) if self.trains else ())

    @property
    def freezes(self) -> bool:
        """Whether some of its parameters may have no gradient."""
        return bool(self.frozen or self.lora.modules)

    def variables(self, params: ArrayTree, state: MemberState) -> dict[str, ArrayTree]:
        """Returns the variables that the model trains with: no gradient flows to frozen parameters."""
        if self.freezes:
            frozen = self._select_frozen(params)
            params = jax.tree.map(lambda stop, param: jax.lax.stop_gradient(param) if stop else param, frozen, params)
        return state.replace(params=params).variables

    def _select_frozen(self, tree: ArrayTree) -> ArrayTree:
        """Returns for each leaf of a tree whether a pattern or the adapters freeze it."""
        return jax.tree.map(operator.or_, select_modules(tree, self.frozen), select_frozen(tree))

    def take_gradient_step(self, state: MemberState, gradients: ArrayTree, batch_stats: ArrayTree) -> MemberState:
        """Returns the state after a step of the optimizer; the batch statistics of frozen modules are not updated.

        Args:
          state: The state before the step.
          gradients: The gradients of the objective, in the structure of the parameters.
          batch_stats: The batch statistics after the forward pass.
        """
        updates, opt_state = self.optimizer.update(gradients, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        if not self.freezes:
            return MemberState(params, batch_stats, opt_state)
        # Towers are known by their parameters, so the statistics are selected in one tree with these.
        trees = state.batch_stats, batch_stats, params
        old_stats, new_stats, flat_params = map(traverse_util.flatten_dict, trees)
        joined = traverse_util.unflatten_dict(flat_params | new_stats)
        frozen = traverse_util.flatten_dict(self._select_frozen(joined))
        statistics = {path: old_stats[path] if frozen[path] else value for path, value in new_stats.items()}
        return MemberState(params, traverse_util.unflatten_dict(statistics), opt_state)


def init_members(members: Mapping[str, Member], seed: int, images: Images, texts: Texts) -> dict[str, MemberState]:
    """Initializes the state of every member.

    The n-th member with a gradient, in the order of their names, is initialized from (seed, n). The first one is
    therefore initialized exactly as when trained alone.

    Args:
      members: The members by name.
      seed: The seed of the run.
      images: The images; only their shapes count.
      texts: The texts; only their shapes count.

    Returns:
      Name -> MemberState.
    """
    ordered = sorted(members, key=lambda name: (not members[name].trains, name))
    keys = {name: jax.random.fold_in(jax.random.key(seed), n) for n, name in enumerate(ordered)}
    return copy_members(members, {name: member.init(keys[name], images, texts) for name, member in members.items()})


def copy_members(members: Mapping[str, Member], states: Mapping[str, MemberState]) -> dict[str, MemberState]:
    """Replaces the states of copies by the states of the members they copy."""
    return {
        name: states[member.copy_of].replace(optimizer=()) if member.copy_of else states[name]
        for name, member in members.items()
    }


def make_member(
    *,
    rule: Callable[[], Rule],
    learn_from: tuple[str, ...] = (),
    init_from: str = '',
    model: Mapping[str, Any] = MappingProxyType({}),
    name: str,
    frozen: tuple[str, ...],
    lora: LoRA,
) -> Member:
    """Makes a member of a config, without model and optimizer.

    Args:
      rule: The class of its rule.
      learn_from, init_from, frozen, lora: See `Member`.
      model: Its own section `model`.
      name: The name of the member, for messages.

    Raises:
      UserError: If its keys do not fit together.
    """
    where = f"config key 'members.{name}"
    made = rule()
    if len({*learn_from}) < len(learn_from):
        raise UserError(f"{where}.learn_from' is {learn_from!r}; give a tuple of names, each once")
    if isinstance(made, Frozen) and not (init_from or made.of):
        raise UserError(f"{where}.init_from' is missing; set it to a run directory, or set 'of' to the member to copy")
    if made.of and (init_from or model):
        raise UserError(f"{where}' must have no model and no init_from: it is initialized as a copy of '{made.of}'")
    return Member(rule=made, learn_from=learn_from, init_from=init_from, frozen=frozen, lora=lora)


DECLARED = Section(
    'rule', RULES, default='gradient', takes=('name', 'frozen', 'lora'), wrapper=lambda rule: make_member
)


def make_members(
    names: Collection[str], parts: Mapping[str, Bound | None], frozen: tuple[str, ...] = ()
) -> dict[str, Member]:
    """Makes the members of a config, without models and optimizers.

    Args:
      names: The names of the members.
      parts: The bound sections `members.NAME` and `members.NAME.lora`, and others.
      frozen: The patterns of modules for which no gradient is computed.

    Returns:
      Name -> Member.

    Raises:
      UserError: If a rule, an argument or a member is unknown, or no member has a gradient.
    """
    members = {}
    for name in names:
        lora = parts.get(f'members.{name}.lora')
        members[name] = parts[f'members.{name}'](name=name, frozen=frozen, lora=lora() if lora else NO_ADAPTERS)
    if not any(member.trains for member in members.values()):
        raise UserError("config key 'members' has no member with rule 'gradient'; one must train")
    for name, member in members.items():
        _check_others(name, member, members)
    return members


def _check_others(name: str, member: Member, members: Mapping[str, Member]) -> None:
    """Raises a UserError if a member learns from or copies a wrong one, or has keys of training and does not train."""
    for key, named in (('learn_from', member.learn_from), ('of', (member.copy_of,) if member.copy_of else ())):
        for peer in named:
            if peer not in members or peer == name:
                names = [n for n in members if n != name]
                raise UserError(
                    f"config key 'members.{name}.{key}' names '{peer}', which is not another member"
                    f'{did_you_mean(peer, names)}'
                )
    if member.lora != NO_ADAPTERS and not member.trains:
        raise UserError(f"config key 'members.{name}.lora' must be left out: this member does not train")
    if member.learn_from and not member.trains:
        raise UserError(f"config key 'members.{name}.learn_from' must be empty: this member does not train")
    if member.copy_of and not members[member.copy_of].trains:
        raise UserError(f"config key 'members.{name}.of' names '{member.copy_of}', which does not train")
