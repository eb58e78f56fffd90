import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jitm.synthesis import refill
from jitm.types import Masked

A = 4
B = 5
C = 6
D = 7
REFILL = jax.jit(refill.refill, static_argnums=2)


def make_masked(seed=0, views=3, length=5, vocabulary=9):
    rng = np.random.default_rng(seed)
    labelled = rng.random((views, length)) < 0.4
    labelled[:, 0] = False
    ids = rng.integers(1, vocabulary, (views, length)).astype(np.int32)
    return Masked(ids, labelled), rng.normal(size=(views, length, vocabulary)).astype(np.float32)


def test_only_masked_positions_are_refilled():
    masked, logits = make_masked()
    got = np.asarray(REFILL(logits, masked, 4, 1.0, jax.random.key(0)))
    assert got.shape == (12, 5)
    assert got.dtype == np.int32
    for n, caption in enumerate(got):
        k = n // 4
        np.testing.assert_array_equal(caption[~masked.labelled[k]], masked.ids[k][~masked.labelled[k]])
    assert len({tuple(s) for s in got[:4, masked.labelled[0]]}) > 1


def test_words_are_sampled_from_the_tempered_softmax():
    logits = np.log(np.array([[[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]], np.float32))
    masked = Masked(np.zeros((1, 2), np.int32), np.ones((1, 2), bool))
    sampled = np.asarray(REFILL(logits, masked, 20_000, 2.0, jax.random.key(1)))
    want = np.exp(logits[0].astype(np.float64) / 2)
    want /= want.sum(axis=1, keepdims=True)
    joint = np.bincount(sampled[:, 0] * 3 + sampled[:, 1], minlength=9).reshape(3, 3) / len(sampled)
    np.testing.assert_allclose(joint, np.outer(*want), atol=0.015)


def test_sampled_words_pass_a_chi_square_test():
    """Of 99 words with probabilities from 3e-4 to 0.05, in blocks of 10, the last of which is padded."""
    rng = np.random.default_rng(3)
    logits = 5 * rng.random((2, 99), np.float32)
    words = jax.jit(refill.sample_words, static_argnums=1)(logits, 50_000, jax.random.key(2))
    for row, sampled in zip(logits.astype(np.float64), np.asarray(words), strict=True):
        want = np.exp(row) / np.exp(row).sum()
        counts = np.bincount(sampled, minlength=99)
        assert counts.shape == (99,)
        assert stats.chisquare(counts, want * len(sampled)).pvalue > 0.01


@pytest.mark.slow
def test_words_without_probability_are_never_sampled():
    logits = np.full((3, 50), -np.inf, np.float32)
    for row, words in zip(logits, ([7], [0, 49], [6, 7, 30]), strict=True):
        row[words] = 0.0
    sampled = np.asarray(refill.sample_words(logits, 500, jax.random.key(0)))
    assert [sorted(set(row.tolist())) for row in sampled] == [[7], [0, 49], [6, 7, 30]]


@pytest.mark.parametrize('scale', [1.0, 1e-30, 3e7])
def test_inverse_cdf_at_the_ends_of_the_shares(scale):
    """The sums of these weights are rounded differently at every index, and the first and last weights are zero."""
    rng = np.random.default_rng(4)
    weights = (scale * rng.random((100, 173)) * (rng.random((100, 173)) < 0.3)).astype(np.float32)
    weights[:, [0, -1]] = 0
    weights[:, 100] = scale
    positive = [np.flatnonzero(row) for row in weights]
    for share in (0.0, 2.0**-149, 2.0**-24):
        index = refill.inverse_cdf(weights, jnp.full(100, share))
        assert index.tolist() == [row[0] for row in positive]
    for share in (1 - 2.0**-23, 1 - 2.0**-24, 1.0):
        index = refill.inverse_cdf(weights, jnp.full(100, share))
        assert all(weights[n, k] > 0 and k >= row[-2] for n, (k, row) in enumerate(zip(index, positive, strict=True)))


def test_inverse_cdf_skips_zero_weights_at_rounded_sums(monkeypatch):
    """At shares equal to the sums, which are added in a tree as on accelerators and do not all ascend."""
    rng = np.random.default_rng(5)
    weights = (rng.random((200, 1, 173)) ** 8 * (rng.random((200, 1, 173)) < 0.5)).astype(np.float32)
    monkeypatch.setattr(jnp, 'cumsum', lambda x, axis: jax.lax.associative_scan(jnp.add, x, axis=axis))

    @jax.jit
    def at_the_sums(weights):
        sums = jnp.cumsum(weights[:, 0], -1)
        return sums, refill.inverse_cdf(weights, sums / sums[:, -1:])

    sums, index = jax.device_get(at_the_sums(weights))
    assert (np.diff(sums)[weights[:, 0, 1:] == 0] != 0).any()
    assert np.take_along_axis(weights[:, 0], index, -1).min() > 0


def test_inverse_cdf_by_hand():
    weights = jnp.array([0.0, 1.0, 0.0, 2.0, 1.0, 0.0])
    shares = jnp.array([0.0, 0.24, 0.25, 0.74, 0.75, 1.0])
    assert refill.inverse_cdf(weights[None], shares).tolist() == [1, 1, 3, 3, 4, 4]


def test_novel_equals_sets():
    rng = np.random.default_rng(2)
    image_captions = rng.integers(1, 30, (5, 6))
    original = image_captions[0]
    captions = np.where(rng.random((200, 6)) < 0.3, rng.integers(1, 30, (200, 6)), original)
    known_words = set(image_captions.ravel().tolist())
    want = [any(n not in known_words for n, o in zip(s, original, strict=True) if n != o) for s in captions.tolist()]
    known = np.pad(np.unique(image_captions), (0, 7))
    got = jax.jit(refill.novel)(captions, original, known)
    assert got.tolist() == want
    assert 0 < sum(want) < 200


def test_distinct_by_hand():
    captions = np.array([[1, 2], [3, 4], [1, 2], [3, 4], [1, 3], [1, 2]])
    assert refill.distinct(captions).tolist() == [True, True, False, False, True, False]


@pytest.mark.parametrize(('mask', 'want'), [((1, 0, 1, 1), (2, 0)), ((0, 0, 0, 1), (3,)), ((0, 0, 0, 0), ())])
def test_hardest_by_hand(mask, want):
    scores = jnp.asarray([0.5, 0.9, 0.7, 0.1])
    take = jax.jit(functools.partial(refill.hardest, num_hard=2))
    index, valid = take(scores, np.array(mask, bool))
    assert index.shape == valid.shape == (2,)
    assert tuple(np.asarray(index)[np.asarray(valid)].tolist()) == want
