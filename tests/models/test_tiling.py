"""Tiles of pairs against the whole at once."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.models import tiling


@pytest.mark.parametrize(('image_tile', 'text_tile'), [(1, 1), (2, 4), (3, 5), (8, 8)])
def test_tiles_give_every_pair(image_tile, text_tile):
    rng = np.random.default_rng(0)
    images = {'a': rng.normal(size=(3, 4))}
    texts = {'b': rng.normal(size=(5, 4))}

    def block(factor, images, texts):
        return factor * jnp.einsum('id,td->it', images['a'], texts['b'] ** 2)

    got = tiling.map_pairs(block, 2.0, images, texts, image_tile, text_tile)
    np.testing.assert_allclose(got, 2 * images['a'] @ (texts['b'] ** 2).T, rtol=1e-5)


@pytest.mark.parametrize(('nonzero', 'sparse'), [(0, True), (1, True), (5, True), (6, True), (7, False), (30, False)])
def test_few_pairs_with_a_gradient_are_scored_again_and_many_are_not(nonzero, sparse):
    rng = np.random.default_rng(0)
    images, texts, weights = (rng.normal(size=shape).astype(np.float32) for shape in ((3, 4), (10, 4), (4,)))
    cotangents = np.zeros(30, np.float32)
    cotangents[rng.permutation(30)[:nonzero]] = rng.normal(size=nonzero)
    cotangents = cotangents.reshape(3, 10)

    def scores(weights, images, texts):
        return jnp.einsum('d,id,td->it', weights, images, texts['vectors'] ** 2)

    def twice(weights, images, texts):  # other values, which tell where a gradient came from
        return 2 * jnp.einsum('d,nd,nd->n', weights, images, texts['vectors'] ** 2)

    def gradients(function):
        def loss(weights, images, vectors):
            return jnp.sum(cotangents * function(weights, images, {'vectors': vectors, 'number': np.arange(10)}))

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(weights, images, texts)

    value, got = gradients(tiling.with_sparse_gradient(scores, twice, tile=4, share=6 / 30))
    want_value, want = gradients(scores)
    np.testing.assert_array_equal(value, want_value)
    factor = 2 if sparse else 1
    chex.assert_trees_all_close(got, jax.tree.map(lambda x: factor * x, want), rtol=1e-5, atol=1e-6)


def test_a_score_that_is_nan_is_not_overlooked():
    images = np.ones((3, 2), np.float32)
    texts = np.ones((4, 2), np.float32)
    scores = tiling.with_sparse_gradient(
        lambda _, images, texts: images @ texts.T,
        lambda _, images, texts: jnp.sum(images * texts, 1),
        tile=2,
        share=0.5,
    )
    gradient = jax.grad(lambda images: scores({}, images, texts)[1, 2] * jnp.nan)(images)
    np.testing.assert_array_equal(np.isnan(gradient).any(1), [False, True, False])
