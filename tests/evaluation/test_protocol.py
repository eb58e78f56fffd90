import dataclasses
import functools
import json
import shutil
import signal
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from jitm import metrics
from jitm.commands import cli
from jitm.data.text.word_level import Vocabulary
from jitm.errors import EXIT_INTERRUPTED, UserError
from jitm.evaluation import protocol, saved
from jitm.evaluation.protocol import evaluate_runs
from jitm.files import LOCK, hash_file, locked
from jitm.files.outputs import OWNED, UNFINISHED, OutputFolder
from jitm.inference import memory, scoring
from jitm.inference.scoring import Scorer, ScoringOptions
from jitm.models import vse
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.progress import Progress
from jitm.runs.run import describe_inputs, load_run, read_split
from jitm.types import TextFormat
from tests.conftest import ROOT, environment
from tests.support.matchers import make_vse


@pytest.fixture(scope='module')
def run(finished):
    return load_run(finished)


@pytest.fixture(scope='module')
def dev(run):
    return read_split([run], 'dev')


@pytest.fixture(scope='module')
def sims(run, dev):
    """The similarities of the run."""
    return evaluate_runs([run], dev)[1]


@pytest.fixture(scope='module')
def other(run):
    """Another run, whose scores differ."""
    return dataclasses.replace(run, variables=jax.tree.map(lambda x: x * 1.1, run.variables))


def test_best_checkpoint_has_the_metrics_of_training(run, dev, finished):
    report, sims = evaluate_runs([run], dev)
    lines = [json.loads(line) for line in (finished / 'metrics.jsonl').read_text().splitlines()]
    line = next(line for line in lines if line['step'] == run.step and line['part'] == 'dev')
    assert {name: line[name] for name in report['metrics']} == report['metrics']
    assert sims.shape == (10, 50)
    digest = hash_file(finished / 'checkpoints' / str(run.step) / 'manifest.json')
    described = {'workdir': str(finished), 'step': run.step, 'member': 'target', 'digest': digest}
    assert report['protocol']['runs'] == [described]


def test_ensemble_is_the_mean_of_similarities(run, other, dev, sims):
    _, other_sims = evaluate_runs([other], dev)
    assert np.abs(sims - other_sims).max() > 1e-3
    _, both = evaluate_runs([run, other], dev)
    np.testing.assert_allclose(both, np.mean([sims, other_sims], axis=0), atol=1e-6)


class Stop(Exception):
    """Ends a job after its first block."""


def test_interrupted_ensemble_resumes_in_any_order(run, other, dev, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, 'MAX_VECTORS', 16)
    seen = []

    def stop_in_the_second_run(progress):
        seen.append(progress.pairs)
        if len(seen) == 5:
            raise Stop

    evaluate = functools.partial(evaluate_runs, split=dev)
    output = OutputFolder(tmp_path, saved.EVALUATION)
    with pytest.raises(Stop):
        evaluate([run, other], output=output, report=stop_in_the_second_run)
    assert seen == [160, 320, 480, 500, 160]
    seen.clear()
    _, sims = evaluate([other, run], output=output, report=stop_in_the_second_run)
    assert seen == [320, 480, 500]
    np.testing.assert_array_equal(sims, evaluate([other, run])[1])


@pytest.mark.slow
def test_default_options_are_those_of_the_config(run, dev, monkeypatch):
    used = []

    class Recorder(scoring.Scorer):
        def __init__(self, *arguments, pairs):
            used.append((*arguments[4:], pairs))
            super().__init__(*arguments, pairs=pairs)

    monkeypatch.setattr(scoring, 'Scorer', Recorder)
    report, exact = evaluate_runs([run], dev)
    half_report, half = evaluate_runs([run], dev, options=ScoringOptions('bfloat16', 77))
    assert used == [
        (ScoringOptions('float32', 1024, 'highest'), None),
        (ScoringOptions('bfloat16', 77, 'highest'), None),
    ]
    assert [r['protocol']['dtype'] for r in (report, half_report)] == ['float32', 'bfloat16']
    assert half.dtype == np.float32
    assert 0 < np.abs(exact - half).max() < 0.02


def test_every_run_of_an_ensemble_has_its_own_vocabulary(run, dev, sims):
    order = np.r_[:4, len(run.vocabulary) - 1 : 3 : -1]
    variables = jax.tree_util.tree_map_with_path(
        lambda path, x: x[order] if 'embedding' in jax.tree_util.keystr(path) else x, run.variables
    )
    vocabulary = Vocabulary(tuple(run.vocabulary.words[n] for n in order))
    other = dataclasses.replace(run, variables=variables, vocabulary=vocabulary)
    np.testing.assert_array_equal(evaluate_runs([run, other], dev)[1], sims)


def test_metrics_are_averaged_over_folds(run, dev):
    report, sims = evaluate_runs([run], dev, folds=5)
    assert report['metrics'] == metrics.retrieval_metrics(sims, np.repeat(np.arange(10), 5), folds=5)
    assert {key: report['protocol'][key] for key in ('images', 'texts', 'folds')} == {
        'images': 2,
        'texts': 10,
        'folds': 5,
    }


def test_data_root_is_passed_to_the_source(run):
    with pytest.raises(UserError, match=r"--data_root does not apply: .* 'scenes.load' reads no folder"):
        read_split([run], 'dev', data_root='elsewhere')


def test_best_checkpoint_is_the_default(finished, monkeypatch):
    monkeypatch.setattr(Checkpoints, 'best_step', lambda self: 28)
    assert load_run(finished).step == 28
    assert load_run(finished, step=30).step == 30


def test_validated_member_is_the_default(run, finished, monkeypatch):
    read = Checkpoints.read

    def with_another(self, step):
        state, described = read(self, step)
        another = jax.tree.map(np.zeros_like, state['members']['target'])
        return state | {'members': {'another': another} | state['members']}, described

    monkeypatch.setattr(Checkpoints, 'read', with_another)
    jax.tree.map(np.testing.assert_array_equal, load_run(finished).variables, run.variables)


def test_changed_vocabulary_is_refused(finished, monkeypatch):
    monkeypatch.setattr(Vocabulary, 'hash', 'another')
    with pytest.raises(UserError, match='does not have the hash it was saved with'):
        load_run(finished)


def test_ensemble_needs_the_same_data(run):
    config = run.config | {'data': run.config['data'] | {'seed': 5}}
    with pytest.raises(UserError, match='was trained on other data'):
        read_split([run, dataclasses.replace(run, config=config)], 'dev')
    with pytest.raises(UserError, match='was trained on other data'):  # the same config with another data root
        read_split([run, dataclasses.replace(run, data_hash='another')], 'dev')


def test_runs_of_parts_of_the_training_split_are_looked_at_together(run):
    config = run.config | {'data': run.config['data'] | {'train_share': 0.2, 'noise_rate': 0.4}}
    part = dataclasses.replace(run, config=config, data_hash='another')
    assert read_split([run, part], 'dev', trained_alike=False).identity == read_split([run], 'dev').identity
    with pytest.raises(UserError, match=r'other data than \S+ \(data.noise_rate: absent -> 0.4, data.train_share'):
        read_split([run, part], 'dev')
    config['data'] |= {'seed': 5}
    with pytest.raises(UserError, match='was trained on other data'):
        read_split([run, part], 'dev', trained_alike=False)


def test_a_run_on_vectors_of_tokens_and_one_without_share_a_split(run, monkeypatch):
    vectors = dataclasses.replace(run, config=run.config | {'data': run.config['data'] | {'token_vectors': True}})
    monkeypatch.setattr('jitm.runs.run.load_split', lambda data, *_: data)
    assert read_split([run, vectors], 'dev')['token_vectors']
    assert 'token_vectors' not in read_split([run], 'dev')


def test_runs_of_different_sources_are_named_by_these(run):
    photos = dataclasses.replace(
        run, config=run.config | {'data': {'source': 'photos.load', 'root': 'p', 'flip': True}}
    )
    message = r'was trained on other data than \S+ \(data.source: scenes.load -> photos.load\); runs that are'
    with pytest.raises(UserError, match=message):
        read_split([run, photos], 'dev')


def test_all_runs_are_checked_before_scoring(run, dev, monkeypatch):
    monkeypatch.setattr(Scorer, 'score', lambda *_: pytest.fail('a run was scored'))
    with pytest.raises(UserError, match=r'scenes/dev has 200 features per region, but .* was trained on 7'):
        evaluate_runs([run, dataclasses.replace(run, feature_size=7)], dev)


def test_scores_that_are_not_finite_are_refused(run, dev):
    broken = dataclasses.replace(run, variables=jax.tree.map(lambda x: x * np.nan, run.variables))
    with pytest.raises(UserError, match='500 similarities on scenes/dev are not finite'):
        evaluate_runs([broken], dev)


def test_inner_products_of_vectors_are_scores(run, other, dev):
    for runs in ([run], [run, other]):
        for each in runs:
            protocol.check_vectors(each, '')
        images, texts = protocol.vectors_of(runs, dev)
        assert (images.dtype, texts.dtype) == (np.float32, np.float32)
        np.testing.assert_allclose(images @ texts.T, evaluate_runs(runs, dev)[1], atol=1e-5)
    assert protocol.vectors_of([run], dev, ScoringOptions('bfloat16'))[0].dtype == np.float32


def test_vectors_need_inner_products(run):
    order = dataclasses.replace(run, model=make_vse(make=vse.OrderEmbedding))
    with pytest.raises(UserError, match=r'are not inner products of vectors \(OrderEmb.*, so they are not saved'):
        protocol.check_vectors(order, 'they are not saved')


def evaluate(workdir, *flags):
    return cli.main(['eval', '--workdir', str(workdir), *map(str, flags)])


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def test_command_prints_and_writes(finished, tmp_path, capsys):
    flags = ['--split=test', '--folds=5', '--save_sims', '--save_vectors', f'--output={tmp_path}']
    assert evaluate(finished, *flags) == 0
    out, err = capsys.readouterr()
    assert err == ''
    files = {'metrics.json', 'sims.npy', 'image_of_text.npy', 'vectors.npz'}
    assert {path.name for path in tmp_path.iterdir()} == {*files, OWNED, LOCK}
    assert 'scenes/test: 2 images, 10 captions, mean of 5 folds; ties count against the query' in out
    report = json.loads((tmp_path / 'metrics.json').read_text())
    assert f'rsum {report["metrics"]["rsum"]:.1f}\nMD {report["metrics"]["mean_distance"]:.3g}\n' in out
    assert np.load(tmp_path / 'sims.npy').shape == (10, 50)
    np.testing.assert_array_equal(np.load(tmp_path / 'image_of_text.npy'), np.repeat(np.arange(10), 5))
    with np.load(tmp_path / 'vectors.npz') as arrays:
        np.testing.assert_allclose(arrays['images'] @ arrays['texts'].T, np.load(tmp_path / 'sims.npy'), atol=1e-5)
        np.testing.assert_array_equal(arrays['image_of_text'], np.repeat(np.arange(10), 5))
    assert evaluate(finished, '--workdir', finished, f'--output={tmp_path / "both"}') == 0
    assert len(json.loads((tmp_path / 'both' / 'metrics.json').read_text())['protocol']['runs']) == 2


def test_a_run_that_has_not_finished_is_named(finished, tmp_path, capsys):
    run = shutil.copytree(finished, tmp_path / 'run')
    *_, before, last = sorted(int(path.name) for path in (run / 'checkpoints').iterdir())
    assert evaluate(run) == 0
    assert 'not finished' not in capsys.readouterr().out
    shutil.rmtree(run / 'checkpoints' / str(last))
    assert evaluate(run, '--step', before) == 0
    assert f'  not finished: this run is at step {before} of {last}\n' in capsys.readouterr().out


def test_similarities_of_an_older_evaluation_are_removed(finished, tmp_path):
    assert evaluate(finished, '--step=28', '--save_sims', '--save_vectors', '--output', tmp_path) == 0
    (tmp_path / 'notes.npy').write_bytes(b'mine')
    assert evaluate(finished, '--output', tmp_path) == 0
    assert {path.name for path in tmp_path.iterdir()} == {'metrics.json', 'notes.npy', OWNED, LOCK}


def test_a_file_of_somebody_else_is_refused_before_scoring(finished, tmp_path, monkeypatch, capsys):
    assert evaluate(finished, '--output', tmp_path) == 0
    (tmp_path / 'vectors.npz').write_text('mine')
    before = contents(tmp_path)
    monkeypatch.setattr(Scorer, 'score', lambda *_: pytest.fail('a run was scored'))
    assert evaluate(finished, '--save_vectors', '--output', tmp_path) == 2
    assert 'vectors.npz was not written by jitm; move it, or choose another folder' in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_one_evaluation_at_a_time_writes_to_a_folder(finished, tmp_path, capsys):
    folder = tmp_path / 'evaluated'
    with locked(folder, 'busy'):
        assert evaluate(finished, '--output', folder) == 2
        assert capsys.readouterr().err == (
            f'error: another jitm eval writes to {folder}; wait for its end, or give another --output\n'
        )
    assert not folder.exists()


def test_default_folders_are_named_by_the_flags(tmp_path):
    plain = saved.folder_of(tmp_path, 'dev')
    assert plain == tmp_path / 'eval' / 'dev'
    flags = {'folds': 5, 'ensemble': True, 'member': 'anchor', 'top_m': 20, 'step': 0, 'dtype': 'bfloat16'}
    assert saved.folder_of(tmp_path, 'dev', **flags).name == 'dev_5folds_ensemble_anchor_top20_step0_bfloat16'
    one, other = (saved.folder_of(tmp_path, 'dev', data_root=str(tmp_path / name / 'f30k')).name for name in 'ab')
    assert one != other
    assert one.startswith('dev_f30k-')
    assert other.startswith('dev_f30k-')


# Runs `jitm eval` with blocks of 8 texts, sends the process a signal after some blocks, and prints their number.
INTERRUPTED = """
import atexit, os, sys
from jitm.files.outputs import Job
from jitm.inference import memory
number, after = int(sys.argv.pop(1)), int(sys.argv.pop(1))
memory.MAX_VECTORS, save, written = 8, Job.save, []
def save_and_signal(self, part, **arrays):
    save(self, part, **arrays)
    written.append(part)
    if len(written) == after:
        os.kill(os.getpid(), number)
Job.save = save_and_signal
atexit.register(lambda: print(f'wrote {len(written)} blocks'))
from jitm.commands import cli
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_killed_command_resumes_to_the_same_bytes(finished, tmp_path, monkeypatch):
    def start(number, after):
        command = [sys.executable, '-c', INTERRUPTED, number, after, 'eval', '--workdir', finished]
        command = [str(word) for word in [*command, '--save_sims', '--output', tmp_path]]
        return subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True)

    assert start(signal.SIGKILL, 2).returncode == -signal.SIGKILL
    for number in (signal.SIGINT, signal.SIGTERM):
        result = start(number, 2)
        assert result.returncode == EXIT_INTERRUPTED
        assert result.stderr.splitlines()[-1] == f'stopped; the same command resumes from {tmp_path}'
        assert result.stdout == 'wrote 2 blocks\n'
        assert {path.name for path in tmp_path.iterdir()} == {UNFINISHED, OWNED, LOCK}
    result = start(signal.SIGKILL, 99)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith('wrote 1 blocks\n')
    assert {path.name for path in tmp_path.iterdir()} == {'metrics.json', 'sims.npy', 'image_of_text.npy', OWNED, LOCK}
    monkeypatch.setattr(memory, 'MAX_VECTORS', 8)
    run = load_run(finished)
    _, want = evaluate_runs([run], read_split([run], 'dev'))
    assert np.load(tmp_path / 'sims.npy').tobytes() == want.tobytes()


def test_progress_is_printed_every_ten_seconds(monkeypatch, capsys):
    from jitm.runs import progress

    clock = iter([100, 109, 110, 111, 119, 120])
    monkeypatch.setattr(progress, 'time', types.SimpleNamespace(monotonic=clock.__next__))
    printer = progress.ProgressPrinter()
    for pairs in (1000, 2000, 3000):
        printer(Progress(pairs, 200_000_000, 1851.6, 108_000.4))
    assert capsys.readouterr().err == 'scored 2,000 of 200,000,000 pairs, 1,852 pairs/s, 1 day, 6:00:00 left\n'


def test_too_long_captions_are_refused(run, dev, monkeypatch):
    monkeypatch.setattr(vse.VSE, 'text_format', TextFormat('words', 7))
    with pytest.raises(UserError, match=r'scenes/dev, .* \d+ has \d+ words .* at most 7'):
        evaluate_runs([run], dev)


def test_protocol_has_what_a_run_expects_of_its_data(finished, tmp_path, capsys):
    assert cli.main(['eval', '--workdir', str(finished), '--split', 'test', '--output', str(tmp_path)]) == 0
    run, printed = load_run(finished), capsys.readouterr().out
    report = json.loads((tmp_path / 'metrics.json').read_text())
    (inputs,) = report['protocol']['inputs']
    assert inputs == {
        'reads': ['regions'],
        'feature_size': 200,
        'image_size': None,
        'vocabulary': len(run.vocabulary),
        'vocabulary_hash': run.vocabulary.hash,
        'trained_on': 'scenes.load',
        'data_hash': run.data_hash,
    }
    words = f'{len(run.vocabulary)} words (vocabulary {run.vocabulary.hash[:8]})'
    assert f'  reads regions of 200 and {words}; trained on scenes.load (data {run.data_hash[:8]})\n' in printed


def test_training_data_of_converted_weights_are_not_known(finished):
    run = dataclasses.replace(load_run(finished), data_hash='', feature_size=None, image_size=(8, 8))
    inputs = describe_inputs(run)
    assert (inputs['trained_on'], inputs['image_size']) == (None, [8, 8])
