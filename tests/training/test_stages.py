"""Training with mined negatives, and in two stages by one command."""

import copy
import dataclasses
import functools
import shutil

import jax
import numpy as np
import pytest

from jitm.commands import cli
from jitm.config import schema
from jitm.data.pairs.augmentation import Augmentation
from jitm.data.pairs.mined_lists import Candidates, OfflineNegatives
from jitm.data.pipeline import Pipeline
from jitm.data.text.vocabularies import tokenize_split
from jitm.data.text.word_level import Vocabulary
from jitm.devices import parallel
from jitm.errors import EXIT_USER_ERROR, UserError
from jitm.runs.log import read_metrics
from jitm.runs.run import load_run
from jitm.training import setup as setup_lib
from jitm.training import stages
from jitm.training.source import Context, Source
from jitm.training.sources import mined
from tests.configs.settings import load
from tests.conftest import UNCHANGED
from tests.losses import formulas
from tests.support.configs import write_config
from tests.support.mining import make_lists, make_split, save_lists
from tests.support.networks import published
from tests.support.steps import ALWAYS, drawing

QUINTUPLET = ALWAYS | {'loss': 'offline.adaptive_offline_quintuplet', 'reduction': 'sum'}
QUINTUPLET |= {'online_margin': 0.2, 'offline_margin': 0.0}


def make_negatives(split, top_h_texts=6, top_h_images=3):
    """All non-matching items in a random order for each query."""
    rng = np.random.default_rng(0)
    matches = split.image_of_text == np.arange(split.num_images)[:, None]

    def draw(rows, top):
        return np.array([rng.permutation(np.flatnonzero(~row))[:top] for row in rows])

    return OfflineNegatives(
        Candidates(draw(matches, top_h_texts), draw(matches.T, top_h_images)), top_h_texts, top_h_images
    )


def test_negatives_are_sampled_independently():
    split = make_split(5, 12)
    negatives = make_negatives(split)
    rngs = [np.random.default_rng([0, n]) for n in range(400)]
    samples = [negatives.sample(np.arange(split.num_texts), split, rng) for rng in rngs]
    (images, texts), (other_images, other_texts) = jax.tree.map(lambda *x: np.stack(x), *samples)
    for text, image in enumerate(split.image_of_text):
        assert set(texts[:, text]) == set(negatives.candidates.i2t[image])
        assert set(images[:, text]) == set(negatives.candidates.t2i[text])
    assert (split.image_of_text[texts] != images).all()
    np.testing.assert_array_equal(other_images, split.image_of_text[texts])
    np.testing.assert_array_equal(split.image_of_text[other_texts], images)
    assert {int(t) for t in other_texts[images == 0]} == set(np.flatnonzero(split.image_of_text == 0))


def test_more_negatives_than_listed_are_refused():
    split = make_split(5, 12)
    with pytest.raises(ValueError, match='top_h_images is 4; the lists hold 1 to 3'):
        OfflineNegatives(make_negatives(split).candidates, 6, 4)


def make_pipeline():
    captions = tuple('dog ' * (1 + n % 4) + f'{n}' for n in range(12))
    split = dataclasses.replace(make_split(5, 12), captions=captions)
    vocabulary = Vocabulary.build(captions, 1)
    return Pipeline(split, tokenize_split(captions, vocabulary), vocabulary, 4, 0, 1, Augmentation(**UNCHANGED))


def test_negatives_of_a_batch_are_reproducible(monkeypatch):
    without = make_pipeline()
    negatives = make_negatives(make_split(5, 12))
    monkeypatch.setattr(mined, 'load', lambda path, split: negatives.candidates)
    context = Context({}, 4, {'candidates': functools.partial(Source)})
    source = mined.with_mined(Source(None), path='x', top_h_texts=6, top_h_images=3, context=context)
    pipeline = drawing(without, source)
    batch = pipeline.batch(3)
    pairs = batch.drawn['mined']
    shards = [pipeline.batch(3, n, 2).drawn['mined'] for n in range(2)]
    joined = jax.tree.map(lambda *x: np.concatenate(x), *shards)
    jax.tree.map(np.testing.assert_array_equal, joined, pairs)
    jax.tree.map(np.testing.assert_array_equal, pipeline.batch(3).drawn['mined'], pairs)
    lengths = [texts.lengths.max() for texts in (batch.texts, pairs[0].texts, pairs[1].texts)]
    assert pairs[0].texts.ids.shape == (4, max(lengths))
    assert batch.texts.ids.shape == (4, max(lengths))
    last = dataclasses.replace(pipeline, batch_size=5, drop_last=False).batch(2)
    assert [len(drawn.texts.ids) for drawn in last.drawn['mined']] == [len(last.image_index)] * 2 == [2, 2]
    assert without.batch(3).drawn == {}
    np.testing.assert_array_equal(without.batch(3).image_index, batch.image_index)
    assert pipeline.identity['candidates'] == negatives.candidates.hash


SGRAF = load('sgraf:saf,f30k')['model'] | {'embed_dim': 8, 'alignment_dim': 4}


def first_of(config):
    """The config without what the first stage shares with the second."""
    return {key: value for key, value in config.items() if key not in schema.SHARED}


@pytest.fixture
def two_stages(tiny_config, tmp_path):
    """A config of two stages on scenes."""
    first = first_of(tiny_config) | {'epochs': 1}
    second = copy.deepcopy(tiny_config) | {'epochs': 1, 'terms': {'ranking': dict(QUINTUPLET)}}
    second['offline'] |= {'top_h_texts': 9, 'top_h_images': 4}
    return second | {'stages': {'first': first, 'top_h_texts': 20, 'top_h_images': 5, 'fine_tune': False}}


@pytest.mark.slow
@pytest.mark.parametrize('with_perturbed', [False, True])
def test_step_scores_mined_pairs(two_stages, tmp_path, with_perturbed):
    if with_perturbed:
        two_stages['candidates'] = {'source': 'perturbed', 'same_image': 'negative', 'perturbations': ('swap',)}
    first, second, *_ = stages.split_stages(two_stages, tmp_path)
    split = setup_lib.set_up(first).pipeline.split
    save_lists(tmp_path / 'candidates', split, *make_lists(split, 20))
    made = setup_lib.set_up(second)
    state = made.initial_state()
    batch = made.make_batch(0)
    model = made.members['target'].model
    variables = state.members['target'].variables

    def scores(images, texts):
        return np.asarray(model.apply(variables, images, texts, True, mutable=['batch_stats'])[0])

    negatives, partners = batch.drawn['mined']
    online = scores(batch.images, batch.texts)
    positive = np.diag(online)
    mismatches = online - 10 * np.eye(len(online))
    hardest = {'i2t': mismatches.max(1), 't2i': mismatches.max(0)}
    if with_perturbed:
        captions, is_perturbed = batch.drawn['perturbed']
        assert is_perturbed.sum() > 1
        perturbed = np.where(is_perturbed, scores(batch.images, captions), -10)
        hardest['i2t'] = np.maximum(hardest['i2t'], perturbed.max(1))
    offline = {'i2t': scores(batch.images, negatives.texts), 't2i': scores(negatives.images, batch.texts)}
    pairs = {'i2t': scores(negatives.images, negatives.texts), 't2i': scores(partners.images, partners.texts)}
    _, metrics = made.train_step(parallel.put_state(state), parallel.put_batch(batch))
    want = 0
    for way, best in hardest.items():
        off = np.diag(offline[way])
        rows = zip(positive, best, off, np.diag(pairs[way]), strict=True)
        want += sum(formulas.adaptive_offline_quintuplet(formulas.Row([p], [n]), o, pair) for p, n, o, pair in rows)
        np.testing.assert_allclose(metrics[f'target/mined/{way}/harder'], np.mean(off > best))
        np.testing.assert_allclose(metrics[f'target/mined/{way}/active'], np.mean(off > positive))
    np.testing.assert_allclose(metrics['target/loss'], want, rtol=1e-5)


@pytest.mark.slow
def test_two_stages_are_trained_once(two_stages, tmp_path, capsys):
    path = write_config(tmp_path / 'two_stages.py', two_stages)
    workdir = tmp_path / 'run'
    command = ['train', f'--config={path}', f'--workdir={workdir}']
    assert cli.main(command) == 0
    assert f'--workdir {workdir}/stage2' in capsys.readouterr().out
    assert np.load(workdir / 'candidates' / 'i2t_train.npy').shape == (16, 20)
    times = {file: file.stat().st_mtime_ns for file in workdir.rglob('*.npy')}
    contents = {file: file.read_bytes() for file in (*times, workdir / 'stage2' / 'metrics.jsonl')}
    lines = read_metrics(workdir / 'stage2')
    assert lines[-1]['step'] == 10
    line = next(line for line in lines if line['part'] == 'train')
    assert line['mined/t2i/expected_rank'] * two_stages['batch_size'] == two_stages['data']['train_images']
    assert cli.main(command) == 0
    assert {file: file.stat().st_mtime_ns for file in times} == times
    (workdir / 'candidates' / 'manifest.json').unlink()
    assert cli.main(command) == 0
    assert {file: file.read_bytes() for file in contents} == contents
    assert cli.main(['eval', f'--workdir={workdir}/stage2']) == 0
    capsys.readouterr()
    path.write_text(path.read_text().replace("'top_h_texts': 20", "'top_h_texts': 21"))
    assert cli.main(command) == EXIT_USER_ERROR
    assert 'started with other negatives than' in capsys.readouterr().err
    assert {file: file.read_bytes() for file in contents} == contents
    assert cli.main(['train', f'--config={path}', f'--workdir={workdir}/stage1']) == EXIT_USER_ERROR
    assert 'does not hold two stages' in capsys.readouterr().err
    shutil.rmtree(workdir / 'stage2')
    assert cli.main(command) == 0
    assert np.load(workdir / 'candidates' / 'i2t_train.npy').shape == (16, 21)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('section', 'changes', 'message'),
    [
        ('stages', {'top_h_texts': 5}, r"'offline.top_h_texts' is 9, but 'stages.top_h_texts' only 5"),
        ('stages', {'top_h_images': 99}, r'top_h_images is 99; scenes/train has 1 to 15 negatives'),
        ('stages', {'third': 1}, r"config key 'stages.third' is unknown"),
        ('stages', {'fine_tune': True}, r"'stages.fine_tune' needs the same model and vocabulary in both stages"),
        ('augmentation', {'drop_regions': 0.2}, r"stage2: .*'augmentation.drop_regions' must be 0.0 where 'offline.pa"),
        ('model', SGRAF, r'stage2: SGRAF scores a whole batch in training and no single pairs'),
    ],
)
def test_wrong_second_stage_is_refused_before_the_first(two_stages, tmp_path, section, changes, message):
    config = two_stages | {section: changes if 'name' in changes else two_stages[section] | changes}
    if 'fine_tune' in changes:
        config['model']['embed_dim'] = 24
    with pytest.raises(UserError, match=message):
        stages.train_stages(config, tmp_path / 'run')
    assert not (tmp_path / 'run').exists()


def test_first_stage_without_its_run_is_refused(two_stages, tmp_path):
    members = {'target': {'rule': 'gradient', 'init_from': str(tmp_path / 'nowhere')}}
    two_stages['stages']['first'] = {**two_stages['stages']['first'], 'members': members}
    for start in (stages.check, stages.train):
        with pytest.raises(UserError, match='nowhere is not a run directory'):
            start(two_stages, tmp_path / 'run')
    assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_fine_tuning_is_initialized_from_the_first_stage(two_stages, tmp_path, finished):
    two_stages['stages']['fine_tune'] = True
    split = stages.split_stages(two_stages, tmp_path)
    assert split.second['members']['target']['init_from'] == str(tmp_path / 'stage1')
    split.first['members']['target']['init_from'] = str(finished)
    member = setup_lib.set_up(split.first).initial_state().members['target']
    run = load_run(finished)
    jax.tree.map(np.testing.assert_array_equal, member.variables, {'batch_stats': {}} | run.variables)
    split.first['vocabulary']['min_count'] = 60
    with pytest.raises(UserError, match=r"'members.target.init_from': .* has another vocabulary"):
        setup_lib.set_up(split.first)


@pytest.mark.slow
def test_network_is_frozen_then_fine_tuned(tiny_config, tmp_path):
    """As VSE++ on photos: one command, nothing is mined."""
    np.savez(tmp_path / 'squeezenet.npz', **published())
    vsepp = load('vsepp:squeezenet,finetuned,f8k')
    config = copy.deepcopy(tiny_config) | {'epochs': 1}
    config['model']['image'] = vsepp['model']['image']
    first = first_of(copy.deepcopy(config))
    first['initialize'] |= {'image': str(tmp_path / 'squeezenet.npz')}
    first['optimizer'] |= {'factors': vsepp['stages']['first']['optimizer']['factors']}
    none = {key: vsepp['stages'][key] for key in ('top_h_texts', 'top_h_images', 'fine_tune')}
    workdir = tmp_path / 'run'
    result = stages.train_stages(config | {'stages': {'first': first} | none}, workdir)
    assert {path.name for path in workdir.iterdir()} == {'stage1', 'stage2', '.lock'}
    runs = [load_run(workdir / name, 10).variables['params'] for name in ('stage1', 'stage2')]
    frozen, tuned = (run['image']['network']['features_3']['squeeze']['kernel'] for run in runs)
    np.testing.assert_array_equal(frozen[0, 0].T, published()['features.3.squeeze.weight'][:, :, 0, 0])
    assert 0 < np.abs(tuned - frozen).max() < 0.1
    np.testing.assert_array_less(0, np.abs(runs[0]['image']['regions']['image_fc']['bias']).max())
    assert stages.train_stages(config | {'stages': {'first': first} | none}, workdir) == result
