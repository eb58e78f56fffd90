import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import traverse_util

from jitm.errors import UserError
from jitm.training.optimizer import scale_modules, warm_up_then_cosine
from tests.training.models import make_optimizer

ADAMW = {
    'learning_rate': 1.0,
    'weight_decay': 0.0,
    'factors': {},
    'decay_epochs': 9,
    'clip_norm': 2.0,
    'steps_per_epoch': 1,
}
UNITER = {
    'learning_rate': 5e-5,
    'weight_decay': 0.01,
    'factors': {},
    'warm_up': 0.1,
    'b2': 0.98,
    'epsilon': 1e-6,
    'clip_norm': 2.0,
    'total_steps': 5000,
}


def adamw(steps_per_epoch, **section):
    return make_optimizer({'name': 'adamw', **section}, epochs=10)(steps_per_epoch)


def adamw_with_warm_up(total_steps, **section):
    return make_optimizer({'name': 'adamw_with_warm_up', **section}, epochs=1)(total_steps)


def adamw_with_cosine(total_steps, **section):
    return make_optimizer({'name': 'adamw_with_cosine', **section}, epochs=1)(total_steps)


def test_learning_rate_decays_in_steps():
    _, schedule = adamw(**ADAMW | {'learning_rate': 1e-3, 'decay_epochs': 2, 'steps_per_epoch': 10})
    np.testing.assert_allclose(
        [schedule(step) for step in (0, 19, 20, 39, 40)], [1e-3, 1e-3, 1e-4, 1e-4, 1e-5], rtol=1e-5
    )


def test_a_decay_starts_at_its_step_for_any_length_of_an_epoch():
    """Lengths are constants of the compiled function, where XLA multiplies by their rounded reciprocals."""
    lengths = [*range(1, 100), 235, 567, 4426]
    schedules = [adamw(**ADAMW | {'decay_epochs': 2, 'steps_per_epoch': length})[1] for length in lengths]
    steps = jnp.asarray([[2 * length - 1, 2 * length, 4 * length - 1, 4 * length] for length in lengths])
    rates = jax.jit(lambda steps: [schedule(row) for schedule, row in zip(schedules, steps, strict=True)])(steps)
    np.testing.assert_allclose(rates, [[1, 0.1, 0.1, 0.01]] * len(lengths), rtol=1e-5)


def test_clip_scales_the_whole_gradient():
    optimizer, _ = adamw(**ADAMW)
    gradients = {'a': jnp.asarray([30.0]), 'b': jnp.asarray([40.0])}
    _, (_, (adam_state, *_), _) = optimizer.update(gradients, optimizer.init(gradients), gradients)
    np.testing.assert_allclose(adam_state.mu['a'], 0.1 * 30 * 2 / 50, rtol=1e-5)
    np.testing.assert_allclose(adam_state.mu['b'], 0.1 * 40 * 2 / 50, rtol=1e-5)


def test_weight_decay_is_decoupled_and_factors_scale():
    params = {'bert': {'w': jnp.asarray([3.0])}, 'fc': {'w': jnp.asarray([3.0])}}
    optimizer, _ = adamw(**ADAMW | {'learning_rate': 0.5, 'weight_decay': 0.1, 'factors': {'bert': 0.1}})
    gradients = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    np.testing.assert_allclose(updates['fc']['w'], -0.5 * 0.1 * 3, rtol=1e-6)
    np.testing.assert_allclose(updates['bert']['w'], 0.1 * updates['fc']['w'], rtol=1e-6)


@pytest.mark.parametrize('make', [adamw, adamw_with_warm_up])
def test_frozen_modules_stay_and_have_no_moments(make):
    params = {'network': {'kernel': jnp.asarray([3.0])}, 'fc': {'kernel': jnp.asarray([3.0])}}
    options = {'weight_decay': 0.1, 'learning_rate': 0.5}
    updates = {}
    for factors in ({'network': 0.0}, {}):
        optimizer, _ = make(**(ADAMW if make is adamw else UNITER) | options | {'factors': factors})
        state = optimizer.init(params)
        moments = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim]
        assert len(moments) == (2 if factors else 4)
        gradients = {'network': {'kernel': jnp.zeros(1)}, 'fc': {'kernel': jnp.ones(1)}}
        updates[bool(factors)], _ = optimizer.update(gradients, state, params)
    assert updates[True]['network']['kernel'] == 0
    assert updates[True]['fc']['kernel'] == updates[False]['fc']['kernel'] != 0


def test_factor_of_an_unknown_module_is_refused():
    with pytest.raises(UserError, match="factors name no module of the model: 'bret', did you mean 'bert'"):
        scale_modules({'bret': 0.1}).init({'text': {'bert': {'w': 0}}})


def test_warm_up_and_decay_to_the_minimum():
    _, schedule = adamw_with_warm_up(**UNITER)
    rates = {0: 1e-7, 249: 2.5e-5, 498: 4.99e-5, 499: 5e-5, 2749: 2.5e-5, 4998: 5e-5 / 4500, 4999: 1e-8, 6000: 1e-8}
    np.testing.assert_allclose([schedule(step) for step in rates], [*rates.values()], rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(schedule)(jnp.asarray([*rates])), [*rates.values()], rtol=1e-5)


def test_decay_without_warm_up():
    _, schedule = adamw_with_warm_up(**UNITER | {'learning_rate': 1.0, 'warm_up': 0.0, 'total_steps': 4})
    np.testing.assert_allclose([schedule(step) for step in range(4)], [0.75, 0.5, 0.25, 1e-8])


# The release's loop over its parameters, each with its own decay, in float64. An unused head has no gradient.
DECAYED = {'bert/kernel': True, 'bert/bias': False, 'bert/norm/scale': False, 'bert/norm/bias': False}
DECAYED |= {'regions/features_norm/scale': True, 'regions/features_norm/bias': False, 'regions/norm/scale': False}
DECAYED |= {'regions/locations_norm/scale': True, 'regions/locations_norm/bias': False, 'itm_head/kernel': True}


def released(params, gradients_of_steps, peak, warm_up_steps, total_steps):
    params = {name: param.copy() for name, param in params.items()}
    first, second = ({name: np.zeros_like(param) for name, param in params.items()} for _ in range(2))
    for t, gradients in enumerate(gradients_of_steps, start=1):
        rate = peak * (t / warm_up_steps if t < warm_up_steps else (total_steps - t) / (total_steps - warm_up_steps))
        rate = max(rate, 1e-8)
        norm = np.sqrt(sum((g**2).sum() for g in gradients.values() if g is not None))
        for name, param in params.items():
            if gradients[name] is None:
                continue
            gradient = gradients[name] * min(1, 2 / norm)
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.98 * second[name] + 0.02 * gradient**2
            step_size = rate * np.sqrt(1 - 0.98**t) / (1 - 0.9**t)
            param -= step_size * first[name] / (np.sqrt(second[name]) + 1e-6)
            if DECAYED[name]:
                param -= rate * 0.01 * param
    return params


def nested(flat):
    return traverse_util.unflatten_dict(flat, sep='/')


@pytest.mark.slow
def test_updates_equal_the_released_ones():
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=(3, 2)) for name in DECAYED}
    steps = [  # from far above the norm of the clip to gradients as small as eps
        {name: None if name.startswith('itm') else scale * rng.normal(size=(3, 2)) for name in DECAYED}
        for scale in (1e-6, 1e-5, 3, 0.1, 1e-6, 1, 1e-3)
    ]
    want = released(params, steps, peak=0.1, warm_up_steps=3, total_steps=6)
    with jax.enable_x64(True):
        rule, _ = adamw_with_warm_up(**UNITER | {'learning_rate': 0.1, 'warm_up': 0.5, 'total_steps': 6})
        got = nested({name: jnp.asarray(param) for name, param in params.items()})
        state = rule.init(got)
        for gradients in steps:
            gradients = nested({name: jnp.zeros((3, 2)) if g is None else g for name, g in gradients.items()})
            updates, state = rule.update(gradients, state, got)
            got = optax.apply_updates(got, updates)
    for name, param in traverse_util.flatten_dict(got, sep='/').items():
        np.testing.assert_allclose(param, want[name], rtol=1e-12, err_msg=name)
    np.testing.assert_array_equal(got['itm_head']['kernel'], params['itm_head/kernel'])


def test_optimizers_take_the_lengths_they_need():
    config = {key: value for key, value in UNITER.items() if key != 'total_steps'} | {'name': 'adamw_with_warm_up'}
    _, schedule = make_optimizer(config, epochs=50)(steps_per_epoch=100)
    np.testing.assert_allclose([schedule(499), schedule(2749)], [5e-5, 2.5e-5], rtol=1e-5)
    config = {key: value for key, value in ADAMW.items() if key != 'steps_per_epoch'} | {'name': 'adamw'}
    _, schedule = make_optimizer(config, epochs=50)(steps_per_epoch=10)
    np.testing.assert_allclose([schedule(89), schedule(90)], [1, 0.1], rtol=1e-5)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'total_steps': 9}, "'optimizer.total_steps' is unknown"),
        ({'decay_epochs': 9}, "'optimizer.decay_epochs' is unknown"),
        ({'name': 'adamw_with_warmup'}, "did you mean 'adamw_with_warm_up'"),
    ],
)
def test_wrong_section_names_its_key(changes, message):
    config = {key: value for key, value in UNITER.items() if key != 'total_steps'} | {'name': 'adamw_with_warm_up'}
    with pytest.raises(UserError, match=message):
        make_optimizer(config | changes, 10)


def test_cosine_schedule_rises_and_falls():
    schedule = jax.vmap(warm_up_then_cosine(2.0, warm_up=0.2, total_steps=10))
    rates = schedule(np.arange(10))
    want = [1.0, 2.0, *(1 + math.cos(math.pi * n / 8) for n in range(1, 9))]
    np.testing.assert_allclose(rates, want, atol=1e-6)
    constant_start = warm_up_then_cosine(2.0, warm_up=0.0, total_steps=10)
    np.testing.assert_allclose(constant_start(0), 1 + math.cos(math.pi / 10), atol=1e-6)


def test_adamw_with_cosine_follows_the_formulas():
    """Two steps in float64; one bias, which is not decayed, and a temperature at each of its bounds."""
    optimizer, schedule = adamw_with_cosine(
        learning_rate=0.5, weight_decay=0.1, factors={}, warm_up=0.0, clip_norm=100.0, total_steps=4
    )
    params = {'x': {'kernel': np.array([1.0, -2.0])}, 'y': {'bias': np.array([3.0])}}
    params |= {'high': {'logit_scale': np.array(4.6)}, 'low': {'logit_scale': np.array(0.1)}}
    gradients = {'x': {'kernel': np.array([0.3, 0.4])}, 'y': {'bias': np.array([-0.2])}}
    gradients |= {'high': {'logit_scale': np.array(-1.0)}, 'low': {'logit_scale': np.array(1.0)}}
    got, state = jax.tree.map(np.float32, params), None
    state = optimizer.init(got)
    want = {path: {'p': p, 'm': 0 * p, 'v': 0 * p} for path, p in traverse_util.flatten_dict(params).items()}
    for step in range(2):
        updates, state = optimizer.update(jax.tree.map(np.float32, gradients), state, got)
        got = optax.apply_updates(got, updates)
        for path, gradient in traverse_util.flatten_dict(gradients).items():
            one = want[path]
            one['m'] = 0.9 * one['m'] + 0.1 * gradient
            one['v'] = 0.98 * one['v'] + 0.02 * gradient**2
            m, v = one['m'] / (1 - 0.9 ** (step + 1)), one['v'] / (1 - 0.98 ** (step + 1))
            decay = 0.1 * one['p'] if path[-1] == 'kernel' else 0
            one['p'] = one['p'] - float(schedule(step)) * (m / (np.sqrt(v) + 1e-6) + decay)
            if path[-1] == 'logit_scale':
                one['p'] = np.clip(one['p'], 0, math.log(100))
    for path, value in traverse_util.flatten_dict(got).items():
        np.testing.assert_allclose(value, want[path]['p'], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got['high']['logit_scale'], math.log(100), rtol=1e-6)
    assert got['low']['logit_scale'] == 0


@pytest.mark.parametrize('scale', [math.log(117.33), -0.25])
@pytest.mark.parametrize('factors', [{}, {'logit_scale': 0.0}])
def test_a_released_logit_scale_outside_of_the_limits_is_kept(scale, factors):
    optimizer, _ = adamw_with_cosine(
        learning_rate=1e-3, weight_decay=0.1, factors=factors, warm_up=0.0, clip_norm=1.0, total_steps=100
    )
    inward = np.sign(scale)  # the sign of a gradient that moves it towards the limits
    for direction in (inward, -inward):
        params = {'logit_scale': jnp.float32(scale)}
        updates, _ = optimizer.update({'logit_scale': jnp.float32(direction)}, optimizer.init(params), params)
        want = -1e-3 * direction if direction == inward and not factors else 0
        np.testing.assert_allclose(updates['logit_scale'], want, rtol=1e-2)


LION = {'learning_rate': 0.5, 'factors': {'bert': 0.1, 'network': 0.0}, 'clip_norm': 2.0, 'weight_decay': 0.1}


@pytest.mark.parametrize(('schedule', 'rate'), [({'decay_epochs': 9}, 0.5), ({'warm_up': 0.5}, 0.5 / 5)])
def test_an_optimizer_of_optax_has_schedule_and_factors(schedule, rate):
    optimizer, rates = make_optimizer({'name': 'optax.lion', **LION, **schedule}, epochs=10)(1)
    params = {name: {'kernel': jnp.asarray([3.0])} for name in ('bert', 'network', 'fc')}
    gradients = {name: {'kernel': jnp.asarray([4.0])} for name in params}
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    step = rate * (1 + 0.1 * 3)  # the sign of the gradient, and the weight decay
    for name, factor in {'bert': 0.1, 'network': 0, 'fc': 1}.items():
        np.testing.assert_allclose(updates[name]['kernel'], [-factor * step], rtol=1e-6)
    np.testing.assert_allclose(rates(0), rate, rtol=1e-6)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'name': 'optax.lyon'}, "optax has no 'lyon', did you mean 'lion'"),
        ({'b3': 0.9}, "'optimizer.b3' is unknown; known are b1, b2, "),
        ({}, "'optimizer.decay_epochs' is missing; give it, or warm_up"),
    ],
)
def test_mistakes_with_an_optimizer_of_optax_are_one_sentence(changes, message):
    with pytest.raises(UserError, match=message):
        make_optimizer({'name': 'optax.lion', **LION, **changes}, epochs=10)(1)
