"""The optimizer and its schedule."""

import optax

from jitm.errors import UserError


def step_decay(learning_rate: float, decay_epochs: int, decay_factor: float, steps_per_epoch: int) -> optax.Schedule:
    """learning_rate * decay_factor ** (epoch // decay_epochs), as a function of the step."""
    return optax.exponential_decay(learning_rate, decay_epochs * steps_per_epoch, decay_factor, staircase=True)


def adam(
    *, learning_rate: float, decay_epochs: int, decay_factor: float, clip_norm: float, steps_per_epoch: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Adam with a global-norm clip and step decay, as the VSE++ lineage trains.

    Args:
      learning_rate: of the first epochs.
      decay_epochs: the rate is multiplied by decay_factor every so many epochs.
      decay_factor: 0.1 as published.
      clip_norm: gradients of a larger global norm are scaled to it; 2.0 as published.
      steps_per_epoch: turns epochs into steps.

    Returns:
      The optimizer and its learning rate as a function of the step.

    Raises:
      UserError: if decay_epochs is below 1.
    """
    if decay_epochs < 1:
        raise UserError(f"config key 'optimizer.decay_epochs' is {decay_epochs}; it must be at least 1")
    schedule = step_decay(learning_rate, decay_epochs, decay_factor, steps_per_epoch)
    return optax.chain(optax.clip_by_global_norm(clip_norm), optax.adam(schedule)), schedule
