"""Rankings, terms, members, and the step they make."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jitm.data import scenes
from jitm.data.augmentation import Augmentation
from jitm.data.pipeline import Pipeline, tokenize_split
from jitm.data.text import Vocabulary
from jitm.errors import UserError
from jitm.losses import ranking
from jitm.training import candidates
from jitm.training.candidates import InBatch
from jitm.training.diagnostics import collapse_metrics, gradient_norms
from jitm.training.logs import CollapseMonitor
from jitm.training.members import Member, MemberState, Outcome, gradient, init_members
from jitm.training.objective import make_terms, objective
from jitm.training.step import TrainState, make_train_step
from jitm.types import TokenPredictions
from tests.conftest import UNCHANGED
from tests.models.test_matchers import make_vse

TERM = {
    'loss': 'ranking.max_of_hinges',
    'margin': 0.2,
    'weight': 1.0,
    'start_epoch': 0,
    'end_epoch': None,
    'reduction': 'sum',
}
CAPTION = {'loss': 'tokens.captioning', 'weight': 1.0, 'start_epoch': 0, 'end_epoch': None, 'reduction': 'mean'}
SCORES = jnp.asarray(np.random.default_rng(0).normal(size=(5, 5)), jnp.float32)


@pytest.mark.parametrize('same_image', candidates.SAME_IMAGE)
def test_in_batch_rankings_mine_both_directions(same_image):
    both = candidates.in_batch(SCORES, jnp.asarray([4, 7, 4, 1, 0]), same_image=same_image)
    np.testing.assert_array_equal(both['t2i'].scores, both['i2t'].scores.T)
    for r in both.values():
        assert r.positives.diagonal().all()
        assert not (r.positives & r.negatives).any()
        assert r.positives[0, 2] == r.positives[2, 0] == (same_image == 'positive')
        assert r.negatives[0, 2] == r.negatives[2, 0] == (same_image == 'negative')
        assert int(r.positives.sum() + r.negatives.sum()) == 25 - (2 if same_image == 'ignored' else 0)


def test_copies_of_a_pair_match_each_other():
    scores = jnp.arange(36.0).reshape(6, 6)
    both = candidates.in_batch(scores, jnp.asarray([5, 9, 5]), same_image='ignored')
    blocks = np.kron(np.eye(3), np.ones((2, 2))).astype(bool)
    np.testing.assert_array_equal(both['i2t'].positives, blocks)
    np.testing.assert_array_equal(
        both['i2t'].negatives, np.kron(np.array([5, 9, 5])[:, None] != [5, 9, 5], np.ones((2, 2)))
    )


def test_what_a_pair_of_the_same_image_is_must_be_known():
    with pytest.raises(UserError, match=r"'candidates.same_image' is 'x'; take one of negative, positive, ignored"):
        candidates.in_batch(SCORES, jnp.arange(5), same_image='x')


def test_margins_are_differences_in_relevance_to_the_query():
    phi = np.random.default_rng(1).normal(size=(5, 5)).astype(np.float32)
    both = candidates.in_batch(SCORES, jnp.arange(5), phi, same_image='negative', margin_temperature=4.0)
    for i in range(5):
        for j in range(5):
            np.testing.assert_allclose(both['i2t'].margins[i, j], (phi[i, i] - phi[i, j]) / 4, rtol=1e-6)
            np.testing.assert_allclose(both['t2i'].margins[i, j], (phi[i, i] - phi[j, i]) / 4, rtol=1e-6)
    plain = candidates.in_batch(SCORES, jnp.arange(5), same_image='negative')
    assert all(r.margins is None for r in plain.values())


def test_a_loss_is_given_the_margins_it_asks_for():
    phi = np.random.default_rng(1).normal(size=(5, 5)).astype(np.float32)
    both = candidates.in_batch(SCORES, jnp.arange(5), phi, same_image='negative', margin_temperature=4.0)
    adaptive = {key: value for key, value in TERM.items() if key != 'margin'} | {'loss': 'ranking.adaptive_margin'}
    terms = make_terms({'hard': TERM, 'sam': adaptive}, supplied=('margins',))
    total, values = objective(terms, both, epoch=0)
    s, want = np.asarray(SCORES, np.float64), 0.0
    for i in range(5):
        for j in range(5):
            if i != j:
                want += max(0, (phi[i, i] - phi[i, j]) / 4 + s[i, j] - s[i, i])
                want += max(0, (phi[i, i] - phi[j, i]) / 4 + s[j, i] - s[i, i])
    np.testing.assert_allclose(values['sam'], want, rtol=1e-5)
    np.testing.assert_allclose(total, values['hard'] + values['sam'], rtol=1e-6)
    positive = [(terms['hard'].per_query(r) + terms['sam'].per_query(r)) > 0 for r in both.values()]
    np.testing.assert_allclose(collapse_metrics(both, terms, 0)['active_hinges'], np.mean(positive))


def test_the_published_value_is_the_sum_of_both_directions():
    both = candidates.in_batch(SCORES, jnp.arange(5), same_image='negative')
    total, values = objective(make_terms({'ranking': TERM}), both, epoch=0)
    s = np.asarray(SCORES, np.float64)
    want = sum(max(max(0, 0.2 + s[i, j] - s[i, i]) for j in range(5) if j != i) for i in range(5))
    want += sum(max(max(0, 0.2 + s[i, j] - s[j, j]) for i in range(5) if i != j) for j in range(5))
    np.testing.assert_allclose(total, want, rtol=1e-6)
    assert values.keys() == {'ranking'}


def test_the_released_scaling_of_selective_hard_negative_is_half_the_mean_of_both_directions():
    term = TERM | {'loss': 'ranking.selective_hard_negative', 'epsilon': 0.5, 'weight': 0.5, 'reduction': 'mean'}
    both = candidates.in_batch(SCORES, jnp.arange(5), same_image='negative')
    total, _ = objective(make_terms({'ranking': term}), both, epoch=0)
    want, averaged = 0.0, 0
    for s in (np.asarray(SCORES, np.float64), np.asarray(SCORES, np.float64).T):
        for i in range(5):
            others = [s[i, j] for j in range(5) if j != i]
            hinges = [max(0, 0.2 + other - s[i, i]) for other in others]
            vanishing = abs(s[i, i] - max(others)) < 0.5
            averaged += vanishing
            want += (sum(hinges) / 4 if vanishing else max(hinges)) / 5 / 2
    assert 0 < averaged < 10
    np.testing.assert_allclose(total, want, rtol=1e-6)


def test_terms_come_and_go_with_the_epoch_and_have_weights():
    terms = {
        'warm_up': TERM | {'loss': 'ranking.sum_of_hinges', 'end_epoch': 2, 'reduction': 'mean'},
        'hard': TERM | {'start_epoch': 1, 'weight': 0.5},
    }
    both = candidates.in_batch(SCORES, jnp.arange(5), same_image='negative')
    eye = jnp.eye(5, dtype=bool)
    warm = sum(ranking.sum_of_hinges(s, eye, margin=0.2).mean() for s in (SCORES, SCORES.T))
    hard = 0.5 * sum(ranking.max_of_hinges(s, eye, margin=0.2).sum() for s in (SCORES, SCORES.T))
    for epoch, want in ((0, warm), (1, warm + hard), (2, hard)):
        np.testing.assert_allclose(objective(make_terms(terms), both, epoch)[0], want, rtol=1e-6)


def test_token_terms_reduce_the_losses_of_the_texts():
    terms = make_terms({'ranking': TERM, 'caption': CAPTION | {'weight': 0.5, 'start_epoch': 1}})
    assert [term.predictions for term in terms.values()] == [None, 'captioning']
    both = candidates.in_batch(SCORES, jnp.arange(5), same_image='negative')
    losses = {'caption': jnp.asarray([1.0, 2.0, 6.0, 0.0, 1.0])}
    for epoch, want in ((0, 0), (1, 1)):
        total, values = objective(terms, both, epoch, losses)
        np.testing.assert_allclose(values['caption'], want)
        np.testing.assert_allclose(total, values['ranking'] + want, rtol=1e-6)


def test_a_token_term_takes_the_predictions_of_its_name():
    rng = np.random.default_rng(0)
    other, own = (
        TokenPredictions(jnp.asarray(rng.normal(size=(3, 2, 4))), jnp.zeros((3, 2), int), jnp.ones((3, 2), bool))
        for _ in range(2)
    )
    term = make_terms({'any_name': CAPTION})['any_name']
    want = -jax.nn.log_softmax(own.logits)[:, :, 0].sum(1)
    np.testing.assert_allclose(term.per_text({'other': other, 'captioning': own}), want, rtol=1e-6)


@pytest.fixture(scope='module')
def parts():
    split = scenes.load('train', train_images=8)
    vocabulary = Vocabulary.build(split.captions, 1)
    tokens = tokenize_split(split.captions, vocabulary)
    pipeline = Pipeline(split, tokens, vocabulary, 8, 0, length_multiple=32, augmentation=Augmentation(**UNCHANGED))
    model = make_vse(vocab_size=len(vocabulary))
    member = Member(model, gradient, optax.sgd(0.1))
    members = {'target': member, 'other': member}
    step = make_train_step(
        members,
        make_terms({'ranking': TERM, 'later': TERM | {'start_epoch': 1}}),
        InBatch(same_image='ignored'),
        seed=0,
        steps_per_epoch=5,
        epochs=2,
    )
    batch = pipeline.batch(0)
    state = TrainState(jnp.int32(0), init_members(members, 0, batch.images, batch.texts))
    return jax.jit(step), state, pipeline


def test_the_gradient_rule_carries_statistics_and_optimizer_on():
    member = Member(None, gradient, optax.trace(0.5))
    state = MemberState({'w': jnp.zeros(1)}, {'mean': 0}, member.optimizer.init({'w': jnp.zeros(1)}))
    for mean in (1, 2):
        state = gradient(state, Outcome(member.optimizer, {'w': jnp.ones(1)}, {'mean': mean}, 0.0, {}))
    assert state.batch_stats == {'mean': 2}
    np.testing.assert_allclose(state.params['w'], 1 + 1.5)


def test_terms_begin_with_the_first_step_of_their_epoch(parts):
    step, state, pipeline = parts
    for n, active in ((4, False), (5, True)):
        _, metrics = step(state.replace(step=jnp.int32(n)), pipeline.batch(n))
        assert (metrics['target/terms/later'] > 0) == active


def test_members_train_side_by_side_from_their_own_parameters(parts):
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


def test_a_step_is_a_descent_along_the_gradient_of_the_loss(parts):
    step, state, pipeline = parts
    losses = []
    for _ in range(20):
        state = state.replace(step=jnp.int32(0))
        state, metrics = step(state, pipeline.batch(0))
        losses.append(float(metrics['target/loss']))
    assert losses[-1] < 0.9 * losses[0]


def test_an_infinite_gradient_of_a_finite_loss_is_not_followed(parts):
    step, state, pipeline = parts
    state = jax.tree_util.tree_map_with_path(
        lambda path, x: 1e-25 * x if 'image_fc' in jax.tree_util.keystr(path) else x, state
    )
    batch = pipeline.batch(0)
    after, metrics = step(state, batch.replace(images=batch.images.replace(regions=1e25 * batch.images.regions)))
    assert np.isfinite(metrics['target/loss'])
    assert not metrics['finite']
    assert int(after.step) == 0


def test_a_non_finite_batch_leaves_the_state_alone_and_so_do_the_next(parts):
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


def test_instruments_by_hand(parts):
    step, state, pipeline = parts
    _, metrics = step(state, pipeline.batch(0))
    np.testing.assert_allclose(metrics['target/collapsed_loss'], 2 * 8 * 0.2, rtol=1e-6)
    np.testing.assert_allclose(metrics['target/ranking_loss'], metrics['target/loss'], rtol=1e-6)
    batch = pipeline.batch(0)
    model = make_vse(vocab_size=len(pipeline.vocabulary))
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


def test_the_gradient_that_reaches_the_image_fc_layer_is_told():
    norms = gradient_norms({'image': {'image_fc': {'w': jnp.asarray([3.0, 4.0])}}, 'text': {'w': jnp.asarray([12.0])}})
    np.testing.assert_allclose(norms['image_fc_gradient_norm'], 5)
    np.testing.assert_allclose(norms['gradient_norm'], 13)
    assert gradient_norms({'w': jnp.ones(1)}).keys() == {'gradient_norm'}


def test_the_hard_branch_has_the_epsilon_of_the_loss(parts):
    _, state, pipeline = parts
    loss = {'loss': 'ranking.selective_hard_negative'}
    for epsilon, share in ((3.0, 0.0), (0.0, 1.0)):
        step = make_train_step(
            {'target': Member(make_vse(vocab_size=len(pipeline.vocabulary)), gradient, optax.sgd(0.1))},
            make_terms({'ranking': TERM | loss | {'epsilon': epsilon}}),
            InBatch(same_image='ignored'),
            seed=0,
            steps_per_epoch=5,
            epochs=2,
        )
        one = state.replace(members={'target': state.members['target']})
        np.testing.assert_allclose(step(one, pipeline.batch(0))[1]['target/hard_share'], share)


def test_the_monitor_warns_once_per_plateau():
    monitor = CollapseMonitor()
    said = [monitor.update(loss, 51.2) for loss in [80] + [51.3] * 15 + [30] + [50.9] * 10]
    warnings = [n for n, text in enumerate(said) if text]
    assert warnings == [10, 26]
    assert 'the loss sits at 51.30, where it is when all scores are equal (51.20)' in said[10]


def test_terms_that_do_not_count_are_not_active():
    terms = {'early': TERM | {'end_epoch': 1}, 'late': TERM | {'start_epoch': 1, 'margin': -9.0}}
    both = candidates.in_batch(SCORES, jnp.arange(5), same_image='negative')
    shares = [float(collapse_metrics(both, make_terms(terms), epoch)['active_hinges']) for epoch in (0, 1)]
    assert shares[0] > 0
    assert shares[1] == 0
