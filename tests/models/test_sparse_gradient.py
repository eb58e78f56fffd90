"""The sparse gradient of scores against the dense one, in float64."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.devices import parallel, policy
from jitm.losses import anchored, offline, ranking
from jitm.models import tiling
from jitm.models.tiled import TiledMatcher
from tests.support.matchers import MATCHERS, make_inputs, random_variables

BATCH = 8
MARGIN = {'margin': 0.2}
ALL_PAIRS = 1.0  # values of `tiling.SPARSE`
SOME_PAIRS = tiling.SPARSE
NO_PAIRS = 1e-9
TILED = {name: model for name, model in MATCHERS.items() if isinstance(model, TiledMatcher) and name != 'saf'}
CASES = {*{type(model): name for name, model in reversed(TILED.items())}.values(), 'scan_i2t', 'imram_both'}


def losses(anchor_scores):
    """Losses that depend on few pairs of each query, by name."""
    extra = jnp.linspace(-1, 1, BATCH)
    return {
        'max_of_hinges': functools.partial(ranking.max_of_hinges, **MARGIN),
        'semi_hard_hinge': functools.partial(ranking.semi_hard_hinge, **MARGIN),
        'selective_contrastive': functools.partial(ranking.selective_contrastive, **MARGIN),
        'selective_hard_negative': functools.partial(ranking.selective_hard_negative, **MARGIN, epsilon=0.0),
        'polynomial': functools.partial(ranking.polynomial, margin=9.0),
        'relative_max': functools.partial(anchored.relative_max, anchor_scores=anchor_scores, **MARGIN),
        'absolute_max': functools.partial(anchored.absolute_max, anchor_scores=anchor_scores, **MARGIN),
        'offline_triplet': functools.partial(offline.offline_triplet, offline_scores=extra),
    }


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(CASES))  # the first model of each class
def test_sparse_and_dense_gradients_agree(monkeypatch, name):
    with jax.enable_x64(True):
        check_gradients(monkeypatch, name)


def check_gradients(monkeypatch, name):
    monkeypatch.setitem(policy.TILE_FLOATS, 'cpu', 1000)  # several tiles
    model = MATCHERS[name]
    (images, texts) = make_inputs(BATCH, BATCH)
    variables = {'batch_stats': {}} | jax.tree.map(np.float64, random_variables(model, images, texts))

    def score(params):
        def similarity(model):
            return model.similarity(model.encode_image(images), model.encode_text(texts), True)

        return model.apply(variables | {'params': params}, method=similarity, mutable=['batch_stats'])[0]

    def pull(share, platform='cpu'):
        monkeypatch.setattr(tiling, 'SPARSE', share)
        monkeypatch.setattr(parallel, 'platform', lambda: platform)
        compiled = jax.jit(lambda params, cotangents: jax.vjp(score, params)[1](cotangents)[0])
        return functools.partial(compiled.lower(variables['params'], scores).compile(), variables['params'])

    scores = jax.jit(score)(variables['params'])
    sparse = pull(ALL_PAIRS)
    dense = pull(NO_PAIRS)
    on_accelerators = pull(SOME_PAIRS, 'tpu')
    assert scores.dtype == jnp.float64
    positives = jnp.eye(BATCH, dtype=bool)
    for key, loss in losses(jnp.asarray(np.random.default_rng(0).normal(size=scores.shape))).items():
        cotangents = jax.grad(lambda s, loss=loss: jnp.sum(loss(s, positives)) + jnp.sum(loss(s.T, positives)))(scores)
        assert 0 < jnp.count_nonzero(cotangents) <= 3 * BATCH, key
        got = sparse(cotangents)
        want = dense(cotangents)
        assert max(jnp.abs(leaf).max() for leaf in jax.tree.leaves(want)) > 1e-3, key
        chex.assert_trees_all_close(got, want, atol=1e-10, rtol=1e-10)
        chex.assert_trees_all_close(on_accelerators(cotangents), want, atol=1e-10, rtol=1e-10)
