"""Labels of training pairs: NCR's and CRCL's numbers by loops, and runs that resume exactly."""

import contextlib
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from jitm.errors import InterruptedRun, UserError
from jitm.runs.interrupt import StopRequest
from jitm.training import label_estimators, loop
from jitm.training.label_estimators import CoTeaching, MovingAverage, PairLabels, clean_posterior
from jitm.training.sources.labels import labelled
from jitm.types import Ranking
from tests.same import assert_same_run

NCR = CoTeaching(warm_up_epochs=2, noisy_epoch=4, margin=0.2)
CRCL = MovingAverage(warm_up_epochs=2, momentum=0.8, minimum=0.1, temperature=0.3)
PAIRS = 12


def both_ways(seed, pairs=PAIRS):
    scores = np.random.default_rng(seed).uniform(-0.2, 0.6, size=(pairs, pairs)).astype(np.float32)
    scores += 0.4 * np.diag(np.random.default_rng(seed + 1).uniform(size=pairs)).astype(np.float32)
    mask = np.eye(pairs, dtype=bool)
    return scores, {way: Ranking(s, mask, ~mask) for way, s in (('i2t', scores), ('t2i', scores.T))}


def hinges_by_loop(s):
    size, hinges = len(s), []
    for n in range(size):
        others = [c for c in range(size) if c != n]
        row = sum(max(0.2 + s[n, c] - s[n, n], 0) for c in others) / (size - 1)
        column = sum(max(0.2 + s[c, n] - s[n, n], 0) for c in others) / (size - 1)
        hinges.append(row + column)
    return hinges


def predictions_by_loop(s):
    margins = [min(max(0.2 - hinge / 2, 0), 0.2) for hinge in hinges_by_loop(s)]
    largest = sorted(margins)[-(len(s) // 10 + 1) :]
    return [min(max(q / (sum(largest) / len(largest)), 0), 1) for q in margins]


@pytest.mark.slow
def test_the_four_numbers_of_ncr_by_a_loop():
    """Hinges of the pairs, posteriors, labels and margins."""
    scores, rankings = zip(*map(both_ways, (0, 10)), strict=True)
    named = dict(zip(('other', 'target'), rankings, strict=True))
    rows = np.random.default_rng(3).permutation(PAIRS)
    # Hinges and posteriors: each model takes those of the other.
    hinges = {name: np.asarray(NCR.hinges(ranked, PAIRS)) for name, ranked in named.items()}
    for name, s in zip(named, scores, strict=True):
        np.testing.assert_allclose(hinges[name], hinges_by_loop(s), rtol=1e-5)
    stored = jax.device_get(NCR.init(['other', 'target'], PAIRS + 1))
    split = NCR.revise(stored, rows, hinges)
    for name, source in (('other', 'target'), ('target', 'other')):
        np.testing.assert_allclose(
            split[name]['posterior'][rows], clean_posterior(hinges[source]), rtol=1e-6, atol=1e-9
        )
        np.testing.assert_array_equal(split[name]['clean'], split[name]['posterior'] > 0.5)
        assert split[name]['posterior'][PAIRS] == 1  # not in this epoch
    # Labels.
    predicted = {name: predictions_by_loop(s) for name, s in zip(named, scores, strict=True)}
    for epoch in (1, 3, 4):
        believed = NCR.of_batch(jax.tree.map(jnp.asarray, split), rows, epoch, named.get)
        for name in named:
            for n, row in enumerate(rows):
                w, clean = split[name]['posterior'][row], split[name]['clean'][row]
                mean = (predicted['other'][n] + predicted['target'][n]) / 2
                label = w + (1 - w) * predicted[name][n] if clean else mean
                group = 0 if clean else 1 if epoch >= 4 else -1
                want = (1, 0) if epoch < 2 else (label, group)
                np.testing.assert_allclose((believed[name].labels[n], believed[name].groups[n]), want, rtol=1e-4)


def test_groups_are_not_compared_and_pairs_without_one_have_no_loss():
    _, rankings = both_ways(0, 4)
    got = labelled(rankings['i2t'], PairLabels(jnp.array([1.0, 0.5, 0.2, 0.7]), jnp.array([0, 1, 0, -1])))
    np.testing.assert_array_equal(got.positives, np.diag([True, True, True, False]))
    np.testing.assert_array_equal(np.argwhere(got.negatives), [[0, 2], [2, 0]])
    of_one_image = Ranking(np.zeros((4, 4), np.float32), np.ones((4, 4), bool), np.zeros((4, 4), bool))
    kept = labelled(of_one_image, PairLabels(jnp.ones(4), jnp.array([0, 1, 0, -1]))).positives
    np.testing.assert_array_equal(np.argwhere(kept), [[0, 0], [0, 2], [1, 1], [2, 0], [2, 2]])
    views = labelled(
        Ranking(np.zeros((4, 4), np.float32), np.eye(4, dtype=bool), ~np.eye(4, dtype=bool)),
        PairLabels(jnp.array([1.0, 0.5]), jnp.array([0, 0])),
    )
    np.testing.assert_array_equal(views.inputs['labels'], np.array([1, 1, 0.5, 0.5], np.float32))


def test_the_moving_average_by_a_loop():
    scores, rankings = both_ways(0)
    rows = jnp.asarray(np.random.default_rng(3).permutation(PAIRS))
    stored, label, probability = CRCL.init(['target'], PAIRS), np.ones(PAIRS), np.ones(PAIRS)
    for epoch in range(5):
        believed = CRCL.of_batch(stored, rows, epoch, None)
        stored = CRCL.after_batch(stored, rows, believed, {'target': rankings})
        for n, row in enumerate(rows):
            average = 0.8 * label[row] + 0.2 * probability[row]
            label[row] = 1 if epoch < 2 else average if average >= 0.1 else 0
            powers = np.exp(scores / 0.3)
            probability[row] = (powers[n, n] / powers[n].sum() + powers[n, n] / powers[:, n].sum()) / 2
            assert believed['target'].labels[n] == pytest.approx(label[row], rel=1e-5)
    assert label.max() < 1
    np.testing.assert_allclose(stored['target']['probability'], probability, rtol=1e-5)


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('share', [0.2, 0.5])
def test_the_mixture_equals_that_of_scikit_learn(seed, share):
    rng = np.random.default_rng(seed)
    losses = np.where(rng.uniform(size=2000) < share, rng.normal(0.7, 0.1, 2000), rng.normal(0.2, 0.05, 2000))
    scaled = (losses - losses.min()) / np.ptp(losses)
    mixture = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=0).fit(scaled[:, None])
    want = mixture.predict_proba(scaled[:, None])[:, mixture.means_.argmin()]
    np.testing.assert_allclose(clean_posterior(losses), want, atol=2e-3)


@pytest.mark.parametrize(('lowest', 'noisy'), [(0.6, 3), (0.4, 67)])
def test_where_all_pairs_seem_clean_a_hundredth_does_not(lowest, noisy, monkeypatch):
    monkeypatch.setattr(label_estimators, 'clean_posterior', lambda hinges: np.linspace(lowest, 0.7, 201))
    stored = {name: {'clean': np.ones(201, bool), 'posterior': np.ones(201)} for name in ('a', 'b')}
    split = NCR.revise(stored, np.arange(201), {name: np.zeros(201) for name in stored})
    assert (~split['a']['clean']).sum() == noisy


def test_two_members_must_train():
    with pytest.raises(UserError, match='is for two members that train, not 1'):
        NCR.init(['target'], 3)


SECTIONS = {
    'MovingAverage': {'source': 'MovingAverage', 'warm_up_epochs': 1},
    'CoTeaching': {'source': 'CoTeaching', 'warm_up_epochs': 1, 'noisy_epoch': 2},
}
TERMS = {
    'MovingAverage': {'loss': 'noisy.active_complementary', 'temperature': 0.05, 'reduction': 'mean'},
    'CoTeaching': {'loss': 'noisy.soft_margin', 'margin': 0.2, 'reduction': 'sum'},
}


def config_of(tiny_config, source):
    term = TERMS[source] | {'weight': 1.0, 'start_epoch': 0, 'end_epoch': None}
    members = dict.fromkeys(('other', 'target'), tiny_config['members']['target'])
    return tiny_config | {
        'labels': SECTIONS[source],
        'terms': {'ranking': term},
        'members': members if source == 'CoTeaching' else tiny_config['members'],
        'data': tiny_config['data'] | {'noise_rate': 0.4},
    }


@pytest.mark.slow
def test_runs_resume_exactly_in_each_phase(tiny_config, tmp_path, monkeypatch):
    config = config_of(tiny_config, 'CoTeaching')
    loop.train_and_evaluate(config, tmp_path / 'whole')
    lines = [json.loads(line) for line in (tmp_path / 'whole' / 'metrics.jsonl').read_text().splitlines()]
    logged = [line for line in lines if 'target/noise/i2t/gradient' in line]
    assert len(logged) == 30
    assert all(0 <= line['target/noise/i2t/separation'] <= 1 for line in logged)
    read = itertools.count(1)
    # It stops before the first split, which is after the warm-up, and within an epoch.
    stops = property(lambda _: next(read) in (11, 18), lambda *_: None)
    monkeypatch.setattr(StopRequest, 'requested', stops, raising=False)
    stopped = []
    for _ in range(3):
        with contextlib.suppress(InterruptedRun):
            loop.train_and_evaluate(config, tmp_path / 'run')
            break
        stopped.append(1)
    assert len(stopped) == 2
    assert_same_run(tmp_path / 'run', tmp_path / 'whole')


def test_labels_without_a_reader_stop_with_an_error(tiny_config, tmp_path):
    config = config_of(tiny_config, 'MovingAverage') | {'terms': tiny_config['terms']}
    with pytest.raises(UserError, match=r"'labels.source' is set but unused: add a term whose loss takes labels"):
        loop.train_and_evaluate(config, tmp_path / 'run')
    config = config_of(tiny_config, 'CoTeaching') | {'labels': {'source': ''}}
    with pytest.raises(UserError, match=r"'terms.ranking' needs labels: set labels.source"):
        loop.train_and_evaluate(config, tmp_path / 'run')
    assert not (tmp_path / 'run').exists()
