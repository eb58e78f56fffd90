import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import traverse_util

from jitm.errors import UserError
from tests.support.steps import make_optimizer

SECTIONS = {
    'adamw': {'decay_epochs': 9},
    'adamw_with_warm_up': {'warm_up': 0.1, 'b2': 0.98, 'epsilon': 1e-6},
    'adamw_with_cosine': {'warm_up': 0.0},
    'optax.lion': {},
}


def make(name, steps_per_epoch=1, epochs=10, **changes):
    """The optimizer of a section, and its rate by step."""
    section = {'name': name, 'learning_rate': 0.5, 'weight_decay': 0.1, 'factors': {}, 'clip_norm': 2.0}
    return make_optimizer(section | SECTIONS.get(name, {}) | changes, epochs)(steps_per_epoch)


def test_a_decay_starts_at_its_step_for_any_length_of_an_epoch():
    """Lengths are constants of the compiled function, where XLA multiplies by their rounded reciprocals."""
    lengths = [*range(1, 100), 235, 567, 4426]
    schedules = [make('adamw', length, decay_epochs=2)[1] for length in lengths]
    steps = jnp.asarray([[2 * length - 1, 2 * length, 4 * length - 1, 4 * length] for length in lengths])
    rates = jax.jit(lambda steps: [schedule(row) for schedule, row in zip(schedules, steps, strict=True)])(steps)
    np.testing.assert_allclose(rates, [[0.5, 0.05, 0.05, 0.005]] * len(lengths), rtol=1e-5)


RISING = {0: 1e-7, 249: 2.5e-5, 498: 4.99e-5, 499: 5e-5, 2749: 2.5e-5, 4998: 5e-5 / 4500, 4999: 1e-8, 6000: 1e-8}
COSINE = {0: 1.0} | {n + 1: 1 + math.cos(math.pi * n / 8) for n in range(9)}


@pytest.mark.parametrize(
    ('name', 'rate', 'warm_up', 'epochs', 'rates'),
    [
        ('adamw_with_warm_up', 5e-5, 0.1, 500, RISING),
        ('adamw_with_warm_up', 1.0, 0.0, 0.4, {0: 0.75, 1: 0.5, 2: 0.25, 3: 1e-8}),
        ('adamw_with_cosine', 2.0, 0.2, 1, COSINE),
        ('adamw_with_cosine', 2.0, 0.0, 1, {0: 1 + math.cos(math.pi / 10)}),
    ],
)
def test_rates_rise_and_fall(name, rate, warm_up, epochs, rates):
    _, schedule = make(name, 10, epochs, learning_rate=rate, warm_up=warm_up)
    np.testing.assert_allclose([schedule(step) for step in rates], [*rates.values()], rtol=1e-5, atol=1e-6 * rate)
    np.testing.assert_allclose(
        jax.vmap(schedule)(jnp.asarray([*rates])), [*rates.values()], rtol=1e-5, atol=1e-6 * rate
    )


@pytest.mark.parametrize('name', ['adamw', 'adamw_with_warm_up'])
def test_frozen_modules_have_no_moments(name):
    params = {'network': {'kernel': jnp.ones(1)}, 'fc': {'kernel': jnp.ones(1)}}
    for factors, count in (({}, 4), ({'network': 0.0}, 2)):
        optimizer, _ = make(name, factors=factors)
        assert len([leaf for leaf in jax.tree.leaves(optimizer.init(params)) if leaf.ndim]) == count


@pytest.mark.parametrize(
    ('name', 'schedule', 'rate'),
    [('adamw', {}, 0.5), ('optax.lion', {'decay_epochs': 9}, 0.5), ('optax.lion', {'warm_up': 0.5}, 0.5 / 5)],
)
def test_an_update_has_schedule_decay_and_factors(name, schedule, rate):
    optimizer, rates = make(name, factors={'bert': 0.1, 'network': 0.0}, **schedule)
    params = {module: {'kernel': jnp.asarray([3.0])} for module in ('bert', 'network', 'fc')}
    gradients = jax.tree.map(lambda x: x + 1, params)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    step = rate * (1 + 0.1 * 3)  # the sign of the gradient, and the weight decay
    for module, factor in {'bert': 0.1, 'network': 0, 'fc': 1}.items():
        np.testing.assert_allclose(updates[module]['kernel'], [-factor * step], rtol=1e-5)
    np.testing.assert_allclose(rates(0), rate, rtol=1e-6)


# Adam with decoupled decay: whether each parameter is decayed. An unused head has no gradient, and does not change.
RELEASED = {'bert/kernel': True, 'bert/bias': False, 'bert/norm/scale': False, 'bert/norm/bias': False}
RELEASED |= {'regions/features_norm/scale': True, 'regions/features_norm/bias': False, 'regions/norm/scale': False}
RELEASED |= {'regions/locations_norm/scale': True, 'regions/locations_norm/bias': False, 'itm_head/kernel': True}
OPEN_CLIP = {
    'x/kernel': True,
    'x/bias': False,
    'norm/scale': False,
    'high/logit_scale': False,
    'low/logit_scale': False,
}


def adam(params, gradients_of_steps, rates, decayed, released):
    """Loops over steps and parameters in float64.

    As released for UNITER, eps is added before the second moment is corrected, and a parameter decays after its update.
    """
    params = dict(params)
    first = {name: 0 * param for name, param in params.items()}
    second = {name: 0 * param for name, param in params.items()}
    for t, (gradients, rate) in enumerate(zip(gradients_of_steps, rates, strict=True), start=1):
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        correction = np.sqrt(1 - 0.98**t)
        epsilon = 1e-6 if released else 1e-6 * correction
        for name, gradient in gradients.items():
            gradient = gradient * min(1, 2 / norm)
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.98 * second[name] + 0.02 * gradient**2
            update = correction / (1 - 0.9**t) * first[name] / (np.sqrt(second[name]) + epsilon)
            moved = params[name] - rate * update
            if decayed[name]:
                moved = moved - rate * 0.1 * (moved if released else params[name])
            params[name] = np.clip(moved, 0, math.log(100)) if 'logit_scale' in name else moved
    return params


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'decayed'), [('adamw_with_warm_up', RELEASED), ('adamw_with_cosine', OPEN_CLIP)])
def test_updates_follow_the_formulas(name, decayed):
    rng = np.random.default_rng(0)
    params = {path: rng.normal(size=(3, 2)) for path in decayed}
    params |= {
        path: np.full((3, 2), value)
        for path, value in (('high/logit_scale', 4.6), ('low/logit_scale', 0.1))
        if path in decayed
    }
    steps = []  # from far above the norm of the clip to gradients as small as eps
    for scale in (1e-6, 1e-5, 3, 0.1, 1e-6, 1, 1e-3):
        steps.append({path: scale * rng.normal(size=(3, 2)) for path in decayed if path != 'itm_head/kernel'})
    with jax.enable_x64(True):
        rule, schedule = make(name, 6, 1, warm_up=0.5)
        want = adam(
            params, steps, [float(schedule(t)) for t in range(len(steps))], decayed, name == 'adamw_with_warm_up'
        )
        got = traverse_util.unflatten_dict(jax.tree.map(jnp.asarray, params), sep='/')
        state = rule.init(got)
        for gradients in steps:
            gradients = traverse_util.unflatten_dict(jax.tree.map(jnp.zeros_like, params) | gradients, sep='/')
            updates, state = rule.update(gradients, state, got)
            got = optax.apply_updates(got, updates)
    for path, param in traverse_util.flatten_dict(got, sep='/').items():
        np.testing.assert_allclose(param, want[path], rtol=1e-12, err_msg=path)
    if name == 'adamw_with_cosine':
        assert want['high/logit_scale'].max() == math.log(100)
        assert want['low/logit_scale'].min() == 0


@pytest.mark.parametrize('scale', [math.log(117.33), -0.25])
@pytest.mark.parametrize(
    ('name', 'factors'), [('adamw_with_cosine', {}), ('adamw_with_cosine', {'logit_scale': 0.0}), ('optax.lion', {})]
)
def test_a_released_logit_scale_outside_of_the_limits_is_kept(scale, name, factors):
    optimizer, _ = make(name, 10, learning_rate=1e-3, factors=factors, warm_up=0.0, weight_decay=0.0)
    inward = np.sign(scale)  # the sign of a gradient that moves it towards the limits
    for direction in (inward, -inward):
        params = {'logit_scale': jnp.float32(scale)}
        updates, _ = optimizer.update({'logit_scale': jnp.float32(direction)}, optimizer.init(params), params)
        want = -1e-3 * direction if direction == inward and not factors else 0
        np.testing.assert_allclose(updates['logit_scale'], want, rtol=1e-2)


@pytest.mark.parametrize(
    ('name', 'changes', 'message'),
    [
        ('adamw_with_warm_up', {'total_steps': 9}, "'optimizer.total_steps' is unknown"),
        ('adamw_with_warm_up', {'decay_epochs': 9}, "'optimizer.decay_epochs' is unknown"),
        ('adamw_with_warmup', {}, "did you mean 'adamw_with_warm_up'"),
        ('optax.lyon', {}, "optax has no 'lyon', did you mean 'lion'"),
        ('optax.lion', {'b3': 0.9}, "'optimizer.b3' is unknown; known are b1, b2, "),
        ('optax.lion', {}, "'optimizer.decay_epochs' is missing; give it, or warm_up"),
    ],
)
def test_mistakes_are_one_sentence(name, changes, message):
    with pytest.raises(UserError, match=message):
        make(name, **changes)
