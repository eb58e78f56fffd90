from jitm.training.plan import make_plan
from tests.configs.settings import load
from tests.golden import plans
from tests.golden.presets import read

GOLDEN = read('plans.json')


def test_each_system_is_recorded():
    assert GOLDEN.keys() == {*plans.NAMES}


def test_presets_bind_what_is_recorded():
    assert plans.hash_plans(plans.FEW) == GOLDEN[plans.FEW]


def test_another_argument_differs_in_its_part_alone():
    first = load('vse:fc,selhn,f30k')
    changed = load('vse:fc,selhn,f30k')
    changed['optimizer']['weight_decay'] = 0.5
    texts = [plans.describe_plan(make_plan(config)) for config in (first, changed)]
    assert [part for part in texts[0] if texts[0][part] != texts[1][part]] == ['make_optimizer']
