"""VSE++ on photos: checkpoints with the network of the images under the names of the authors' code."""

import re

import chex
import jax
import numpy as np
import pytest

from jitm.configs import vsepp
from jitm.errors import UserError
from jitm.importers import cnn_weights as importer
from jitm.importers.authors import load_checkpoint
from jitm.importers.tensors import export
from jitm.layers import cnn
from jitm.runs.run import load_run
from tests.support import authors as theirs
from tests.support.networks import (
    network,
    tiny_resnets,  # noqa: F401
)

OPTIONS = {'measure': 'cosine', 'no_imgnorm': False, 'use_abs': False, 'cnn_type': 'vgg19', 'finetune': True}
MODEL = vsepp.get_config().model.to_dict()


@pytest.fixture(autouse=True)
def tiny_vgg(monkeypatch):
    monkeypatch.setattr(cnn, 'VGG19_STAGES', tuple((2, layers) for _, layers in cnn.VGG19_STAGES))


@pytest.fixture
def vocabulary(tmp_path) -> str:
    return theirs.write_vocabulary(tmp_path)


def random_network(kind):
    """Variables of a network, and the same ones under the names of torchvision."""
    shapes = jax.eval_shape(network(kind).init, jax.random.key(0), np.zeros((1, 64, 64, 3), np.float32))
    rng = np.random.default_rng(0)
    variables = jax.tree.map(lambda leaf: rng.random(leaf.shape, np.float32), dict(shapes))
    tensors = export(variables, importer.NAMES)
    for name in importer.FULLY_CONNECTED & tensors.keys():
        tensors[name] = tensors[name].reshape(len(tensors[name]), -1)
    counters = [name.replace('running_mean', 'num_batches_tracked') for name in tensors if 'running_mean' in name]
    return variables, tensors | {name: np.zeros((), np.int64) for name in counters}


def checkpoint_of(tensors, features):
    """The tensors of a checkpoint, in which VGG's features or a whole ResNet are wrapped for several devices."""
    wrapped = 'cnn.module.' if 'conv1.weight' in tensors else 'cnn.'
    stored = {f'model.0.{wrapped}{name.replace("features.", "features.module.")}': x for name, x in tensors.items()}
    return theirs.tensors_of('vsepp', 'vsepp:vsepp,f30k', features) | stored


def test_a_resnet_is_read(tmp_path, vocabulary, capsys):
    variables, tensors = random_network('resnet-10')
    path = theirs.write_checkpoint(tmp_path / 'model_best.pth.tar', checkpoint_of(tensors, 512), OPTIONS)
    assert theirs.convert('vsepp', path, tmp_path / 'run', '--vocabulary', vocabulary) == 0
    assert 'assumed' not in capsys.readouterr().out
    run = load_run(tmp_path / 'run')
    chex.assert_trees_all_equal(run.variables['params']['image']['network'], variables['params'])
    chex.assert_trees_all_equal(run.variables['batch_stats']['image']['network'], variables['batch_stats'])
    image, data = run.config['model']['image'], run.config['data']
    assert (image['name'], image['normalize_features'], run.image_size) == ('cnn.PixelEncoder', True, (224, 224))
    assert (image['network']['name'], image['network']['depth']) == ('cnn.ResNet', 10)
    assert (data['source'], data['image_size'], data['short_side']) == ('photos.load', 224, 256)
    assert set(run.config['initialize'].values()) == {''}


def test_a_vgg_of_before_2017_is_read(tmp_path, vocabulary):
    variables, tensors = random_network('vgg19')
    stored = checkpoint_of(tensors, 4096)
    # The classifier then started with dropout.
    stored = {re.sub('(?<=classifier.)[03]', lambda n: str(int(n[0]) + 1), name): x for name, x in stored.items()}
    assert 'model.0.cnn.classifier.4.weight' in stored
    np.savez(tmp_path / 'x.npz', **stored)
    published = load_checkpoint('vsepp', str(tmp_path / 'x.npz'), vocabulary, MODEL)
    chex.assert_trees_all_equal(published.variables['params']['image']['network'], variables['params'])
    assert published.model['image']['network'] == {
        'name': 'cnn.VGG19',
        'pooled': True,
        'dtype': 'float32',
        'remat': False,
    }


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('layer1.1.conv1.weight', 'has a ResNet with (2, 1, 1, 1)'),
        ('bn1.weight', "cnn.bn1.weight' of shape [2] where"),
        ('fc.weight', 'has unknown tensors (model.0.cnn.fc.weight)'),
    ],
)
def test_other_networks_are_one_sentence(tmp_path, vocabulary, name, message):
    stored = checkpoint_of(random_network('resnet-10')[1], 512) | {
        f'model.0.cnn.module.{name}': np.zeros(2, np.float32)
    }
    np.savez(tmp_path / 'x.npz', **stored)
    with pytest.raises(UserError, match=re.escape(message)):
        load_checkpoint('vsepp', str(tmp_path / 'x.npz'), vocabulary, MODEL)


def test_a_network_without_its_first_layer_is_none(tmp_path, vocabulary):
    stored = checkpoint_of(random_network('resnet-10')[1], 512)
    np.savez(tmp_path / 'x.npz', **{name: x for name, x in stored.items() if '.conv1.' not in name})
    with pytest.raises(UserError, match=r'has unknown tensors \(model.0.cnn.bn1.bias'):
        load_checkpoint('vsepp', str(tmp_path / 'x.npz'), vocabulary, MODEL)


def test_data_of_another_kind_are_refused(tmp_path, vocabulary, capsys):
    photos = ('--vocabulary', vocabulary, '--config', 'vsepp:vsepp,vgg19,f30k')
    path = theirs.write_checkpoint(tmp_path / 'x.pth', theirs.tensors_of('vsepp', 'vsepp:vsepp,f30k'))
    assert theirs.convert('vsepp', path, tmp_path / 'run', *photos) == 2
    assert "the model reads regions, which the data of --config ('photos.load') do not have" in capsys.readouterr().err
    assert not (tmp_path / 'run').exists()
