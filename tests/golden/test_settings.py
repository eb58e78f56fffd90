import json

import pytest

from tests.configs.settings import SETTINGS
from tests.golden import settings

GOLDEN = json.loads(settings.FILE.read_text())


def test_default_is_unchanged():
    assert settings.flat('default') == GOLDEN['default']


def test_settings_are_complete():
    assert ['default', *SETTINGS] == list(GOLDEN)


@pytest.mark.parametrize('setting', SETTINGS)
def test_setting_is_unchanged(setting):
    assert settings.changes(setting, GOLDEN['default']) == GOLDEN[setting]
