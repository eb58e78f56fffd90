import json
from pathlib import Path

import numpy as np
import pytest

from tests.golden import renames, steps

GOLDEN = json.loads((Path(__file__).parent / 'steps.json').read_text())
# One setting of each system; the others, which share their code, are slow.
FAST = {
    'vse0_f30k', 'orderpp_coco', 'vse_fc_selhn_f30k', 'rvsepp_f30k', 'esa_bigru_f30k', 'vsrn_f30k', 'scan_i2t_lse_f30k',
    'bfan_prob_f30k', 'sgr_f30k', 'saf_f30k', 'naaf_f30k', 'bfan_equal_adapoffquin_f30k', 'dbl/vse_fc_rm_oss_f8k',
    'dbl/am_mss_f30k', 'tags/uniter_f30k', 'tags/tags_dc_single_f30k',
}  # fmt: skip


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('golden')
    steps.write_files(folder)
    return folder


@pytest.mark.parametrize('name', [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in GOLDEN])
def test_two_steps_equal_those_before_the_redesign(name, folder):
    got, want = steps.two_steps(renames.OLD_TO_NEW[name], folder), GOLDEN[name]
    for new, old in zip(got['steps'], want['steps'], strict=True):
        assert new.keys() == old.keys()
        np.testing.assert_allclose([new[key] for key in old], list(old.values()), rtol=1e-4)
    assert got['after'].keys() == want['after'].keys()
    for member, numbers in want['after'].items():
        np.testing.assert_allclose(got['after'][member], numbers, rtol=1e-5, atol=1e-5)
