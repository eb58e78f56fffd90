"""Models, sources, labels and optimizers of the user's own modules, whose mistakes are one sentence."""

import functools
import json
import sys

import jax
import numpy as np
import optax
import pytest

from jitm import metrics as metrics_lib
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
from tests.losses import formulas
from tests.support.configs import write_config
from tests.support.steps import ALWAYS

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
    train = ['train', '--config', str(path), '--workdir', str(run)]
    evaluate = ['eval', '--workdir', str(run)]
    assert cli.main(train) == 0
    assert f'eval --workdir {run} --import own_models\n' in capsys.readouterr().out
    del sys.modules['own_models']
    assert cli.main(evaluate) == 2
    assert 'own_models is not in jitm: if you trust it, give --import own_models' in capsys.readouterr().err
    assert cli.main([*evaluate, '--import', 'own_models']) == 0
    # Its source is a part of the run; runs without hashes have nothing to compare.
    source = tmp_path / 'own_models.py'
    stored = run / 'own_code.json'
    hashes_before = stored.read_bytes()
    assert json.loads(hashes_before) == {'own_models': hash_file(source)}
    source.write_text(f'{MODELS}\n# changed')
    caplog.clear()
    assert cli.main(train) == 2
    assert f'{source} changed since the run in {run} was started; restore it' in capsys.readouterr().err
    load_run(run)
    assert caplog.messages == [f'{source} changed since {run} was trained with it']
    caplog.clear()
    stored.unlink()
    assert cli.main(train) == 0
    stored.write_bytes(hashes_before)
    assert cli.main([*train, '--accept_changed_code']) == 0
    hashes = {'own_models': hash_file(source)}
    assert json.loads(stored.read_text()) == hashes
    assert read_run_log(run).config['own_code'] == hash_json(hashes)[:8]
    loaded = load_run(run)
    assert 'changed since' not in caplog.text
    assert type(loaded.model).__name__ == 'Own'
    exported = tmp_path / 'exported'
    with pytest.raises(UserError, match=r"the model 'own_models.Own', which is not in jitm, and an exported folder is"):
        export_run(loaded, exported)
    assert not exported.exists()
    described = {'config': loaded.config, 'vocabulary_hash': loaded.vocabulary.hash, 'data': {'hash': ''}}
    described |= {'vocabulary': {'kind': 'words', 'words': loaded.vocabulary.words}, 'step': 0, 'member': 'target'}
    hub.write_folder(exported, jax.tree.map(np.asarray, loaded.variables), described, '')
    del sys.modules['own_models']
    source.write_text('open("ran", "w")')
    with pytest.raises(UserError, match=r'there is no module jitm\.models\.own_models'):
        load_run(exported)
    assert not (tmp_path / 'ran').exists()


def test_the_printed_command_imports_what_evaluation_needs(own_config, tmp_path, capsys):
    """The data source and the model, but no loss."""
    (tmp_path / 'own_data.py').write_text('def load(split): pass')
    (tmp_path / 'own_loss.py').write_text('def hinge(scores): pass')
    own_config['data'] = {'source': f'{tmp_path}/own_data.py:load'}
    own_config['terms']['ranking']['loss'] = f'{tmp_path}/own_loss.py:hinge'
    names.import_own('own_models')
    metrics = metrics_lib.retrieval_metrics(np.eye(2), np.arange(2))
    train._print_result(own_config, tmp_path / 'run', {'best': metrics | {'step': 3}, 'first': None, 'query': 'a'})
    imports = f'--import {tmp_path}/own_data.py --import own_models'
    *_, evaluate, page = capsys.readouterr().out.splitlines()
    assert evaluate.endswith(f'eval --workdir {tmp_path}/run {imports}')
    assert page.endswith(f'--split dev {imports} --html {tmp_path}/run/found.html a')


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
SOFT = ALWAYS | {'loss': 'noisy.soft_margin', 'margin': 0.2, 'reduction': 'sum'}


SOFT_MARGIN = functools.partial(formulas.soft_margin, margin=0.2)


@pytest.fixture
def config_of_parts(tiny_config, tmp_path, monkeypatch):
    """A config whose source, labels and optimizer are of a file in the working directory."""
    (tmp_path / 'own_parts.py').write_text(PARTS)
    monkeypatch.chdir(tmp_path)
    return tiny_config | {
        'epochs': 1,
        'terms': {'ranking': SOFT},
        'candidates': {'source': 'own_parts.py:scaled', 'scale': 2.0},
        'labels': {'source': 'own_parts.py:Constant', 'label': 0.5},
        'optimizer': {'name': 'own_parts.py:sgd', 'learning_rate': 0.1},
    }


@pytest.mark.slow
def test_own_source_labels_and_optimizer_train_a_step(config_of_parts):
    setup = loop.set_up(config_of_parts)
    initial = jax.device_get(setup.initial_state())
    batch = setup.make_batch(0)
    after, metrics = jax.device_get(setup.train_step(parallel.put_state(initial), parallel.put_batch(batch)))
    member = initial.members['target']
    scores = 2 * setup.members['target'].model.apply(member.variables, batch.images, batch.texts)
    diagonal = np.eye(len(scores), dtype=bool)
    labels = np.full(len(scores), 0.5)
    losses = [formulas.of_queries(SOFT_MARGIN, np.asarray(s), diagonal, labels=labels) for s in (scores, scores.T)]
    np.testing.assert_allclose(metrics['target/loss'], np.sum(losses), rtol=1e-5)
    assert np.flatnonzero(after.memory['labels']['target']['seen']).tolist() == sorted(batch.text_index)
    change = jax.tree.map(np.subtract, member.params, after.members['target'].params)
    np.testing.assert_allclose(optax.tree.norm(change), 0.1 * metrics['target/gradient_norm'], rtol=1e-4)
    np.testing.assert_allclose(setup.schedule(setup.total_steps // 2), 0.05, rtol=1e-6)


def test_an_own_loss_takes_an_input_that_an_own_source_gives(config_of_parts):
    term = ALWAYS | {'loss': 'own_parts.py:first', 'power': 2.0, 'reduction': 'sum'}
    config = config_of_parts | {'terms': {'ranking': term}, 'labels': {'source': ''}}
    assert loop.set_up(config | {'candidates': {'source': 'own_parts.py:weighted'}}).plan.own
    with pytest.raises(UserError, match=r"'terms.ranking' needs weights: set it, or use a source that gives it"):
        loop.set_up(config)


@pytest.mark.slow
def test_runs_with_own_parts_are_evaluated_without_them(config_of_parts, tmp_path):
    path = write_config(tmp_path / 'config.py', config_of_parts)
    run = str(tmp_path / 'run')
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


@pytest.mark.parametrize(
    ('section', 'value', 'sentence'),
    [
        (
            'candidates',
            {'source': 'own_parts.py:broken'},
            r"'own_parts.py:broken' or .* fails: ZeroDivisionError in line \d+ of .*lambda",
        ),
        (
            'candidates',
            {'source': 'own_parts.py:scaled', 'scle': 1.0},
            r"'candidates.scle' is unknown, did you mean 'scale'\?",
        ),
        ('optimizer', {'name': 'own_parts.py:sgd'}, "'optimizer.learning_rate' is missing"),
    ],
)
def test_own_parts_name_their_line_and_take_their_arguments(config_of_parts, section, value, sentence):
    with pytest.raises(UserError, match=sentence):
        loop.set_up(config_of_parts | {section: value})


def test_a_wrong_argument_of_an_optimizer_of_optax_names_it(tiny_config):
    tiny_config['optimizer'] |= {'name': 'optax.lion', 'b1': 'x'}
    with pytest.raises(UserError, match=r"^'optax.lion' fails: TypeError in line \d+ of "):
        loop.set_up(tiny_config)
    tiny_config['optimizer'] |= {'b1': 0.9}
    plan = make_plan(tiny_config)
    assert plan.config['optimizer'].items() >= {'b1': 0.9, 'b2': 0.99, 'mask': None}.items()
    assert own_code.hash_sources(plan.own.values()) == {}
