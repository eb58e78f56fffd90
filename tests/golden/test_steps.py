import math

import jax
import pytest

from tests.configs.settings import one_of_each_word
from tests.golden import steps

FAST = 'configs/scan.py:i2t,lse,f30k'
# With those above, each file and each module of losses; all terms are active from the first step on.
OTHERS = 'bfan:prob,max,f8k', 'blip:softmax,scenes', 'clip:softmax,scenes', 'demo', 'vsepp:order0,f8k'


@pytest.mark.slow
@pytest.mark.parametrize('name', [FAST, *(pytest.param(x, marks=pytest.mark.slow) for x in steps.GOLDEN if x != FAST)])
def test_two_steps_equal_the_recorded_ones(name, folder):
    steps.compare(name, folder)
    if name != FAST:
        jax.clear_caches()  # the compiled steps of all settings together exceed the memory maps of a process


def files_and_modules(presets):
    """The files of some presets, and the modules of the losses of their terms."""
    found = set()
    for preset in presets:
        config = steps.load(preset.partition(' ')[0])
        for stage in (config, *filter(None, [config['stages'].get('first')])):
            file = preset.removeprefix('configs/').partition(':')[0].removesuffix('.py')
            found |= {file, *(f'losses.{term["loss"].partition(".")[0]}' for term in stage['terms'].values())}
    return found


def test_two_steps_are_of_each_file_and_module_of_losses():
    assert files_and_modules((*steps.GOLDEN, *OTHERS)) == files_and_modules(one_of_each_word())


@pytest.mark.slow
@pytest.mark.parametrize('preset', OTHERS)
def test_two_steps_have_a_finite_loss_and_a_gradient(preset, folder, monkeypatch):
    config = steps.load(preset)
    for term in config['terms'].values():
        term |= {'start_epoch': 0, 'end_epoch': None}
    monkeypatch.setattr(steps, 'load', lambda _: config)
    taken = steps.two_steps(preset, folder)['steps']
    assert len(taken) == 2
    for metrics in taken:
        assert all(math.isfinite(value) for value in metrics.values()), metrics
        assert all(value > 0 for key, value in metrics.items() if key.endswith('gradient_norm')), metrics
