"""Terms, diagnostics, and the training step of independent models."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jitm.data import scenes
from jitm.data.pairs.augmentation import Augmentation
from jitm.data.pipeline import Pipeline
from jitm.data.text.vocabularies import tokenize_split
from jitm.data.text.word_level import Vocabulary
from jitm.losses import ranking
from jitm.training.diagnostics import collapse_metrics, gradient_norms, step_metrics
from jitm.training.logs import CollapseMonitor
from jitm.training.members import Gradient, Member, MemberState, init_members
from jitm.training.objective import first_argument, objective, token_terms
from jitm.training.source import Context
from jitm.training.sources.mined import mined_metrics, with_mined
from jitm.training.step import TrainState
from jitm.types import Batch
from tests.conftest import UNCHANGED
from tests.mining.test_mining import make_split
from tests.training.models import compile_step, in_batch_source, make_terms, on_one_device, small_vse
from tests.training.test_sources import SCORES, rank_in_batch

TERM = {
    'loss': 'ranking.max_of_hinges',
    'margin': 0.2,
    'weight': 1.0,
    'start_epoch': 0,
    'end_epoch': None,
    'reduction': 'sum',
}
CAPTION = {'loss': 'tokens.captioning', 'weight': 1.0, 'start_epoch': 0, 'end_epoch': None, 'reduction': 'mean'}


@pytest.mark.slow
def test_loss_takes_the_relevance_of_a_ranking():
    phi = np.random.default_rng(1).normal(size=(5, 5)).astype(np.float32)
    both = rank_in_batch(range(5), relevance=phi)
    adaptive = {key: value for key, value in TERM.items() if key != 'margin'} | {'loss': 'ranking.adaptive_margin'}
    terms = make_terms({'hard': TERM, 'sam': adaptive})
    total, values = objective(terms, both, epoch=0)
    s, want = np.asarray(SCORES, np.float64), 0.0
    for i in range(5):
        for j in range(5):
            if i != j:
                want += max(0, (phi[i, i] - phi[i, j]) / 5 + s[i, j] - s[i, i])
                want += max(0, (phi[i, i] - phi[j, i]) / 5 + s[j, i] - s[i, i])
    np.testing.assert_allclose(values['sam'], want, rtol=1e-5)
    np.testing.assert_allclose(total, values['hard'] + values['sam'], rtol=1e-6)
    positive = [(terms['hard'].per_query(r) + terms['sam'].per_query(r)) > 0 for r in both.values()]
    np.testing.assert_allclose(collapse_metrics(both, terms, 0)['active_hinges'], np.mean(positive))


def test_terms_are_active_in_their_epochs_and_weighted():
    terms = {
        'warm_up': TERM | {'loss': 'ranking.sum_of_hinges', 'end_epoch': 2, 'reduction': 'mean'},
        'hard': TERM | {'start_epoch': 1, 'weight': 0.5},
    }
    both = rank_in_batch(range(5))
    eye = jnp.eye(5, dtype=bool)
    warm = sum(ranking.sum_of_hinges(s, eye, margin=0.2).mean() for s in (SCORES, SCORES.T))
    hard = 0.5 * sum(ranking.max_of_hinges(s, eye, margin=0.2).sum() for s in (SCORES, SCORES.T))
    for epoch, want in ((0, warm), (1, warm + hard), (2, hard)):
        np.testing.assert_allclose(objective(make_terms(terms), both, epoch)[0], want, rtol=1e-6)


def test_token_term_reduces_its_losses():
    terms = make_terms({'ranking': TERM, 'caption': CAPTION | {'weight': 0.5, 'start_epoch': 1}})
    assert {name: term.predictions for name, term in token_terms(terms).items()} == {'caption': 'captioning'}
    both = rank_in_batch(range(5))
    losses = {'caption': jnp.asarray([1.0, 2.0, 6.0, 0.0, 1.0])}
    for epoch, want in ((0, 0), (1, 1)):
        total, values = objective(terms, both, epoch, losses)
        np.testing.assert_allclose(values['caption'], want)
        np.testing.assert_allclose(total, values['ranking'] + want, rtol=1e-6)


@pytest.fixture(scope='module')
def parts():
    split = scenes.load('train', train_images=8)
    vocabulary = Vocabulary.build(split.captions, 1)
    tokens = tokenize_split(split.captions, vocabulary)
    pipeline = Pipeline(split, tokens, vocabulary, 8, 0, length_multiple=32, augmentation=Augmentation(**UNCHANGED))
    model = small_vse(len(vocabulary))
    member = Member(rule=Gradient(), model=model, optimizer=optax.sgd(0.1))
    members = {'target': member, 'other': member}
    terms = make_terms({'ranking': TERM, 'later': TERM | {'start_epoch': 1}})
    parts = {'members': members, 'terms': terms, 'source': in_batch_source('ignored')}
    step = compile_step(**parts, seed=0, steps_per_epoch=5, epochs=2)
    batch = pipeline.batch(0)
    state = TrainState(jnp.int32(0), init_members(members, 0, batch.images, batch.texts))
    return step, state, pipeline


def test_gradient_rule_updates_statistics_and_optimizer():
    member = Member(rule=Gradient(), optimizer=optax.trace(0.5))
    state = MemberState({'w': jnp.zeros(1)}, {'mean': 0}, member.optimizer.init({'w': jnp.zeros(1)}))
    for mean in (1, 2):
        state = member.take_gradient_step(state, {'w': jnp.ones(1)}, {'mean': mean})
    assert state.batch_stats == {'mean': 2}
    np.testing.assert_allclose(state.params['w'], 1 + 1.5)


@pytest.mark.slow
def test_term_starts_at_the_first_step_of_its_epoch(parts):
    step, state, pipeline = parts
    for n, active in ((4, False), (5, True)):
        _, metrics = step(state.replace(step=jnp.int32(n)), pipeline.batch(n))
        assert (metrics['target/terms/later'] > 0) == active


@pytest.mark.slow
def test_members_train_from_their_own_parameters(parts):
    step, state, pipeline = parts
    after, metrics = step(state, pipeline.batch(0))
    assert int(after.step) == 1
    kernels = [
        s.members[name].params['image']['image_fc']['kernel'] for s in (state, after) for name in ('target', 'other')
    ]
    assert not np.allclose(kernels[0], kernels[1])
    assert not np.allclose(kernels[0], kernels[2])
    assert metrics['target/loss'] != metrics['other/loss']
    assert metrics['finite']


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
    _, metrics = step(state, pipeline.batch(0))
    np.testing.assert_allclose(metrics['target/collapsed_loss'], 2 * 8 * 0.2, rtol=1e-6)
    np.testing.assert_allclose(metrics['target/ranking_loss'], metrics['target/loss'], rtol=1e-6)
    batch = pipeline.batch(0)
    model = small_vse(len(pipeline.vocabulary))
    s = np.asarray(model.apply({'params': state.members['target'].params}, batch.images, batch.texts))
    gaps, active = [], []
    assert len(np.unique(batch.image_index)) < 8
    for matrix in (s, s.T):
        for n in range(8):
            gaps.append(matrix[n, n] - matrix[n, batch.image_index != batch.image_index[n]].max())
            active.append(gaps[-1] < 0.2)
    np.testing.assert_allclose(metrics['target/gap'], np.mean(gaps), atol=1e-6)
    np.testing.assert_allclose(metrics['target/active_hinges'], np.mean(active))
    np.testing.assert_allclose(metrics['target/absolute_gap'], np.mean(np.abs(gaps)), atol=1e-6)
    np.testing.assert_allclose(metrics['target/hard_share'], np.mean(np.abs(gaps) > 0.01))


def collapse_of(scores, **term):
    """The loss of scores, and its value for constant scores."""
    keys = {'weight': 0.5, 'start_epoch': 0, 'end_epoch': None, 'reduction': 'mean'}
    terms = make_terms({'ranking': term | keys})
    metrics = collapse_metrics(rank_in_batch(range(5), jnp.asarray(scores, jnp.float32)), terms, 0)
    return float(metrics['ranking_loss']), float(metrics['collapsed_loss'])


def test_collapse_of_probabilities_is_warned_of():
    """Of a model that gives every pair the same probability, such as a UNITER or an OSCAR that does not train."""
    loss = {'loss': 'ranking.matching_cross_entropy'}
    for probability in (0.5, 0.3):
        constant, collapsed = collapse_of(np.full((5, 5), probability), **loss)
        np.testing.assert_allclose(constant, -(np.log(probability) + np.log(1 - probability)) / 2, rtol=1e-5)
        np.testing.assert_allclose(collapsed, constant, rtol=1e-6)
    trained, collapsed = collapse_of(np.where(np.eye(5), 0.9, 0.1), **loss)
    assert trained < 0.2 < np.log(2) <= collapsed
    noise = np.random.default_rng(0).normal(scale=0.01, size=(5, 5))
    loss, collapsed = collapse_of(0.45 + noise, **loss)
    monitor = CollapseMonitor('target')
    lines = ({'step': n, 'target/ranking_loss': loss, 'target/collapsed_loss': collapsed} for n in range(1, 600))
    assert len(list(filter(None, map(monitor.update, lines)))) == 1


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
        values, gradients = {'m': objective(terms, rankings, 0)}, {'m': {'w': jnp.zeros(1)}}
        return step_metrics(
            values, {'m': rankings}, {}, gradients, {'m': terms}, 0, Batch(0, None, None, None), of_source
        )

    metrics = on_one_device(compute)(rankings)
    return {name.removeprefix('m/'): value for name, value in metrics.items()}


@pytest.mark.slow
def test_mined_negatives_are_compared_with_the_batch():
    hardest = float(jnp.max(SCORES[0, 1:]))  # of the batch, mined too: its scores of two programs differ by rounding
    mined = jnp.asarray([hardest + 1e-6, 0.5, 1.0, 1.5, 2.0], jnp.float32)
    both = {name: ranking.with_inputs(offline_scores=mined) for name, ranking in rank_in_batch(range(5)).items()}
    both['i2t'] = both['i2t'].replace(negatives=both['i2t'].negatives.at[2].set(False))
    loss = {key: value for key, value in TERM.items() if key != 'margin'} | {'loss': 'offline.offline_triplet'}
    terms = make_terms({'ranking': loss | {'offline_margin': 0.4}})
    metrics = metrics_of(both, terms)
    for name, matrix, queries in (('i2t', SCORES, [0, 1, 3, 4]), ('t2i', SCORES.T, range(5))):
        harder = [mined[q] > max(matrix[q][c] for c in range(5) if c != q) + 1e-5 for q in queries]
        np.testing.assert_allclose(metrics[f'mined/{name}/harder'], np.mean(harder))
        active = [mined[q] + 0.4 - matrix[q][q] > 0 for q in range(5)]
        np.testing.assert_allclose(metrics[f'mined/{name}/active'], np.mean(active))
        assert 0 < np.mean(harder) < 1
    plain = metrics_of(rank_in_batch(range(5)), make_terms({'ranking': TERM}))
    assert not any('mined' in name or 'noise' in name for name in plain)


def test_expected_ranks_are_those_of_the_hardest_of_random_pairs():
    split, rng = make_split(20, 60), np.random.default_rng(0)
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
        terms = make_terms({'ranking': TERM | {'loss': 'ranking.selective_hard_negative', 'epsilon': epsilon}})
        np.testing.assert_allclose(metrics_of(rank_in_batch(range(5)), terms)['hard_share'], share)


def test_inactive_terms_have_no_active_hinges():
    terms = make_terms({'early': TERM | {'end_epoch': 1}, 'late': TERM | {'start_epoch': 1}})
    terms['late'] = dataclasses.replace(terms['late'], loss=lambda scores, *masks: 0 * scores[:, 0])
    both = rank_in_batch(range(5))
    shares = [float(collapse_metrics(both, terms, epoch)['active_hinges']) for epoch in (0, 1)]
    assert shares[0] > 0
    assert shares[1] == 0
