"""Terms, diagnostics, and the training step of independent models."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jitm.losses import ranking
from jitm.training.diagnostics import collapse_metrics, gradient_norms, step_metrics
from jitm.training.logs import CollapseMonitor
from jitm.training.members import Gradient, Member, init_members
from jitm.training.objective import first_argument, objective, token_terms
from jitm.training.source import Context
from jitm.training.sources.mined import mined_metrics, with_mined
from jitm.training.step import TrainState
from jitm.types import Batch
from tests.support.mining import make_split
from tests.support.steps import (
    ALWAYS,
    CAPTION,
    HARDEST,
    SCORES,
    compile_step,
    in_batch_source,
    make_pipeline,
    make_terms,
    on_one_device,
    rank_in_batch,
    small_vse,
)


def test_terms_are_active_in_their_epochs_and_weighted():
    warm_up = HARDEST | {'loss': 'ranking.sum_of_hinges', 'end_epoch': 2, 'reduction': 'mean'}
    terms = make_terms({'warm_up': warm_up, 'hard': HARDEST | {'start_epoch': 1, 'weight': 0.5}})
    eye = jnp.eye(5, dtype=bool)
    warm = sum(ranking.sum_of_hinges(s, eye, margin=0.2).mean() for s in (SCORES, SCORES.T))
    hard = 0.5 * sum(ranking.max_of_hinges(s, eye, margin=0.2).sum() for s in (SCORES, SCORES.T))
    for epoch, want in enumerate((warm, warm + hard, hard)):
        np.testing.assert_allclose(objective(terms, rank_in_batch(range(5)), epoch)[0], want, rtol=1e-6)


def test_token_term_reduces_its_losses():
    terms = make_terms({'ranking': HARDEST, 'caption': CAPTION | {'weight': 0.5, 'start_epoch': 1}})
    assert {name: term.predictions for name, term in token_terms(terms).items()} == {'caption': 'captioning'}
    rankings = rank_in_batch(range(5))
    losses = {'caption': jnp.asarray([1.0, 2.0, 6.0, 0.0, 1.0])}
    for epoch, want in ((0, 0), (1, 1)):
        total, values = objective(terms, rankings, epoch, losses)
        np.testing.assert_allclose(values['caption'], want)
        np.testing.assert_allclose(total, values['ranking'] + want, rtol=1e-6)


@pytest.fixture(scope='module')
def parts():
    """A compiled step of two models with a term that starts late, its state, and its batches."""
    pipeline = make_pipeline()
    member = Member(rule=Gradient(), model=small_vse(len(pipeline.vocabulary)), optimizer=optax.sgd(0.1))
    members = {'target': member, 'other': member}
    terms = make_terms({'ranking': HARDEST, 'later': HARDEST | {'start_epoch': 1}})
    parts = {'members': members, 'terms': terms, 'source': in_batch_source('ignored')}
    step = compile_step(**parts, seed=0, steps_per_epoch=5, epochs=2)
    batch = pipeline.batch(0)
    return step, TrainState(jnp.int32(0), init_members(members, 0, batch.images, batch.texts)), pipeline


@pytest.mark.slow
def test_term_starts_at_the_first_step_of_its_epoch(parts):
    step, state, pipeline = parts
    for n, active in ((4, False), (5, True)):
        _, metrics = step(state.replace(step=jnp.int32(n)), pipeline.batch(n))
        assert (metrics['target/terms/later'] > 0) == active


def test_infinite_gradient_is_not_applied(parts):
    step, state, pipeline = parts
    state = jax.tree_util.tree_map_with_path(
        lambda path, x: 1e-25 * x if 'image_fc' in jax.tree_util.keystr(path) else x, state
    )
    batch = pipeline.batch(0)
    after, metrics = step(state, batch.replace(images=batch.images.replace(regions=1e25 * batch.images.regions)))
    assert np.isfinite(metrics['target/loss'])
    assert not metrics['finite']
    assert int(after.step) == 0


def test_non_finite_batch_stops_all_later_updates(parts):
    step, state, pipeline = parts
    good = pipeline.batch(0)
    bad = good.replace(images=good.images.replace(regions=np.full_like(good.images.regions, np.nan)))
    after, metrics = step(state, bad)
    assert not metrics['finite']
    after, metrics = step(after, pipeline.batch(1))
    assert metrics['finite']
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(old, new)
    assert int(step(after, good)[0].step) == 1


def test_diagnostics_equal_their_definition(parts):
    step, state, pipeline = parts
    batch = pipeline.batch(0)
    _, metrics = step(state, batch)
    model = small_vse(len(pipeline.vocabulary))
    scores = np.asarray(model.apply(state.members['target'].variables, batch.images, batch.texts))
    gaps = []
    assert len(np.unique(batch.image_index)) < 8
    for matrix in (scores, scores.T):
        for n, image in enumerate(batch.image_index):
            gaps.append(matrix[n, n] - matrix[n, batch.image_index != image].max())
    want = {
        'collapsed_loss': 2 * 8 * 0.2,
        'ranking_loss': metrics['target/loss'],
        'gap': np.mean(gaps),
        'active_hinges': np.mean(np.less(gaps, 0.2)),
        'absolute_gap': np.mean(np.abs(gaps)),
        'hard_share': np.mean(np.abs(gaps) > 0.01),
    }
    for name, value in want.items():
        np.testing.assert_allclose(metrics[f'target/{name}'], value, rtol=1e-6, atol=1e-6, err_msg=name)


def collapse_of(scores):
    """The matching loss of scores, and its value for constant scores."""
    term = ALWAYS | {'loss': 'ranking.matching_cross_entropy', 'weight': 0.5, 'reduction': 'mean'}
    rankings = rank_in_batch(range(5), jnp.asarray(scores, jnp.float32))
    metrics = collapse_metrics(rankings, make_terms({'ranking': term}), 0)
    return float(metrics['ranking_loss']), float(metrics['collapsed_loss'])


def test_collapse_of_probabilities_is_warned_of():
    """Of a model that gives every pair the same probability, such as a UNITER or an OSCAR that does not train."""
    for probability in (0.5, 0.3):
        constant, collapsed = collapse_of(np.full((5, 5), probability))
        np.testing.assert_allclose(constant, -(np.log(probability) + np.log(1 - probability)) / 2, rtol=1e-5)
        np.testing.assert_allclose(collapsed, constant, rtol=1e-6)
    trained, collapsed = collapse_of(np.where(np.eye(5), 0.9, 0.1))
    assert trained < 0.2 < np.log(2) <= collapsed
    loss, collapsed = collapse_of(0.45 + np.random.default_rng(0).normal(scale=0.01, size=(5, 5)))
    monitor = CollapseMonitor('target')
    line = {'target/ranking_loss': loss, 'target/collapsed_loss': collapsed}
    assert len([step for step in range(1, 600) if monitor.update(line | {'step': step})]) == 1


def test_gradient_norm_of_the_image_fc_layer():
    norms = gradient_norms({'image': {'image_fc': {'w': jnp.asarray([3.0, 4.0])}}, 'text': {'w': jnp.asarray([12.0])}})
    np.testing.assert_allclose(norms['image_fc_gradient_norm'], 5)
    np.testing.assert_allclose(norms['gradient_norm'], 13)
    assert gradient_norms({'w': jnp.ones(1)}).keys() == {'gradient_norm'}


def metrics_of(rankings, terms):
    """The metrics of a model with these rankings in the first epoch."""

    def of_source(rankings, terms):
        return mined_metrics(rankings, first_argument(terms, 'offline_margin', 0.0))

    def compute(rankings):
        values = {'m': objective(terms, rankings, 0)}
        gradients = {'m': {'w': jnp.zeros(1)}}
        batch = Batch(0, None, None, None)
        return step_metrics(values, {'m': rankings}, {}, gradients, {'m': terms}, 0, batch, of_source)

    return {name.removeprefix('m/'): value for name, value in on_one_device(compute)(rankings).items()}


@pytest.mark.slow
def test_mined_negatives_are_compared_with_the_batch():
    hardest = float(jnp.max(SCORES[0, 1:]))  # of the batch, mined too: its scores of two programs differ by rounding
    mined = jnp.asarray([hardest + 1e-6, 0.5, 1.0, 1.5, 2.0], jnp.float32)
    rankings = {name: ranking.with_inputs(offline_scores=mined) for name, ranking in rank_in_batch(range(5)).items()}
    rankings['i2t'] = rankings['i2t'].replace(negatives=rankings['i2t'].negatives.at[2].set(False))
    loss = ALWAYS | {'loss': 'offline.offline_triplet', 'offline_margin': 0.4, 'reduction': 'sum'}
    metrics = metrics_of(rankings, make_terms({'ranking': loss}))
    for name, matrix, queries in (('i2t', SCORES, [0, 1, 3, 4]), ('t2i', SCORES.T, range(5))):
        negatives = np.where(np.eye(5), -np.inf, matrix).max(axis=1)
        harder = [mined[q] > negatives[q] + 1e-5 for q in queries]
        np.testing.assert_allclose(metrics[f'mined/{name}/harder'], np.mean(harder))
        np.testing.assert_allclose(metrics[f'mined/{name}/active'], np.mean(mined + 0.4 > np.diag(matrix)))
        assert 0 < np.mean(harder) < 1
    plain = metrics_of(rank_in_batch(range(5)), make_terms({'ranking': HARDEST}))
    assert not any('mined' in name or 'noise' in name for name in plain)


def test_expected_ranks_are_those_of_the_hardest_of_random_pairs():
    split = make_split(20, 60)
    rng = np.random.default_rng(0)
    pipeline = types.SimpleNamespace(split=split, batch_size=4)

    def ranks_of(**options):
        candidates = functools.partial(in_batch_source, **options)
        context = Context({}, 4, {'candidates': candidates}, pending=True)
        source = with_mined(in_batch_source(), path='', top_h_texts=1, top_h_images=1, context=context)
        return source.samplers(pipeline)['mined'].constants

    ranks = ranks_of()
    assert ranks == {'mined/i2t/expected_rank': 15, 'mined/t2i/expected_rank': 5}
    hardest = [rng.choice(60, 3, replace=False).min() + 1 for _ in range(20000)]
    np.testing.assert_allclose(np.mean(hardest), ranks['mined/i2t/expected_rank'], rtol=0.03)
    assert ranks_of(num_negatives=2)['mined/i2t/expected_rank'] == 20


@pytest.mark.slow
def test_hard_share_uses_the_epsilon_of_the_loss():
    for epsilon, share in ((9.0, 0.0), (0.0, 1.0)):
        terms = make_terms({'ranking': HARDEST | {'loss': 'ranking.selective_hard_negative', 'epsilon': epsilon}})
        np.testing.assert_allclose(metrics_of(rank_in_batch(range(5)), terms)['hard_share'], share)


def test_inactive_terms_have_no_active_hinges():
    terms = make_terms({'early': HARDEST | {'end_epoch': 1}, 'late': HARDEST | {'start_epoch': 1}})
    terms['late'] = dataclasses.replace(terms['late'], loss=lambda scores, *masks: 0 * scores[:, 0])
    rankings = rank_in_batch(range(5))
    shares = [float(collapse_metrics(rankings, terms, epoch)['active_hinges']) for epoch in (0, 1)]
    assert shares[0] > 0
    assert shares[1] == 0
