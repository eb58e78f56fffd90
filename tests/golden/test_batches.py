import pytest

from tests.golden import batches
from tests.golden.presets import read

GOLDEN = read('batches.json')


def test_each_setting_is_recorded():
    assert GOLDEN.keys() == {*batches.NAMES}


@pytest.mark.parametrize('name', batches.NAMES)
def test_batches_are_the_recorded_ones(name, folder):
    assert batches.hash_batches(name, folder) == GOLDEN[name]
