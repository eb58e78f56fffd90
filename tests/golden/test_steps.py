import pytest

from tests.golden import steps

FAST = ('configs/vse.py:fc,selhn,f30k',)
SLOW = (
    'configs/vsrn.py:f30k',
    'configs/scan.py:i2t,lse,f30k',
    'configs/sgraf.py:saf,f30k',
    'configs/imram.py:both,f30k',
    'configs/vse_infinity.py:esa,gru,f30k',
    'configs/aoq.py:bfan_equal,adapoffquin,f30k',
    'configs/dbl.py:vsepp,rm,oss,f8k',
    'configs/tags.py:tags_dc_single,base,f30k',
    'configs/oscar.py:rm,base,coco',
)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('golden')
    steps.write_files(folder)
    return folder


@pytest.mark.parametrize('name', [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_two_steps_equal_the_recorded_ones(name, folder):
    steps.compare(name, folder)
