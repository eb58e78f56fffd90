"""VSE++ on photos: checkpoints with the network of the images under the names of the authors' code."""

import re

import chex
import jax
import numpy as np
import pytest
import safetensors

from jitm.commands.cli import main
from jitm.configs import vsepp
from jitm.errors import UserError
from jitm.importers import cnn_weights as importer
from jitm.importers.authors import export_checkpoint, load_checkpoint
from jitm.importers.tensors import export
from jitm.layers import cnn
from jitm.runs.run import load_run
from tests.importers import authors_checkpoints as theirs
from tests.importers.test_authors import convert, vocabulary  # noqa: F401
from tests.layers.test_cnn import tiny_resnets  # noqa: F401
from tests.support.networks import network

OPTIONS = {'measure': 'cosine', 'no_imgnorm': False, 'use_abs': False, 'cnn_type': 'vgg19', 'finetune': True}
MODEL = vsepp.get_config().model.to_dict()


@pytest.fixture(autouse=True)
def tiny_vgg(monkeypatch):
    monkeypatch.setattr(cnn, 'VGG19_STAGES', tuple((2, layers) for _, layers in cnn.VGG19_STAGES))


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


def as_stored(tensors):
    """The names in a checkpoint: VGG's features or a whole ResNet are wrapped for several devices."""
    if 'conv1.weight' in tensors:
        return {f'cnn.module.{name}': x for name, x in tensors.items()}
    return {f'cnn.{name.replace("features.", "features.module.")}': x for name, x in tensors.items()}


def modules_of(tensors, features):
    images, texts = theirs.encoders(np.random.default_rng(1), bidirectional=False)
    images |= theirs.linear(np.random.default_rng(2), 'fc', theirs.D, features)
    return [images | as_stored(tensors), texts]


def test_a_resnet_survives_both_directions(tmp_path, vocabulary, capsys):  # noqa: F811
    variables, tensors = random_network('resnet-10')
    modules = modules_of(tensors, 512)
    path = theirs.write_checkpoint(tmp_path / 'model_best.pth.tar', modules, OPTIONS)
    assert convert('vsepp', path, tmp_path / 'run', '--vocabulary', vocabulary) == 0
    assert 'assumed' not in capsys.readouterr().out
    run = load_run(tmp_path / 'run')
    chex.assert_trees_all_equal(run.variables['params']['image']['network'], variables['params'])
    chex.assert_trees_all_equal(run.variables['batch_stats']['image']['network'], variables['batch_stats'])
    image, data = run.config['model']['image'], run.config['data']
    assert (image['name'], image['normalize_features'], run.image_size) == ('cnn.PixelEncoder', True, (224, 224))
    assert (image['network']['name'], image['network']['depth']) == ('cnn.ResNet', 10)
    assert (data['source'], data['image_size'], data['short_side']) == ('photos.load', 224, 256)
    assert set(run.config['initialize'].values()) == {''}

    assert main(['convert', '--to', 'vsepp', str(tmp_path / 'run'), '--out', str(tmp_path / 'exported')]) == 0
    with safetensors.safe_open(tmp_path / 'exported' / 'model.safetensors', 'numpy') as file:
        got = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    want = {f'model.{n}.{key.replace("module.", "")}': x for n, part in enumerate(modules) for key, x in part.items()}
    chex.assert_trees_all_equal(got, want)
    assert convert('vsepp', str(tmp_path / 'exported'), tmp_path / 'again') == 0
    again = load_run(tmp_path / 'again')
    chex.assert_trees_all_equal(again.variables, run.variables)
    assert again.config['model'] == run.config['model']


def test_a_vgg_of_before_2017_survives_both_directions(tmp_path, vocabulary):  # noqa: F811
    variables, tensors = random_network('vgg19')
    images, texts = modules_of(tensors, 4096)
    want = {f'model.0.{name.replace("module.", "")}': x for name, x in images.items()}
    # The classifier then started with dropout.
    images = {re.sub('(?<=classifier.)[03]', lambda n: str(int(n[0]) + 1), name): x for name, x in images.items()}
    assert 'cnn.classifier.4.weight' in images
    flat = {f'model.{n}.{name}': x for n, part in enumerate((images, texts)) for name, x in part.items()}
    np.savez(tmp_path / 'x.npz', **flat)
    published = load_checkpoint('vsepp', str(tmp_path / 'x.npz'), vocabulary, MODEL)
    chex.assert_trees_all_equal(published.variables['params']['image']['network'], variables['params'])
    assert published.model['image']['network'] == {
        'name': 'cnn.VGG19',
        'pooled': True,
        'dtype': 'float32',
        'remat': False,
    }
    exported, _ = export_checkpoint('vsepp', published.model, published.variables)
    chex.assert_trees_all_equal({name: x for name, x in exported.items() if name.startswith('model.0.')}, want)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda x: x | {'cnn.module.layer1.1.conv1.weight': np.zeros(2, np.float32)}, 'has a ResNet with (2, 1, 1, 1)'),
        (lambda x: x | {'cnn.module.bn1.weight': np.zeros(2, np.float32)}, "cnn.bn1.weight' of shape [2] where"),
        (
            lambda x: x | {'cnn.module.fc.weight': np.zeros(2, np.float32)},
            'has unknown tensors (model.0.cnn.fc.weight)',
        ),
        (
            lambda x: {k: v for k, v in x.items() if '.bn2.bias' not in k},
            'lacks tensors (model.0.cnn.layer1.0.bn2.bias',
        ),
        (lambda x: {k: v for k, v in x.items() if '.conv1.' not in k}, 'has unknown tensors (model.0.cnn.bn1.bias'),
    ],
)
def test_other_networks_are_one_sentence(tmp_path, vocabulary, change, message):  # noqa: F811
    images, texts = modules_of(random_network('resnet-10')[1], 512)
    flat = {f'model.{n}.{name}': x for n, part in enumerate((change(images), texts)) for name, x in part.items()}
    np.savez(tmp_path / 'x.npz', **flat)
    with pytest.raises(UserError, match=re.escape(message)):
        load_checkpoint('vsepp', str(tmp_path / 'x.npz'), vocabulary, MODEL)


def test_data_of_another_kind_are_refused(tmp_path, vocabulary, capsys):  # noqa: F811
    photos = ('--vocabulary', vocabulary, '--config', 'vsepp:vsepp,vgg19,f30k')
    path = theirs.write_checkpoint(tmp_path / 'x.pth', theirs.encoders(np.random.default_rng(0), bidirectional=False))
    assert convert('vsepp', path, tmp_path / 'run', *photos) == 2
    assert "the model reads regions, which the data of --config ('photos.load') do not have" in capsys.readouterr().err
    assert not (tmp_path / 'run').exists()
    model = vsepp.get_config('vsepp,vgg19,f30k').model.to_dict() | {'text_pooling': 'last'}
    model['image']['network']['pooled'] = False
    with pytest.raises(UserError, match=r'model\.image\.network\.pooled = False, but VSE\+\+ as released has True'):
        export_checkpoint('vsepp', model, {})
