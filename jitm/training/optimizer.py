"""The optimizers and their schedules."""

import inspect
import math
from collections.abc import Mapping
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax

from jitm import config as config_lib
from jitm.errors import UserError, check_rate, did_you_mean

B1, B2, EPSILON, LOWEST_RATE = 0.9, 0.98, 1e-6, 1e-8  # of UNITER
DECAYED_NORMS = {'features_norm', 'locations_norm'}  # their names are not on the released list of what is not decayed


def step_decay(learning_rate: float, decay_epochs: int, decay_factor: float, steps_per_epoch: int) -> optax.Schedule:
    """learning_rate * decay_factor ** (epoch // decay_epochs), as a function of the step."""
    return optax.exponential_decay(learning_rate, decay_epochs * steps_per_epoch, decay_factor, staircase=True)


def warm_up_then_decay(learning_rate: float, warm_up: float, total_steps: int) -> optax.Schedule:
    """learning_rate * min(t / w, (N - t) / (N - w)), at least 1e-8, of the step t = 1 .. N, w = warm_up * N."""
    warm_up_steps = warm_up * total_steps

    def schedule(step: chex.Numeric) -> chex.Numeric:
        t = step + 1
        share = jnp.minimum(t / max(warm_up_steps, 1), (total_steps - t) / (total_steps - warm_up_steps))
        return jnp.maximum(learning_rate * share, LOWEST_RATE)

    return schedule


def scale_modules(factors: Mapping[str, float]) -> optax.GradientTransformation:
    """Multiplies the updates of all parameters below the modules of these names.

    Raises:
      UserError: on initialisation, if the model has no such module.
    """

    def scale(path: tuple, update: chex.Array) -> chex.Array:
        return update * math.prod(factor for name, factor in factors.items() if jax.tree_util.DictKey(name) in path)

    def init(params: chex.ArrayTree) -> optax.EmptyState:
        modules = {key.key for path, _ in jax.tree_util.tree_leaves_with_path(params) for key in path}
        for name in factors:
            if name not in modules:
                raise UserError(
                    f"config key 'optimizer.factors.{name}' names no module of the model{did_you_mean(name, modules)}"
                )
        return optax.EmptyState()

    return optax.GradientTransformation(
        init, lambda updates, state, params=None: (jax.tree_util.tree_map_with_path(scale, updates), state)
    )


def _clipped_and_scaled(
    rule: optax.GradientTransformation, clip_norm: float, weight_decay: float, factors: Mapping[str, float]
) -> optax.GradientTransformation:
    """Clips before a rule and scales modules after it; refuses a decay or a factor that is negative."""
    if weight_decay < 0:
        raise UserError(f"config key 'optimizer.weight_decay' is {weight_decay}; it must not be negative")
    for name, factor in factors.items():
        if not isinstance(factor, int | float) or not factor >= 0:
            raise UserError(f"config key 'optimizer.factors.{name}' is {factor!r}; it must be a number, not negative")
    return optax.chain(optax.clip_by_global_norm(clip_norm), rule, scale_modules(factors))


def adamw(
    *,
    learning_rate: float,
    weight_decay: float,
    factors: Mapping[str, float],
    decay_epochs: int,
    decay_factor: float,
    clip_norm: float,
    steps_per_epoch: int,
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """AdamW with a global-norm clip and step decay, as the VSE++ and VSE-infinity lineages train.

    Args:
      learning_rate: of the first epochs.
      weight_decay: decoupled, times the learning rate; 0 is Adam.
      factors: module's name -> what the learning rate of its parameters is multiplied by.
      decay_epochs: the rate is multiplied by decay_factor every so many epochs.
      decay_factor: 0.1 as published.
      clip_norm: gradients of a larger global norm are scaled to it; 2.0 as published.
      steps_per_epoch: turns epochs into steps.

    Returns:
      The optimizer and its learning rate as a function of the step.

    Raises:
      UserError: if decay_epochs is below 1, or weight_decay or a factor is negative.
    """
    if decay_epochs < 1:
        raise UserError(f"config key 'optimizer.decay_epochs' is {decay_epochs}; it must be at least 1")
    schedule = step_decay(learning_rate, decay_epochs, decay_factor, steps_per_epoch)
    return _clipped_and_scaled(
        optax.adamw(schedule, weight_decay=weight_decay), clip_norm, weight_decay, factors
    ), schedule


def is_decayed(path: tuple[jax.tree_util.DictKey, ...]) -> bool:
    """Whether UNITER's release decays a parameter: no bias, and no scale but those of `DECAYED_NORMS`."""
    *modules, name = (key.key for key in path)
    return 'bias' not in name and (name != 'scale' or not DECAYED_NORMS.isdisjoint(modules))


def adam_then_decay(schedule: optax.Schedule, weight_decay: float) -> optax.GradientTransformation:
    """p -= rate sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps), then p -= rate weight_decay p (UNITER, released).

    In `optax.adamw` v is corrected before eps is added, and what decays is p before it has moved.
    """

    def update(
        gradients: chex.ArrayTree, state: optax.ScaleByAdamState, params: chex.ArrayTree
    ) -> tuple[chex.ArrayTree, optax.ScaleByAdamState]:
        rate, t = schedule(state.count), optax.safe_increment(state.count)
        first = optax.tree.update_moment(gradients, state.mu, B1, 1)
        second = optax.tree.update_moment(gradients, state.nu, B2, 2)
        corrected = rate * jnp.sqrt(1 - B2**t) / (1 - B1**t)

        def move(path: tuple, param: chex.Array, m: chex.Array, v: chex.Array) -> chex.Array:
            moved = -corrected * m / (jnp.sqrt(v) + EPSILON)
            if not is_decayed(path):
                return moved
            return moved - jnp.where(jnp.any(moved != 0), rate * weight_decay, 0) * (param + moved)

        updates = jax.tree_util.tree_map_with_path(move, params, first, second)
        return updates, optax.ScaleByAdamState(t, first, second)

    return optax.GradientTransformation(optax.scale_by_adam().init, update)


def adamw_with_warm_up(
    *,
    learning_rate: float,
    weight_decay: float,
    factors: Mapping[str, float],
    warm_up: float,
    clip_norm: float,
    total_steps: int,
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """UNITER's AdamW, as released: betas 0.9 and 0.98, eps 1e-6, the rate rises and falls linearly.

    Biases and scales of normalisations are not decayed, but those of the regions' features and locations are. A
    parameter that no gradient has reached yet, such as an unused head's, is left alone.

    Args:
      learning_rate: the highest, 5e-5 as published.
      weight_decay: times the learning rate; 0.01 as published.
      factors: module's name -> what the learning rate of its parameters is multiplied by.
      warm_up: the share of the run in which the rate rises, 0.1 as published.
      clip_norm: gradients of a larger global norm are scaled to it; 2.0 as published.
      total_steps: of the run.

    Returns:
      The optimizer and its learning rate as a function of the step.

    Raises:
      UserError: if warm_up is not in [0, 1), or weight_decay or a factor is negative.
    """
    check_rate(warm_up, 'optimizer.warm_up')
    schedule = warm_up_then_decay(learning_rate, warm_up, total_steps)
    return _clipped_and_scaled(adam_then_decay(schedule, weight_decay), clip_norm, weight_decay, factors), schedule


def make_optimizer(
    config: Mapping[str, Any], steps_per_epoch: int, epochs: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Makes what a config's `optimizer` names: dict(name='adamw', ...) -> the optimizer and its schedule.

    Raises:
      UserError: if the name or an argument is unknown, missing or out of its range.
    """
    name, keywords = config_lib.choose(config, 'name', where='optimizer')
    make = config_lib.resolve('jitm.training.optimizer', name)
    lengths = {'steps_per_epoch': steps_per_epoch, 'total_steps': epochs * steps_per_epoch}
    asked = {key: steps for key, steps in lengths.items() if key in inspect.signature(make).parameters}
    return config_lib.bind(make, keywords, where='optimizer', later=asked)(**asked)
