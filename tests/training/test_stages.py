"""Training with mined negatives, and in two stages by one command."""

import copy
import dataclasses
import functools
import json
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
from tests.support.configs import write_config
from tests.support.mining import make_lists, make_split, save_lists
from tests.support.networks import published
from tests.training.models import drawing

OFF = Augmentation(0.0, 0.0, False, 1)
QUINTUPLET = {
    'loss': 'offline.adaptive_offline_quintuplet',
    'weight': 1.0,
    'start_epoch': 0,
    'end_epoch': None,
    'reduction': 'sum',
    'online_margin': 0.2,
    'offline_margin': 0.0,
}


def make_negatives(split, top_h_texts=6, top_h_images=3):
    """All non-matching items in a random order for each query."""
    rng = np.random.default_rng(0)
    own = split.image_of_text == np.arange(split.num_images)[:, None]
    i2t, t2i = (
        np.array([rng.permutation(np.flatnonzero(~row))[:top] for row in rows])
        for rows, top in ((own, top_h_texts), (own.T, top_h_images))
    )
    return OfflineNegatives(Candidates(i2t, t2i), top_h_texts, top_h_images)


def sample_often(negatives, split, times=400):
    text_index = np.arange(split.num_texts)
    samples = [negatives.sample(text_index, split, np.random.default_rng([0, n])) for n in range(times)]
    return tuple(tuple(np.stack([sample[a][b] for sample in samples]) for b in range(2)) for a in range(2))


def test_negatives_are_sampled_independently():
    split = make_split(5, 12)
    negatives = make_negatives(split)
    (images, texts), (other_images, other_texts) = sample_often(negatives, split)
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
    split = make_split(5, 12)
    split = copy.copy(split)
    object.__setattr__(split, 'captions', tuple('dog ' * (1 + n % 4) + f'{n}' for n in range(12)))
    vocabulary = Vocabulary.build(split.captions, 1)
    tokens = tokenize_split(split.captions, vocabulary)
    return Pipeline(split, tokens, vocabulary, 4, 0, 1, OFF)


def test_negatives_of_a_batch_are_reproducible(monkeypatch):
    without, negatives = make_pipeline(), make_negatives(make_split(5, 12))
    monkeypatch.setattr(mined, 'load', lambda path, split: negatives.candidates)
    context = Context({}, 4, {'candidates': functools.partial(Source)})
    source = mined.with_mined(Source(None), path='x', top_h_texts=6, top_h_images=3, context=context)
    pipeline = drawing(without, source)
    whole = pipeline.batch(3)
    pairs = whole.drawn['mined']
    shards = [pipeline.batch(3, n, 2).drawn['mined'] for n in range(2)]
    joined = jax.tree.map(lambda *x: np.concatenate(x), *shards)
    jax.tree.map(np.testing.assert_array_equal, joined, pairs)
    jax.tree.map(np.testing.assert_array_equal, pipeline.batch(3).drawn['mined'], pairs)
    assert pairs[0].texts.ids.shape == (4, whole.texts.ids.shape[1])
    lengths = [whole.texts.lengths, *(one.texts.lengths for one in pairs)]
    assert whole.texts.ids.shape[1] == np.concatenate(lengths).max()
    last = dataclasses.replace(pipeline, batch_size=5, drop_last=False).batch(2)
    assert [len(one.texts.ids) for one in last.drawn['mined']] == [len(last.image_index)] * 2 == [2, 2]
    assert without.batch(3).drawn == {}
    np.testing.assert_array_equal(without.batch(3).image_index, whole.image_index)
    assert pipeline.identity['candidates'] == negatives.candidates.hash


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
    state, batch = made.initial_state(), made.make_batch(0)
    member = state.members['target']
    variables = {'params': member.params, 'batch_stats': member.batch_stats}
    model = made.members['target'].model

    def scores(images, texts):
        return np.asarray(model.apply(variables, images, texts, True, mutable=['batch_stats'])[0])

    negatives, partners = batch.drawn['mined']
    on = scores(batch.images, batch.texts)
    positive, on = np.diag(on), on - 10 * np.eye(len(on))
    best = {'i2t': on.max(1), 't2i': on.max(0)}
    if with_perturbed:
        captions, is_perturbed = batch.drawn['perturbed']
        assert is_perturbed.sum() > 1
        changed = np.where(is_perturbed, scores(batch.images, captions), -10)
        best['i2t'] = np.maximum(best['i2t'], changed.max(1))
    with_image, with_text = (
        np.diag(scores(batch.images, negatives.texts)),
        np.diag(scores(negatives.images, batch.texts)),
    )
    pairs = np.diag(scores(negatives.images, negatives.texts)), np.diag(scores(partners.images, partners.texts))

    def hinge(x):
        return np.maximum(0, x)

    want = sum(
        (1.5 - (off - online) / 0.3) * hinge(0.2 - positive + online) + hinge(off - positive) + hinge(pair - positive)
        for off, online, pair in ((with_image, best['i2t'], pairs[0]), (with_text, best['t2i'], pairs[1]))
    ).sum()
    _, metrics = made.train_step(parallel.put_state(state), parallel.put_batch(batch))
    np.testing.assert_allclose(metrics['target/loss'], want, rtol=1e-5)
    for direction, off in (('i2t', with_image), ('t2i', with_text)):
        np.testing.assert_allclose(metrics[f'target/mined/{direction}/harder'], np.mean(off > best[direction]))
        np.testing.assert_allclose(metrics[f'target/mined/{direction}/active'], np.mean(off > positive))


@pytest.mark.slow
def test_two_stages_train_and_resume(two_stages, tmp_path, capsys):
    path = write_config(tmp_path / 'two_stages.py', two_stages)
    workdir = tmp_path / 'run'
    command = ['train', f'--config={path}', f'--workdir={workdir}']
    assert cli.main(command) == 0
    assert f'--workdir {workdir}/stage2' in capsys.readouterr().out
    assert np.load(workdir / 'candidates' / 'i2t_train.npy').shape == (16, 20)
    files = {p: p.read_bytes() for p in sorted(workdir.rglob('*.npy'))}
    times = {p: p.stat().st_mtime_ns for p in files}
    lines = (workdir / 'stage2' / 'metrics.jsonl').read_text()
    assert json.loads(lines.splitlines()[-1])['step'] == 10
    assert cli.main(command) == 0
    assert {p: p.stat().st_mtime_ns for p in files} == times
    assert (workdir / 'stage2' / 'metrics.jsonl').read_text() == lines
    (workdir / 'candidates' / 'manifest.json').unlink()
    assert cli.main(command) == 0
    assert {p: p.read_bytes() for p in files} == files
    assert cli.main(['eval', f'--workdir={workdir}/stage2']) == 0
    capsys.readouterr()
    path.write_text(path.read_text().replace("'top_h_texts': 20", "'top_h_texts': 21"))
    assert cli.main(command) == EXIT_USER_ERROR
    assert 'started with other negatives than' in capsys.readouterr().err
    assert {p: p.read_bytes() for p in files} == files
    assert cli.main(['train', f'--config={path}', f'--workdir={workdir}/stage1']) == EXIT_USER_ERROR
    assert 'does not hold two stages' in capsys.readouterr().err


@pytest.mark.slow
def test_negatives_of_another_first_stage_are_mined_again(two_stages, tmp_path):
    stages.train_stages(two_stages, tmp_path / 'run')
    line = next(line for line in read_metrics(tmp_path / 'run' / 'stage2') if line['part'] == 'train')
    batch_size = two_stages['batch_size']
    assert line['mined/t2i/expected_rank'] * batch_size == two_stages['data']['train_images']
    assert {0 <= line[f'target/mined/i2t/{name}'] <= 1 for name in ('harder', 'active')} == {True}
    for name in ('stage1', 'stage2'):
        shutil.rmtree(tmp_path / 'run' / name)
    before = np.load(tmp_path / 'run' / 'candidates' / 'scores_i2t_train.npy')
    stages.train_stages(two_stages | {'seed': 1}, tmp_path / 'run')  # also if the initial model is the best one
    assert (np.load(tmp_path / 'run' / 'candidates' / 'scores_i2t_train.npy') != before).any()


@pytest.mark.slow
def test_wrong_second_stage_is_refused_before_the_first(two_stages, tmp_path):
    def changed(**changes):
        return stages.train_stages({**two_stages, **changes}, tmp_path / 'run')

    few = {**two_stages['stages'], 'top_h_texts': 5}
    with pytest.raises(UserError, match=r"'offline.top_h_texts' is 9, but 'stages.top_h_texts' only 5"):
        changed(stages=few)
    with pytest.raises(UserError, match=r'top_h_images is 99; scenes/train has 1 to 15 negatives'):
        changed(stages={**two_stages['stages'], 'top_h_images': 99})
    with pytest.raises(UserError, match=r"config key 'offline.copled' is unknown"):
        changed(offline={**two_stages['offline'], 'copled': True})
    with pytest.raises(UserError, match=r"stage2: .*'augmentation.drop_regions' must be 0.0 where 'offline.path'"):
        changed(augmentation={**two_stages['augmentation'], 'drop_regions': 0.2})
    sgraf = load('sgraf:saf,f30k')['model']
    with pytest.raises(UserError, match=r'stage2: SGRAF scores a whole batch in training and no single pairs'):
        changed(model={**sgraf, 'embed_dim': 8, 'alignment_dim': 4})
    with pytest.raises(UserError, match=r"'stages.fine_tune' needs the same model and vocabulary in both stages"):
        changed(stages={**two_stages['stages'], 'fine_tune': True}, model={**two_stages['model'], 'embed_dim': 24})
    with pytest.raises(UserError, match=r"config key 'stages.third' is unknown"):
        changed(stages={**two_stages['stages'], 'third': 1})
    with pytest.raises(UserError, match=r"has no 'adaptive'"):
        changed(terms={'ranking': {**QUINTUPLET, 'loss': 'offline.adaptive'}})
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
    config = copy.deepcopy(stages.split_stages(two_stages, tmp_path).first)
    config['members']['target']['init_from'] = str(finished)
    member, run = setup_lib.set_up(config).initial_state().members['target'], load_run(finished)
    jax.tree.map(np.testing.assert_array_equal, member.params, run.variables['params'])
    jax.tree.map(np.testing.assert_array_equal, member.batch_stats, run.variables['batch_stats'])
    larger = copy.deepcopy(config)
    larger['model']['embed_dim'] = 24
    with pytest.raises(UserError, match=r"'members.target.init_from': .* has another model \(model.embed_dim: "):
        setup_lib.set_up(larger)
    other = copy.deepcopy(config)
    other['vocabulary']['min_count'] = 60
    with pytest.raises(UserError, match=r"'members.target.init_from': .* has another vocabulary"):
        setup_lib.set_up(other)
    fine_tuned = {**two_stages, 'stages': {**two_stages['stages'], 'fine_tune': True}}
    second = stages.split_stages(fine_tuned, tmp_path).second
    assert second['members']['target']['init_from'] == str(tmp_path / 'stage1')


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
