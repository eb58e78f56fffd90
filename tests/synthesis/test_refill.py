import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.synthesis import refill
from jitm.types import Masked

A, B, C, D = 4, 5, 6, 7


def make_masked(seed=0, variants=3, length=5, vocabulary=9):
    rng = np.random.default_rng(seed)
    labelled = rng.random((variants, length)) < 0.4
    labelled[:, 0] = False
    ids = rng.integers(1, vocabulary, (variants, length)).astype(np.int32)
    return Masked(ids, labelled), rng.normal(size=(variants, length, vocabulary)).astype(np.float32)


def test_only_labelled_places_are_refilled_and_variants_stay_together():
    masked, logits = make_masked()
    got = np.asarray(refill.refill(logits, masked, 4, 1.0, jax.random.key(0)))
    assert got.shape == (12, 5)
    assert got.dtype == np.int32
    for n, sentence in enumerate(got):
        k = n // 4
        np.testing.assert_array_equal(sentence[~masked.labelled[k]], masked.ids[k][~masked.labelled[k]])
    assert len({tuple(s) for s in got[:4, masked.labelled[0]]}) > 1


def test_places_are_drawn_by_themselves_with_the_probabilities_of_the_tempered_softmax():
    logits = np.log(np.array([[[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]]], np.float32))
    masked = Masked(np.zeros((1, 2), np.int32), np.ones((1, 2), bool))
    drawn = np.asarray(refill.refill(logits, masked, 20_000, 2.0, jax.random.key(1)))
    want = np.exp(logits[0].astype(np.float64) / 2)
    want /= want.sum(axis=1, keepdims=True)
    joint = np.bincount(drawn[:, 0] * 3 + drawn[:, 1], minlength=9).reshape(3, 3) / len(drawn)
    np.testing.assert_allclose(joint, np.outer(*want), atol=0.015)


def test_a_low_temperature_takes_the_most_probable_word():
    masked, logits = make_masked()
    got = refill.refill(logits, masked, 2, 1e-4, jax.random.key(0))
    want = np.where(masked.labelled, logits.argmax(axis=2), masked.ids)
    np.testing.assert_array_equal(got, np.repeat(want, 2, axis=0))


@pytest.mark.parametrize(('sentence', 'kept'), [((A, C), False), ((A, D), True), ((A, B), False), ((D, B), True)])
def test_a_sentence_must_say_what_no_caption_says(sentence, kept):
    known = np.array([A, B, C, 0, 0])
    got = refill.novel(np.array([sentence]), np.array([A, B]), known)
    assert got.tolist() == [kept]


def test_novel_sentences_are_those_of_the_sets():
    rng = np.random.default_rng(2)
    captions = rng.integers(1, 30, (5, 6))
    original = captions[0]
    sentences = np.where(rng.random((200, 6)) < 0.3, rng.integers(1, 30, (200, 6)), original)
    said = set(captions.ravel().tolist())
    want = [any(n not in said for n, o in zip(s, original, strict=True) if n != o) for s in sentences.tolist()]
    known = np.pad(np.unique(captions), (0, 7))
    got = jax.jit(refill.novel)(sentences, original, known)
    assert got.tolist() == want
    assert 0 < sum(want) < 200


def test_the_first_of_equal_sentences_stays():
    sentences = np.array([[1, 2], [3, 4], [1, 2], [3, 4], [1, 3], [1, 2]])
    assert refill.distinct(sentences).tolist() == [True, True, False, False, True, False]


@pytest.mark.parametrize(('allowed', 'want'), [((1, 0, 1, 1), (2, 0)), ((0, 0, 0, 1), (3,)), ((0, 0, 0, 0), ())])
def test_the_hardest_allowed_sentences_are_taken_and_fewer_if_there_are_no_more(allowed, want):
    scores = jnp.asarray([0.5, 0.9, 0.7, 0.1])
    take = jax.jit(functools.partial(refill.hardest, count=2))
    index, there = take(scores, np.array(allowed, bool))
    assert index.shape == there.shape == (2,)
    assert tuple(np.asarray(index)[np.asarray(there)].tolist()) == want
