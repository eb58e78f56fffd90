import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.errors import UserError
from jitm.training.candidates import InBatch, Shortlist
from jitm.types import Batch, Pairs
from tests.models.test_matchers import MATCHERS, make_inputs, perturb

MODEL = MATCHERS['vse_fc']
PAIRS, POOL, HARDEST = 4, 6, 3


@pytest.fixture(scope='module')
def variables():
    drawn = jax.jit(MODEL.init)(jax.random.key(0), *make_inputs())
    return {'params': perturb(drawn['params']), 'batch_stats': {}}


def make_batch(num_extra=POOL):
    images, texts = make_inputs(PAIRS + num_extra, PAIRS + num_extra)
    own, more = (
        jax.tree.map(lambda x, part=part: x[part], (images, texts)) for part in (slice(PAIRS), slice(PAIRS, None))
    )
    index = np.array([3, 5, 3, 8, 5, 1, 2, 3, 9, 8])[: PAIRS + num_extra].astype(np.int32)
    batch = Batch(np.int32(0), *own, index[:PAIRS])
    if num_extra:
        batch = batch.replace(extra=Pairs(*more), extra_index=index[PAIRS:])
    return batch, images, texts, index


def choose_and_score(model, variables, source, batch):
    def run(matcher):
        chosen = source.choose(matcher, batch, None)
        images, texts = matcher.encode_image(batch.images), matcher.encode_text(batch.texts)
        return source.score(matcher, images, texts, batch, chosen, None, train=False)

    return jax.jit(functools.partial(model.apply, method=run))(variables)


@pytest.mark.parametrize('num_extra', [POOL, 0])
def test_listed_rankings_hold_the_hardest_of_all_candidates_of_other_images(variables, num_extra):
    batch, images, texts, index = make_batch(num_extra)
    sims = np.asarray(jax.jit(MODEL.apply)(variables, images, texts))
    source = Shortlist(num_extra=num_extra, num_hard=HARDEST)
    rankings = source.rank(choose_and_score(MODEL, variables, source, batch), index)
    for direction, rows in (('i2t', sims[:PAIRS]), ('t2i', sims.T[:PAIRS])):
        ranking = rankings[direction]
        assert ranking.scores.shape == (PAIRS, 1 + HARDEST)
        assert np.asarray(ranking.positives).tolist() == [[True, *[False] * HARDEST]] * PAIRS
        for q in range(PAIRS):
            np.testing.assert_allclose(ranking.scores[q, 0], rows[q, q], atol=1e-5)
            others = np.sort(rows[q][index != index[q]])[::-1][:HARDEST]
            there = np.asarray(ranking.negatives[q, 1:])
            assert there.sum() == len(others)
            np.testing.assert_allclose(np.asarray(ranking.scores[q, 1:])[there], others, atol=1e-5)


def test_the_gradient_of_listed_scores_is_that_of_the_whole_matrix(variables):
    batch, images, texts, index = make_batch()
    source = Shortlist(num_extra=POOL, num_hard=POOL + PAIRS - 1)

    def listed(params):
        rankings = source.rank(choose_and_score(MODEL, variables | {'params': params}, source, batch), index)
        return sum(jnp.sum(jnp.where(r.negatives | r.positives, jnp.sin(r.scores), 0)) for r in rankings.values())

    def whole(params):
        sims = MODEL.apply(variables | {'params': params}, images, texts)
        counted = (index[:, None] != index) | np.eye(len(index), dtype=bool)
        return sum(jnp.sum(jnp.where(counted, jnp.sin(s), 0)[:PAIRS]) for s in (sims, sims.T))

    got, want = (jax.jit(jax.value_and_grad(loss))(variables['params']) for loss in (listed, whole))
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-5), got, want)


def test_sources_refuse_sizes_that_mean_nothing():
    with pytest.raises(UserError, match=r"'candidates.num_extra' is -1; it must not be negative"):
        Shortlist(num_extra=-1, num_hard=3)
    with pytest.raises(UserError, match=r"'candidates.num_hard' is 0; it must be at least 1"):
        Shortlist(num_extra=4, num_hard=0)


def test_a_batch_is_its_own_candidates(variables):
    batch, _, _, index = make_batch(0)
    source = InBatch(same_image='ignored')
    rankings = source.rank(choose_and_score(MODEL, variables, source, batch), index)
    want = np.asarray(jax.jit(MODEL.apply)(variables, batch.images, batch.texts))
    np.testing.assert_allclose(rankings['i2t'].scores, want, atol=1e-6)
    np.testing.assert_allclose(rankings['t2i'].scores, want.T, atol=1e-6)
