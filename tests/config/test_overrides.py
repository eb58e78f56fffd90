"""Arguments of what a config names, as keys of the command line: own losses and models, and those of jitm."""

import sys

import pytest

from jitm.commands import cli, sweep
from jitm.configs import load
from jitm.errors import UserError
from jitm.training import sections

OWN = """
from flax import linen as nn


def my_hinge(scores, positives, negatives, *, margin, needed, gamma=2.0, soft=False, kind=None):
    pass


class Model(nn.Module):
    image: nn.Module
    reasoning: nn.Module
    scale: float = 1.0


class Bare(nn.Module):
    scale: float = 1.0
"""
SCHEDULE = {'weight': 0.5, 'start_epoch': 0, 'end_epoch': None, 'reduction': 'mean'}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / 'my_own.py').write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop('my_own', None)


def override(*assignments, setting='vse:fc,selhn,f30k'):
    values = dict(assignment.split('=') for assignment in assignments)
    return sections.override(load(setting).to_dict(), values)


LOSS = 'terms.ranking.loss=my_own.my_hinge'


def test_arguments_of_an_own_loss_are_keys():
    """Those of the preset's loss that it does not have, here epsilon, are left out."""
    arguments = (f'terms.ranking.{argument}' for argument in ('gamma=3', 'needed=(1, 2)', 'kind=x', 'soft=True'))
    ranking = override(LOSS, *arguments)['terms']['ranking']
    expected = {'loss': 'my_own.my_hinge', 'gamma': 3.0, 'needed': (1, 2), 'kind': 'x', 'soft': True}
    assert ranking == expected | {'margin': 0.2, 'rankings': ('i2t', 't2i')} | SCHEDULE
    assert isinstance(ranking['gamma'], float)


def test_arguments_of_a_named_loss_are_keys():
    config = override('terms.ranking.weigh_by_positive=True', setting='aoq:vsepp,adapoffquin,f8k')
    assert config['terms']['ranking']['weigh_by_positive'] is True
    first = 'stages.first.terms.ranking.'
    config = override(f'{first}loss=my_own.my_hinge', f'{first}gamma=4', setting='aoq:vsepp,adapoffquin,f8k')
    ranking = config['stages']['first']['terms']['ranking']
    assert (ranking['loss'], ranking['gamma']) == ('my_own.my_hinge', 4)


def test_attributes_of_an_own_model_are_keys():
    assignments = (
        'model.name=my_own.Model',
        'model.scale=3',
        'model.reasoning.name=alignment.Mean',
        'model.image.mlp=plain',
    )
    model = override(*assignments)['model']
    assert model.keys() == {'name', 'scale', 'image', 'reasoning', 'embed_dim'}
    assert (model['reasoning'], model['image']['mlp']) == ({'name': 'alignment.Mean'}, 'plain')
    assert override('model.name=my_own.Bare')['model'] == {'name': 'my_own.Bare', 'scale': 1.0}  # no embed_dim
    assignments = 'model.text.name=text.BERTEncoder', 'model.text.size=tiny', 'model.text.dtype=float32'
    text = {'name': 'text.BERTEncoder', 'size': 'tiny', 'dtype': 'float32', 'dropout': 0.0}
    text |= {'max_length': None, 'output_dropout': 0.0, 'linear_init': 'uniform', 'dense': None}
    assert override(*assignments)['model']['text'] == text


def test_arguments_of_optimizers_and_data_are_keys():
    config = override('optimizer.name=adamw_with_warm_up', 'optimizer.warm_up=0.1', 'data.source=scenes.load')
    assert config['optimizer']['warm_up'] == 0.1
    assert 'decay_epochs' not in config['optimizer']
    images = {'train_images': 2000, 'dev_images': 1000, 'test_images': 500}
    assert config['data'] == {'source': 'scenes.load', 'seed': 0, **images}


def test_arguments_that_a_preset_leaves_out_are_keys():
    assignments = (
        'terms.ranking.rankings=i2t',
        'members.anchor.learn_from=target',
        'data.noise_rate=0.4',
        'data.train_seed=1',
    )
    config = override(*assignments, setting='dbl:sgr,rm,oas,f30k')
    assert config['terms']['ranking']['rankings'] == ('i2t',)
    assert config['members']['anchor']['learn_from'] == ('target',)
    assert (config['data']['noise_rate'], config['data']['train_seed']) == (0.4, 1)


def test_a_key_that_is_none_takes_the_type_of_its_text():
    config = override('evaluation.every_steps=5', 'terms.ranking.end_epoch=3')
    assert (config['evaluation']['every_steps'], config['terms']['ranking']['end_epoch']) == (5, 3)


def test_arguments_are_swept():
    config = override(LOSS, 'terms.ranking.needed=1')
    configs = sweep.settings(config, ['terms.ranking.gamma=1,2'])
    assert [config['terms']['ranking']['gamma'] for config in configs.values()] == [1.0, 2.0]
    configs = sweep.settings(load('vse').to_dict(), ['model.name=my_own.Bare,vse.OrderEmbedding'])
    assert [{*config['model']} for config in configs.values()] == [{'name', 'scale'}, {*load('vse').model}]


@pytest.mark.parametrize('form', ['=3 --config.terms.ranking.soft', ' 3 --config.terms.ranking.soft=True'])
def test_flags_have_two_forms(form):
    usage = cli.load_usage('train')
    words = f'--config vse --workdir x --config.{LOSS} --config.terms.ranking.gamma{form}'.split()
    values, _ = cli._parse(usage, words)
    ranking = values.config['terms']['ranking']
    assert (ranking['gamma'], ranking['soft']) == (3.0, True)


@pytest.mark.parametrize(
    ('assignments', 'sentence'),
    [
        ((LOSS, 'terms.ranking.gama=3'), "'terms.ranking.gama' is unknown, did you mean 'terms.ranking.gamma'"),
        (('terms.ranking.gamma=3',), "'terms.ranking.gamma' is unknown"),
        ((LOSS, 'terms.ranking.gamma=x'), 'gamma'),
        ((LOSS, 'terms.ranking.epsilon=3'), r'terms\.ranking\.loss is my_own\.my_hinge, which has no epsilon$'),
        (('terms.other.loss=my_own.my_hinge',), "'terms.other.loss' is unknown"),
        (('model.name=my_own.Model', 'model.absolute.x=1'), "'model.absolute.x' is unknown"),
        (('model.name=my_own.Model', 'model.scalle=1'), "is unknown, did you mean 'model.scale'"),
        (('model.name=my_own.Modell',), "my_own has no 'Modell', did you mean 'Model'"),
        (('data.source=scenes.lod',), "has no 'lod', did you mean 'load'"),
        (('epoch=3',), "'epoch' is unknown, did you mean 'epochs'"),
    ],
)
def test_other_keys_are_refused(assignments, sentence):
    with pytest.raises(UserError, match=sentence):
        override(*assignments)


def test_a_key_that_a_source_lacks_is_refused():
    with pytest.raises(UserError, match=r"'data\.root' is unknown: data\.source is scenes\.load, which has no root$"):
        override('data.root=x', setting='demo')


@pytest.mark.parametrize(
    ('flag', 'hint'),
    [('foo', ''), ('workdr=x', ", did you mean '--workdir'?"), ('epoch=3', ", did you mean '--config.epochs=3'?")],
)
def test_unknown_flags_are_refused(flag, hint):
    with pytest.raises(UserError) as error:
        cli._parse(cli.load_usage('train'), [f'--{flag}'])
    name = flag.partition('=')[0]
    assert str(error.value) == f"Unknown command line flag '{name}'{hint} (jitm train --help lists the flags)"


def test_patterns_of_modules_and_adapters_are_keys():
    assignments = [
        'optimizer.factors.image/encoder/block_[0-5]=0',
        'optimizer.factors.bert=0.5',
        'optimizer.layer_decay=0.9',
    ]
    config = override(*assignments, 'members.target.lora.rank=4', 'members.target.lora.modules=query')
    assert config['optimizer']['factors'] == {'image/encoder/block_[0-5]': 0.0, 'bert': 0.5}
    assert config['optimizer']['layer_decay'] == 0.9
    assert config['members']['target']['lora'] == {'rank': 4, 'modules': ('query',)}
    with pytest.raises(UserError, match=r"'optimizer\.factors\.bert' is 'x'; it must be a number"):
        override('optimizer.factors.bert=x')
