"""Bad values of a config: one sentence, exit code 2, and nothing is written."""

import json
import re
import shutil

import numpy as np
import pytest

from jitm import config as config_lib
from jitm import names
from jitm.commands import cli
from jitm.config import parameters_of
from jitm.data.augmentation import Augmentation
from jitm.data.candidates import OfflineNegatives
from jitm.data.masking import Masking
from jitm.errors import UserError
from jitm.models.make import make_model
from jitm.synthesis.generator import Synthesis
from jitm.training import stages
from jitm.training.loop import train_and_evaluate
from jitm.training.objective import RankingTerm, make_terms
from tests.configs.settings import load, one_of_each_word


def test_names_are_not_empty():
    config = load('default')
    for key, wrong in (('terms', {'': {}}), ('members', {'target': {'': 1}})):
        with pytest.raises(UserError, match=r"config key '\w+\.(target\.)?' has an empty name"):
            config_lib.check({**config, key: wrong})


def changed(config: dict, key: str, value: object) -> dict:
    """The config with one dotted key changed, or removed if the value is ... ."""
    *sections, last = key.split('.')
    section = config
    for name in sections:
        section = section.setdefault(name, {})
    section[last] = value
    if value is ...:
        del section[last]
    return config


BAD = [
    ('optimizer.learning_rate', -1, 'is -1; it must be above 0'),
    ('optimizer.learning_rate', 'fast', "is 'fast'; it must be a number"),
    ('optimizer.learning_rate', float('inf'), 'is inf; it must be finite'),
    ('optimizer.learning_rate', float('nan'), 'is nan; it must be finite'),
    ('optimizer.clip_norm', 0, 'is 0; it must be above 0'),
    ('optimizer.clip_norm', -1, 'is -1; it must be above 0'),
    ('optimizer.decay_epochs', 1.5, 'is 1.5; it must be an integer'),
    ('optimizer.factors', [1], 'is [1]; it must be a dict'),
    ('optimizer.factors.text', None, 'is None; it must be a number'),
    ('terms.ranking.weight', '1', "is '1'; it must be a number"),
    ('terms.ranking.weight', True, 'is True; it must be a number'),
    ('terms.ranking.start_epoch', -1, 'is -1; it must be at least 0'),
    ('terms.ranking.start_epoch', '0', "is '0'; it must be an integer"),
    ('terms.ranking.end_epoch', '0', "is '0'; it must be an integer or None"),
    ('terms.ranking.loss', None, 'is None; it must be a string'),
    ('terms.ranking', 3, 'is 3; it must be a dict'),
    ('terms', [{'loss': 'x'}], "is [{'loss': 'x'}]; it must be a dict"),
    ('terms', ..., 'is missing; see jitm/configs/default.py'),
    ('trems', {}, "is unknown, did you mean 'terms'?"),
    ('epochs', 0, 'is 0; it must be at least 1'),
    ('seed', 2**32, 'is 4294967296; it must be at least 0 and below 4294967296'),
    ('seed', {'a': 1}, "is {'a': 1}; it must be an integer"),
    ('batch_size', '20', "is '20'; it must be an integer"),
    ('batch_size', 1, 'is 1; it must be at least 2'),
    ('drop_last', 'no', "is 'no'; it must be True or False"),
    ('vocabulary.min_count', -1, 'is -1; it must be at least 1'),
    ('vocabulary.path', 3, 'is 3; it must be a string'),
    ('masking.num_views', -1, 'is -1; it must be at least 0'),
    ('masking.rate', 3.0, 'is 3.0; it must be at least 0 and at most 1'),
    ('masking.mask_prob', -0.1, 'is -0.1; it must be at least 0 and at most 1'),
    ('augmentation.num_views', 0, 'is 0; it must be at least 1'),
    ('augmentation.change_words', 1, 'is 1; it must be at least 0 and below 1'),
    ('model.embed_dim', 0, 'is 0; it must be at least 1'),
    ('optimizer.weight_decay', -0.01, 'is -0.01; it must be at least 0'),
    ('synthesis.temperature', 0, 'is 0; it must be above 0'),
    ('synthesis.num_samples', 0, 'is 0; it must be at least 1'),
    ('model', 'vse.VSE', "is 'vse.VSE'; it must be a dict"),
    ('model.embed_dim', '8', "is '8'; it must be an integer"),
    ('model.text.dropout', 1, 'is 1; it must be at least 0 and below 1'),
    ('model.text.word_dim', 0, 'is 0; it must be at least 1'),
    ('members.target', 'gradient', "is 'gradient'; it must be a dict"),
    ('members.target.learn_from', 'target', "is 'target'; it must be a tuple of names"),
    ('candidates.same_image', 'negativ', 'take one of negative, positive, ignored'),
    ('evaluation.dtype', 'float16', "is 'float16'; take one of float32, bfloat16"),
    ('evaluation.precision', 'fast', "is 'fast'; take one of default, high, highest"),
    ('precision', None, 'is None; take one of default, high, highest'),
    ('evaluation.split', '../tiny/dev', "the split is '../tiny/dev'; give the name of one"),
    ('run.log_every', None, 'is None; it must be an integer'),
    ('stages', [], 'is []; it must be a dict'),
    ('stages.top_h_texts', -1, 'is -1; it must be at least 0'),
    ('stages.first', 'x', "is 'x'; it must be a dict"),
    ('data.train_images', 0, 'is 0; it must be at least 1'),
    ('optimizer.learning_rate', np.float32(1), 'is of float32, which cannot be written to config.json; give a number'),
    ('terms.ranking.loss', lambda scores: scores, 'is of function, which cannot be written to config.json'),
    ('model.embed_dim', np.ones(2), 'is of ndarray, which cannot be written to config.json'),
    ('scene_graphs.source', 'typo', "config key 'scene_graphs.source' is 'typo', but names of jitm.data have the form"),
    ('terms.ranking.loss', 'rnking', "config key 'terms.ranking.loss' is 'rnking', but names of jitm.losses have"),
    ('candidates.source', 'shortlist', "config key 'candidates.num_negatives' is unknown"),
    ('scene_graphs.source', 'scene_graphs.ruls', "has no 'ruls', did you mean 'rules'?"),
    ('terms.ranking.loss', 'rnking.max_of_hinges', "no module jitm.losses.rnking, did you mean 'ranking'?"),
    ('relevance.source', 'cider.from_captions', 'is set but unused: add a term with margins, or set it to'),
    ('terms.ranking.start_epoch', 1, "no term is active in epoch 0 of 3 for 'members.target': change the start_epoch"),
    ('terms.ranking.end_epoch', 2, 'no term is active in epoch 2'),
]


@pytest.mark.parametrize(('key', 'value', 'sentence'), BAD, ids=lambda x: str(x)[:30] if isinstance(x, str) else '')
def test_bad_values_are_refused_before_writing(tiny_config, tmp_path, key, value, sentence):
    del tiny_config['terms']['later']
    config = changed(tiny_config, key, value)
    for start in (train_and_evaluate, stages.train, stages.check):
        if key.startswith('stages.') and start is train_and_evaluate:
            continue
        with pytest.raises(UserError) as caught:
            start(config, tmp_path / 'run')
        assert sentence in str(caught.value)
        assert '\n' not in str(caught.value)
        assert len(str(caught.value)) < 250
        if sentence.startswith('is '):
            assert f"'{key}' is" in str(caught.value)
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
    section = changed(load(setting)['model'], key, value)
    with pytest.raises(UserError, match=re.escape(sentence)):
        make_model(section, vocab_size=10)


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
    common = {'weight': 1.0, 'start_epoch': 0, 'end_epoch': None, 'reduction': 'sum'}
    with pytest.raises(UserError, match=re.escape(f"'{key}' {sentence}")):
        make_terms({'ranking': {'loss': loss, **common, **arguments}})


def test_thresholds_and_margins_of_the_ladder_are_as_many():
    common = {'weight': 1.0, 'start_epoch': 0, 'end_epoch': None, 'reduction': 'sum', 'loss': 'noisy.ladder'}
    scores, positives = np.zeros((2, 2)), np.eye(2, dtype=bool)
    loss = make_terms({'ladder': common | {'thresholds': (0.5, 7.0)}})['ladder'].loss  # of CIDEr, up to 10
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


def test_every_number_of_a_setting_has_a_range():
    found = set()
    for setting in one_of_each_word():
        config = load(setting)
        assert config_lib.check(config) == json.loads(json.dumps(config))
        models = [(config['model'], 'jitm.models')]
        for section, package in models:  # which grows by the sections within
            found.update(numbers_without_range(names.resolve(package, section['name'], where=''), section))
            models += [(one, 'jitm.layers') for one in section.values() if isinstance(one, dict)]
        for term in config['terms'].values():
            found.update(numbers_without_range(names.resolve('jitm.losses', term['loss'], where=''), term))
            found.update(numbers_without_range(RankingTerm, term))
        optimizer = names.resolve('jitm.training.optimizer', config['optimizer']['name'], where='')
        source = names.resolve('jitm.data', config['data']['source'], where='')
        for function, section in ((optimizer, 'optimizer'), (source, 'data'), (Augmentation, 'augmentation')):
            found.update(numbers_without_range(function, config[section]))
        for function, section in ((Masking, 'masking'), (Synthesis, 'synthesis'), (OfflineNegatives, 'offline')):
            found.update(numbers_without_range(function, config[section]))
    assert not found


@pytest.mark.parametrize('config', [None, [], 'configs/demo.py'])
def test_a_config_that_is_no_dict_is_refused(tmp_path, config):
    with pytest.raises(UserError, match=r'the config is of \w+; give a dict'):
        stages.train(config, tmp_path / 'run')


def test_the_first_stage_has_the_same_ranges():
    config = load('aoq:vsepp,adapoffquin,f8k')
    config['stages']['first']['epochs'] = -1
    with pytest.raises(UserError, match=r"'stages.first.epochs' is -1; it must be at least 1"):
        config_lib.check(config)
    del config['stages']['first']['terms']
    config['stages']['first']['epochs'] = 1
    with pytest.raises(UserError, match=r"'stages.first.terms' is missing"):
        config_lib.check(config)


COMMAND_LINE = [
    ('--config.candidates.same_image=negativ', "config key 'candidates.same_image' is 'negativ'; take one of"),
    ('--config.optimizer.clip_norm=0', "'optimizer.clip_norm' is 0.0; it must be above 0"),
    (
        '--config.masking.rate=0.3',
        "'masking.rate' is not read unless 'masking.num_views' is set: set both, or",
    ),
    ('--config.offline.top_h_texts=7', "'offline.top_h_texts' is not read unless 'offline.path' is set"),
    ('--config.synthesis.num_hard=3', "'synthesis.num_hard' is not read unless 'synthesis.generator' is set"),
    ('--config.augmentation.keep_special_tokens=True', "is not read unless 'augmentation.change_words' is set"),
    ('--config.terms.ranking.weight=-1', "'terms.ranking.weight' is -1.0; it must be at least 0"),
    ('--config.batch_size=1', "'batch_size' is 1; it must be at least 2"),
    (
        '--config.vocabulary.min_count=1 --config.vocabulary.path=words.json',
        "'vocabulary.min_count' is not read where 'vocabulary.path' is 'words.json': change that, or leave it out",
    ),
    ('--config.model.image.norm_padding=True', "is not read where 'model.image.mlp' is 'none'"),
    (
        '--config.model.text.bidirectional=True --config.model.text.recurrent=False',
        "'model.text.bidirectional' is not read where 'model.text.recurrent' is False",
    ),
    (
        '--config.model.text.recurrent=False',
        "'model.text_pooling' is 'last', which ignores all words where 'text.recurrent' is False: take 'mean'",
    ),
    ('--config.scene_graphs.source=scene_graphs.rules', "'scene_graphs.source' is set but unused: add masked captions"),
    (
        '--config.initialize.word_vectors=x --config.members.target.init_from=runs/a',
        "'initialize.word_vectors' is set but unused: 'members.target' is initialized from runs/a; set it to ''",
    ),
]


@pytest.mark.parametrize(('argument', 'sentence'), COMMAND_LINE)
def test_bad_values_on_the_command_line(tiny_config_file, tmp_path, capsys, argument, sentence):
    command = ['train', '--config', str(tiny_config_file), '--workdir', str(tmp_path / 'run'), *argument.split()]
    assert cli.main(command) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert len(error.splitlines()) == 1
    assert not (tmp_path / 'run').exists()


def test_a_config_file_of_another_form_is_refused(tiny_config, tmp_path, capsys):
    workdir = tmp_path / 'run'
    workdir.mkdir()
    (workdir / 'metrics.jsonl').touch()
    for text in ('[1]', '"x"', '3'):
        (workdir / 'config.json').write_text(text)
        assert cli.main(['report', 'summary', str(workdir)]) == 2
        assert 'run/config.json is damaged; restore it, or choose a new workdir\n' in capsys.readouterr().err
        with pytest.raises(UserError, match=r'run/config.json is damaged; restore it, or choose a new workdir'):
            train_and_evaluate(tiny_config, workdir)


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
