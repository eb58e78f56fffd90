"""CIDEr against hand-computed numbers and dictionaries, and matrices that are given."""

import collections
import itertools
import math

import numpy as np
import pytest

from jitm.data import scenes
from jitm.data.pairs import cider
from jitm.data.splits import Split
from jitm.data.text.word_level import tokenize
from jitm.errors import UserError


def make_split(captions, image_of_text):
    images = max(image_of_text) + 1
    regions = np.zeros((images, 1, 1), np.float32)
    counts = np.ones(images, np.int32)
    return Split('tiny', regions, counts, tuple(captions), np.array(image_of_text, np.int32), ('',) * images)


def everything(relevance, split):
    return relevance.phi(np.arange(split.num_images), np.arange(split.num_texts))


def grams(words, n):
    return zip(*[words[k:] for k in range(n)], strict=False)


def vector(tokens, n, documents, images):
    """A caption's n-grams and their tf-idf; `documents` holds for each image its captions' n-grams."""
    counts = collections.Counter(grams(tokens, n))
    frequencies = collections.Counter(itertools.chain.from_iterable(documents))
    return {gram: count * math.log(images / frequencies[gram]) for gram, count in counts.items()}


def cosine(a, b):
    lengths = [math.hypot(*v.values()) for v in (a, b)]
    return sum(a[gram] * b[gram] for gram in a.keys() & b.keys()) / math.prod(lengths) if all(lengths) else 0.0


def oracle(split):
    """float64 [I, T], one pair, one n-gram and one reference at a time."""
    tokens = [tokenize(caption) for caption in split.captions]
    total = np.zeros((split.num_images, split.num_texts))
    for n in range(1, 5):
        documents = [set() for _ in range(split.num_images)]
        for words, image in zip(tokens, split.image_of_text, strict=True):
            documents[image].update(grams(words, n))
        vectors = [vector(words, n, documents, split.num_images) for words in tokens]
        for image in range(split.num_images):
            for t in range(split.num_texts):
                references = [r for r in range(split.num_texts) if split.image_of_text[r] == image and r != t]
                total[image, t] += np.mean([cosine(vectors[t], vectors[r]) for r in references])
    return 10 * total / 4


@pytest.mark.parametrize('order', ['together', 'scattered'])
def test_cider_is_what_dictionaries_say(order):
    train = scenes.load('train', train_images=9)
    captions = list(train.captions)
    image_of_text = train.image_of_text.tolist()
    extra = ['a', 'disc disc disc disc disc', captions[0], 'nothing of the sort', '']
    captions = captions + extra
    image_of_text = [*image_of_text, 3, 3, 0, 1, 2]
    if order == 'scattered':
        places = np.random.default_rng(0).permutation(len(captions))
        captions = [captions[p] for p in places]
        image_of_text = [image_of_text[p] for p in places]
    split = make_split(captions, image_of_text)
    got = everything(cider.from_captions(split), split)
    want = oracle(split)
    assert got.dtype == np.float32
    assert want.max() > 4
    np.testing.assert_allclose(got, want, atol=2e-6)


def test_by_hand():
    split = make_split(['red dog runs', 'red dog', 'red cat', 'cat', 'bird', 'bird bird cat'], [0, 0, 1, 1, 2, 2])
    phi = everything(cider.from_captions(split), split)
    a = math.log(3)
    b = math.log(3 / 2)  # of words of one image, and of two: red, cat
    # One reference, 'red dog runs': words (b, a) and (b, a, a), pairs (a) and (a, a), and no more.
    np.testing.assert_allclose(phi[0, 1], 2.5 * (math.sqrt((a**2 + b**2) / (2 * a**2 + b**2)) + 0.5**0.5), rtol=1e-6)
    np.testing.assert_allclose(phi[0, 1], 3.591022, rtol=1e-6)
    # Two references, and only 'red cat' has a word in common with 'red dog'.
    np.testing.assert_allclose(phi[1, 1], 2.5 * b / math.sqrt(2 * (a**2 + b**2)) / 2, rtol=1e-6)
    # 'bird' and 'bird bird cat': the second word counts twice.
    np.testing.assert_allclose(phi[2, 5], 2.5 * 2 * a / math.sqrt(4 * a**2 + b**2), rtol=1e-6)
    assert phi[0, 4] == 0


def test_text_is_not_its_own_reference_but_its_duplicate_is():
    split = make_split(['a red dog runs fast', 'a red dog runs fast', 'cats sleep', 'birds'], [0, 0, 1, 1])
    np.testing.assert_allclose(everything(cider.from_captions(split), split), [[10, 10, 0, 0], [0, 0, 0, 0]], atol=1e-6)


def test_pairs_of_the_first_and_last_word_are_not_confused():
    split = make_split(['a b c d', 'a b c d', 'd a', 'd a', 'b', 'b'], [0, 0, 1, 1, 2, 2])
    np.testing.assert_allclose(everything(cider.from_captions(split), split), oracle(split), atol=2e-6)


def test_words_of_every_image_are_worth_nothing():
    split = make_split(['a', 'a', 'a', 'a'], [0, 0, 1, 1])
    np.testing.assert_array_equal(everything(cider.from_captions(split), split), 0)


def test_any_images_and_texts_can_be_asked_for_in_any_order():
    split = scenes.load('train', train_images=6)
    relevance = cider.from_captions(split)
    images = np.array([5, 0, 5])
    texts = np.array([29, 3, 0, 29])
    got = relevance.phi(images, texts)
    np.testing.assert_array_equal(got, everything(relevance, split)[np.ix_(images, texts)])


def test_an_image_with_one_caption_is_refused():
    with pytest.raises(UserError, match=r'tiny, image 1 has 1 captions, .* relevance.source .cider.from_file'):
        cider.from_captions(make_split(['a', 'b', 'c'], [0, 0, 1]))


GIVEN = make_split([''] * 6, [0, 0, 1, 1, 2, 2])
VALUES = np.arange(18).reshape(3, 6) / 8


@pytest.mark.parametrize('dtype', [np.float16, np.float32])
@pytest.mark.parametrize('transposed', [False, True])
def test_a_matrix_can_be_given_either_way_round(tmp_path, dtype, transposed):
    path = tmp_path / 'cider.npy'
    np.save(path, (VALUES.T if transposed else VALUES).astype(dtype))
    got = cider.from_file(GIVEN, path=str(path)).phi(np.array([2, 0]), np.array([5, 1, 1]))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.array([[17, 13, 13], [5, 1, 1]]) / 8)


def test_a_square_matrix_has_images_as_rows(tmp_path):
    np.save(tmp_path / 'cider.npy', VALUES[:3, :3].astype(np.float32))
    square = make_split([''] * 3, [0, 1, 2])
    relevance = cider.from_file(square, path=str(tmp_path / 'cider.npy'))
    np.testing.assert_array_equal(everything(relevance, square), VALUES[:3, :3])


def test_matrices_that_cannot_be_used_name_the_file(tmp_path):
    path = tmp_path / 'cider.npy'
    with pytest.raises(UserError, match=r'cider.npy cannot be read'):
        cider.from_file(GIVEN, path=str(path))
    np.save(path, VALUES)
    with pytest.raises(UserError, match=r'cider.npy has dtype float64'):
        cider.from_file(GIVEN, path=str(path))
    np.save(path, np.zeros((3, 5), np.float32))
    message = r'cider.npy has shape \(3, 5\), but tiny has 3 images and 6 texts: it must be \(3, 6\) or \(6, 3\)'
    with pytest.raises(UserError, match=message):
        cider.from_file(GIVEN, path=str(path))
    values = VALUES.astype(np.float32)
    values[2, 4] = np.inf
    np.save(path, values)
    relevance = cider.from_file(GIVEN, path=str(path))
    assert np.isfinite(relevance.phi(np.array([2, 1]), np.array([5, 3]))).all()
    with pytest.raises(UserError, match=r'cider.npy has no finite value for image 2 and text 4'):
        relevance.phi(np.array([1, 2]), np.array([5, 4]))
