"""Masking of phrases, against the released procedure written as loops, and on the gold scene graphs of `scenes`."""

import collections
import itertools

import numpy as np
import pytest

from jitm.data import scenes
from jitm.data.pairs import masking
from jitm.data.pairs.masking import Masking
from jitm.data.scene_graphs import CaptionGraph
from jitm.data.text.word_level import SPECIAL_WORDS, Vocabulary
from jitm.data.text.wordpiece import WordPiece

PIECES = WordPiece.of(
    ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '!', 'a', 'snow', '##board', '##er', 'sits', 'wet')
)
RELEASED = {'num_views': 20, 'rate': 0.15, 'mask_prob': 0.8, 'random_prob': 0.1}


def matrix(length, *phrases):
    found = np.zeros((len(phrases), length), bool)
    for row, places in zip(found, phrases, strict=True):
        row[places] = True
    return found


def test_probabilities_by_hand():
    phrases = matrix(4, [0, 1], [1, 2])
    np.testing.assert_allclose(masking.phrase_probabilities(phrases, 0.15), [0.1125, 0.1125])
    single = matrix(5, [0], [1], [2], [0, 1, 4])
    # Places 0 and 1 count half: 0.075, 0.075, 0.15 and (0.075 + 0.075 + 0.15) / 3.
    np.testing.assert_allclose(masking.phrase_probabilities(single, 0.15), [0.075, 0.075, 0.15, 0.1])


def test_phrases_are_the_pieces_they_overlap():
    caption = 'A wet snowboarder sits.'
    offsets = PIECES.offsets(caption)
    graph = CaptionGraph(objects=((6, 17),), attributes=((2, 5), (100, 101)), relations=((18, 22),))
    np.testing.assert_array_equal(masking.phrase_matrix(graph, offsets), matrix(9, [6], [2], [3, 4, 5]))
    part = CaptionGraph(objects=((8, 11),))
    np.testing.assert_array_equal(masking.phrase_matrix(part, offsets), matrix(9, [3, 4]))


@pytest.mark.parametrize('graph', [CaptionGraph(), CaptionGraph(objects=((90, 95),))])
def test_without_phrases_every_word_is_one(graph):
    offsets = PIECES.offsets('a wet a')
    expected = matrix(5, [1], [2], [3])
    np.testing.assert_array_equal(masking.phrase_matrix(graph, offsets), expected)
    (words,) = masking.find_phrases(['a wet a'], PIECES, None)
    np.testing.assert_array_equal(words, expected)


def test_words_of_a_vocabulary():
    vocabulary = Vocabulary((*SPECIAL_WORDS, 'a', 'dog', '<mask>'))
    (phrases,) = masking.find_phrases(['a dog runs'], vocabulary, [CaptionGraph(((2, 5),), (), ((6, 10),))])
    np.testing.assert_array_equal(phrases, matrix(5, [3], [2]))
    ids = vocabulary.encode('a dog runs')
    rng = np.random.default_rng(0)
    masked = Masking(num_views=50, rate=0.15, mask_prob=1.0, random_prob=0.0).mask(ids, phrases, vocabulary, rng)
    np.testing.assert_array_equal(masked.ids, np.where(masked.labelled, vocabulary.mask, ids))


def mask_as_released(ids, phrases, rng, first_word, size, mask):
    """One variant, phrase by phrase in a shuffled order, as the specification says it."""
    labels = [-1] * len(ids)
    ids = list(ids)
    shares = collections.Counter(itertools.chain.from_iterable(phrases))
    order = [phrases[n] for n in rng.permutation(len(phrases))]

    def hide(phrase):
        for place in phrase:
            if labels[place] == -1:
                labels[place] = ids[place]
                u = rng.random()
                if u < 0.8:
                    ids[place] = mask
                elif u < 0.9:
                    ids[place] = int(rng.integers(first_word, size))

    for phrase in order:
        if rng.random() < np.mean([0.15 / shares[place] for place in phrase]):
            hide(phrase)
    if max(labels) == -1:
        hide(order[0])
    return ids, labels


@pytest.mark.slow
def test_frequencies_are_those_of_the_released_procedure():
    count = 20000
    phrases = [[1, 2], [2, 3], [5]]
    ids = np.array([2, 6, 7, 8, 9, 10, 3, 0, 0], np.int32)
    masked = Masking(**RELEASED | {'num_views': count}).mask(ids, matrix(7, *phrases), PIECES, np.random.default_rng(0))
    assert masked.ids.shape == masked.labelled.shape == (count, 9)
    assert masked.ids.dtype == np.int32
    rng = np.random.default_rng(1)
    loops = [mask_as_released(ids, phrases, rng, 5, 12, 4) for _ in range(count)]
    shown = np.array([i for i, _ in loops])
    labelled = np.array([labels for _, labels in loops]) >= 0
    # Five standard deviations of a difference of two frequencies are at most 0.025.
    for ours, theirs in [(masked.labelled, labelled), (masked.ids == 4, shown == 4), (masked.ids != ids, shown != ids)]:
        np.testing.assert_allclose(ours.mean(axis=0), theirs.mean(axis=0), atol=0.025)
    patterns = [collections.Counter(map(tuple, rows.tolist())) for rows in (masked.labelled, labelled)]
    assert patterns[0].keys() == patterns[1].keys()
    for pattern, number in patterns[0].items():
        assert abs(number - patterns[1][pattern]) < 0.025 * count
    replaced = masked.ids[masked.labelled & (masked.ids != 4) & (masked.ids != ids)]
    assert set(replaced) == set(range(5, 12))


def test_masks_of_gold_scene_graphs():
    dev = scenes.load('dev', dev_images=10)
    words = sorted({*' '.join(dev.captions).split()})
    pieces = WordPiece.of((*PIECES.words[:5], *words))
    phrases = masking.find_phrases(dev.captions, pieces, dev.caption_graphs)
    masks = Masking(**RELEASED)
    length = 32
    ids = np.zeros((dev.num_texts, length), np.int32)
    for row, caption in zip(ids, dev.captions, strict=True):
        row[: len(caption.split()) + 2] = pieces.encode(caption)
    texts = np.arange(dev.num_texts)
    masked = masks.mask_batch(ids, phrases, pieces, seed=3, step=7, texts=texts)
    assert masked.ids.shape == masked.labelled.shape == (dev.num_texts, 20, length)
    assert masked.labelled.any(axis=-1).all()
    labels = np.where(masked.labelled, ids[:, None], -1)
    for graph, caption, rows in zip(dev.caption_graphs, dev.captions, labels, strict=True):
        said = {*' '.join(caption[slice(*span)] for span in itertools.chain(*graph[:3])).split()}
        assert {pieces.words[i] for i in rows[rows >= 0]} <= said
    np.testing.assert_array_equal(np.where(masked.labelled, ids[:, None], masked.ids), np.repeat(ids[:, None], 20, 1))
    # 15 % of a phrase's words at least, and far from all.
    assert 0.1 < masked.labelled.sum() / (20 * sum(matrix.any(axis=0).sum() for matrix in phrases)) < 0.35


def test_masks_depend_on_seed_step_and_text_alone():
    ids = np.tile(PIECES.encode('a wet snowboarder sits'), (6, 1))
    phrases = masking.find_phrases(['a wet snowboarder sits'] * 6, PIECES, None)
    masks = Masking(**RELEASED)
    texts = np.arange(6)

    def mask(rows, seed=0, step=0, padding=0):
        padded = np.pad(ids[rows], ((0, 0), (0, padding)))
        return masks.mask_batch(padded, [phrases[n] for n in rows], PIECES, seed=seed, step=step, texts=texts[rows])

    whole = mask([0, 1, 2, 3, 4, 5])
    some = mask([4, 1], padding=3)
    for all_rows, rows in zip(whole, some, strict=True):
        np.testing.assert_array_equal(rows[..., :-3], all_rows[[4, 1]])
        assert not rows[..., -3:].any()
    assert len({whole.labelled[n].tobytes() for n in range(6)}) == 6
    for other in (mask([0, 1, 2, 3, 4, 5], seed=1), mask([0, 1, 2, 3, 4, 5], step=1)):
        assert all((other.labelled[n] != whole.labelled[n]).any() for n in range(6))


def test_caption_without_words():
    masked = Masking(**RELEASED).mask(
        np.array([2, 3, 0], np.int32), masking.word_matrix(2), PIECES, np.random.default_rng(0)
    )
    assert not masked.labelled.any()
    np.testing.assert_array_equal(masked.ids, np.tile([2, 3, 0], (20, 1)))


def test_probabilities_above_1_are_refused():
    with pytest.raises(ValueError, match=r'mask_prob and random_prob add up to 1.25; lower one'):
        Masking(**RELEASED | {'mask_prob': 0.75, 'random_prob': 0.5})
