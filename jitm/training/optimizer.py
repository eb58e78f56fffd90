"""Optimizers and their learning-rate schedules."""

import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Annotated

import jax
import jax.numpy as jnp
import optax
from annotated_types import Interval

from jitm.config.section import Bound, Section
from jitm.errors import ArgumentError
from jitm.training.modules import check_rates, rate_factors, select_modules
from jitm.types import Count, NotNegative, Positive, Rate, Share

B1 = 0.9  # as in the code of UNITER, OSCAR and open_clip
MIN_RATE = 1e-8  # UNITER and OSCAR
CLIP_B2 = 0.98  # open_clip
CLIP_EPSILON = 1e-6
DECAYED_NORMS = {'features_norm', 'locations_norm'}  # not on the released list of parameters without weight decay
NOT_DECAYED = {'bias', 'scale', 'class_embedding', 'logit_scale', 'logit_bias'}  # CLIP, as in open_clip
MAX_LOGIT_SCALE = math.log(100)


def decay_in_steps(learning_rate: float, length: int) -> optax.Schedule:
    """Returns learning_rate * 0.1^(t / length), rounded down, for t = 0, 1, ..."""

    def schedule(step):
        return learning_rate * 0.1 ** (step // length)  # integers: a rounded quotient would begin a decay late

    return schedule


def warm_up_then_decay(learning_rate: float, warm_up: float, total_steps: int) -> optax.Schedule:
    """Returns learning_rate * min(t / w, (N - t) / (N - w)), at least 1e-8, for t = 1 .. N and w = warm_up N."""
    warm_up_steps = warm_up * total_steps

    def schedule(step):
        t = step + 1
        factor = jnp.minimum(t / max(warm_up_steps, 1), (total_steps - t) / (total_steps - warm_up_steps))
        return jnp.maximum(learning_rate * factor, MIN_RATE)

    return schedule


def warm_up_then_cosine(learning_rate: float, warm_up: float, total_steps: int) -> optax.Schedule:
    """Returns learning_rate * t / w up to t = w = warm_up N, then half a cosine to 0, for t = 1 .. N."""
    warm_up_steps = warm_up * total_steps

    def schedule(step):
        t = step + 1
        progress = jnp.clip((t - warm_up_steps) / (total_steps - warm_up_steps), 0, 1)
        return learning_rate * jnp.minimum(t / max(warm_up_steps, 1), (1 + jnp.cos(jnp.pi * progress)) / 2)

    return schedule


def scale_modules(factors: Mapping[str, float], layer_decay: float = 1.0) -> optax.GradientTransformation:
    """Scales the updates of all parameters in some modules, and those of transformers by layer.

    Args:
      factors, layer_decay: See `modules.rate_factors`.

    Raises:
      UserError: At initialization, if the model has no such module.
    """
    if not factors and layer_decay == 1:
        return optax.identity()

    def init(params):
        check_rates(params, factors, layer_decay)
        return optax.EmptyState()

    def update(updates, state, params=None):
        return jax.tree.map(operator.mul, updates, rate_factors(updates, factors, layer_decay)), state

    return optax.GradientTransformation(init, update)


def frozen_modules(factors: Mapping[str, float]) -> tuple[str, ...]:
    """Returns the patterns of the modules whose learning rate has the factor 0."""
    return tuple(name for name, factor in factors.items() if factor == 0)


def adamw(learning_rate: optax.Schedule, *, weight_decay: NotNegative) -> optax.GradientTransformation:
    """Returns AdamW as VSE++ and VSE-infinity use it: with step decay of the rate.

    Args:
      learning_rate: The learning rate by step.
      weight_decay: The decoupled weight decay, multiplied by the learning rate; 0 is Adam.
    """
    return optax.adamw(learning_rate, weight_decay=weight_decay)


def adamw_with_warm_up(
    learning_rate: optax.Schedule,
    *,
    weight_decay: NotNegative,
    b2: Annotated[float, Interval(gt=0, lt=1)],
    epsilon: Positive,
) -> optax.GradientTransformation:
    """Returns the AdamW of the code of UNITER and OSCAR, with linear warm-up and decay of the rate.

    It is p -= rate sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps), then p -= rate weight_decay p. `optax.adamw`
    corrects v before it adds eps, and decays p before the update. Biases and scales of normalizations are not decayed,
    except for the regions' features and locations. A parameter without any gradient so far, such as in an unused head,
    is not changed.

    Args:
      learning_rate: The learning rate by step; published for base models is at most 5e-5 for UNITER, 2e-5 for OSCAR.
      weight_decay: The weight decay, multiplied by the learning rate; 0.01 as published for UNITER, 0.05 for OSCAR.
      b2: The decay rate of the second moment (the first moment has 0.9); 0.98 as published for UNITER, 0.999 for
        OSCAR.
      epsilon: The number added to the root of this mean; 1e-6 as published for UNITER, 1e-8 for OSCAR.
    """

    def update(gradients, state, params):
        rate = learning_rate(state.count)
        t = optax.safe_increment(state.count)
        first = optax.tree.update_moment(gradients, state.mu, B1, 1)
        second = optax.tree.update_moment(gradients, state.nu, b2, 2)
        corrected = rate * jnp.sqrt(1 - b2**t) / (1 - B1**t)

        def move(path, param, m, v):
            moved = -corrected * m / (jnp.sqrt(v) + epsilon)
            *modules, name = (key.key for key in path)
            if 'bias' in name or (name == 'scale' and DECAYED_NORMS.isdisjoint(modules)):
                return moved  # is not decayed
            return moved - jnp.where(jnp.any(moved != 0), rate * weight_decay, 0) * (param + moved)

        updates = jax.tree_util.tree_map_with_path(move, params, first, second)
        return updates, optax.ScaleByAdamState(t, first, second)

    return optax.GradientTransformation(optax.scale_by_adam().init, update)


def adamw_with_cosine(learning_rate: optax.Schedule, *, weight_decay: NotNegative) -> optax.GradientTransformation:
    """Returns the AdamW of open_clip: betas 0.9 and 0.98, eps 1e-6, linear warm-up and cosine decay of the rate.

    Biases, scales of normalizations, the class embedding and the temperature of CLIP are not decayed; for the
    temperature see `limit_logit_scale`.

    Args:
      learning_rate: The learning rate by step.
      weight_decay: The decoupled weight decay, multiplied by the learning rate.
    """

    def decayed(params):
        return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key not in NOT_DECAYED, params)

    return optax.adamw(learning_rate, B1, CLIP_B2, CLIP_EPSILON, weight_decay=weight_decay, mask=decayed)


def limit_logit_scale() -> optax.GradientTransformation:
    """Keeps the parameter `logit_scale` in [0, ln 100], as CLIP does; a released value outside of this range moves no
    further away. Other updates are unchanged.
    """

    def limit(path, update, param):
        if path[-1].key != 'logit_scale':
            return update
        return jnp.clip(param + update, jnp.minimum(param, 0), jnp.maximum(param, MAX_LOGIT_SCALE)) - param

    return optax.GradientTransformation(
        lambda params: optax.EmptyState(),
        lambda updates, state, params: (jax.tree_util.tree_map_with_path(limit, updates, params), state),
    )


def optimizer(
    *,
    name: Bound,
    learning_rate: Positive,
    factors: Mapping[str, NotNegative],
    clip_norm: Positive,
    layer_decay: Share = 1.0,
    decay_epochs: Count | None = None,
    warm_up: Rate | None = None,
    steps_per_epoch: int,
    total_steps: int,
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Returns an update rule with its schedule, clipping of the global norm, and rates of modules and layers.

    Args:
      name: The rule, one of this file or of optax, a function of the learning rate by step.
      learning_rate: The initial learning rate; after a warm-up, the maximal one.
      factors: The factor of the learning rate of each module, by a pattern of `modules.select_modules`; 0 freezes it,
        and no gradient is computed for it.
      clip_norm: The maximal global norm of the gradient; 2.0 as published for VSE++ and UNITER, 1.0 for OSCAR.
      layer_decay: The factor of the rate of each layer of a transformer over the next one, see `modules.rate_factors`.
      decay_epochs: The number of epochs after which the rate is multiplied by 0.1, again and again.
      warm_up: Instead, the share of the steps in which the rate rises, before it falls to the end of the run; 0.1 as
        published for UNITER, 0 for OSCAR.
      steps_per_epoch: The number of batches in an epoch.
      total_steps: The number of steps of the run.

    Returns:
      The optimizer, and its learning rate by step.
    """
    if warm_up is not None:
        decay = warm_up_then_decay if name.func is adamw_with_warm_up else warm_up_then_cosine
        schedule = decay(learning_rate, warm_up, total_steps)
    elif decay_epochs is None:
        raise ArgumentError('decay_epochs', 'is missing; give it, or warm_up')
    else:
        schedule = decay_in_steps(learning_rate, decay_epochs * steps_per_epoch)
    rule = name(schedule)
    frozen = frozen_modules(factors)
    if frozen:  # they have no moments
        rule = optax.masked(rule, lambda params: jax.tree.map(operator.not_, select_modules(params, frozen)))
    chain = optax.chain(optax.clip_by_global_norm(clip_norm), rule, scale_modules(factors, layer_decay))
    unlimited = adamw, adamw_with_warm_up  # as in the released code
    return chain if name.func in unlimited else optax.chain(chain, limit_logit_scale()), schedule


def around(rule: Callable) -> Callable | None:
    """Returns `optimizer` with the schedule of a rule, any for those of optax; None for an optimizer of the user."""
    if rule in (adamw_with_warm_up, adamw_with_cosine):
        return functools.partial(optimizer, decay_epochs=None)
    if rule is adamw:
        return functools.partial(optimizer, warm_up=None)
    return optimizer if rule.__module__.startswith('optax.') else None


DECLARED = Section('name', __name__, own=callable, takes=('steps_per_epoch', 'total_steps'), wrapper=around)
