import importlib
import json
from pathlib import Path

import pytest

from jitm import config as config_lib
from tests.golden import renames

GOLDEN = json.loads((Path(renames.__file__).parent / 'configs.json').read_text())


def load(setting):
    path, _, words = setting.partition(':')
    module = importlib.import_module(path.removesuffix('.py').replace('/', '.'))
    config = module.get_config(words) if words else module.get_config()
    return config_lib.flatten(json.loads(config.to_json()))


def resolved(name):
    """The flattened config of an old setting, with its old keys and values."""
    setting = GOLDEN['settings'][name]
    kept = {key: value for key, value in GOLDEN['default'].items() if key not in setting['absent']}
    return kept | setting['changed']


def test_every_old_setting_is_renamed():
    assert renames.OLD_TO_NEW.keys() == GOLDEN['settings'].keys()
    assert len(set(renames.OLD_TO_NEW.values())) == len(renames.OLD_TO_NEW)


def test_default_equals_the_old_one():
    assert load('configs/default.py') == renames.rename(GOLDEN['default'])


@pytest.mark.parametrize(('old', 'new'), renames.OLD_TO_NEW.items())
def test_setting_equals_the_old_one(old, new):
    assert load(new) == renames.rename(resolved(old))
