import dataclasses
import json
import shutil
import types

import jax
import numpy as np
import pytest

from jitm import metrics
from jitm.commands import cli
from jitm.data.text.word_level import Vocabulary
from jitm.errors import UserError
from jitm.evaluation import protocol, saved
from jitm.evaluation.protocol import evaluate_runs
from jitm.files import LOCK, hash_file, locked
from jitm.files.outputs import OWNED, OutputFolder
from jitm.inference import memory, scoring
from jitm.inference.scoring import Scorer, ScoringOptions
from jitm.models import vse
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.progress import Progress
from jitm.runs.run import describe_inputs, load_run, read_split
from jitm.types import TextFormat
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


def test_interrupted_ensemble_resumes_in_any_order(run, other, dev, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, 'MAX_VECTORS', 16)
    seen = []

    def stop_in_the_second_run(progress):
        seen.append(progress.pairs)
        if len(seen) == 5:
            raise KeyboardInterrupt

    options = {'output': OutputFolder(tmp_path, saved.EVALUATION), 'report': stop_in_the_second_run}
    with pytest.raises(KeyboardInterrupt):
        evaluate_runs([run, other], dev, **options)
    assert seen == [160, 320, 480, 500, 160]
    seen.clear()
    _, sims = evaluate_runs([other, run], dev, **options)
    assert seen == [320, 480, 500]
    np.testing.assert_array_equal(sims, evaluate_runs([other, run], dev)[1])


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
    options = ScoringOptions('float32', 1024, 'highest'), ScoringOptions('bfloat16', 77, 'highest')
    assert used == [(chosen, None) for chosen in options]
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
    assert report['protocol'].items() >= {'images': 2, 'texts': 10, 'folds': 5}.items()


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


def with_data(run, data_hash='another', **changes):
    return dataclasses.replace(run, config=run.config | {'data': run.config['data'] | changes}, data_hash=data_hash)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'seed': 5}, ''),
        ({}, ''),  # the same config with another data root
        ({'train_share': 0.2, 'noise_rate': 0.4}, r' \(data.noise_rate: absent -> 0.4, data.train_share'),
        ({'source': 'photos.load', 'root': 'p'}, r' \(data.source: scenes.load -> photos.load\); runs that are'),
    ],
)
def test_ensemble_needs_the_same_data(run, changes, message):
    with pytest.raises(UserError, match=rf'was trained on other data than \S+{message}'):
        read_split([run, with_data(run, **changes)], 'dev')


def test_runs_of_parts_of_the_training_split_are_looked_at_together(run):
    part = with_data(run, train_share=0.2, noise_rate=0.4)
    assert read_split([run, part], 'dev', trained_alike=False).identity == read_split([run], 'dev').identity
    with pytest.raises(UserError, match='was trained on other data'):
        read_split([run, with_data(part, seed=5)], 'dev', trained_alike=False)


def test_a_run_on_vectors_of_tokens_and_one_without_share_a_split(run, monkeypatch):
    vectors = with_data(run, run.data_hash, token_vectors=True)
    monkeypatch.setattr('jitm.runs.run.load_split', lambda data, *_: data)
    assert read_split([run, vectors], 'dev')['token_vectors']
    assert 'token_vectors' not in read_split([run], 'dev')


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


def test_command_prints_and_writes(finished, tmp_path, capsys):
    flags = ['--split=test', '--folds=5', f'--output={tmp_path}']
    assert evaluate(finished, *flags, '--save_sims', '--save_vectors') == 0
    out, err = capsys.readouterr()
    assert err == ''
    names = {'metrics.json', OWNED, LOCK}
    assert {path.name for path in tmp_path.iterdir()} == names | {'sims.npy', 'image_of_text.npy', 'vectors.npz'}
    assert 'scenes/test: 2 images, 10 captions, mean of 5 folds; ties count against the query' in out
    report = json.loads((tmp_path / 'metrics.json').read_text())
    assert f'rsum {report["metrics"]["rsum"]:.1f}\nMD {report["metrics"]["mean_distance"]:.3g} (mean distance' in out
    sims = np.load(tmp_path / 'sims.npy')
    assert sims.shape == (10, 50)
    images = np.repeat(np.arange(10), 5)
    np.testing.assert_array_equal(np.load(tmp_path / 'image_of_text.npy'), images)
    with np.load(tmp_path / 'vectors.npz') as arrays:
        np.testing.assert_allclose(arrays['images'] @ arrays['texts'].T, sims, atol=1e-5)
        np.testing.assert_array_equal(arrays['image_of_text'], images)
    (tmp_path / 'notes.npy').write_bytes(b'mine')
    assert evaluate(finished, *flags, '--workdir', finished) == 0
    assert {path.name for path in tmp_path.iterdir()} == names | {'notes.npy'}
    assert len(json.loads((tmp_path / 'metrics.json').read_text())['protocol']['runs']) == 2


def test_a_run_that_has_not_finished_is_named(finished, tmp_path, capsys):
    run = shutil.copytree(finished, tmp_path / 'run')
    *_, before, last = sorted(int(path.name) for path in (run / 'checkpoints').iterdir())
    assert evaluate(run) == 0
    assert 'not finished' not in capsys.readouterr().out
    shutil.rmtree(run / 'checkpoints' / str(last))
    assert evaluate(run, '--step', before) == 0
    assert f'  not finished: this run is at step {before} of {last}\n' in capsys.readouterr().out


def test_one_evaluation_at_a_time_writes_to_a_folder(finished, tmp_path, capsys):
    folder = tmp_path / 'evaluated'
    with locked(folder, 'busy'):
        assert evaluate(finished, '--output', folder) == 2
        assert capsys.readouterr().err == (
            f'error: another jitm eval writes to {folder}; wait for its end, or give another --output\n'
        )
    assert not folder.exists()


def test_default_folders_are_named_by_the_flags(tmp_path):
    assert saved.folder_of(tmp_path, 'dev') == tmp_path / 'eval' / 'dev'
    flags = {'folds': 5, 'ensemble': True, 'member': 'anchor', 'top_m': 20, 'step': 0, 'dtype': 'bfloat16'}
    assert saved.folder_of(tmp_path, 'dev', **flags).name == 'dev_5folds_ensemble_anchor_top20_step0_bfloat16'
    names = {saved.folder_of(tmp_path, 'dev', data_root=str(tmp_path / root / 'f30k')).name for root in 'ab'}
    assert [name.rpartition('-')[0] for name in names] == ['dev_f30k'] * 2


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


def test_protocol_has_what_a_run_expects_of_its_data(run, finished, tmp_path, capsys):
    assert evaluate(finished, '--split=test', '--output', tmp_path) == 0
    (inputs,) = json.loads((tmp_path / 'metrics.json').read_text())['protocol']['inputs']
    want = {'reads': ['regions'], 'feature_size': 200, 'image_size': None, 'vocabulary': len(run.vocabulary)}
    want |= {'vocabulary_hash': run.vocabulary.hash, 'trained_on': 'scenes.load', 'data_hash': run.data_hash}
    assert inputs == want
    words = f'{len(run.vocabulary)} words (vocabulary {run.vocabulary.hash[:8]})'
    line = f'  reads regions of 200 features and {words}; trained on scenes.load (data {run.data_hash[:8]})\n'
    assert line in capsys.readouterr().out
    released = describe_inputs(dataclasses.replace(run, data_hash='', feature_size=None, image_size=(8, 8)))
    assert (released['trained_on'], released['image_size']) == (None, [8, 8])
