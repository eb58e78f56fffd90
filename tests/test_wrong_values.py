"""Bad values of a config: one sentence, exit code 2, and nothing is written."""

import json
import re
import shutil

import numpy as np
import pytest

from jitm.config import names, schema
from jitm.config.build import parameters_of
from jitm.data.pairs.augmentation import Augmentation
from jitm.data.pairs.masking import Masking
from jitm.data.pairs.mined_lists import OfflineNegatives
from jitm.errors import UserError
from jitm.models.make import make_model
from jitm.synthesis.generator import Synthesis
from jitm.training import optimizer, stages
from jitm.training.loop import train_and_evaluate
from jitm.training.objective import RankingTerm
from tests.configs.settings import load, one_of_each_word
from tests.support.configs import changed
from tests.support.steps import make_terms


def test_names_are_not_empty():
    config = load('default')
    for key, wrong in (('terms', {'': {}}), ('members', {'target': {'': 1}})):
        with pytest.raises(UserError, match=r"config key '\w+\.(target\.)?' has an empty name"):
            schema.check({**config, key: wrong})


@pytest.mark.parametrize('start', [train_and_evaluate, stages.train, stages.check])
@pytest.mark.parametrize(
    ('key', 'value', 'sentence'),
    [
        ('optimizer.learning_rate', -1, "'optimizer.learning_rate' is -1; it must be above 0"),
        (
            'optimizer.learning_rate',
            np.float32(1),
            'has type float32, which cannot be written to config.json; give a num',
        ),
        ('terms.ranking.loss', lambda scores: scores, 'has type function, which cannot be written to config.json'),
        ('model.embed_dim', np.ones(2), 'has type ndarray, which cannot be written to config.json'),
    ],
)
def test_bad_values_are_refused_before_writing(tiny_config, tmp_path, start, key, value, sentence):
    with pytest.raises(UserError, match=sentence):
        start(changed(tiny_config, {key: value}), tmp_path / 'run')
    assert not (tmp_path / 'run').exists()


WRONG_ARGUMENTS = [
    ('scan', 'lambda_softmax', 90.0, 'is 90.0; it must be above 0 and at most 30'),
    ('scan', 'lambda_lse', 0.0, 'is 0.0; it must be above 0'),
    ('naaf', 'alpha', 0.0, 'is 0.0; it must be above 0'),
    ('vsrn', 'graph_layers', -1, 'is -1; it must be at least 0'),
    ('vsrn', 'caption_dim', 0, 'is 0; it must be at least 1'),
    ('vsrn', 'caption_length', 1, 'is 1; it must be at least 2'),
    ('vsrn', 'caption_dropout', 1.0, 'is 1.0; it must be at least 0 and below 1'),
    ('sgraf', 'reasoning.steps', 0, 'is 0; it must be at least 1'),
    ('uniter', 'heads', 'mlm', "is 'mlm'; it must be a tuple of names"),
    ('uniter', 'heads', ('mlm', 3), "'model.heads.1' is 3; it must be a string"),
    ('vse', 'image', 'vision.RegionEncoder', 'must be a dict with the name of a module in jitm.layers'),
]


@pytest.mark.parametrize(('setting', 'key', 'value', 'sentence'), WRONG_ARGUMENTS)
def test_wrong_arguments_of_models(setting, key, value, sentence):
    section = changed(load(setting)['model'], {key: value})
    with pytest.raises(UserError, match=re.escape(sentence)):
        make_model(section, vocab_size=10)


TERM = {'weight': 1.0, 'start_epoch': 0, 'end_epoch': None, 'reduction': 'sum'}
WRONG_TERMS = [
    ('ranking.max_of_hinges', {'margin': -1}, 'terms.ranking.margin', 'is -1; it must be at least 0'),
    ('ranking.max_of_hinges', {'margin': 'wide'}, 'terms.ranking.margin', "is 'wide'; it must be a number"),
    ('ranking.sigmoid_contrastive', {'bias': -101}, 'terms.ranking.bias', 'is -101; it must be'),
    ('noisy.ladder', {'thresholds': 0.5}, 'terms.ranking.thresholds', 'is 0.5; it must be a tuple'),
    ('noisy.ladder', {'thresholds': '0.5'}, 'terms.ranking.thresholds', "is '0.5'; it must be a tuple"),
    ('noisy.ladder', {'thresholds': (5.0, '1')}, 'terms.ranking.thresholds.1', "is '1'; it must be a number"),
    ('tokens.word_discrimination', {'match_weight': -1}, 'terms.ranking.match_weight', 'is -1; it must be at least 0'),
]


@pytest.mark.parametrize(('loss', 'arguments', 'key', 'sentence'), WRONG_TERMS)
def test_wrong_arguments_of_losses(loss, arguments, key, sentence):
    with pytest.raises(UserError, match=re.escape(f"'{key}' {sentence}")):
        make_terms({'ranking': {'loss': loss, **TERM, **arguments}})


def test_thresholds_and_margins_of_the_ladder_are_as_many():
    scores = np.zeros((2, 2))
    positives = np.eye(2, dtype=bool)
    ladder = TERM | {'loss': 'noisy.ladder', 'thresholds': (0.5, 7.0)}  # of CIDEr, up to 10
    loss = make_terms({'ladder': ladder})['ladder'].loss
    with pytest.raises(UserError, match=r"'terms.ladder.ladder_margins' has 1 margins for 2 thresholds: give one for"):
        loss(scores, positives, relevance=scores)


def numbers_without_range(function, section: dict) -> list[str]:
    """The arguments of a function whose value is a number and whose hint has no bounds."""
    parameters = parameters_of(function)
    return [
        f'{function.__module__}.{function.__name__}: {key}'
        for key, value in section.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and key in parameters
        if 'Annotated' not in str(parameters[key].annotation)
    ]


@pytest.mark.slow
def test_every_number_of_a_setting_has_a_range():
    unbounded = set()
    functions = {'augmentation': Augmentation, 'masking': Masking, 'synthesis': Synthesis, 'offline': OfflineNegatives}
    for setting in one_of_each_word():
        config = load(setting)
        assert schema.check(config) == json.loads(json.dumps(config))
        sections = [(functions[name], config[name]) for name in functions]
        models = [(config['model'], 'jitm.models')]
        for section, package in models:  # which grows by the sections within
            sections.append((names.resolve(package, section['name'], where=''), section))
            models += [(inner, 'jitm.layers') for inner in section.values() if isinstance(inner, dict)]
        for term in config['terms'].values():
            sections += [(names.resolve('jitm.losses', term['loss'], where=''), term), (RankingTerm, term)]
        rule = names.resolve('jitm.training.optimizer', config['optimizer']['name'], where='')
        constants = {key: value for key, value in config['optimizer'].items() if key != 'learning_rate'}
        sections += [(rule, constants), (optimizer.optimizer, config['optimizer'])]  # the rate of a rule is a schedule
        sections.append((names.resolve('jitm.data', config['data']['source'], where=''), config['data']))
        for function, section in sections:
            unbounded.update(numbers_without_range(function, section))
    assert not unbounded


@pytest.mark.parametrize('config', [None, [], 'configs/demo.py'])
def test_a_config_that_is_no_dict_is_refused(tmp_path, config):
    with pytest.raises(UserError, match=r'the config has type \w+; give a dict'):
        stages.train(config, tmp_path / 'run')


def test_a_disk_that_is_full_at_the_start_leaves_nothing(tiny_config, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, 'disk_usage', lambda path: shutil._ntuple_diskusage(2**21, 2**21, 2**21))
    with pytest.raises(UserError, match=r'run cannot be written: No space left on device; make room'):
        train_and_evaluate(tiny_config, tmp_path / 'run')
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_at_the_start_leaves_nothing(tiny_config, tmp_path):
    workdir = tmp_path / 'run'
    workdir.mkdir()
    (workdir / '.config.json.jitm_partial').symlink_to('/dev/full')
    with pytest.raises(UserError, match=r'run/config.json cannot be written: No space left on device; make room'):
        train_and_evaluate(tiny_config, workdir)
    assert not list(workdir.iterdir())
