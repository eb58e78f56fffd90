"""Mining against a full sort of the whole matrix; jobs, files and reports."""

import itertools
import json
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.commands import cli
from jitm.data.pairs import mined_lists
from jitm.data.pairs.mined_lists import MANIFEST
from jitm.errors import EXIT_INTERRUPTED, EXIT_USER_ERROR, UserError
from jitm.files.outputs import OWNED
from jitm.inference.top_k import group_size
from jitm.mining import resumable_job as job_lib
from jitm.mining import top_h as search_lib
from jitm.mining.resumable_job import mine, search_all
from jitm.mining.state import MiningState, compare_with_batch, merge, summarize
from jitm.mining.top_h import PairSearch
from jitm.runs.run import load_run, read_split
from tests.conftest import ROOT, TOLERANCE, several_devices
from tests.support.mining import full_sort, integer_vectors, make_job, make_lists, make_split, products, save_lists
from tests.support.processes import ends, run_processes, started
from tests.support.scoring import make_problem, make_scorer, score_at_once

WORKER = str(ROOT / 'tests' / 'mining' / 'mining_worker.py')
COMMAND_WORKER = str(ROOT / 'tests' / 'mining' / 'mining_command_worker.py')


def assert_lists(got, want):
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('shift', [0, 3])
@pytest.mark.parametrize(('count', 'top_h'), [(5, 1), (5, 4), (64, 1), (70, 3), (130, 2), (131, 7), (1000, 15)])
def test_rank_products_equals_full_sort(count, top_h, shift):
    queries = integer_vectors(6, 4)
    vectors = integer_vectors(count, 4, seed=1)
    group = group_size(count, top_h)
    padded_count = -(-count // group) * group
    own = (np.arange(6) + shift)[:, None] % count
    excluded = np.concatenate([own, np.tile(np.arange(count, padded_count + 1), (6, 1))], axis=1)
    padded = np.pad(vectors, [(0, padded_count - count), (0, 0)])
    got = jax.jit(search_lib.rank_products, static_argnums=(3, 4))(queries, excluded, padded, top_h, group)
    assert_lists(got, full_sort(queries @ vectors.T, own == np.arange(count), top_h))


@pytest.mark.parametrize('pieces', [1, 3, 10])
@pytest.mark.parametrize('top_h', [1, 4, 20])
def test_merge_does_not_depend_on_the_order_of_parts(pieces, top_h):
    scores = integer_vectors(5, 40)
    order = np.random.default_rng(1).permutation(40)
    best = MiningState.initial(make_split(5, 5), top_h, 1).i2t
    for ids in map(np.sort, np.array_split(order, pieces)):
        best = merge(best, jnp.asarray(scores[:, ids]), ids.astype(np.int32))
    assert_lists(best, full_sort(scores, np.zeros((5, 40), bool), top_h))


def assert_state(state, split, scores, tolerance=0.0):
    """Asserts that lists equal a full sort; with a tolerance, only that their scores do."""
    own = split.image_of_text == np.arange(split.num_images)[:, None]
    for got, want in (
        (state.i2t, full_sort(scores, own, state.i2t[0].shape[1])),
        (state.t2i, full_sort(scores.T, own.T, state.t2i[0].shape[1])),
    ):
        np.testing.assert_allclose(got[0], want[0], atol=tolerance)
        if not tolerance:
            np.testing.assert_array_equal(got[1], want[1])
    own_scores = scores[split.image_of_text, np.arange(split.num_texts)]
    np.testing.assert_allclose(state.positives, own_scores, atol=tolerance)


@pytest.mark.parametrize(('top_h_texts', 'top_h_images'), [(1, 1), (5, 2), (20, 6)])
def test_product_search_equals_full_sort(tmp_path, top_h_texts, top_h_images):
    split = make_split(7, 33)
    for queries, tile in ((1, 1), (3, 2), (512, 512)):
        searcher, scores = products()
        searcher._queries = queries
        searcher._tile = tile
        state = search_all(searcher, split, make_job(tmp_path / f'{queries}'), top_h_texts, top_h_images)
        assert_state(state, split, scores)


@pytest.mark.slow
@pytest.mark.parametrize('shape', [(3, 4), (7, 13), (2, 1)])
def test_pair_search_equals_full_sort(tmp_path, shape):
    problem = make_problem('scan_t2i')
    searcher = PairSearch([make_scorer(problem, *shape)], problem[2])
    state = search_all(searcher, problem[2], make_job(tmp_path), 5, 3)
    assert_state(state, problem[2], score_at_once('scan_t2i'), 1e-6)


@pytest.mark.slow
def test_pair_search_averages_an_ensemble(tmp_path):
    names = 'scan_t2i', 'saf'
    split = make_problem(names[0])[2]
    scorers = [make_scorer(make_problem(name), *shape) for name, shape in zip(names, ((3, 4), (2, 6)), strict=True)]
    state = search_all(PairSearch(scorers, split), split, make_job(tmp_path), 4, 3)
    assert_state(state, split, sum(map(score_at_once, names)) / 2, 1e-6)


class Stop(Exception):
    pass


@pytest.mark.parametrize('after', [1, 2, 5])
def test_interrupted_search_resumes(tmp_path, monkeypatch, after):
    monkeypatch.setattr(job_lib, 'SAVE_EVERY', 0)
    split = make_split(7, 33)
    searcher, scores = products()
    searcher._queries = 3
    calls = itertools.count(1)
    reports = []

    def stop(progress):
        if next(calls) > after:
            raise Stop

    with pytest.raises(Stop):
        search_all(searcher, split, make_job(tmp_path), 5, 2, stop)
    assert MiningState.load(make_job(tmp_path), 0).done == after
    state = search_all(searcher, split, make_job(tmp_path), 5, 2, reports.append)
    assert len(reports) == len(searcher.blocks()) - after
    assert reports[-1].pairs == reports[-1].total == 2 * 7 * 33
    assert_state(state, split, scores)


def test_a_saved_state_is_read(tmp_path):
    state = MiningState.initial(make_split(3, 5), 2, 1)
    state.done = 7
    state.positives[2] = 0.5
    state.i2t[0][:] = 0.25
    state.i2t[1][:] = 3
    state.save(make_job(tmp_path), 1)
    read = MiningState.load(make_job(tmp_path), 1)
    assert read.done == 7
    assert_lists((*read.i2t, *read.t2i, read.positives), (*state.i2t, *state.t2i, state.positives))
    assert MiningState.load(make_job(tmp_path), 0) is None


@pytest.mark.slow
def test_devices_do_not_change_mined_lists(tmp_path):
    devices, env = several_devices(4)
    command = [sys.executable, WORKER, str(tmp_path), str(devices)]
    result = subprocess.run(command, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    state = MiningState.load(make_job(tmp_path / 'products'), 0)
    assert_state(state, make_split(7, 33), products()[1])
    state = MiningState.load(make_job(tmp_path / 'pairs'), 0)
    assert_state(state, make_problem('scan_t2i')[2], score_at_once('scan_t2i'), TOLERANCE)


def mine_by_command(finished, out, *flags):
    return cli.main(['mine', f'--workdir={finished}', f'--out={out}', '--top_h_texts=9', '--top_h_images=4', *flags])


@pytest.mark.slow
def test_command_writes_lists(finished, tmp_path, capsys):
    assert mine_by_command(finished, tmp_path / 'out') == 0
    output = capsys.readouterr().out
    assert 'the hardest negative in a batch of ' in output
    assert '| i2t rank 9 |' in output
    assert 'of the mined negatives are above every positive' in output
    run = load_run(finished)
    split = read_split([run], 'train')
    lists = mined_lists.load(tmp_path / 'out', split)
    assert lists.t2i.shape == (split.num_texts, 4)
    scorer = job_lib.make_scorer(run, split)
    sims = scorer.encode_images(np.arange(split.num_images)) @ scorer.encode_texts().T
    picked = np.take_along_axis(sims, lists.i2t, axis=1)
    own = split.image_of_text == np.arange(split.num_images)[:, None]
    np.testing.assert_allclose(picked, full_sort(sims, own, 9)[0], atol=1e-5)
    np.testing.assert_allclose(np.load(tmp_path / 'out' / 'scores_i2t_train.npy'), picked, atol=1e-5)
    manifest = json.loads((tmp_path / 'out' / MANIFEST).read_text())
    assert (manifest['data'], manifest['workdirs']) == (split.identity, [str(finished)])
    first = read_files(tmp_path / 'out')
    assert first.keys() == {MANIFEST, OWNED, *(f'{x}_train.npy' for x in ('i2t', 't2i', 'scores_i2t', 'scores_t2i'))}
    assert mine_by_command(finished, tmp_path / 'two', f'--workdir={finished}') == 0
    assert np.mean(np.load(tmp_path / 'two' / 'i2t_train.npy') == lists.i2t) > 0.9
    assert mine_by_command(finished, tmp_path / 'out') == 0
    assert read_files(tmp_path / 'out') == first


def mine_at_once(finished, out):
    """The files of an uninterrupted job."""
    run = load_run(finished)
    mine([run], read_split([run], 'train'), 'train', out, top_h_texts=9, top_h_images=4)
    return read_files(out)


def read_files(folder):
    return {path.name: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


@pytest.mark.slow
def test_command_as_two_processes_writes_the_same_files(finished, tmp_path, monkeypatch):
    """The first is stopped in its second block, which aborts the other; the same commands resume."""
    out = tmp_path / 'out'
    words = f'--workdir={finished}', f'--out={out}', '--top_h_texts=9', '--top_h_images=4'
    commands = [(COMMAND_WORKER, int(signal.SIGTERM), block, *words) for block in (2, -1)]
    with started(*commands) as job:
        codes, _, errors = ends(job)
    assert codes == [EXIT_INTERRUPTED, -signal.SIGABRT]
    assert errors[0] == f'stopped; the same command resumes from {out}\n'
    assert {'0', '1', OWNED} <= set(read_files(out))
    outputs = run_processes(2, *commands[1])
    assert ['positives' in output for output in outputs] == [True, False]
    monkeypatch.setattr(search_lib, 'MAX_QUERIES', 1)
    assert read_files(out) == mine_at_once(finished, tmp_path / 'at_once')


@pytest.mark.slow
def test_processes_that_mine_otherwise_are_refused(finished, tmp_path):
    command = '-m', 'jitm', 'mine', f'--workdir={finished}', f'--out={tmp_path / "out"}', '--top_h_texts=9'
    with started((*command, '--top_h_images=4'), (*command, '--top_h_images=5')) as job:
        codes, _, errors = ends(job)
    assert codes == [EXIT_USER_ERROR] * 2
    assert errors[0] == errors[1]
    assert errors[0].startswith("error: 'top_h_images' is 4 in process 0 and 5 in process 1: start all processes with")
    assert not (tmp_path / 'out').exists()


def test_report_counts_negatives_above_positives():
    split = make_split(3, 5)
    i2t = np.array([[0.9, 0.1], [0.5, 0.4], [0.2, 0.1]], np.float32), np.zeros((3, 2), np.int32)
    t2i = np.array([[0.1], [0.9], [0.1], [0.1], [0.1]], np.float32), np.array([[1], [2], [0], [0], [0]], np.int32)
    report = summarize(MiningState(1, i2t, t2i, np.full(5, 0.45, np.float32)), split)
    assert 'i2t: 33.3 % of the mined negatives are above every positive of their query, and 66.7 %' in report
    assert 't2i: 20.0 % of the mined negatives' in report
    assert "+0.450  'a text'  image 2" in report


def test_report_says_when_mined_negatives_can_help():
    assert compare_with_batch(make_split(60, 300), 20, 9, 4) == (
        'the hardest negative in a batch of 20 has an expected rank of 15 among the captions and 3 among the images: '
        'mined negatives can help where h, here 9 and 4, is far below (Chen et al. 2020)'
    )


def test_changed_lists_are_refused(tmp_path):
    split = make_split(4, 9)
    save_lists(tmp_path, split, *make_lists(split))
    lists = np.load(tmp_path / 'i2t_train.npy')
    np.save(tmp_path / 'i2t_train.npy', lists[:, ::-1])
    with pytest.raises(UserError, match='are not those that were mined; mine again'):
        mined_lists.load(tmp_path, split)


def test_lists_without_a_manifest_are_read(tmp_path):
    split = make_split(4, 9)
    lists = make_lists(split)
    for name, array in zip(('i2t_coco', 't2i_coco'), lists, strict=True):
        np.save(tmp_path / f'{name}.npy', array.astype(np.int32))
    assert_lists((mined_lists.load(tmp_path, split).i2t, mined_lists.load(tmp_path, split).t2i), lists)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (lambda i2t, t2i: (i2t, t2i, {'hash': 'another'}), 'mined from other data'),
        (lambda i2t, t2i: (i2t[1:], t2i), r'needs lists of negatives .*, shape \(4, None\)'),
        (lambda i2t, t2i: (i2t + 5, t2i), 'it needs lists of negatives of this training split, 0 to 8'),
        (lambda i2t, t2i: (np.tile(np.arange(9), (4, 1)), t2i), 'texts as negatives of their own images'),
        (lambda i2t, t2i: (i2t, np.tile(np.arange(4), (9, 1))), 'images as negatives of their own texts'),
    ],
)
def test_lists_of_other_data_are_refused(tmp_path, change, message):
    split = make_split(4, 9)
    save_lists(tmp_path, split, *change(*make_lists(split)))
    with pytest.raises(UserError, match=message):
        mined_lists.load(tmp_path, split)


def test_folders_without_lists_are_refused(tmp_path):
    for folder, message in ((tmp_path / 'nowhere', 'does not exist; make it with'), (tmp_path, 'has 0 files i2t')):
        with pytest.raises(UserError, match=message):
            mined_lists.load(folder, make_split(4, 9))
