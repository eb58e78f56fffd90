"""Models, sources, labels and optimizers of the user's own modules, whose mistakes are one sentence."""

import json
import sys

import jax
import numpy as np
import optax
import pytest

from jitm.commands import cli, train
from jitm.config import names
from jitm.devices import parallel
from jitm.errors import UserError
from jitm.files import hash_file, hash_json
from jitm.report.groups import read_run_log
from jitm.runs import hub, own_code
from jitm.runs.run import export_run, load_run
from jitm.training import loop
from jitm.training.plan import make_plan
from tests.configs.settings import load
from tests.support.configs import write_config
from tests.training.models import make_optimizer

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


@pytest.mark.slow
def test_own_models_are_trained_evaluated_and_not_exported(own_config, tmp_path, capsys, caplog):
    run = tmp_path / 'run'
    path = write_config(tmp_path / 'own_config.py', own_config)
    assert cli.main(['train', '--config', str(path), '--workdir', str(run)]) == 0
    assert f'eval --workdir {run} --import own_models\n' in capsys.readouterr().out
    del sys.modules['own_models']
    assert cli.main(['eval', '--workdir', str(run)]) == 2
    assert 'own_models is not in jitm: if you trust it, give --import own_models' in capsys.readouterr().err
    assert cli.main(['eval', '--workdir', str(run), '--import', 'own_models']) == 0
    # Its source is a part of the run; runs without hashes have nothing to compare.
    source, stored = tmp_path / 'own_models.py', run / 'own_code.json'
    assert json.loads(stored.read_text()) == {'own_models': hash_file(source)}
    source.write_text(f'{MODELS}\n# changed')
    capsys.readouterr()
    caplog.clear()
    again = ['train', '--config', str(path), '--workdir', str(run)]
    assert cli.main(again) == 2
    assert f'{source} changed since the run in {run} was started; restore it' in capsys.readouterr().err
    load_run(run)
    assert caplog.messages == [f'{source} changed since {run} was trained with it']
    caplog.clear()
    before = stored.read_bytes()
    stored.unlink()
    assert cli.main(again) == 0
    stored.write_bytes(before)
    assert cli.main([*again, '--accept_changed_code']) == 0
    assert json.loads(stored.read_text()) == {'own_models': hash_file(source)}
    assert read_run_log(run).config['own_code'] == hash_json({'own_models': hash_file(source)})[:8]
    loaded = load_run(run)
    assert 'changed since' not in caplog.text
    assert type(loaded.model).__name__ == 'Own'
    with pytest.raises(UserError, match=r"the model 'own_models.Own', which is not in jitm, and an exported folder is"):
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


def test_the_printed_command_imports_what_evaluation_needs(own_config, tmp_path, capsys):
    """The data source and the model, but no loss."""
    (tmp_path / 'own_data.py').write_text('def load(split): pass')
    (tmp_path / 'own_loss.py').write_text('def hinge(scores): pass')
    own_config['data'] = {'source': f'{tmp_path}/own_data.py:load'}
    own_config['terms']['ranking']['loss'] = f'{tmp_path}/own_loss.py:hinge'
    names.import_own('own_models')
    best = {'step': 3, 'rsum': 6.0} | {f'{side}/recall@{k}': 1.0 for side in ('i2t', 't2i') for k in (1, 5, 10)}
    best |= {f'{side}/{rank}': 1.0 for side in ('i2t', 't2i') for rank in ('median_rank', 'mean_rank')}
    train._print_result(own_config, tmp_path / 'run', {'best': best, 'first': None})
    words = f'eval --workdir {tmp_path}/run --import {tmp_path}/own_data.py --import own_models'
    assert capsys.readouterr().out.endswith(f'{words}\n')


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


PARTS = """
import jax.numpy as jnp
import optax

from jitm.devices import collectives
from jitm.training.source import Source
from jitm.training.label_estimators import PairLabels
from jitm.types import Ranking


def scaled(scale: float = 1.0):
    def score(matcher, images, texts, batch, seen, train):
        scores = collectives.gather_results(scale * matcher.similarity(images, collectives.all_gather(texts), train))
        own = jnp.eye(len(scores), dtype=bool)
        return {'i2t': Ranking(scores, own, ~own), 't2i': Ranking(scores.T, own, ~own)}, {}

    return Source(score)


def weighted():
    def score(matcher, images, texts, batch, seen, train):
        rankings, losses = scaled().score(matcher, images, texts, batch, seen, train)
        return {way: ranking.with_inputs(weights=ranking.scores[:, 0]) for way, ranking in rankings.items()}, losses

    return Source(score)


def first(scores, positives, negatives=None, *, weights, power: float):
    return scores[:, 0] * weights**power


class Constant:
    def __init__(self, label: float):
        self.label = label

    def init(self, names, num_pairs):
        return {name: {'seen': jnp.zeros(num_pairs)} for name in names}

    def of_batch(self, stored, rows, epoch, evaluate):
        return {name: PairLabels(jnp.full(len(rows), self.label), jnp.zeros(len(rows), int)) for name in stored}

    def after_batch(self, stored, rows, labels, rankings):
        return {name: {'seen': values['seen'].at[rows].add(1)} for name, values in stored.items()}


def sgd(learning_rate: float, total_steps: int):
    schedule = optax.linear_schedule(learning_rate, 0, total_steps)
    return optax.sgd(schedule), schedule


def scores(scale: float = 1.0):
    return scaled(scale).score


def broken():
    return Source(lambda *args: 1 / 0)


def fails(scale):
    return 1 / 0


def unlabelled():
    return {}


def alone(learning_rate: float):
    return optax.sgd(learning_rate)
"""
SOFT = {'loss': 'noisy.soft_margin', 'margin': 0.2, 'weight': 1.0, 'start_epoch': 0, 'end_epoch': None}


@pytest.fixture
def config_of_parts(tiny_config, tmp_path, monkeypatch):
    """A config whose source, labels and optimizer are of a file in the working directory."""
    (tmp_path / 'own_parts.py').write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    return tiny_config | {
        'epochs': 1,
        'terms': {'ranking': SOFT | {'reduction': 'sum'}},
        'candidates': {'source': 'own_parts.py:scaled', 'scale': 2.0},
        'labels': {'source': 'own_parts.py:Constant', 'label': 0.5},
        'optimizer': {'name': 'own_parts.py:sgd', 'learning_rate': 0.1},
    }


@pytest.mark.slow
def test_own_source_labels_and_optimizer_train_a_step(config_of_parts):
    setup = loop.set_up(config_of_parts)
    before, batch = jax.device_get(setup.initial_state()), setup.make_batch(0)
    after, metrics = jax.device_get(setup.train_step(parallel.put_state(before), parallel.put_batch(batch)))
    member = before.members['target']
    scores = 2 * setup.members['target'].model.apply(member.variables, batch.images, batch.texts)
    margin, losses = 0.2 * (10**0.5 - 1) / 9, []
    for s in (scores, scores.T):
        own = np.diag(s)
        losses += np.maximum(margin + np.max(s - 10 * np.eye(len(s)), axis=1) - own, 0).tolist()
    np.testing.assert_allclose(metrics['target/loss'], sum(losses), rtol=1e-5)
    assert np.flatnonzero(after.memory['labels']['target']['seen']).tolist() == sorted(batch.text_index)
    change = jax.tree.map(np.subtract, member.params, after.members['target'].params)
    np.testing.assert_allclose(optax.tree.norm(change), 0.1 * metrics['target/gradient_norm'], rtol=1e-4)
    np.testing.assert_allclose(setup.schedule(setup.total_steps // 2), 0.05, rtol=1e-6)


def test_an_own_loss_takes_an_input_that_an_own_source_gives(config_of_parts):
    term = {key: value for key, value in SOFT.items() if key != 'margin'} | {'loss': 'own_parts.py:first', 'power': 2.0}
    config = config_of_parts | {'terms': {'ranking': term | {'reduction': 'sum'}}, 'labels': {'source': ''}}
    assert loop.set_up(config | {'candidates': {'source': 'own_parts.py:weighted'}}).plan.own
    with pytest.raises(UserError, match=r"'terms.ranking' needs weights: set it, or use a source that gives it"):
        loop.set_up(config)


@pytest.mark.slow
def test_runs_with_own_parts_are_evaluated_without_them(config_of_parts, tmp_path):
    path, run = write_config(tmp_path / 'config.py', config_of_parts), str(tmp_path / 'run')
    assert cli.main(['train', '--config', str(path), '--workdir', run]) == 0
    (tmp_path / 'own_parts.py').unlink()
    assert cli.main(['eval', '--workdir', run]) == 0


@pytest.mark.parametrize(
    ('key', 'name', 'sentence'),
    [
        ('candidates', 'scald', r"has no 'scald', did you mean 'scaled'\?"),
        ('candidates', 'fails', r'it fails: ZeroDivisionError in line \d+ of .*own_parts.py'),
        ('candidates', 'scores', 'it returns function: return a jitm.training.source.Source$'),
        ('labels', 'Constnt', r"has no 'Constnt', did you mean 'Constant'\?"),
        ('labels', 'unlabelled', 'it returns dict: return an object with init, of_batch and after_batch$'),
        ('optimizer', 'sgdd', r"has no 'sgdd', did you mean 'sgd'\?"),
        ('optimizer', 'alone', 'it returns GradientTransformation.*: return an optax.GradientTransformation and i'),
    ],
)
def test_mistakes_of_own_parts_are_one_sentence(config_of_parts, key, name, sentence):
    config_of_parts[key] |= {'name' if key == 'optimizer' else 'source': f'own_parts.py:{name}'}
    if name == 'unlabelled':
        config_of_parts['labels'].pop('label')
    with pytest.raises(UserError, match=f"^config key '{key}.[a-z]+' is 'own_parts.py:{name}', but .*{sentence}"):
        make_plan(config_of_parts).make_optimizer(10)


def test_errors_of_own_parts_name_their_line(config_of_parts):
    config_of_parts['candidates'] = {'source': 'own_parts.py:broken'}
    with pytest.raises(
        UserError, match=r"'own_parts.py:broken' or .* fails: ZeroDivisionError in line \d+ of .*lambda"
    ):
        loop.set_up(config_of_parts)


def test_own_parts_take_their_arguments(config_of_parts):
    config_of_parts['candidates']['scle'] = 1.0
    with pytest.raises(UserError, match=r"'candidates.scle' is unknown, did you mean 'scale'\?"):
        make_plan(config_of_parts)
    with pytest.raises(UserError, match=r"'optimizer.learning_rate' is missing"):
        make_optimizer({'name': 'own_parts.py:sgd'}, 1)


def test_a_wrong_argument_of_an_optimizer_of_optax_names_it(tiny_config):
    tiny_config['optimizer'] |= {'name': 'optax.lion', 'b1': 'x'}
    with pytest.raises(UserError, match=r"^'optax.lion' fails: TypeError in line \d+ of "):
        loop.set_up(tiny_config)
    tiny_config['optimizer'] |= {'b1': 0.9}
    plan = make_plan(tiny_config)
    assert plan.config['optimizer'].items() >= {'b1': 0.9, 'b2': 0.99, 'mask': None}.items()
    assert own_code.hash_sources(plan.own.values()) == {}
