"""Labels of training pairs: NCR's and CRCL's numbers by loops, and runs that resume exactly."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.mixture import GaussianMixture

from jitm.errors import InterruptedRun, UserError
from jitm.runs.interrupt import StopRequest
from jitm.runs.log import read_metrics
from jitm.training import label_estimators, loop
from jitm.training.label_estimators import CoTeaching, MovingAverage, PairLabels, clean_posterior
from jitm.training.sources.labels import labelled
from jitm.types import Ranking
from tests.losses import formulas
from tests.same import assert_same_run
from tests.support.steps import ALWAYS, HARDEST

NCR = CoTeaching(warm_up_epochs=2, noisy_epoch=4, margin=0.2)
CRCL = MovingAverage(warm_up_epochs=2, momentum=0.8, minimum=0.1, temperature=0.3)
PAIRS = 12


def both_ways(seed, pairs=PAIRS):
    scores = np.random.default_rng(seed).uniform(-0.2, 0.6, size=(pairs, pairs)).astype(np.float32)
    scores += 0.4 * np.diag(np.random.default_rng(seed + 1).uniform(size=pairs)).astype(np.float32)
    mask = np.eye(pairs, dtype=bool)
    return scores, {way: Ranking(s, mask, ~mask) for way, s in (('i2t', scores), ('t2i', scores.T))}


def hinges_by_loop(scores):
    """The mean hinge of each image and each caption over the other pairs."""
    positives = np.eye(len(scores), dtype=bool)
    formula = functools.partial(formulas.mean_of_hinges, margin=0.2)
    ways = [formulas.of_queries(formula, way, positives) for way in (scores, scores.T)]
    return np.sum(ways, axis=0)


def predictions_by_loop(scores):
    margins = [min(max(0.2 - hinge / 2, 0), 0.2) for hinge in hinges_by_loop(scores)]
    largest = sorted(margins)[-(len(scores) // 10 + 1) :]
    return [min(max(margin / np.mean(largest), 0), 1) for margin in margins]


@pytest.mark.slow
def test_the_four_numbers_of_ncr_by_a_loop():
    """Hinges of the pairs, posteriors, labels and margins."""
    scores = {}
    rankings = {}
    for name, seed in (('other', 0), ('target', 10)):
        scores[name], rankings[name] = both_ways(seed)
    rows = np.random.default_rng(3).permutation(PAIRS)
    # Hinges and posteriors: each model takes those of the other.
    hinges = {name: np.asarray(NCR.hinges(ranking, PAIRS)) for name, ranking in rankings.items()}
    for name, matrix in scores.items():
        np.testing.assert_allclose(hinges[name], hinges_by_loop(matrix), rtol=1e-5)
    split = NCR.revise(jax.device_get(NCR.init(['other', 'target'], PAIRS + 1)), rows, hinges)
    for name, source in (('other', 'target'), ('target', 'other')):
        posterior = split[name]['posterior']
        np.testing.assert_allclose(posterior[rows], clean_posterior(hinges[source]), rtol=1e-6, atol=1e-9)
        np.testing.assert_array_equal(split[name]['clean'], posterior > 0.5)
        assert posterior[PAIRS] == 1  # not in this epoch
    # Labels.
    predicted = {name: predictions_by_loop(matrix) for name, matrix in scores.items()}
    mean = np.mean([*predicted.values()], axis=0)
    for epoch in (1, 3, 4):
        estimates = NCR.of_batch(jax.tree.map(jnp.asarray, split), rows, epoch, rankings.get)
        for name, pairs in estimates.items():
            clean = split[name]['clean'][rows]
            weight = split[name]['posterior'][rows]
            want = np.where(clean, weight + (1 - weight) * predicted[name], mean)
            groups = np.where(clean, 0, 1 if epoch >= 4 else -1)
            np.testing.assert_allclose(pairs.labels, want if epoch > 1 else 1, rtol=1e-4)
            np.testing.assert_array_equal(pairs.groups, groups if epoch > 1 else 0)


def test_groups_are_not_compared_and_pairs_without_one_have_no_loss():
    scores = np.zeros((4, 4), np.float32)
    diagonal = np.eye(4, dtype=bool)
    estimates = PairLabels(jnp.array([1.0, 0.5, 0.2, 0.7]), jnp.array([0, 1, 0, -1]))
    got = labelled(Ranking(scores, diagonal, ~diagonal), estimates)
    np.testing.assert_array_equal(got.positives, np.diag([True, True, True, False]))
    np.testing.assert_array_equal(np.argwhere(got.negatives), [[0, 2], [2, 0]])
    of_an_image = labelled(Ranking(scores, np.ones_like(diagonal), np.zeros_like(diagonal)), estimates)
    np.testing.assert_array_equal(np.argwhere(of_an_image.positives), [[0, 0], [0, 2], [1, 1], [2, 0], [2, 2]])
    views = labelled(Ranking(scores, diagonal, ~diagonal), PairLabels(jnp.array([1.0, 0.5]), jnp.array([0, 0])))
    np.testing.assert_array_equal(views.inputs['labels'], np.array([1, 1, 0.5, 0.5], np.float32))


def test_the_moving_average_by_a_loop():
    scores, rankings = both_ways(0)
    rows = jnp.asarray(np.random.default_rng(3).permutation(PAIRS))
    stored = CRCL.init(['target'], PAIRS)
    label = np.ones(PAIRS)
    probability = np.ones(PAIRS)
    for epoch in range(5):
        estimates = CRCL.of_batch(stored, rows, epoch, None)
        stored = CRCL.after_batch(stored, rows, estimates, {'target': rankings})
        for n, row in enumerate(rows):
            average = 0.8 * label[row] + 0.2 * probability[row]
            label[row] = 1 if epoch < 2 else average if average >= 0.1 else 0
            powers = np.exp(scores / 0.3)
            probability[row] = (powers[n, n] / powers[n].sum() + powers[n, n] / powers[:, n].sum()) / 2
            assert estimates['target'].labels[n] == pytest.approx(label[row], rel=1e-5)
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


LABELS = {'source': 'CoTeaching', 'warm_up_epochs': 1, 'noisy_epoch': 2}
TERM = ALWAYS | {'loss': 'noisy.soft_margin', 'margin': 0.2, 'reduction': 'sum'}


def of_two_models(tiny_config):
    return tiny_config | {
        'labels': LABELS,
        'terms': {'ranking': TERM},
        'members': dict.fromkeys(('other', 'target'), tiny_config['members']['target']),
        'data': tiny_config['data'] | {'noise_rate': 0.4},
    }


@pytest.mark.slow
def test_runs_resume_exactly_in_each_phase(tiny_config, tmp_path, monkeypatch):
    """The memory of a source is a part of the state: it stops before the first split, and within an epoch."""
    config = of_two_models(tiny_config)
    loop.train_and_evaluate(config, tmp_path / 'whole')
    separation = [line.get('target/noise/i2t/separation') for line in read_metrics(tmp_path / 'whole')]
    separation = [value for value in separation if value is not None]
    assert len(separation) == 30
    assert 0 <= min(separation) <= max(separation) <= 1
    read = itertools.count(1)
    stops = property(lambda _: next(read) in (11, 18), lambda *_: None)
    monkeypatch.setattr(StopRequest, 'requested', stops, raising=False)
    for _ in range(2):
        with pytest.raises(InterruptedRun):
            loop.train_and_evaluate(config, tmp_path / 'run')
    loop.train_and_evaluate(config, tmp_path / 'run')
    assert_same_run(tmp_path / 'run', tmp_path / 'whole')


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'terms': {'ranking': HARDEST}}, "'labels.source' is set but unused: add a term whose loss takes labels"),
        ({'labels': {'source': ''}}, "'terms.ranking' needs labels: set labels.source"),
    ],
)
def test_labels_without_a_reader_stop_with_an_error(tiny_config, changes, message):
    with pytest.raises(UserError, match=message):
        loop.set_up(of_two_models(tiny_config) | changes)
