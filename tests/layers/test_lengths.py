"""Texts in groups of similar lengths against all at their padded length."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.devices import parallel
from jitm.layers import lengths
from jitm.types import Elements, Profile, Segment

PROFILE = Profile((Segment(0, 4, 10), Segment(4, 8, 6), Segment(8, 12, 3), Segment(12, 16, 2)), tokens=80)
LENGTHS = [3, 16, 9, 2, 6, 8, 15, 1, 7, 4]


def make_texts(repeats=1, profile=PROFILE):
    mask = np.arange(16) < np.array(LENGTHS * repeats)[:, None]
    vectors = np.random.default_rng(1).normal(size=(*mask.shape, 3)).astype(np.float32)
    return Elements(vectors * mask[..., None], mask, whole=vectors[:, 0], profile=profile)


def pool(texts):
    """Pools words to [2, T]; the number of padded words does not matter, but is written into `PADDED`."""
    PADDED.append(texts.mask.shape)
    pooled = jnp.sum(jnp.sin(texts.vectors) * texts.mask[..., None], axis=1) + texts.whole
    return {'two': jnp.stack([pooled[:, 0], pooled[:, 1]])}


PADDED = []


@pytest.mark.parametrize(
    ('platform', 'repeats', 'padded'),
    [
        ('cpu', 1, [(2, 16), (1, 12), (3, 8), (4, 4)]),
        ('cpu', 2, [(4, 16), (2, 12), (6, 8), (8, 4)]),
        ('tpu', 1, [(10, 16)]),
    ],
)
def test_groups_give_every_text_and_its_gradient(platform, repeats, padded, monkeypatch):
    monkeypatch.setattr(parallel, 'platform', lambda: platform)
    texts = jax.tree.map(jnp.asarray, make_texts(repeats))

    def loss(vectors):
        results = lengths.by_length(pool, texts.replace(vectors=vectors), axis=1)
        return jnp.sum(results['two'] ** 2), results

    PADDED.clear()
    got = jax.jit(jax.grad(loss, has_aux=True))(texts.vectors)
    assert padded == PADDED
    texts = texts.replace(profile=None)
    PADDED.clear()
    chex.assert_trees_all_close(got, jax.jit(jax.grad(loss, has_aux=True))(texts.vectors), rtol=1e-5, atol=1e-6)
    assert [(10 * repeats, 16)] == PADDED


def test_the_profile_of_another_number_of_texts_is_ignored():
    PADDED.clear()
    lengths.by_length(pool, make_texts(profile=Profile((Segment(0, 4, 4), Segment(4, 16, 1)), 64)))
    assert PADDED == [(10, 16)]


@pytest.mark.parametrize(('rows', 'cut'), [([7, 3], 4), ([7, 5], 8), ([2], 12), ([1, 2], 16)])
def test_a_few_texts_are_cut_to_the_first_bound_that_holds_them(rows, cut):
    texts = jax.tree.map(lambda x: x[np.array(rows)], make_texts())

    def count(some):
        return jnp.asarray(some.mask.shape[1]), pool(some)

    padded, result = jax.jit(lambda texts: lengths.at_own_length(count, texts))(texts)
    assert padded == cut
    chex.assert_trees_all_close(result, pool(texts), rtol=1e-5)
    assert lengths.at_own_length(count, texts.replace(profile=None))[0] == 16
