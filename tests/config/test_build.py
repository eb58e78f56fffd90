import pytest

from jitm.config import build as config_lib
from jitm.config import names
from jitm.config.section import bind
from jitm.data.load import SECTIONS
from jitm.errors import UserError
from tests.configs.settings import load


def test_missing_package_is_named(tmp_path, monkeypatch):
    (tmp_path / 'needy.py').write_text('import absent_package\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match='absent_package'):
        names.resolve('needy', 'module.loss', where='terms.ranking.loss')


@pytest.mark.parametrize(
    ('package', 'name', 'message'),
    [
        ('jitm.losses', 'ranking.max_of_hinge', "has no 'max_of_hinge', did you mean 'max_of_hinges'"),
        ('jitm.losses', 'rankin.max_of_hinges', 'no module jitm.losses.rankin'),
        ('jitm.losses', 'ranking.jnp', "has no 'jnp'"),
        ('jitm.models', 'VSE', r"names of jitm.models have the form MODULE.NAME, did you mean 'vse.VSE'\?"),
        ('jitm.losses', 'rnking', r"^config key 'section.key' is 'rnking', but .*, did you mean 'ranking.NAME'\?"),
        ('jitm.losses', 'max_of_hinge', r"did you mean 'ranking.max_of_hinges'\?"),
        ('jitm.losses', 'SelHN', r"did you mean 'ranking.selective_hard_negative'\?"),
        ('jitm.losses', 'ranking.selhn', r"has no 'selhn', did you mean 'selective_hard_negative'\?"),
        ('jitm.losses', 'x', 'MODULE.NAME; see jitm/configs/default.py$'),
    ],
)
def test_unknown_name_is_refused(package, name, message):
    with pytest.raises(UserError, match=message):
        names.resolve(package, name, where='section.key')


def test_a_section_without_source_is_none():
    assert bind(SECTIONS['scene_graphs'], {'source': ''}, 'scene_graphs') is None
    with pytest.raises(UserError, match=r"'scene_graphs.path' is unknown"):
        bind(SECTIONS['scene_graphs'], {'source': '', 'path': 'cider.npy'}, 'scene_graphs')


def test_differences_ignore_run_and_paths():
    old, new = load('default'), load('default')
    new['run']['log_every'] = 1
    new['data']['root'] = 'elsewhere'
    assert config_lib.differences(old, new) == []
    new['optimizer']['learning_rate'] = 1.0
    new['data']['dev_images'] = 500
    new['members']['other'] = {}
    del new['model']['absolute']
    assert config_lib.differences(old, new) == [
        'data.dev_images: 1000 -> 500',
        'members.other: absent -> {}',
        'model.absolute: False -> absent',
        'optimizer.learning_rate: 0.0002 -> 1.0',
    ]
