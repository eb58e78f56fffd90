"""Models of the user's own modules: trained, loaded from their run, and refused by one sentence with file and line."""

import sys

import jax
import numpy as np
import pytest

from jitm.commands import cli
from jitm.errors import UserError
from jitm.runs import hub
from jitm.runs.run import export_run, load_run
from jitm.training import loop
from tests.configs.settings import load
from tests.training.test_stages import write_config

MODELS = """
import jax.numpy as jnp
from flax import linen as nn

from jitm.layers.normalization import l2_normalize
from jitm.models.matcher import DualEncoder


class Own(DualEncoder):
    image: nn.Module
    text: nn.Module
    scale: float = 1.0

    def encode_image(self, images, train=False):
        regions, mask = self.image(images, train)
        return l2_normalize(jnp.sum(jnp.where(mask[..., None], regions, 0), axis=1))

    def encode_text(self, texts, train=False):
        return self.scale * l2_normalize(jnp.sum(self.text(texts, train), axis=1))


class Wide(Own):
    def encode_text(self, texts, train=False):
        return jnp.concatenate([super().encode_text(texts)] * 2, axis=1)


class Wrong(Own):
    def encode_text(self, texts, train=False):
        return self.text(texts, train).mean() + texts


class InTraining(Own):
    def similarity(self, images, texts, train=False):
        return super().similarity(images, texts) + (None if train else 0)


class NoTrain(Own):
    def encode_text(self, texts):
        return super().encode_text(texts)


class Unpooled(Own):
    def encode_image(self, images, train=False):
        return self.image(images, train)[0]


class Column(Own):
    def similarity(self, images, texts, train=False):
        return super().similarity(images, texts)[:, :1]


class Without(DualEncoder):
    scale: float = 1.0

    def encode_image(self, images, train=False):
        return self.image(images, train)


class NoMatcher(nn.Module):
    scale: float = 1.0
"""


@pytest.fixture
def own_config(tiny_config, tmp_path, monkeypatch):
    """A config of an own model in the working directory."""
    (tmp_path / 'own_models.py').write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    section = {key: tiny_config['model'][key] for key in ('image', 'text', 'embed_dim')}
    yield tiny_config | {'epochs': 1, 'model': {**section, 'name': 'own_models.Own'}}
    sys.modules.pop('own_models', None)


def test_own_models_are_trained_evaluated_and_not_exported(own_config, tmp_path, capsys):
    run = tmp_path / 'run'
    path = write_config(tmp_path / 'own_config.py', own_config)
    assert cli.main(['train', '--config', str(path), '--workdir', str(run)]) == 0
    assert f'eval --workdir {run} --import own_models\n' in capsys.readouterr().out
    del sys.modules['own_models']
    assert cli.main(['eval', '--workdir', str(run)]) == 2
    assert 'own_models is not of jitm: if you trust it, give --import own_models' in capsys.readouterr().err
    assert cli.main(['eval', '--workdir', str(run), '--import', 'own_models']) == 0
    loaded = load_run(run)
    assert type(loaded.model).__name__ == 'Own'
    with pytest.raises(UserError, match=r"the model 'own_models.Own', which is not of jitm, and an exported folder is"):
        export_run(loaded, tmp_path / 'exported')
    assert not (tmp_path / 'exported').exists()
    hub.write_folder(
        tmp_path / 'exported',
        jax.tree.map(np.asarray, loaded.variables),
        {
            'config': loaded.config,
            'vocabulary': {'kind': 'words', 'words': loaded.vocabulary.words},
            'vocabulary_hash': loaded.vocabulary.hash,
            'data': {'hash': ''},
            'step': 0,
            'member': 'target',
        },
        '',
    )
    del sys.modules['own_models']
    (tmp_path / 'own_models.py').write_text('open("ran", "w")')
    with pytest.raises(UserError, match=r'there is no module jitm\.models\.own_models'):
        load_run(tmp_path / 'exported')
    assert not (tmp_path / 'ran').exists()


@pytest.mark.parametrize(
    ('name', 'sentence'),
    [
        ('Wide', r'^Wide encodes images as \[1, 16\] and texts as \[1, 32\]; the vectors of a dual encoder are'),
        ('Unpooled', r'^Unpooled encodes images as \[1, 5, 16\] and texts as \[1, 16\]; the vectors of a dual encoder'),
        ('NoTrain', r'^NoTrain.encode_text takes \(self, texts\); it must take \(self, texts, train\)'),
        ('Wrong', r'TypeError in line \d+ of .*/own_models.py: return self.text\(texts, train\).mean\(\) \+ texts: '),
        ('InTraining', r'TypeError in line \d+ of .*/own_models.py: return super\(\).similarity.* \(None if train'),
        ('Column', r'^the similarity of the model returns \[8, 1\] for \[8, 8\] pairs; it must return \[I, T\]'),
        ('Without', r'^Without has no encode_text\(self, texts, train\): define it'),
        ('NoMatcher', '^NoMatcher is not a Matcher: derive it from DualEncoder of jitm'),
    ],
)
def test_mistakes_of_own_models_are_one_sentence(own_config, name, sentence):
    own_config['model'] |= {'name': f'own_models.{name}'}
    if name in ('Without', 'NoMatcher'):
        own_config['model'] = {'name': f'own_models.{name}', 'scale': 2.0}
    with pytest.raises(UserError, match=sentence) as caught:
        loop.set_up(own_config)
    assert '\n' not in str(caught.value)


def test_errors_of_jitm_keep_their_traceback(monkeypatch):
    """Also a TypeError while a published model is traced, which is a bug."""
    monkeypatch.setattr('jitm.models.vse.l2_normalize', lambda x: x + None)
    config = load('demo')
    config['data'] |= {'train_images': 20, 'dev_images': 10}
    with pytest.raises(TypeError):
        loop.set_up(config)
