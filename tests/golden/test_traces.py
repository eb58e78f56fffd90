import jax
import jax.numpy as jnp
import pytest

from tests.golden import traces
from tests.golden.presets import differences, make_setup, read

GOLDEN = read('traces.json')
RECORDED = GOLDEN['jax'] == jax.__version__  # others trace other equations
FAST = ('scan:i2t,lse,f30k', 'vse:fc,selhn,f30k', 'dbl:vsepp,rm,oss,f8k', 'noisy:mean,ncr,f8k data.noise_rate=0.4')
FAST += traces.PROFILED[:2]


TWO_DEVICES = 'recipe:perturbed_offline,oss,f8k', 'noisy:mean,ncr,f8k data.noise_rate=0.4'


def hashed(function):
    x = jnp.arange(3.0)
    y = jnp.arange(3.0)
    return traces.expressions(function, ('x', x), ('y', y), outputs=('first', 'second'))


def in_order(x, y):
    return jnp.sin(x) * 0.5, jax.lax.scan(lambda carry, row: (carry + row * x.sum() + y[0], carry), 0.0, y)


def in_another_order(x, y):
    unused = jnp.exp(y)  # noqa: F841
    scanned = jax.lax.scan(jax.jit(lambda total, each: (total + each * jnp.sum(x) + y[0], total)), 0.0, y)
    return jax.jit(jnp.sin)(x) * 0.5, scanned


def test_only_what_is_computed_counts():
    assert hashed(in_order) == hashed(in_another_order)
    assert len(set(hashed(in_order).values())) == 3


@pytest.mark.parametrize(
    'first',
    [
        lambda x, y: jnp.sin(x) * 0.25,
        lambda x, y: jnp.sin(y) * 0.5,
        lambda x, y: jnp.cos(x) * 0.5,
        lambda x, y: jnp.sin(x * 0.5),
    ],
    ids=['constant', 'input', 'operation', 'order'],
)
def test_an_output_that_is_computed_otherwise_differs_alone(first):
    found = hashed(lambda x, y: (first(x, y), in_order(x, y)[1]))
    wanted = hashed(in_order)
    assert [name for name in wanted if wanted[name] != found[name]] == ['first']


def test_each_setting_is_recorded():
    assert GOLDEN.keys() == {'jax', *traces.NAMES}


@pytest.mark.parametrize('name', FAST)  # `python -m tests.golden.traces --compare` compares all
def test_a_step_computes_what_is_recorded(name, folder):
    trace = traces.trace(name, folder)
    if RECORDED:
        assert trace == GOLDEN[name]
    assert trace.keys() == GOLDEN[name].keys()


def test_some_steps_have_batches_with_a_profile(folder):
    profiles = [make_setup(name, folder).pipeline.batch(0).texts.profile for name in traces.PROFILED[:2]]
    assert all(len(profile.segments) == 3 for profile in profiles)


@pytest.mark.slow
def test_the_steps_on_two_devices_compute_what_is_recorded():
    names = [f'{name}{traces.TWO}' for name in TWO_DEVICES]
    rows = traces.trace_all(names)
    assert all(rows[name].keys() == GOLDEN[name].keys() for name in names), rows
    if RECORDED:
        assert not differences(GOLDEN, rows)
