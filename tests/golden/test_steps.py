import pytest

from tests.golden import steps

FAST = ('vse_fc_selhn_f30k',)
SLOW = (
    'scan_i2t_lse_f30k',
    'vsrn_f30k',
    'dbl/vse_fc_rm_oss_f8k',
    'orderpp_coco',
    'rvsepp_f30k',
    'esa_bigru_f30k',
    'bfan_prob_f30k',
    'sgr_f30k',
    'saf_f30k',
    'naaf_f30k',
    'bfan_equal_adapoffquin_f30k',
    'dbl/am_mss_f30k',
    'tags/uniter_f30k',
    'tags/tags_dc_single_f30k',
)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('golden')
    steps.write_files(folder)
    return folder


@pytest.mark.parametrize('name', [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_two_steps_equal_those_before_the_redesign(name, folder):
    steps.compare(name, folder)
