"""Calls of fixed shape give one text one encoding; calls of few sizes are close to it."""

import numpy as np
import pytest

import jitm.inference.engine
from jitm.data.splits import pad_texts
from jitm.inference.engine import Engine, batches, first, pad, padded_count
from tests.support.scoring import make_problem


@pytest.mark.parametrize(
    ('count', 'multiple', 'padded'), [(1, 1, 1), (2, 1, 4), (16, 1, 16), (17, 1, 64), (5, 6, 18), (300, 256, 1024)]
)
def test_counts_are_padded_to_few_sizes(count, multiple, padded):
    assert padded_count(count, multiple) == padded


def test_padding_repeats_the_first_item_and_is_cut_off():
    items = {'x': np.arange(5), 'y': np.arange(10).reshape(5, 2)}
    padded = pad(items, 8)
    assert padded['x'].tolist() == [0, 1, 2, 3, 4, 0, 0, 0]
    np.testing.assert_array_equal(first(padded, 5)['y'], items['y'])
    assert [part['x'].tolist() for part in batches(items, 2)] == [[0, 1], [2, 3], [4]]


@pytest.mark.slow
def test_encoding_of_a_text_does_not_depend_on_the_others(monkeypatch):
    monkeypatch.setattr(jitm.inference.engine, 'SHORTEST', 4)  # two padded lengths
    model, variables, _, tokens = make_problem('vsepp')
    engine = Engine(model, variables, 'float32', 'highest')
    index = np.arange(len(tokens.lengths))
    together = engine.encode_each_alike(tokens, index)
    for some in (index[3:4], index[::-2]):
        assert engine.encode_each_alike(tokens, some).tobytes() == together[some].tobytes()
        texts = pad_texts(tokens, some, engine.padded_length(tokens.lengths[some]))
        np.testing.assert_allclose(engine.encode_any('encode_text', texts), together[some], atol=1e-6)


def test_texts_of_a_dual_encoder_have_few_lengths():
    model, variables, *_ = make_problem('vsepp')
    engine = Engine(model, variables, 'float32', 'highest')
    lengths = {engine.own_length(length) for length in range(1, 49)}
    assert lengths == {8, 12, 16, 20, 24, 36, 48}


def test_any_number_of_encodings_is_scored():
    model, variables, *_ = make_problem('vsepp')
    engine = Engine(model, variables, 'float32', 'highest')
    rng = np.random.default_rng(0)
    images, texts = (rng.normal(size=(count, model.embed_dim)).astype(np.float32) for count in (300, 260))
    np.testing.assert_allclose(engine.similarity(images, texts), images @ texts.T, atol=1e-5)
    pairwise = engine.similarity_pairwise(images[:260], texts)
    np.testing.assert_allclose(pairwise, np.sum(images[:260] * texts, axis=1), atol=1e-5)
