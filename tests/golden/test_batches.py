import pytest

from tests.golden import batches
from tests.golden.presets import read

GOLDEN = read('batches.json')


def test_each_setting_is_recorded():
    assert GOLDEN.keys() == {*batches.NAMES}


@pytest.mark.parametrize('name', batches.NAMES)
def test_batches_are_the_recorded_ones(name, folder):
    assert batches.hash_batches(name, folder) == GOLDEN[name]


def test_other_batches_differ(folder):
    name = batches.NAMES[0]
    changed = batches.hash_batches(f'{name} seed=1', folder)
    assert all(changed[part] != GOLDEN[name][part] for part in changed)
