"""Re-ranking against loops over queries, and whole evaluations."""

import dataclasses
import itertools
import json

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitm.commands import cli
from jitm.errors import UserError
from jitm.evaluation import reranking
from jitm.evaluation.protocol import Shortlist, evaluate_runs
from jitm.inference import scoring
from jitm.runs.run import describe_runs, load_run, read_split

TABLE = [f'{way}/{name}' for way in ('i2t', 't2i') for name in ('recall@1', 'recall@5', 'recall@10')] + ['rsum']
TABLE += [f'{way}/{name}' for way in ('i2t', 't2i') for name in ('median_rank', 'mean_rank')]


def looped(sims, first_sims, image_of_text, top_m, folds=1):
    """Ranks (by direction and fold), whether each query has a match in its shortlist, and the shortlisted pairs.

    A candidate is in the shortlist if fewer than top_m others score higher. Every query sorts its candidates: the
    shortlist first, then by score, ties in favor of candidates that do not match.
    """
    size = len(sims) // folds
    ranks = {way: [[] for _ in range(folds)] for way in ('i2t', 't2i')}
    has_match = {'i2t': [], 't2i': []}
    pairs = set()
    for fold in range(folds):
        images = range(fold * size, (fold + 1) * size)
        texts = [text for text, image in enumerate(image_of_text) if image in images]
        queries = [('i2t', list(itertools.product([image], texts))) for image in images]
        queries += [('t2i', list(itertools.product(images, [text]))) for text in texts]
        for way, candidates in queries:
            scores = [first_sims[pair] for pair in candidates]
            shortlist = {pair for pair in candidates if sum(np.greater(scores, first_sims[pair])) < top_m}
            pairs |= shortlist
            keys = []
            for image, text in candidates:
                listed = (image, text) in shortlist
                score = (sims if listed else first_sims)[image, text]
                keys.append((not listed, -score, bool(image_of_text[text] == image)))
            matches = [match for _, _, match in sorted(keys)]
            ranks[way][fold].append(matches.index(True))
            has_match[way].append(any(image_of_text[text] == image for image, text in shortlist))
    return ranks, has_match, pairs


def check(report_metrics, ranks, has_match):
    """Compares reported metrics with the ranks of the loops."""
    for way, folds in ranks.items():
        want = {f'recall@{k}': [100 * np.mean(np.less(fold, k)) for fold in folds] for k in (1, 5, 10)}
        want['mean_rank'] = [np.mean(fold) + 1 for fold in folds]
        want['median_rank'] = [np.floor(np.median(fold)) + 1 for fold in folds]
        want['shortlisted'] = 100 * np.array(has_match[way])
        for name, values in want.items():
            assert report_metrics[f'{way}/{name}'] == pytest.approx(np.mean(values))
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
def test_ranks_equal_loops(seed, images, more_texts, top_m, values):
    """With three values, nearly all scores are ties."""
    rng = np.random.default_rng(seed)
    image_of_text = np.concatenate([np.arange(images), rng.integers(0, images, more_texts)])
    rng.shuffle(image_of_text)
    sims, first_sims = rng.integers(values, size=(2, images, len(image_of_text))).astype(np.float32)
    candidates = reranking.select_candidates(first_sims, image_of_text, top_m)
    ranks, has_match, pairs = looped(sims, first_sims, image_of_text, top_m)
    assert set(zip(*np.nonzero(candidates.pairs), strict=True)) == pairs
    sims[~candidates.pairs] = -np.inf
    i2t, t2i = reranking.ranks(sims, first_sims, candidates, image_of_text)
    np.testing.assert_array_equal(i2t, ranks['i2t'][0])
    np.testing.assert_array_equal(t2i, ranks['t2i'][0])
    check(reranking.retrieval_metrics(sims, first_sims, candidates, image_of_text), ranks, has_match)


# Runs.


@pytest.fixture(scope='module')
def run(finished):
    return load_run(finished)


@pytest.fixture(scope='module')
def dev(run):
    return read_split([run], 'dev')


@pytest.fixture(scope='module')
def others(run):
    """Two more runs, whose scores differ."""
    return [
        dataclasses.replace(run, variables=jax.tree.map(lambda x, n=n: x * (1 + 0.5 * np.sin(n + x)), run.variables))
        for n in (50, 90)
    ]


def check_run(report, sims, first_sims, top_m, folds=1):
    """Compares a report and its similarities with the loops; returns the mask of scored pairs."""
    ranks, has_match, pairs = looped(sims, first_sims, np.repeat(np.arange(10), 5), top_m, folds)
    scored = np.zeros(sims.shape, bool)
    scored[tuple(zip(*pairs, strict=True))] = True
    np.testing.assert_array_equal(np.isfinite(sims), scored)
    assert np.all(sims[~scored] == -np.inf)
    check(report['metrics'], ranks, has_match)
    counted = {'top_m': top_m, 'pairs': len(pairs), 'total_pairs': 500}
    assert report['protocol']['shortlist'] | counted == report['protocol']['shortlist']
    return scored


@pytest.mark.parametrize('folds', [1, 2])
def test_ensemble_orders_a_shortlist(run, others, dev, folds):
    _, full = evaluate_runs(others, dev)
    _, first_sims = evaluate_runs([run], dev)
    report, sims = evaluate_runs(others, dev, folds, shortlist=Shortlist([run], 2))
    scored = check_run(report, sims, first_sims, 2, folds)
    assert 0 < scored.sum() < 300
    np.testing.assert_allclose(sims[scored], full[scored], atol=1e-6)
    assert report['protocol']['shortlist']['runs'] == describe_runs([run])
    assert len(report['protocol']['runs']) == 2
    report, sims = evaluate_runs([run], dev, folds, shortlist=Shortlist(others, 3))
    check_run(report, sims, full, 3, folds)


def test_shortlist_of_all_pairs_is_the_plain_evaluation(run, others, dev):
    want, full = evaluate_runs([run], dev)
    report, sims = evaluate_runs([run], dev, shortlist=Shortlist(others[:1], 51))
    assert sims.tobytes() == full.tobytes()
    assert {name: report['metrics'][name] for name in TABLE} == {name: want['metrics'][name] for name in TABLE}
    assert report['protocol']['shortlist']['pairs'] == report['protocol']['shortlist']['total_pairs'] == 500


@pytest.mark.parametrize('folds', [1, 2])
def test_scores_are_added(run, others, dev, folds):
    """Of the pairs in a shortlist only: the loops order them by the sum."""
    _, first_sims = evaluate_runs([run], dev)
    _, second_sims = evaluate_runs(others, dev)
    report, sims = evaluate_runs(others, dev, folds, shortlist=Shortlist([run], 2, add=True))
    scored = check_run(report, sims, first_sims, 2, folds)
    np.testing.assert_allclose(sims[scored], (first_sims + second_sims)[scored], atol=1e-6)
    assert report['protocol']['shortlist']['scores'] == 'added to those of the shortlist'


@pytest.mark.slow
def test_the_second_model_of_a_run_orders_its_shortlist(run, dev):
    """A model with the same parameters and the opposite scores."""
    names = {field.name for field in dataclasses.fields(run.model) if field.init} - {'parent', 'name'}
    fields = {name: getattr(run.model, name) for name in names}

    class Opposite(type(run.model)):
        def similarity_pairwise(self, images, texts, train=False):
            return -super().similarity_pairwise(images, texts, train)

    class WithSecond(type(run.model)):
        @property
        def reranker(self):
            return Opposite(**fields)

    both = dataclasses.replace(run, model=WithSecond(**fields))
    _, first_sims = evaluate_runs([both], dev)
    report, sims = evaluate_runs([both], dev, shortlist=Shortlist([both], 2))
    scored = check_run(report, sims, first_sims, 2)
    np.testing.assert_allclose(sims[scored], -first_sims[scored], atol=1e-6)


def test_all_runs_are_checked_before_scoring(run, dev, monkeypatch):
    monkeypatch.setattr(scoring.Scorer, 'score', lambda *_: pytest.fail('a run was scored'))
    other = dataclasses.replace(run, feature_size=7)
    for runs, selecting in (([other], [run]), ([run], [other])):
        with pytest.raises(UserError, match='was trained on 7'):
            evaluate_runs(runs, dev, shortlist=Shortlist(selecting, 10))


def test_command_prints_the_shortlist(finished, capsys):
    workdir = finished
    flags = ['--step=30', f'--shortlist={workdir}', '--split=train', '--top_m=10', '--add']
    assert cli.main(['eval', f'--workdir={workdir}', *flags]) == 0
    report = json.loads((workdir / 'eval' / 'train_top10_added_step30' / 'metrics.json').read_text())
    shortlist = report['protocol']['shortlist']
    values = report['metrics']
    assert shortlist['pairs'] < shortlist['total_pairs'] == 16 * 80
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[2].startswith('  reads regions of ')
    assert lines[3] == f'shortlist of {workdir}, step {shortlist["runs"][0]["step"]}, target'
    share = f'{shortlist["pairs"]:,} of 1,280 pairs scored ({shortlist["pairs"] / 1280:.1%})'
    share += ', scores added to those of the shortlist'
    assert lines[4] == f'top_m 10: {share}; others {shortlist["others"]}'
    share = f'{values["i2t/shortlisted"]:.1f} % of the images and {values["t2i/shortlisted"]:.1f} % of the captions'
    assert lines[5] == f'the shortlist has a match for {share}'
    assert 'MD' not in out


@pytest.mark.parametrize(
    ('flags', 'sentence'),
    [
        (['--add'], '--add is not read without --top_m: add it'),
        (
            ['--shortlist=RUN', '--top_m=20', '--save_sims'],
            '--save_sims is not read with --top_m: leave one of them out',
        ),
    ],
)
def test_user_errors(finished, capsys, flags, sentence):
    flags = [flag.replace('RUN', str(finished)) for flag in flags]
    assert cli.main(['eval', f'--workdir={finished}', *flags]) == 2
    assert sentence in capsys.readouterr().err
