"""Blocks of any shape, on any devices, interrupted anywhere, give the matrix that is computed at once."""

import dataclasses
import itertools
import json
import shutil
import subprocess
import sys
import types
import weakref
from unittest import mock

import jax
import numpy as np
import pytest

from jitm.data.text.word_level import join
from jitm.devices import parallel
from jitm.errors import UserError
from jitm.files.outputs import UNFINISHED, OutputFolder
from jitm.inference import engine, memory, scoring
from jitm.inference.engine import Engine
from jitm.inference.memory import BlockMemory
from jitm.inference.scoring import Scorer, ScoringOptions
from jitm.runs import progress
from tests.conftest import ROOT, TOLERANCE, environment, free_port, several_devices
from tests.support.matchers import MATCHERS, ROUNDING
from tests.support.scoring import CASES, count_compilations, make_problem, make_scorer, random_pairs, score_at_once

WORKER = str(ROOT / 'tests' / 'inference' / 'scoring_worker.py')


@pytest.fixture
def vsepp():
    return make_problem('vsepp')


def test_incomplete_blocks_encode_nothing_twice(vsepp, monkeypatch):
    monkeypatch.setattr(engine, 'TEXTS_PER_CALL', 1)
    monkeypatch.setattr(engine, 'IMAGES_PER_CALL', 1)
    scorer = make_scorer(vsepp, 4, 8)
    compiled = Engine.compiled
    calls = []

    def counting(self, function, *static):
        result = compiled(self, function, *static)
        return lambda *arguments: calls.extend(static[:1]) or result(*arguments)

    monkeypatch.setattr(Engine, 'compiled', counting)
    np.testing.assert_allclose(scorer.score(), score_at_once('vsepp'), atol=1e-6)
    assert (calls.count('encode_image'), calls.count('encode_text')) == (7, 2 * 13)  # 2 blocks of images


# Selected pairs.


def check_pairs(got, pairs, name, *sizes):
    assert got.dtype == np.float32
    np.testing.assert_allclose(got[pairs], score_at_once(name, *sizes)[pairs], atol=ROUNDING)
    assert np.all(got[~pairs] == -np.inf)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['vsepp', 'saf', pytest.param('uniter', marks=pytest.mark.slow)])
def test_selected_pairs_have_the_same_scores(name, monkeypatch):
    monkeypatch.setattr(memory, 'MAX_PAIRS', 3)
    check_pairs(make_scorer(make_problem(name), pairs=random_pairs()).score(), random_pairs(), name)


def test_blocks_without_selected_pairs_are_skipped(vsepp, tmp_path):
    pairs = random_pairs()
    seen = []
    scorer = make_scorer(vsepp, pairs=pairs)
    blocks = [block for block in scorer.blocks() if pairs[np.ix_(*block)].any()]
    assert len(blocks) == 7  # of 12
    counted = [int(pairs[np.ix_(*block)].sum()) for block in blocks]
    with mock.patch.object(scorer, '_encode_block', wraps=scorer._encode_block) as encode:
        want = scorer.score(Counting(tmp_path), seen.append)
    assert encode.call_count == len(counted)
    assert [progress.pairs for progress in seen] == np.cumsum(counted).tolist()
    assert {progress.total for progress in seen} == {pairs.sum()}
    seen.clear()
    rows, columns = blocks[-1]
    next(tmp_path.rglob(f'{rows[0]}_{columns[0]}')).unlink()
    assert scorer.score(Counting(tmp_path), seen.append).tobytes() == want.tobytes()
    assert [progress.pairs for progress in seen] == [pairs.sum()]


def test_selecting_all_pairs_equals_selecting_none(vsepp):
    plain, selected = (make_scorer(vsepp, pairs=pairs) for pairs in (None, np.ones((7, 13), bool)))
    assert selected.cache_key() == plain.cache_key()
    assert selected.score().tobytes() == plain.score().tobytes()


def test_pair_calls_are_within_the_memory_budget(monkeypatch):
    pairs = np.ones((40, 20), bool)
    pairs[0, 0] = False
    with mock.patch.object(parallel, 'memory_of', wraps=parallel.memory_of) as measured:
        Scorer(*make_problem(*LARGE), ScoringOptions('float32', 64, 'highest'), pairs)
    assert measured.call_args.args[1].rows.shape == (256,)
    monkeypatch.setattr(parallel, 'memory_of', lambda *_: 3 * 2**20)
    with pytest.raises(UserError, match=r"'run.memory_mb' is 5, but scoring 1 x 5 pairs of random at a time takes"):
        Scorer(*make_problem(*LARGE), ScoringOptions('float32', 5, 'highest'), pairs)


@pytest.mark.slow
def test_cache_key_depends_on_boxes_if_they_are_read():
    for name, same in (('vsepp', True), ('uniter', False)):
        model, variables, split, tokens = make_problem(name)
        moved = dataclasses.replace(split, boxes=split.boxes / 2)
        keys = [make_scorer((model, variables, split, tokens)).cache_key() for split in (split, moved)]
        assert (keys[0] == keys[1]) == same


# Memory. Regions of 3 MiB, so that a budget of a few MiB determines the block shape.
LARGE = ('vsepp', 40, 20, (36, 512))


@pytest.mark.slow
def test_memory_budget_does_not_change_scores():
    shapes = []
    for memory_mb in (1, 4, 64):
        scorer = Scorer(*make_problem(*LARGE), ScoringOptions('float32', memory_mb, 'highest'))
        measured = BlockMemory(scorer.engine, *make_problem(*LARGE)[2:], only_selected=False)
        assert sum(measured.required_bytes(scorer.shape)) <= memory_mb * 2**20
        np.testing.assert_allclose(scorer.score(), score_at_once(*LARGE), atol=1e-6)
        shapes.append(scorer.shape)
    assert shapes == [(2, 20), (10, 20), (40, 20)]


@pytest.mark.parametrize(
    ('sides', 'shapes'),
    [
        ([(1, 9), (2, 9), (1, 1)], [(7, 13), (7, 6), (3, 6)]),
        ([(9, 1), (9, 2), (3, 2), (1, 1)], [(7, 13), (3, 13), (1, 13), (1, 6)]),
    ],
)
def test_larger_side_of_the_block_is_halved(vsepp, monkeypatch, sides, shapes):
    tried = []

    def required_bytes(self, shape):
        tried.append(shape)
        return [2**18 * side for side in sides[len(tried) - 1]]

    monkeypatch.setattr(BlockMemory, 'required_bytes', required_bytes)
    Scorer(*vsepp, ScoringOptions('float32', 1, 'highest'))
    assert tried == shapes


def test_too_small_memory_budget_is_refused(vsepp, monkeypatch):
    monkeypatch.setattr(parallel, 'memory_of', lambda *_: 3 * 2**20)
    message = r"'run.memory_mb' is 5, but scoring 1 x 6 pairs of random at a time takes 7 MiB; allow that much"
    with pytest.raises(UserError, match=message):
        Scorer(*vsepp, ScoringOptions('float32', 5, 'highest'))


class Held:
    """Counts the bytes of arrays that are in use."""

    def __init__(self):
        self.now = self.most = 0

    def watch(self, function):
        """Counts the arrays that a function returns until nothing refers to them."""

        def watched(*arguments):
            returned = function(*arguments)
            for leaf in jax.tree.leaves(returned):
                self.now += leaf.nbytes
                weakref.finalize(leaf, self._free, leaf.nbytes)
            self.most = max(self.most, self.now)
            return returned

        return watched

    def _free(self, size):
        self.now -= size


def test_memory_does_not_grow_with_the_data_set(monkeypatch):
    """Without the similarity matrix."""
    model, variables, split, tokens = make_problem(*LARGE)
    most = []
    whole = split.regions.nbytes
    for times in (1, 4):
        more = dataclasses.replace(
            split,
            regions=np.broadcast_to(split.regions[0], (40 * times, 36, 512)),
            counts=np.tile(split.counts, times),
            captions=split.captions * times,
        )
        texts = join(np.split(tokens.ids, tokens.starts[1:-1]) * times)
        scorer = Scorer(model, variables, more, texts, ScoringOptions('float32', 4, 'highest'))
        held = Held()
        scorer.shape = scorer.shape._replace(texts=20)  # a longer split would get larger blocks
        with monkeypatch.context() as patch:
            for owner, name in ((scoring, 'take_images'), (scoring, 'pad_texts'), (Engine, 'encode')):
                patch.setattr(owner, name, held.watch(getattr(owner, name)))
            scorer.score()
        most.append(held.most)
    assert 2**17 < most[0] < whole
    assert most[1] < 2.5 * most[0]  # that of one call more, which the device may still read


# Precision.


def test_unknown_precision_is_refused(vsepp):
    with pytest.raises(UserError, match=r"dtype is 'float16'; use one of float32, bfloat16"):
        Scorer(*vsepp, ScoringOptions('float16', 64, 'highest'))
    with pytest.raises(UserError, match=r"precision is 'fast'; use one of default, high, highest"):
        Scorer(*vsepp, ScoringOptions('float32', 64, 'fast'))


# Resuming after an interruption.


class Counting(OutputFolder):
    """Records the blocks that are written, and interrupts the job after `stop_after` of them."""

    def __init__(self, path, stop_after=None):
        super().__init__(path, 'an evaluation')
        self.written = []
        self.stop_after = stop_after

    def begin(self, inputs):
        job = super().begin(inputs)
        save = job.save

        def save_and_count(part, **arrays):
            save(part, **arrays)
            self.written.append(part)
            if len(self.written) == self.stop_after:
                raise KeyboardInterrupt

        job.save = save_and_count
        return job


@pytest.mark.parametrize('stop_after', [1, 4, 8])
def test_interrupted_job_resumes_to_the_same_bytes(vsepp, tmp_path, stop_after):
    scorer = make_scorer(vsepp)
    want = scorer.score()
    stopped = Counting(tmp_path, stop_after)
    with pytest.raises(KeyboardInterrupt):
        scorer.score(stopped)
    again = make_scorer(vsepp)
    finished = Counting(tmp_path)
    assert again.score(finished).tobytes() == want.tobytes()
    assert len(set(stopped.written) | set(finished.written)) == len(stopped.written) + len(finished.written) == 12
    finished = Counting(tmp_path)
    assert again.score(finished).tobytes() == want.tobytes()
    assert not finished.written


def test_cache_key_depends_on_everything_that_scores_do(vsepp, tmp_path):
    model, variables, split, tokens = vsepp
    moved = jax.tree.map(lambda x: np.nextafter(np.asarray(x), np.float32(9)), variables)
    other_ids = dataclasses.replace(tokens, ids=tokens.ids[::-1].copy())
    other_ends = dataclasses.replace(tokens, starts=np.r_[0, tokens.starts[1] + 1, tokens.starts[2:]])
    scorers = [
        make_scorer(vsepp),
        make_scorer(vsepp, images=2),
        make_scorer(vsepp, texts=5),
        make_scorer(vsepp, dtype='bfloat16'),
        make_scorer(vsepp, pairs=random_pairs()),
        make_scorer(vsepp, pairs=~random_pairs()),
        make_scorer((model.clone(absolute=True), variables, split, tokens)),
        make_scorer((model, moved, split, tokens)),
        make_scorer((model, variables, dataclasses.replace(split, regions=split.regions + 1), tokens)),
        make_scorer((model, variables, dataclasses.replace(split, counts=split.counts[::-1]), tokens)),
        make_scorer((model, variables, split, other_ids)),
        make_scorer((model, variables, split, other_ends)),
    ]
    assert len({json.dumps(scorer.cache_key()) for scorer in scorers}) == len(scorers)


def test_model_repr_has_no_addresses():
    """The representation is part of the cache key, and must be the same in the process that resumes."""
    for name, model in MATCHERS.items():
        assert ' at 0x' not in repr(model), name


def test_blocks_may_be_removed_while_scoring(vsepp, tmp_path):
    """By a person, for example."""
    scorer = make_scorer(vsepp)
    finished = Counting(tmp_path)
    got = scorer.score(finished, lambda progress: shutil.rmtree(tmp_path / UNFINISHED))
    np.testing.assert_array_equal(got, scorer.score())


# Progress.


def test_progress_counts_pairs(vsepp, tmp_path, monkeypatch):
    clock = types.SimpleNamespace(perf_counter=itertools.count(0, 2).__next__)
    for module in (scoring, progress):
        monkeypatch.setattr(module, 'time', clock)
    scorer = make_scorer(vsepp)
    seen = []
    with pytest.raises(KeyboardInterrupt):
        scorer.score(Counting(tmp_path, stop_after=5), seen.append)
    scorer.score(Counting(tmp_path), seen.append)
    assert [report.pairs for report in seen] == [12, 24, 36, 39, 63, 75, 78, 82, 86, 90, 91]
    assert {report.total for report in seen} == {91}
    rates = [12 / 2, 24 / 4, 36 / 6, 39 / 8, 12 / 2, 24 / 4, 27 / 6]
    np.testing.assert_allclose([report.rate for report in seen[:7]], rates)
    left = [report.rate * report.seconds_left for report in seen]
    np.testing.assert_allclose(left, [91 - report.pairs for report in seen])


# Compilations.


def test_measured_functions_are_not_compiled_again(vsepp, monkeypatch):
    monkeypatch.setattr(engine, 'SHORTEST', 4)
    parallel.map_rows.cache_clear()

    def score():
        Scorer(*vsepp, ScoringOptions('float32', 64, 'highest')).score_together()

    assert count_compilations(score) == 4  # images, texts of two padded lengths, and pairs
    assert count_compilations(score) == 0


def run_workers(tmp_path, devices, processes=1, env=None):
    outs = [tmp_path / f'{n}.npz' for n in range(processes)]
    coordinator = f'localhost:{free_port()}'
    workers = []
    for index, out in enumerate(outs):
        command = [sys.executable, WORKER, out, devices]
        if processes > 1:
            command += [coordinator, processes, index]
        pipes = {'stdout': subprocess.PIPE, 'stderr': subprocess.STDOUT, 'text': True}
        workers.append(subprocess.Popen(list(map(str, command)), env=env or environment(), **pipes))
    for worker in workers:
        output, _ = worker.communicate()
        assert worker.returncode == 0, output
    return [dict(np.load(out)) for out in outs]


def check_devices(results):
    for number, (arguments, _) in enumerate(CASES):
        want = score_at_once(*arguments)
        np.testing.assert_allclose(results[str(number)], want, atol=TOLERANCE)
        check_pairs(results[f'{number}_pairs'], random_pairs(*want.shape), *arguments)


@pytest.mark.slow
def test_several_devices_give_the_scores_of_one(tmp_path):
    devices, env = several_devices(4)
    (results,) = run_workers(tmp_path, devices, env=env)
    assert results['devices'] == devices
    check_devices(results)


@pytest.mark.slow
def test_every_process_scores_all_pairs_or_a_part_together(tmp_path):
    for results in run_workers(tmp_path, 1, processes=2):
        assert results['devices'] == 1
        check_devices(results)
        for number, (arguments, shape) in enumerate(CASES):
            scorer = make_scorer(make_problem(*arguments), *shape)
            assert results[f'{number}_blocks'] == -(-len(list(scorer.blocks())) // 2)
            assert results[f'{number}_together'].tobytes() == scorer.score().tobytes()


def test_one_process_scores_all_pairs(vsepp, monkeypatch):
    monkeypatch.setattr(engine, 'IMAGES_PER_CALL', 3)
    scorer = make_scorer(vsepp)
    assert scorer.score_together().tobytes() == scorer.score().tobytes()
