import dataclasses
import functools
import json
import signal
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from jitm import metrics
from jitm.data.text import Vocabulary
from jitm.errors import EXIT_INTERRUPTED, UserError
from jitm.evaluation import protocol, scoring
from jitm.evaluation.scoring import Scorer
from jitm.models import vse
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.progress import Progress
from jitm.types import TextFormat
from tests.conftest import ROOT, environment, run_script
from tests.test_train import finished  # noqa: F401


@pytest.fixture(scope='module')
def run(finished):  # noqa: F811
    return protocol.load_run(finished[0])


def test_the_best_checkpoint_gives_the_metrics_of_training(run, finished):  # noqa: F811
    report, sims = protocol.evaluate_runs([run], 'dev', folds=1)
    lines = [json.loads(line) for line in (finished[0] / 'metrics.jsonl').read_text().splitlines()]
    line = next(line for line in lines if line['step'] == run.step and line['part'] == 'dev')
    assert {name: line[name] for name in report['metrics']} == report['metrics']
    assert sims.shape == (10, 50)
    assert report['protocol']['runs'] == [{'workdir': str(finished[0]), 'step': run.step, 'member': 'target'}]


def test_an_ensemble_is_the_mean_of_the_matrices(run, finished):  # noqa: F811
    other = protocol.load_run(finished[0], step=30)
    other = dataclasses.replace(other, variables=jax.tree.map(lambda x: x * 1.1, other.variables))
    matrices = [protocol.evaluate_runs([r], 'dev', 1)[1] for r in (run, other)]
    _, both = protocol.evaluate_runs([run, other], 'dev', 1)
    np.testing.assert_allclose(both, np.mean(matrices, axis=0), atol=1e-6)


class Stop(Exception):
    """Ends a job after its first block."""


def test_an_interrupted_ensemble_goes_on_in_any_order(run, tmp_path, monkeypatch):
    monkeypatch.setattr(scoring, 'TEXTS_AT_A_TIME', 16)
    other = dataclasses.replace(run, variables=jax.tree.map(lambda x: x * 1.1, run.variables))
    seen = []

    def stop_in_the_second_run(progress):
        seen.append(progress.pairs)
        if len(seen) == 5:
            raise Stop

    evaluate = functools.partial(protocol.evaluate_runs, split_name='dev', folds=1)
    with pytest.raises(Stop):
        evaluate([run, other], keep_blocks=tmp_path, report=stop_in_the_second_run)
    assert seen == [160, 320, 480, 500, 160]
    seen.clear()
    _, sims = evaluate([other, run], keep_blocks=tmp_path, report=stop_in_the_second_run)
    assert seen == [320, 480, 500]
    np.testing.assert_array_equal(sims, evaluate([other, run])[1])


def test_the_precision_and_the_budget_are_those_of_the_config_unless_named(run, monkeypatch):
    asked = []

    class Asked(scoring.Scorer):
        def __init__(self, *arguments, **keywords):
            asked.append(keywords)
            super().__init__(*arguments, **keywords)

    monkeypatch.setattr(protocol, 'Scorer', Asked)
    report, exact = protocol.evaluate_runs([run], 'dev', 1)
    half_report, half = protocol.evaluate_runs([run], 'dev', 1, dtype='bfloat16', memory_mb=77)
    assert asked == [
        {'memory_mb': 1024, 'dtype': 'float32', 'pairs': None},
        {'memory_mb': 77, 'dtype': 'bfloat16', 'pairs': None},
    ]
    assert [r['protocol']['dtype'] for r in (report, half_report)] == ['float32', 'bfloat16']
    assert half.dtype == np.float32
    assert 0 < np.abs(exact - half).max() < 0.02


def test_each_run_of_an_ensemble_reads_with_its_own_vocabulary(run):
    order = np.r_[:4, len(run.vocabulary) - 1 : 3 : -1]
    variables = jax.tree_util.tree_map_with_path(
        lambda path, x: x[order] if 'embedding' in jax.tree_util.keystr(path) else x, run.variables
    )
    vocabulary = Vocabulary(tuple(run.vocabulary.words[n] for n in order))
    other = dataclasses.replace(run, variables=variables, vocabulary=vocabulary)
    np.testing.assert_array_equal(
        protocol.evaluate_runs([run, other], 'dev', 1)[1], protocol.evaluate_runs([run], 'dev', 1)[1]
    )


def test_a_report_is_of_its_folds(run):
    report, sims = protocol.evaluate_runs([run], 'dev', folds=5)
    assert report['metrics'] == metrics.retrieval_metrics(sims, np.repeat(np.arange(10), 5), folds=5)
    assert {key: report['protocol'][key] for key in ('images', 'texts', 'folds')} == {
        'images': 2,
        'texts': 10,
        'folds': 5,
    }


def test_another_data_folder_is_passed_on_to_the_source(run):
    with pytest.raises(UserError, match=r"--data_root does not apply: .* 'scenes.load' reads no folder"):
        protocol.evaluate_runs([run], 'dev', 1, data_root='elsewhere')


def test_the_best_checkpoint_is_read_unless_a_step_is_named(finished, monkeypatch):  # noqa: F811
    monkeypatch.setattr(Checkpoints, 'best_step', lambda self: 28)
    assert protocol.load_run(finished[0]).step == 28
    assert protocol.load_run(finished[0], step=30).step == 30


def test_the_evaluated_member_is_read(run, finished, monkeypatch):  # noqa: F811
    read = Checkpoints.read

    def with_another(self, step):
        state, described = read(self, step)
        another = jax.tree.map(np.zeros_like, state['members']['target'])
        return state | {'members': {'another': another} | state['members']}, described

    monkeypatch.setattr(Checkpoints, 'read', with_another)
    jax.tree.map(np.testing.assert_array_equal, protocol.load_run(finished[0]).variables, run.variables)


def test_a_changed_vocabulary_is_refused(finished, monkeypatch):  # noqa: F811
    monkeypatch.setattr(Vocabulary, 'hash', 'another')
    with pytest.raises(UserError, match='does not have the hash it was saved with'):
        protocol.load_run(finished[0])


def test_runs_on_other_data_make_no_ensemble(run):
    config = run.config | {'data': run.config['data'] | {'seed': 5}}
    with pytest.raises(UserError, match='was trained on other data'):
        protocol.evaluate_runs([run, dataclasses.replace(run, config=config)], 'dev', 1)
    with pytest.raises(UserError, match='was trained on other data'):  # at another root, say
        protocol.evaluate_runs([run, dataclasses.replace(run, data_hash='another')], 'dev', 1)


def test_no_run_is_scored_if_another_cannot_be(run, monkeypatch):
    monkeypatch.setattr(Scorer, 'score', lambda *_: pytest.fail('a run was scored'))
    with pytest.raises(UserError, match='was trained on 7'):
        protocol.evaluate_runs([run, dataclasses.replace(run, feature_size=7)], 'dev', 1)


def test_a_broken_model_is_refused(run):
    broken = dataclasses.replace(run, variables=jax.tree.map(lambda x: x * np.nan, run.variables))
    with pytest.raises(UserError, match='500 similarities on scenes/dev are not finite'):
        protocol.evaluate_runs([broken], 'dev', 1)


def test_saved_vectors_have_the_scores_as_products(run, tmp_path):
    other = dataclasses.replace(run, variables=jax.tree.map(lambda x: x * 1.1, run.variables))
    for runs in ([run], [run, other]):
        protocol.check_vectors(runs)
        _, sims = protocol.evaluate_runs(runs, 'dev', 1)
        split = protocol.read_split(runs, 'dev')
        protocol.write_vectors(runs, split, tmp_path)
        with np.load(tmp_path / 'vectors.npz') as arrays:
            assert {name: array.dtype for name, array in arrays.items()} == {
                'images': np.float32,
                'texts': np.float32,
                'image_of_text': np.int32,
            }
            np.testing.assert_allclose(arrays['images'] @ arrays['texts'].T, sims, atol=1e-5)
            np.testing.assert_array_equal(arrays['image_of_text'], split.image_of_text)
    protocol.write_vectors([run], split, tmp_path, dtype='bfloat16')
    with np.load(tmp_path / 'vectors.npz') as arrays:
        assert arrays['images'].dtype == np.float32


def test_a_model_without_vectors_has_none_to_save(run):
    order = dataclasses.replace(run, model=run.model.clone(measure='order'))
    with pytest.raises(UserError, match=r'are no products of vectors \(VSE as configured\).*leave out --save_vectors'):
        protocol.check_vectors([run, order])


@pytest.mark.slow
def test_the_command_prints_and_writes(finished, tmp_path):  # noqa: F811
    workdir = finished[0]
    result = run_script(
        'eval.py',
        '--workdir',
        workdir,
        '--split',
        'test',
        '--folds',
        5,
        '--save_sims',
        '--save_vectors',
        '--output',
        tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ''
    assert {path.name for path in tmp_path.iterdir()} == {'metrics.json', 'sims.npy', 'vectors.npz'}
    assert 'scenes/test: 2 images, 10 texts, mean of 5 folds; ties count against the query' in result.stdout
    report = json.loads((tmp_path / 'metrics.json').read_text())
    assert f'rsum {report["metrics"]["rsum"]:.1f}\nMD {report["metrics"]["mean_distance"]:.3g}\n' in result.stdout
    assert np.load(tmp_path / 'sims.npy').shape == (10, 50)
    result = run_script('eval.py', '--workdir', workdir, '--workdir', workdir, '--output', tmp_path / 'both')
    assert result.returncode == 0
    assert len(json.loads((tmp_path / 'both' / 'metrics.json').read_text())['protocol']['runs']) == 2


# Runs eval.py with blocks of 8 texts, sends the process a signal when so many are kept, and says how many were.
SIGNALLED = """
import atexit, os, sys
from jitm import scoring
number, after = int(sys.argv.pop(1)), int(sys.argv.pop(1))
scoring.TEXTS_AT_A_TIME, write, written = 8, scoring.FinishedBlocks.write, []
def write_and_signal(self, *block):
    write(self, *block)
    written.append(block)
    if len(written) == after:
        os.kill(os.getpid(), number)
scoring.FinishedBlocks.write = write_and_signal
atexit.register(lambda: print(f'kept {len(written)} blocks'))
import runpy
runpy.run_path(sys.argv.pop(1), run_name='__main__')
"""


@pytest.mark.slow
def test_a_killed_command_goes_on_to_the_same_bytes(finished, tmp_path, monkeypatch):  # noqa: F811
    def start(number, after):
        command = [sys.executable, '-c', SIGNALLED, number, after, ROOT / 'eval.py', '--workdir', finished[0]]
        command = [str(word) for word in [*command, '--save_sims', '--output', tmp_path]]
        return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)

    assert start(signal.SIGKILL, 2).returncode == -signal.SIGKILL
    for number in (signal.SIGINT, signal.SIGTERM):
        result = start(number, 2)
        assert result.returncode == EXIT_INTERRUPTED
        assert result.stderr == f'stopped; the same command goes on from the scores in {tmp_path}/blocks\n'
        assert result.stdout == 'kept 2 blocks\n'
        assert {path.name for path in tmp_path.iterdir()} == {'blocks'}
    result = start(signal.SIGKILL, 99)
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith('kept 1 blocks\n')
    assert {path.name for path in tmp_path.iterdir()} == {'metrics.json', 'sims.npy'}
    monkeypatch.setattr(scoring, 'TEXTS_AT_A_TIME', 8)
    _, want = protocol.evaluate_runs([protocol.load_run(finished[0])], 'dev', 1)
    assert np.load(tmp_path / 'sims.npy').tobytes() == want.tobytes()


def test_progress_is_said_every_ten_seconds(monkeypatch, capsys):
    from jitm.runs import progress

    clock = iter([100, 109, 110, 111, 119, 120])
    monkeypatch.setattr(progress, 'time', types.SimpleNamespace(monotonic=clock.__next__))
    say = progress.ProgressPrinter()
    for pairs in (1000, 2000, 3000):
        say(Progress(pairs, 200_000_000, 1851.6, 108_000.4))
    assert capsys.readouterr().err == 'scored 2,000 of 200,000,000 pairs, 1,852 pairs/s, 1 day, 6:00:00 left\n'


@pytest.mark.slow
@pytest.mark.parametrize(
    ('flags', 'sentence'),
    [
        (['--split', 'val'], "'val'"),
        (['--folds', '3'], 'has 10 images, which --folds 3 does not divide'),
        (['--step', '12345'], 'checkpoints/12345 is missing or damaged'),
        (['--explain', '0'], '--explain=0'),
        (['--explain', '2'], 'VSE has no attention of words over regions'),
    ],
)
def test_what_a_user_gets_wrong(finished, flags, sentence):  # noqa: F811
    result = run_script('eval.py', '--workdir', finished[0], *flags)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert sentence in result.stderr


def test_a_directory_that_is_no_run(tmp_path):
    with pytest.raises(UserError, match='is not a run directory'):
        protocol.load_run(tmp_path)


def test_texts_longer_than_the_model_reads_are_refused(run, monkeypatch):
    monkeypatch.setattr(vse.VSE, 'text_format', TextFormat('words', 7))
    with pytest.raises(
        UserError, match=r'scenes/dev, text \d+ has \d+ words with both ends, but .* reads at most 7: sh'
    ):
        protocol.evaluate_runs([run], 'dev', 1)


def test_features_of_another_size_are_refused(run):
    with pytest.raises(UserError, match=r'scenes/dev has 200 features per region, but .* was trained on 7'):
        protocol.evaluate_runs([dataclasses.replace(run, feature_size=7)], 'dev', 1)
