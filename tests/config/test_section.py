import json

import pytest

from jitm.config import section
from jitm.errors import UserError
from jitm.training.sections import SECTIONS, complete
from jitm.training.workdir import check_workdir
from tests.configs.settings import load


def test_a_complete_config_has_every_default():
    config = load('noisy:mean,ncr,f8k')
    preset, made = (json.loads(json.dumps(section)) for section in (config, complete(config)))
    assert made['optimizer'] == preset['optimizer'] | {'layer_decay': 1.0}
    assert made['members']['target'] == {'rule': 'gradient', 'learn_from': [], 'init_from': ''}
    assert made['terms']['ranking'] == preset['terms']['ranking'] | {'rankings': ['i2t', 't2i']}
    assert made['labels'] == preset['labels'] | {'margin': 0.2}
    assert made['data'] == preset['data'] | {'min_tag_score': 0.0, 'token_vectors': False}  # and no noise
    assert made['model'] == preset['model'] | {'initial_temperature': None, 'initial_bias': None}
    assert complete(made) == made


def test_a_complete_stage_has_every_default():
    first = complete(load('aoq:vsepp,adapoffquin,f8k'))['stages']['first']
    assert first['optimizer']['layer_decay'] == 1.0
    assert 'lora' not in first['members']['target']


def test_a_section_that_names_code_that_was_not_imported_stays():
    config = load('demo') | {'labels': {'source': 'not_imported.Labels'}}
    config['terms']['ranking']['loss'] = 'not_imported.hinge'
    made = section.complete(config, SECTIONS, imports=False)
    assert (made['labels'], made['terms']['ranking']) == (config['labels'], config['terms']['ranking'])
    assert made['optimizer']['layer_decay'] == 1.0
    with pytest.raises(UserError, match=r"'labels.source' is 'not_imported.Labels', but"):
        section.complete(config, SECTIONS)


def test_a_run_of_a_version_with_fewer_keys_resumes(tmp_path):
    old = load('demo')
    path = tmp_path / 'config.json'
    path.write_text(json.dumps(old))
    check_workdir(tmp_path, complete(old))
    old['optimizer']['layer_decay'] = 0.5
    path.write_text(json.dumps(old))
    with pytest.raises(UserError, match=r'another config \(optimizer.layer_decay: 0.5 -> 1.0\)'):
        check_workdir(tmp_path, complete(load('demo')))
