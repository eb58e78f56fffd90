"""Losses and gradients do not depend on the number of devices and processes."""

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.devices import collectives, parallel
from jitm.errors import UserError
from tests.conftest import ACCELERATORS, ROOT, environment, free_port, several_devices, shared_folder
from tests.support.matchers import WITHOUT_GRADIENT

WORKER = str(ROOT / 'tests' / 'devices_worker.py')
FEW = 'vsepp,boosted,ncr_encoded_in_chunks'
CASES = FEW if ACCELERATORS else 'all'
IN_CHUNKS = 'sigmoid', 'sigmoid_in_chunks'
ENCODED = '_encoded_in_chunks'


def start(*arguments, env=None) -> subprocess.Popen:
    command = [sys.executable, WORKER, *map(str, arguments)]
    pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT, 'text': True}
    return subprocess.Popen(command, env=env or environment(), **pipes)


def finish(*workers: subprocess.Popen) -> None:
    for worker in workers:
        output, _ = worker.communicate()
        assert worker.returncode == 0, output


@pytest.fixture(scope='session')
def one_device_folder(tmp_path_factory):
    """A folder with the initial states and the results of one device."""

    def compute(folder):
        folder.mkdir()
        finish(start(folder / 'out.npz', folder / 'initial', 1, CASES))

    return shared_folder(tmp_path_factory, 'one_device', compute)


@pytest.fixture
def initial(one_device_folder):
    """The file with the initial states."""
    return one_device_folder / 'initial'


@pytest.fixture
def one_device(one_device_folder):
    """The results of one device."""
    return dict(np.load(one_device_folder / 'out.npz'))


def check_same(out, one_device, devices):
    got = dict(np.load(out))
    assert got.pop('devices') == devices
    float64 = got.pop('float64')
    for name in got:
        if name.endswith(WITHOUT_GRADIENT):
            continue
        scale = max(np.abs(one_device[name]).max(), 1e-3)
        in_float32 = not float64 or name.startswith(('clip_resnet/', *IN_CHUNKS))  # its networks do in any case
        atol = (1e-3 if ACCELERATORS else 2e-5) if in_float32 else 1e-6
        np.testing.assert_allclose(got[name] / scale, one_device[name] / scale, atol=atol, err_msg=name)
    assert got['vsepp/step'] == 1


@pytest.mark.slow
def test_one_device_gradient_is_not_trivial(one_device):
    gradients = {name: value for name, value in one_device.items() if 'gradient[' in name}
    models = {'vsepp', 'vsrn_f30k', 'naaf', 'shortlist', 'boosted', 'clip_resnet'}
    models |= {'ncr', 'crcl', 'perturbed', 'queue', *IN_CHUNKS}
    models |= {name + ENCODED for name in ('ncr', 'perturbed')}
    assert {name.split('/')[0] for name in gradients} == models
    assert len(gradients) >= 3 * 13 + 72
    assert np.ptp(one_device["crcl/labels['target']['label']"]) > 0.1
    for name, value in gradients.items():
        assert np.abs(value).max() > 1e-4 or name.endswith(WITHOUT_GRADIENT), name
    statistics = {name: value for name, value in one_device.items() if 'statistics[' in name}
    assert len(statistics) == 3 * 2 + 2 + 2 + 19 * 2
    assert all(np.abs(value - name.endswith("'variance']")).max() > 1e-4 for name, value in statistics.items())
    parts = one_device['vsrn_f30k/ranking_loss'], one_device['vsrn_f30k/terms/caption']
    assert min(parts) > 0.1
    np.testing.assert_allclose(one_device['vsrn_f30k/loss'], sum(parts), rtol=1e-6)


@pytest.mark.slow
def test_devices_agree(tmp_path, one_device, initial):
    out = tmp_path / 'out.npz'
    devices, env = several_devices(2)
    finish(start(out, initial, devices, CASES, env=env))
    check_same(out, one_device, devices)


@pytest.mark.slow
def test_two_processes_of_two_devices_agree(tmp_path, one_device, initial):
    out = tmp_path / 'out.npz'
    coordinator = f'localhost:{free_port()}'
    finish(*[start(out, initial, 2, FEW, coordinator, 2, index) for index in range(2)])
    check_same(out, one_device, 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('given', 'want'), [('-1', len(os.sched_getaffinity(0))), pytest.param('3', 3, marks=pytest.mark.slow)]
)
def test_evaluation_uses_all_cores_unless_a_number_is_given(given, want):
    script = 'import jax; from jitm.devices import parallel; parallel.use_all_cores(); print(jax.device_count())'
    run = subprocess.run(
        [sys.executable, '-c', script], env=environment(JAX_NUM_CPU_DEVICES=given), capture_output=True, text=True
    )
    assert int(run.stdout) == want, run.stderr


def test_each_device_has_its_own_random_key():
    keys = jax.vmap(collectives.device_key, axis_name=parallel.AXIS)(jnp.stack([jax.random.key(0)] * 3))
    assert len(np.unique(jax.random.key_data(keys), axis=0)) == 3


def test_cpus_add_in_the_order_of_the_devices(monkeypatch):
    monkeypatch.setattr(collectives, '_on_cpus', lambda: True)
    rng = np.random.default_rng(0)
    arrays, weights = (rng.normal(size=shape).astype(np.float32) for shape in ((4, 5, 7), (4, 20, 7)))  # of 4 devices
    on_devices = functools.partial(jax.vmap, axis_name=parallel.AXIS)
    mean = on_devices(collectives.mean)(arrays)
    np.testing.assert_array_equal(mean, [sum(arrays) / 4] * 4)

    def loss(rows, weight):
        return (collectives.all_gather(rows) * weight).sum()

    gradient = on_devices(jax.grad(loss))(arrays, weights)
    np.testing.assert_array_equal(gradient, sum(weights).reshape(4, 5, 7))


def test_indivisible_batch_is_refused(monkeypatch):
    monkeypatch.setattr(jax, 'device_count', lambda: 8)
    parallel.check_batch_size(128)
    with pytest.raises(UserError, match=r'batch_size 100 cannot be split over 8 devices.*104'):
        parallel.check_batch_size(100)


def test_the_first_step_reuses_the_trace_that_checked_it():
    traced = []

    def step(state, batch):
        traced.append(state.shape)
        return state + collectives.mean(batch.mean(0)), {}

    compiled = parallel.data_parallel(step, 'default')
    state = np.zeros(3, np.float32)
    batch = np.ones((8, 3), np.float32)
    parallel.trace_step(compiled, state, parallel.split_rows(batch))
    np.testing.assert_array_equal(compiled(parallel.put_state(state), parallel.put_batch(batch))[0], 1)
    assert traced == [(3,)]


def test_prefetch_keeps_the_order_and_raises_errors():
    made = list(parallel.prefetch(lambda step: {'x': np.full(2, step)}, range(5), depth=2))
    assert [int(batch['x'][0, 0]) for batch in made] == [0, 1, 2, 3, 4]

    def fail(step):
        if step == 3:
            raise UserError('row 3 is broken')
        return {'x': np.zeros(1)}

    batches = parallel.prefetch(fail, range(5), depth=2)
    assert [next(batches) for _ in range(3)]
    with pytest.raises(UserError, match='row 3'):
        next(batches)


def on_devices(function):
    """Maps a function over 3 virtual devices."""
    return jax.vmap(function, axis_name=parallel.AXIS, axis_size=3, in_axes=0)


def test_several_devices_gather_small_arrays_of_a_dtype_as_one():
    tree = jnp.zeros((2, 5)), jnp.zeros(2), jnp.zeros((2, 5), bool), jnp.zeros((4, 5)), jnp.zeros((2, 1000))
    for devices, operations in ((3, 4), (1, 0)):
        traced = jax.make_jaxpr(collectives.all_gather, axis_env=[(parallel.AXIS, devices)])(tree)
        assert str(traced).count('all_gather[') == operations
