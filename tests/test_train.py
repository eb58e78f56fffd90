"""Whole runs: their files, how they resume, and how they end on errors."""

import contextlib
import itertools
import json
import re
import shutil
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from jitm.commands import cli
from jitm.data import scenes
from jitm.data.pipeline import Pipeline
from jitm.data.text.word_level import Vocabulary
from jitm.errors import EXIT_USER_ERROR, InterruptedRun, NotFiniteError, UserError
from jitm.evaluation.protocol import evaluate_runs
from jitm.importers.bert_weights import NAMES
from jitm.inference import engine, scoring
from jitm.inference.engine import Engine
from jitm.inference.scoring import ScoringOptions
from jitm.layers import transformer
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.interrupt import StopRequest
from jitm.runs.log import read_metrics
from jitm.runs.progress import Pace
from jitm.runs.run import load_run, read_split
from jitm.training import logs, loop
from jitm.training.logs import Logs
from jitm.training.setup import set_up
from jitm.types import Texts
from tests.conftest import run_script
from tests.same import assert_about_the_same_metrics, assert_same_run
from tests.support.bert import drawn, saved
from tests.support.matchers import VSRN
from tests.support.runs import remove_checkpoints


def test_files_of_a_run(finished):
    names = {path.name for path in finished.iterdir()}
    assert names >= {'.lock', 'config.json', 'checkpoints', 'metrics.jsonl', 'timing.jsonl', 'tensorboard'}
    assert list((finished / 'tensorboard').glob('events*'))
    assert json.loads((finished / 'config.json').read_text())['epochs'] == 3
    lines = read_metrics(finished)
    assert [line['step'] for line in lines if line['part'] == 'train'] == list(range(1, 31))
    assert [line['step'] for line in lines if line['part'] == 'dev'] == [0, 10, 15, 20, 30]
    timing = [json.loads(line) for line in (finished / 'timing.jsonl').read_text().splitlines()]
    assert all(0 <= line['data_wait_share'] <= 1 for line in timing)
    pairs = [line['pairs_per_second'] * line['train_seconds'] for line in timing]
    np.testing.assert_allclose(pairs, [0, 80, 40, 40, 80])


def test_command_prints_the_result(finished, tiny_config_file, tmp_path, capsys):
    workdir = shutil.copytree(finished, tmp_path / 'run')
    assert cli.main(['train', '--config', str(tiny_config_file), '--workdir', str(workdir)]) == 0
    output = capsys.readouterr().out
    for text in ('image to text', 'rsum', str(workdir), 'metrics.jsonl', '--logdir', 'before training'):
        assert text in output
    assert_same_run(workdir, finished)


def test_learning_rate_and_terms_follow_the_epochs(finished):
    train = [line for line in read_metrics(finished) if line['part'] == 'train']
    np.testing.assert_allclose([line['learning_rate'] for line in train], [1e-2] * 20 + [1e-3] * 10, rtol=1e-5)
    assert [line['target/terms/later'] > 0 for line in train] == [False] * 20 + [True] * 10


def test_training_reduces_the_loss(finished):
    losses = [line['target/loss'] for line in read_metrics(finished) if line['part'] == 'train']
    assert np.mean(losses[-5:]) < np.mean(losses[:5])


@pytest.mark.slow
def test_stop_and_resume_at_any_step(finished, tiny_config, tmp_path, monkeypatch):
    workdir = tmp_path / 'run'
    read = itertools.count(1)
    every_seventh = property(lambda _: next(read) % 7 == 0, lambda *_: None)  # it is read before each step
    monkeypatch.setattr(StopRequest, 'requested', every_seventh, raising=False)
    for step in (6, 12, 18, 24):
        with pytest.raises(InterruptedRun, match=f'saved at step {step} of 30; the same command resumes it'):
            loop.train_and_evaluate(tiny_config, workdir)
    loop.train_and_evaluate(tiny_config, workdir)
    assert_same_run(workdir, finished)


def test_a_changed_loss_and_its_shapes_are_printed(finished, tiny_config, tmp_path, capsys):
    workdir = shutil.copytree(finished, tmp_path / 'run')
    remove_checkpoints(workdir, after=20)
    loop.train_and_evaluate(tiny_config, workdir)
    changed, compiling, compiled, *others = capsys.readouterr().out.splitlines()
    assert changed.startswith('step 20: the loss is now ranking.sum_of_hinges + ranking.max_of_hinges instead of ')
    assert 'the loss is now' not in ' '.join(others)
    assert re.fullmatch(
        r'compiling the training step of target for captions of \d+ tokens \(shape 1 of about 1\), which takes a while',
        compiling,
    )
    assert re.fullmatch(r'compiled in \d+ s', compiled)
    assert_same_run(workdir, finished)


def test_a_line_each_period_says_what_training_does(finished, tiny_config, tmp_path, monkeypatch, capsys):
    """The clock strikes when a step compiles, when one is logged, and when the model is evaluated."""
    strikes = []

    @contextlib.contextmanager
    def repeated(seconds, function):
        assert seconds == 60
        strikes.append(function)
        yield

    def after_a_strike(function):
        return lambda *arguments: [strikes[-1](), function(*arguments)][1]

    monkeypatch.setattr(logs, 'repeated', repeated)
    monkeypatch.setattr(Logs, 'train', after_a_strike(Logs.train))
    monkeypatch.setattr(loop, 'validate', after_a_strike(loop.validate))
    monkeypatch.setattr(jax, 'block_until_ready', after_a_strike(jax.block_until_ready))  # as a step compiles
    workdir = shutil.copytree(finished, tmp_path / 'run')
    remove_checkpoints(workdir, after=28)
    loop.train_and_evaluate(tiny_config, workdir)
    said = '\n'.join(line for line in capsys.readouterr().out.splitlines() if line.startswith('step'))
    compiling = r'step 28 of 30: compiling the training step of target for captions of 28 tokens for 0:00:\d\d'
    steps = r'step 29 of 30\nstep 30 of 30, [\d.e+]+ steps/s, 0:00:00 left, loss [\d.]+, gap [-\d.]+'
    evaluating = r'step 30 of 30: evaluating dev for 0:00:00, loss [\d.]+, gap [-\d.]+, pairs/s [\d,]+'
    assert re.match(rf'step 28 of 30\n{compiling}\n{steps}\n{evaluating}\nstep 30 epoch 3.00', said), said
    assert_same_run(workdir, finished)


class CaptionBatch(NamedTuple):
    texts: Texts


@pytest.mark.parametrize(
    ('slow', 'expected', 'announced'),
    [
        (-1, 1, [('4', '1 of about 1'), ('8', '2 of about 2')]),
        (-1, 3, [('4', '1 of about 3'), ('8', '2 of about 3')]),
        (10, 1, [('4', '1 of about 1')]),
    ],
)
def test_other_lengths_are_announced_if_they_compile_slowly(monkeypatch, slow, expected, announced):
    monkeypatch.setattr(loop, 'SLOW_COMPILATION', slow)
    plan, said, pace = SimpleNamespace(run={'log_every': 1}), [], Pace(0, 3)
    setup = SimpleNamespace(plan=plan, members={'target': None}, train_step=lambda state, batch: (state, {}))
    setup.pipeline = SimpleNamespace(num_shapes=expected)
    steps = loop._Loop(setup, None, SimpleNamespace(say=said.append, pace=pace), None, None)
    for length in (4, 8, 4):
        steps._step(0, CaptionBatch(Texts(np.zeros((2, length), int), np.ones(2, int))))
    shapes = re.findall(r'for captions of (\d+) tokens \(shape (\d of about \d)\)', ' '.join(said))
    assert shapes == announced
    assert said.count(loop.SHAPES.format(3)) == (expected == 3)


@pytest.mark.slow
def test_smaller_last_batch_on_two_devices(tiny_config, tiny_config_file, tmp_path):
    flags = '--config.batch_size=32', '--config.epochs=1', '--config.optimizer.learning_rate=1e-3'
    for devices in '1', '2':
        command = '--config', tiny_config_file, *flags, '--workdir', tmp_path / devices
        result = run_script('train.py', *command, JAX_NUM_CPU_DEVICES=devices)
        assert result.returncode == 0, result.stderr
    assert_about_the_same_metrics(tmp_path / '2', tmp_path / '1')
    assert [line['step'] for line in read_metrics(tmp_path / '2')] == [0, 1, 2, 3, 3]


def lose_checkpoints(workdir, how):
    for folder in (workdir / 'checkpoints').iterdir():
        if how == 'gone':
            shutil.rmtree(folder)
        else:
            (folder / 'manifest.json').unlink()


@pytest.mark.parametrize('how', ['gone', 'damaged'])
def test_run_that_has_lost_its_checkpoints_is_refused(finished, tiny_config, tmp_path, how):
    workdir = shutil.copytree(finished, tmp_path / 'run')
    lose_checkpoints(workdir, how)
    with pytest.raises(UserError, match=r'has metrics of step 30 but no whole checkpoint; restore .*/checkpoints, or'):
        loop.train_and_evaluate(tiny_config, workdir)
    assert (workdir / 'metrics.jsonl').read_bytes() == (finished / 'metrics.jsonl').read_bytes()


@pytest.mark.slow
def test_run_that_was_killed_during_its_first_save_starts_again(finished, tiny_config, tmp_path, caplog):
    workdir = shutil.copytree(finished, tmp_path / 'run')
    lose_checkpoints(workdir, 'damaged')
    first, *_ = (workdir / 'metrics.jsonl').read_text().splitlines(keepends=True)
    (workdir / 'metrics.jsonl').write_text(first)
    loop.train_and_evaluate(tiny_config, workdir)
    assert f'{workdir} has no checkpoint: the run starts from its first step' in caplog.text
    assert_same_run(workdir, finished)


def test_damaged_best_checkpoint_is_kept_and_named(finished, tiny_config, tmp_path):
    workdir = shutil.copytree(finished, tmp_path / 'run')
    best = Checkpoints(workdir).best_step()
    last = Checkpoints(workdir).steps()[-1]
    assert best != last
    metadata = workdir / 'checkpoints' / str(best) / 'run' / 'metadata'
    metadata.write_bytes(metadata.read_bytes()[:-1] + b'!')
    with pytest.raises(UserError, match=f'{best}/run/metadata is damaged, .* --step: .*{last}$'):
        load_run(workdir)
    with pytest.raises(UserError, match=f'{best}/run/metadata is damaged, .* --step evaluates .*, {last}$'):
        loop.train_and_evaluate(tiny_config, workdir)
    assert metadata.exists()
    assert load_run(workdir, last).step == last


def test_partial_config_file_does_not_block_a_start(tiny_config, tmp_path):
    (tmp_path / '.config.json.jitm_partial').write_text('{"half')
    loop.check_workdir(tmp_path, tiny_config)


def test_second_process_in_a_workdir_is_refused(finished, tiny_config, tmp_path):
    workdir = tmp_path / 'run'
    shutil.copytree(finished, workdir)
    with loop.claim(workdir), pytest.raises(UserError, match='another process trains in'):
        loop.train_and_evaluate(tiny_config, workdir)


def test_incomplete_metrics_line_is_dropped(finished, tiny_config, tmp_path):
    workdir = tmp_path / 'run'
    shutil.copytree(finished, workdir)
    with (workdir / 'metrics.jsonl').open('a') as file:
        file.write('{"step": 31, "ta')
    loop.train_and_evaluate(tiny_config, workdir)
    assert_same_run(workdir, finished)


@pytest.mark.slow
def test_non_finite_loss_saves_state_and_batch(tiny_config, tmp_path, monkeypatch):
    workdir = tmp_path / 'run'
    make_batch = loop.Setup.make_batch

    def broken_at_13(self, step):
        batch = make_batch(self, step)
        if step == 13:
            batch.images.regions[0] = np.inf
        return batch

    monkeypatch.setattr(loop.Setup, 'make_batch', broken_at_13)
    tiny_config['run']['log_every'] = 5
    for _ in range(2):  # a second start ends the same way
        with pytest.raises(NotFiniteError, match='not finite at step 13'):
            loop.train_and_evaluate(tiny_config, workdir)
    text = (workdir / 'not_finite_step_13.json').read_text()
    report = json.loads(text, parse_constant=pytest.fail)  # of NaN and Infinity, which JSON lacks
    assert len(report['captions']) == len(report['images']) == 8
    assert report['texts'] == loop.set_up(tiny_config).pipeline.text_index(13).tolist()
    assert report['metrics']['target/loss'] in ('nan', 'inf')
    assert report['metrics']['finite'] == 0
    with Checkpoints(workdir) as checkpoints:
        assert checkpoints.steps()[-1] == 13
        state, _ = checkpoints.read(13)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    monkeypatch.setattr(loop.Setup, 'make_batch', make_batch)
    loop.train_and_evaluate(tiny_config, workdir)


def check_refused(config, workdir, match):
    with pytest.raises(UserError, match=match):
        loop.train_and_evaluate(config, workdir)
    assert not workdir.exists()


@pytest.mark.slow
def test_resuming_with_moved_or_changed_data(tiny_config, precomp_folder, tmp_path):
    tiny_config['data'] = {'source': 'precomp.load', 'root': str(precomp_folder), 'dev_images': 1000}
    tiny_config['epochs'] = 1
    tiny_config['evaluation']['split'] = 'train'  # any split may be validated on
    workdir, moved = tmp_path / 'run', tmp_path / 'moved'
    loop.train_and_evaluate(tiny_config, workdir)
    shutil.copytree(precomp_folder, moved)
    tiny_config['data']['root'] = str(moved)
    loop.train_and_evaluate(tiny_config, workdir)
    features = np.load(moved / 'train_ims.npy')
    features[0] += 1
    np.save(moved / 'train_ims.npy', features)
    with pytest.raises(UserError, match='was started with other data'):
        loop.train_and_evaluate(tiny_config, workdir)


def test_resuming_with_other_steps_per_epoch_is_refused(finished, tiny_config, tmp_path, monkeypatch):
    """The last batch of an epoch is cut to a multiple of the devices, so their number may change the steps."""
    workdir = shutil.copytree(finished, tmp_path / 'run')
    monkeypatch.setattr(Pipeline, 'steps_per_epoch', 9)
    with pytest.raises(UserError, match='has 10 steps per epoch, but 9 on 1 devices; resume it on as many devices as'):
        loop.train_and_evaluate(tiny_config, workdir)


@pytest.mark.slow
def test_resuming_with_moved_or_changed_relevance(tiny_config, tmp_path):
    workdir, path, moved = tmp_path / 'run', tmp_path / 'cider.npy', tmp_path / 'moved.npy'
    phi = np.zeros((16, 80), np.float32)
    np.save(path, phi)
    adaptive = {key: value for key, value in tiny_config['terms']['ranking'].items() if key != 'margin'}
    tiny_config['terms'] = {'ranking': adaptive | {'loss': 'ranking.adaptive_margin'}}
    tiny_config['epochs'] = 1
    tiny_config['relevance'] = {'source': 'cider.from_file', 'path': str(path)}
    loop.train_and_evaluate(tiny_config, workdir)
    path.rename(moved)
    tiny_config['relevance']['path'] = str(moved)
    loop.train_and_evaluate(tiny_config, workdir)
    phi[7, 40] = 1
    np.save(moved, phi)
    with pytest.raises(UserError, match=r'other data \(data.relevance: \w{64} -> \w{64}\); restore its'):
        loop.train_and_evaluate(tiny_config, workdir)


@pytest.mark.slow
def test_validation_scores_the_evaluated_member(tiny_config):
    tiny_config['members'] = {'another': tiny_config['members']['target'], **tiny_config['members']}
    setup = loop.set_up(tiny_config)
    state = setup.initial_state()
    broken = jax.tree.map(lambda x: x * np.nan, state.members['another'])
    assert loop.validate(setup, state.replace(members=state.members | {'another': broken}))['rsum'] > 0


def test_resuming_with_another_vocabulary_is_refused(finished, tiny_config, tmp_path, monkeypatch):
    workdir = tmp_path / 'run'
    shutil.copytree(finished, workdir)
    monkeypatch.setattr(Vocabulary, 'hash', 'another')
    with pytest.raises(UserError, match=r'was started with other data \(vocabulary_hash'):
        loop.train_and_evaluate(tiny_config, workdir)


@pytest.fixture
def bert_config(tiny_config, tmp_path):
    """A tiny VSE++ with a BERT initialized from saved weights, and captions with masked words."""
    split = scenes.load('train', train_images=16)
    words = sorted({word.strip('.,') for word in ' '.join(split.captions).lower().split()})
    pieces = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *words)
    (tmp_path / 'vocab.txt').write_text('\n'.join(pieces) + '\n')
    texts = Texts(np.ones((1, 2), np.int32), np.ones(1, np.int32))
    bert = transformer.BERT(len(pieces), transformer.TINY, 0.1)
    saved(tmp_path, drawn(jax.eval_shape(bert.init, jax.random.key(0), texts)['params'], NAMES, scale=0.02))
    tiny_config['vocabulary']['path'] = str(tmp_path / 'vocab.txt')
    tiny_config['initialize']['bert'] = str(tmp_path / 'model.safetensors')
    tiny_config['augmentation'] |= {'change_words': 0.2, 'keep_special_tokens': True}
    tiny_config['model']['text_pooling'] = 'mean'
    text = {'name': 'text.BERTEncoder', 'size': 'tiny', 'dropout': 0.1, 'output_dropout': 0.1, 'dtype': 'float32'}
    tiny_config['model']['text'] = text
    tiny_config['optimizer'] |= {'factors': {'bert': 0.1}, 'learning_rate': 1e-3, 'weight_decay': 0.01}
    tiny_config['terms'].pop('later')
    return tiny_config | {'epochs': 1, 'length_multiple': 64}


@pytest.mark.slow
def test_bert_is_initialized_trained_and_evaluated(bert_config, tmp_path):
    setup = set_up(bert_config)
    table = setup.initial_state().members['target'].params['text']['bert']['embeddings']['words']['embedding']
    words = load_file(tmp_path / 'model.safetensors')['embeddings.word_embeddings.weight']
    np.testing.assert_array_equal(table, words)
    workdir = tmp_path / 'run'
    result = loop.train_and_evaluate(bert_config, workdir)
    (tmp_path / 'model.safetensors').unlink()
    assert loop.train_and_evaluate(bert_config, workdir) == result  # weights are read before the first step only
    (tmp_path / 'vocab.txt').unlink()
    run = load_run(workdir, result['best']['step'])
    report, _ = evaluate_runs([run], read_split([run], 'dev'))
    np.testing.assert_allclose(report['metrics']['rsum'], result['best']['rsum'], atol=1e-3)
    trained = load_run(workdir, 10).variables['params']['text']
    moved = np.abs(trained['bert']['embeddings']['words']['embedding'] - words).max()
    assert 1e-5 < moved < 10 * 1e-4 * 1.01  # at most a tenth of the rate a step


GRU = {'name': 'text.GRUEncoder', 'word_dim': 8, 'bidirectional': True, 'dropout': 0.0}
VSRN_MODEL = {'name': 'vsrn.VSRN'} | {key: value for key, value in VSRN.items() if key != 'vocab_size'}
READS_WORDS = "gives word pieces, but 'model.text.name' is 'text.GRUEncoder', which reads words: give a JSON vocabulary"
READS_PIECES = "words, but 'model.text.name' is 'text.BERTEncoder', which reads word pieces: give the vocab.txt of"


@pytest.mark.slow
@pytest.mark.parametrize(
    ('model', 'path', 'sentence'),
    [
        ({'text': GRU}, '/vocab.txt', READS_WORDS),
        (VSRN_MODEL, '/vocab.txt', "but 'model.name' is 'vsrn.VSRN', which"),
        ({}, '', READS_PIECES),
    ],
)
def test_vocabulary_of_another_kind_is_refused(bert_config, tmp_path, model, path, sentence):
    bert_config['model'] = model if 'name' in model else bert_config['model'] | model
    bert_config['vocabulary']['path'] = path and str(tmp_path) + path
    check_refused(bert_config, tmp_path / 'run', f"vocabulary.path' is '.*{path}', which .*{sentence}")


def with_long_caption(folder, split, words):
    """Makes a caption of a precomp folder so many words long."""
    captions = (folder / f'{split}_caps.txt').read_text().splitlines()
    captions[3] = 'house ' * words
    (folder / f'{split}_caps.txt').write_text('\n'.join(captions))


@pytest.mark.parametrize('split', ['train', 'dev'])
def test_too_long_text_is_refused(bert_config, precomp_folder, tmp_path, split):
    bert_config['data'] = {'source': 'precomp.load', 'root': str(precomp_folder), 'dev_images': 1000}
    with_long_caption(precomp_folder, split, 511)
    sentence = f'precomp/{split}, text 3 has 513 word pieces with special tokens, but the model reads at most 512'
    check_refused(bert_config, tmp_path / 'run', sentence)


@pytest.mark.slow
def test_padding_stops_at_the_longest_text_of_bert(bert_config, precomp_folder, monkeypatch):
    bert_config |= {'batch_size': 40, 'length_multiple': 100}  # the batch holds every text
    bert_config['data'] = {'source': 'precomp.load', 'root': str(precomp_folder), 'dev_images': 1000}
    monkeypatch.setattr(engine, 'LONG_MULTIPLE', 100)
    for split in ('train', 'dev'):
        with_long_caption(precomp_folder, split, 510)
    setup = set_up(bert_config)
    assert setup.make_batch(0).texts.ids.shape[1] == 512
    model = setup.members['target'].model
    state = setup.initial_state().members['target']
    variables = {'params': state.params, 'batch_stats': state.batch_stats}
    options = ScoringOptions('float32', 4096, 'highest')
    scorer = scoring.Scorer(model, variables, setup.data.validation, setup.data.validation_tokens, options)
    read = []
    encoded = np.zeros((scorer.engine.texts_per_call, 4))
    monkeypatch.setattr(Engine, 'compiled', lambda *_: lambda texts, _: read.append(texts.ids.shape) or encoded)
    scorer.encode_texts()
    assert {rows for rows, _ in read} == {scorer.engine.texts_per_call}
    assert max(length for _, length in read) == 512


@pytest.mark.slow
def test_wrong_input_ends_the_process_with_code_2(tiny_config_file, tmp_path):
    flags = f'--config={tiny_config_file}', f'--workdir={tmp_path / "run"}', '--config.batch_size=9'
    result = run_script('train.py', *flags, JAX_NUM_CPU_DEVICES='2')
    assert (result.returncode, result.stdout) == (EXIT_USER_ERROR, '')
    assert result.stderr.startswith('error: batch_size 9 cannot be split over 2 devices')
    assert not (tmp_path / 'run').exists()
