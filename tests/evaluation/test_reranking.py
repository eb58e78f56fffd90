"""Re-ranking against loops over queries, and whole evaluations."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitm import metrics
from jitm.errors import UserError
from jitm.evaluation import protocol, reranking, scoring
from jitm.evaluation.protocol import Proposals, evaluate_runs
from jitm.training.loop import train_and_evaluate
from tests.conftest import run_script
from tests.models.test_uniter import uniter_config  # noqa: F401
from tests.test_train import finished  # noqa: F401

TABLE = [f'{way}/{name}' for way in ('i2t', 't2i') for name in ('recall@1', 'recall@5', 'recall@10')] + ['rsum']
TABLE += [f'{way}/{name}' for way in ('i2t', 't2i') for name in ('median_rank', 'mean_rank')]


def looped(sims, proposing, image_of_text, top_m, folds=1):
    """Ranks (lists of both directions, fold by fold), the share of queries with a match proposed, and the pairs.

    A candidate is proposed if fewer than top_m others score higher. Every query sorts its candidates by hand: what is
    proposed first, then by score; a tie goes to the candidate that is no match.
    """
    size = len(sims) // folds
    sims, proposing = np.asarray(sims, np.float64), np.asarray(proposing, np.float64)
    ranks, found, pairs = {'i2t': [], 't2i': []}, {'i2t': [], 't2i': []}, set()
    for fold in range(folds):
        images = list(range(fold * size, (fold + 1) * size))
        texts = [text for text, image in enumerate(image_of_text) if image in images]
        queries = [('i2t', image, [(image, text) for text in texts]) for image in images]
        queries += [('t2i', text, [(image, text) for image in images]) for text in texts]
        of_fold = {'i2t': [], 't2i': []}
        for way, _, candidates in queries:
            proposed = {
                pair for pair in candidates if sum(proposing[other] > proposing[pair] for other in candidates) < top_m
            }
            pairs |= proposed

            def place(pair, proposed=proposed):
                is_match = image_of_text[pair[1]] == pair[0]
                return pair not in proposed, -(sims if pair in proposed else proposing)[pair], is_match

            matches = [image_of_text[pair[1]] == pair[0] for pair in sorted(candidates, key=place)]
            of_fold[way].append(matches.index(True))
            found[way].append(any(image_of_text[text] == image for image, text in proposed))
        for way in ranks:
            ranks[way].append(of_fold[way])
    return ranks, found, pairs


def check(report_metrics, ranks, found):
    """A report's numbers from the ranks of the loops."""
    for way in ('i2t', 't2i'):
        for k in (1, 5, 10):
            want = np.mean([100 * np.mean([rank < k for rank in fold]) for fold in ranks[way]])
            assert report_metrics[f'{way}/recall@{k}'] == pytest.approx(want)
        want = np.mean([np.mean(fold) + 1 for fold in ranks[way]])
        assert report_metrics[f'{way}/mean_rank'] == pytest.approx(want)
        want = np.mean([np.floor(np.median(fold)) + 1 for fold in ranks[way]])
        assert report_metrics[f'{way}/median_rank'] == pytest.approx(want)
        assert report_metrics[f'{way}/proposed'] == pytest.approx(100 * np.mean(found[way]))
    assert report_metrics['rsum'] == pytest.approx(sum(report_metrics[name] for name in TABLE[:6]))
    assert 'mean_distance' not in report_metrics


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    images=st.integers(1, 8),
    more_texts=st.integers(0, 12),
    top_m=st.integers(1, 25),
    values=st.sampled_from([3, 1000]),
)
def test_ranks_are_those_of_the_loop(seed, images, more_texts, top_m, values):
    """Of three values nearly all are ties."""
    rng = np.random.default_rng(seed)
    image_of_text = np.concatenate([np.arange(images), rng.integers(0, images, more_texts)])
    rng.shuffle(image_of_text)
    sims, proposing = rng.integers(values, size=(2, images, len(image_of_text))).astype(np.float32)
    proposed = reranking.propose(proposing, image_of_text, top_m)
    ranks, found, pairs = looped(sims, proposing, image_of_text, top_m)
    assert set(zip(*np.nonzero(proposed.pairs), strict=True)) == pairs
    sims[~proposed.pairs] = -np.inf
    i2t, t2i = reranking.ranks(sims, proposing, proposed, image_of_text)
    np.testing.assert_array_equal(i2t, ranks['i2t'][0])
    np.testing.assert_array_equal(t2i, ranks['t2i'][0])
    check(reranking.retrieval_metrics(sims, proposing, proposed, image_of_text), ranks, found)


@pytest.mark.parametrize('top_m', [2, 4, 20])
def test_folds_propose_and_rank_each_by_itself(top_m):
    rng = np.random.default_rng(0)
    image_of_text = np.repeat(np.arange(12), 3)
    sims, proposing = rng.normal(size=(2, 12, 36)).astype(np.float32)
    proposed = reranking.propose(proposing, image_of_text, top_m, folds=3)
    ranks, found, pairs = looped(sims, proposing, image_of_text, top_m, folds=3)
    assert set(zip(*np.nonzero(proposed.pairs), strict=True)) == pairs
    check(reranking.retrieval_metrics(sims, proposing, proposed, image_of_text, folds=3), ranks, found)


@pytest.mark.parametrize('folds', [1, 2])
def test_as_many_candidates_as_there_are_give_the_usual_table(folds):
    rng = np.random.default_rng(1)
    image_of_text = np.repeat(np.arange(6), 5)
    sims, proposing = rng.normal(size=(2, 6, 30)).astype(np.float32)
    proposed = reranking.propose(proposing, image_of_text, 30, folds)
    got = reranking.retrieval_metrics(sims, proposing, proposed, image_of_text, folds)
    want = metrics.retrieval_metrics(sims, image_of_text, folds)
    assert {name: got[name] for name in TABLE} == {name: want[name] for name in TABLE}
    assert got['i2t/proposed'] == got['t2i/proposed'] == 100


def test_a_pair_that_one_direction_proposes_is_no_candidate_of_the_other():
    """By hand, one candidate each: image 1's own text is proposed to nobody but by itself, text 0 to both images."""
    proposing = np.array([[0.9, 0.1], [0.8, 0.5]], np.float32)
    proposed = reranking.propose(proposing, np.arange(2), 1)
    np.testing.assert_array_equal(proposed.i2t, [[True, False], [True, False]])
    np.testing.assert_array_equal(proposed.t2i, [[True, False], [False, True]])
    np.testing.assert_array_equal(proposed.pairs, [[True, False], [True, True]])
    sims = np.array([[0.0, -np.inf], [1.0, 2.0]], np.float32)
    i2t, t2i = reranking.ranks(sims, proposing, proposed, np.arange(2))
    np.testing.assert_array_equal(i2t, [0, 1])  # text 1 scores highest with image 1, which was not proposed it
    np.testing.assert_array_equal(t2i, [0, 0])  # image 1 scores higher with text 0, which was not proposed it


# Runs.


@pytest.fixture(scope='module')
def run(finished):  # noqa: F811
    return protocol.load_run(finished[0])


@pytest.fixture(scope='module')
def others(run):
    """Two more runs, whose scores differ."""
    return [
        dataclasses.replace(run, variables=jax.tree.map(lambda x, n=n: x * (1 + 0.5 * np.sin(n + x)), run.variables))
        for n in (50, 90)
    ]


def check_run(report, sims, proposing, top_m, folds=1):
    """A report against the loops, of the scores that are returned; gives what was scored as a mask."""
    ranks, found, pairs = looped(sims, proposing, np.repeat(np.arange(10), 5), top_m, folds)
    scored = np.zeros(sims.shape, bool)
    scored[tuple(zip(*pairs, strict=True))] = True
    np.testing.assert_array_equal(np.isfinite(sims), scored)
    assert np.all(sims[~scored] == -np.inf)
    check(report['metrics'], ranks, found)
    counted = {'top_m': top_m, 'pairs': len(pairs), 'of_pairs': 500}
    assert report['protocol']['proposals'] | counted == report['protocol']['proposals']
    return scored


@pytest.mark.parametrize('folds', [1, 2])
def test_runs_propose_to_an_ensemble(run, others, folds):
    _, full = evaluate_runs(others, 'dev', 1)
    _, proposing = evaluate_runs([run], 'dev', 1)
    report, sims = evaluate_runs(others, 'dev', folds, proposals=Proposals([run], 2))
    scored = check_run(report, sims, proposing, 2, folds)
    assert 0 < scored.sum() < 300
    np.testing.assert_allclose(sims[scored], full[scored], atol=1e-6)
    described = {'workdir': str(run.workdir), 'step': run.step, 'member': 'target'}
    assert report['protocol']['proposals']['runs'] == [described]
    assert len(report['protocol']['runs']) == 2
    report, sims = evaluate_runs([run], 'dev', folds, proposals=Proposals(others, 3))
    check_run(report, sims, full, 3, folds)


def test_more_candidates_than_texts_are_the_usual_evaluation(run, others):
    want, full = evaluate_runs([run], 'dev', 1)
    report, sims = evaluate_runs([run], 'dev', 1, proposals=Proposals(others[:1], 51))
    assert sims.tobytes() == full.tobytes()
    assert {name: report['metrics'][name] for name in TABLE} == {name: want['metrics'][name] for name in TABLE}
    assert report['protocol']['proposals']['pairs'] == report['protocol']['proposals']['of_pairs'] == 500


class Stop(Exception):
    """Ends a job."""


def test_a_stopped_job_goes_on(run, others, tmp_path, monkeypatch):
    monkeypatch.setattr(scoring, 'TEXTS_AT_A_TIME', 32)
    seen, proposals = [], Proposals([run], 2)

    def stop_in_the_second_part(progress):
        seen.append(progress.total)
        if len(seen) == 3:
            raise Stop

    with pytest.raises(Stop):
        evaluate_runs(others[:1], 'dev', 1, proposals=proposals, keep_blocks=tmp_path, report=stop_in_the_second_part)
    report, sims = evaluate_runs(
        others[:1], 'dev', 1, proposals=proposals, keep_blocks=tmp_path, report=stop_in_the_second_part
    )
    assert seen == [500, 500] + 2 * [report['protocol']['proposals']['pairs']]
    np.testing.assert_array_equal(sims, evaluate_runs(others[:1], 'dev', 1, proposals=proposals)[1])


def test_runs_that_do_not_go_together_are_refused_before_any_is_scored(run, monkeypatch):
    monkeypatch.setattr(scoring.Scorer, 'score', lambda *_: pytest.fail('a run was scored'))
    elsewhere = dataclasses.replace(run, config=run.config | {'data': run.config['data'] | {'seed': 5}})
    with pytest.raises(UserError, match=r'on other data than .* \(data.seed: 0 -> 5\); runs that are evaluated toge'):
        evaluate_runs([run], 'dev', 1, proposals=Proposals([elsewhere], 10))
    with pytest.raises(UserError, match='was trained on 7'):
        evaluate_runs([dataclasses.replace(run, feature_size=7)], 'dev', 1, proposals=Proposals([run], 10))
    with pytest.raises(UserError, match='was trained on 7'):
        evaluate_runs([run], 'dev', 1, proposals=Proposals([dataclasses.replace(run, feature_size=7)], 10))


def test_a_broken_run_is_refused(run):
    broken = dataclasses.replace(run, variables=jax.tree.map(lambda x: x * np.nan, run.variables))
    with pytest.raises(UserError, match='500 similarities on scenes/dev are not finite'):
        evaluate_runs([run], 'dev', 1, proposals=Proposals([broken], 2))
    _, scored = evaluate_runs([run], 'dev', 1, proposals=Proposals([run], 2))
    with pytest.raises(UserError, match=f'{np.isfinite(scored).sum()} similarities on scenes/dev are not finite'):
        evaluate_runs([broken], 'dev', 1, proposals=Proposals([run], 2))


def test_uniter_orders_what_another_model_proposes(uniter_config, run, tmp_path):  # noqa: F811
    train_and_evaluate(uniter_config, tmp_path / 'uniter')
    uniter = protocol.load_run(tmp_path / 'uniter')
    _, full = evaluate_runs([uniter], 'dev', 1)
    _, proposing = evaluate_runs([run], 'dev', 1)
    report, sims = evaluate_runs([uniter], 'dev', 1, proposals=Proposals([run], 2))
    scored = check_run(report, sims, proposing, 2)
    np.testing.assert_allclose(sims[scored], full[scored], atol=1e-5)
    report, sims = evaluate_runs([uniter], 'dev', 1, proposals=Proposals([run], 50))
    assert sims.tobytes() == full.tobytes()


@pytest.mark.slow
def test_the_command_says_what_was_scored(finished, tmp_path):  # noqa: F811
    workdir = finished[0]
    flags = ['--workdir', workdir, '--step', 30, '--proposals', workdir, '--split', 'train', '--top_m', 10]
    result = run_script('eval.py', *flags)
    assert result.returncode == 0, result.stderr
    report = json.loads((workdir / 'eval' / 'train_top10' / 'metrics.json').read_text())
    told, found = report['protocol']['proposals'], report['metrics']
    assert told['pairs'] < told['of_pairs'] == 16 * 80
    lines = result.stdout.splitlines()
    assert lines[2] == f'proposed by {workdir}, step {told["runs"][0]["step"]}, target'
    share = f'{told["pairs"]:,} of 1,280 pairs scored ({told["pairs"] / 1280:.1%})'
    assert lines[3] == f'top_m 10: {share}; others behind them, in the order of the proposing scores'
    share = f'{found["i2t/proposed"]:.1f} % of the images and {found["t2i/proposed"]:.1f} % of the texts'
    assert lines[4] == f'a match is among the proposals of {share}'
    assert 'MD' not in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ('flags', 'sentence'),
    [
        (['--top_m', 20], '--proposals and --top_m go together; give both'),
        (['--proposals', 'RUN', '--top_m', 9], '--top_m=9'),
        (['--proposals', 'RUN', '--top_m', 20, '--save_sims'], '--save_sims needs the score of every pair; leave out'),
    ],
)
def test_what_a_user_gets_wrong(finished, flags, sentence):  # noqa: F811
    flags = [finished[0] if flag == 'RUN' else flag for flag in flags]
    result = run_script('eval.py', '--workdir', finished[0], *flags)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert sentence in result.stderr
