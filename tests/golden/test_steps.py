import jax
import pytest

from tests.golden import steps

FAST = 'configs/scan.py:i2t,lse,f30k'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('golden')
    steps.write_files(folder)
    return folder


@pytest.mark.parametrize('name', [FAST, *(pytest.param(x, marks=pytest.mark.slow) for x in steps.GOLDEN if x != FAST)])
def test_two_steps_equal_the_recorded_ones(name, folder):
    steps.compare(name, folder)
    if name != FAST:
        jax.clear_caches()  # the compiled steps of all settings together exceed the memory maps of a process
