import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.synthesis import refill
from jitm.types import Masked

A, B, C, D = 4, 5, 6, 7


def make_masked(seed=0, views=3, length=5, vocabulary=9):
    rng = np.random.default_rng(seed)
    labelled = rng.random((views, length)) < 0.4
    labelled[:, 0] = False
    ids = rng.integers(1, vocabulary, (views, length)).astype(np.int32)
    return Masked(ids, labelled), rng.normal(size=(views, length, vocabulary)).astype(np.float32)


def test_only_masked_positions_are_refilled():
    masked, logits = make_masked()
    got = np.asarray(refill.refill(logits, masked, 4, 1.0, jax.random.key(0)))
    assert got.shape == (12, 5)
    assert got.dtype == np.int32
    for n, caption in enumerate(got):
        k = n // 4
        np.testing.assert_array_equal(caption[~masked.labelled[k]], masked.ids[k][~masked.labelled[k]])
    assert len({tuple(s) for s in got[:4, masked.labelled[0]]}) > 1


def test_words_are_sampled_from_the_tempered_softmax():
    logits = np.log(np.array([[[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]], np.float32))
    masked = Masked(np.zeros((1, 2), np.int32), np.ones((1, 2), bool))
    sampled = np.asarray(refill.refill(logits, masked, 20_000, 2.0, jax.random.key(1)))
    want = np.exp(logits[0].astype(np.float64) / 2)
    want /= want.sum(axis=1, keepdims=True)
    joint = np.bincount(sampled[:, 0] * 3 + sampled[:, 1], minlength=9).reshape(3, 3) / len(sampled)
    np.testing.assert_allclose(joint, np.outer(*want), atol=0.015)


def test_low_temperature_samples_the_most_probable_word():
    masked, logits = make_masked()
    got = refill.refill(logits, masked, 2, 1e-4, jax.random.key(0))
    want = np.where(masked.labelled, logits.argmax(axis=2), masked.ids)
    np.testing.assert_array_equal(got, np.repeat(want, 2, axis=0))


@pytest.mark.parametrize(('caption', 'kept'), [((A, C), False), ((A, D), True), ((A, B), False), ((D, B), True)])
def test_novel_by_hand(caption, kept):
    known = np.array([A, B, C, 0, 0])
    got = refill.novel(np.array([caption]), np.array([A, B]), known)
    assert got.tolist() == [kept]


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
