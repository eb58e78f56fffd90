"""The optimizer and its schedule."""

import math
from collections.abc import Mapping

import chex
import jax
import optax

from jitm.errors import UserError, did_you_mean


def step_decay(learning_rate: float, decay_epochs: int, decay_factor: float, steps_per_epoch: int) -> optax.Schedule:
    """learning_rate * decay_factor ** (epoch // decay_epochs), as a function of the step."""
    return optax.exponential_decay(learning_rate, decay_epochs * steps_per_epoch, decay_factor, staircase=True)


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
    if weight_decay < 0:
        raise UserError(f"config key 'optimizer.weight_decay' is {weight_decay}; it must not be negative")
    for name, factor in factors.items():
        if not isinstance(factor, int | float) or not factor >= 0:
            raise UserError(f"config key 'optimizer.factors.{name}' is {factor!r}; it must be a number, not negative")
    schedule = step_decay(learning_rate, decay_epochs, decay_factor, steps_per_epoch)
    optimizer = optax.chain(
        optax.clip_by_global_norm(clip_norm), optax.adamw(schedule, weight_decay=weight_decay), scale_modules(factors)
    )
    return optimizer, schedule
