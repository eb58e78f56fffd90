import dataclasses

import numpy as np
import pytest

from jitm.data import scenes
from jitm.data.pairs import augmentation
from jitm.data.pairs.augmentation import Augmentation, change_words, drop_regions, keep_regions
from jitm.data.pipeline import Pipeline
from jitm.data.text.vocabularies import tokenize_split
from jitm.data.text.word_level import Vocabulary
from jitm.data.text.wordpiece import WordPiece
from jitm.errors import UserError
from jitm.types import Images
from tests.conftest import UNCHANGED

IDS = np.array([1, 7, 5, 6, 7, 2], np.int32)
CONTINUES = np.zeros(10, bool)
MASK = 9


class Draws:
    """A generator that says what it is told."""

    def __init__(self, *draws, others=8):
        self.draws = draws
        self.others = others

    def random(self, size):
        assert size == len(self.draws)
        return np.array(self.draws)

    def integers(self, high, size, dtype):
        return np.full(size, self.others, dtype)


@pytest.mark.parametrize(
    ('draws', 'want'),
    [
        ((0.9, 0.2, 0.3, 0.4, 0.5, 0.6), IDS),
        ((0.9, 0.09, 0.3, 0.11, 0.13, 0.6), [1, MASK, 5, 8, 2]),  # masked, another word, left out
        ((0.0, 0.9, 0.9, 0.9, 0.9, 0.19), [MASK, 7, 5, 6, 7]),  # <start> and <end> too, as released
        ((0.19,) * 6, [1]),  # the first stays if all would go
    ],
)
def test_words_are_masked_replaced_or_left_out(draws, want):
    np.testing.assert_array_equal(change_words(IDS, CONTINUES, MASK, 0.2, False, Draws(*draws)), want)


def test_ends_can_be_kept():
    got = change_words(IDS, CONTINUES, MASK, 0.2, True, Draws(0.0, 0.0, 0.9, 0.9, 0.19, 0.0))
    np.testing.assert_array_equal(got, [1, MASK, 5, 6, 2])


def test_all_pieces_of_a_word_change_alike():
    continues = CONTINUES.copy()
    continues[[5, 6]] = True  # 7 5 6 is one word
    got = change_words(IDS, continues, MASK, 0.2, False, Draws(0.9, 0.09, 0.9, 0.9))
    np.testing.assert_array_equal(got, [1, MASK, MASK, MASK, 7, 2])
    got = change_words(IDS, continues, MASK, 0.2, False, Draws(0.9, 0.19, 0.9, 0.9))
    np.testing.assert_array_equal(got, [1, 7, 2])


def test_words_change_as_often_as_published():
    ids = np.arange(100, dtype=np.int32)
    rng = np.random.default_rng(0)
    changed = [change_words(ids, np.zeros(1000, bool), 999, 0.2, False, rng) for _ in range(300)]
    assert abs(np.mean([len(text) for text in changed]) - 92) < 0.5
    assert abs(np.mean([np.sum(text == 999) for text in changed]) - 10) < 0.5
    assert abs(np.mean([np.sum(text >= 100) for text in changed]) - 10 - 2 * 0.9) < 0.5


def test_regions_are_dropped_among_the_real_ones_and_never_all():
    rng = np.random.default_rng(0)
    kept = np.array([keep_regions(30, 36, 0.2, rng) for _ in range(500)])
    assert not kept[:, 30:].any()
    assert abs(kept[:, :30].mean() - 0.8) < 0.02
    np.testing.assert_array_equal(keep_regions(2, 3, 0.99999, rng), [True, False, False])


def test_dropped_regions_are_gone_for_one_copy_and_masked_for_several():
    images = Images(np.arange(1, 13, dtype=np.float32).reshape(2, 3, 2), np.array([3, 2], np.int32))
    kept = np.array([[[True, False, True], [False, True, True]], [[False, True, False], [True, True, False]]])
    one = drop_regions(images, kept[:, :1])
    np.testing.assert_array_equal(one.counts, [2, 1])
    np.testing.assert_array_equal(one.regions[0], [[1, 2], [5, 6], [0, 0]])
    np.testing.assert_array_equal(one.regions[1], [[9, 10], [0, 0], [0, 0]])
    assert one.kept is None
    assert one.locations is None
    several = drop_regions(images, kept)
    np.testing.assert_array_equal(several.regions, images.regions)
    np.testing.assert_array_equal(several.kept, kept)


def test_locations_go_with_their_regions():
    images = Images(
        np.ones((1, 3, 2), np.float32), np.array([3], np.int32), locations=np.eye(3, 7, dtype=np.float32)[None]
    )
    dropped = drop_regions(images, np.array([[[False, True, True]]]))
    np.testing.assert_array_equal(dropped.locations[0], [*np.eye(3, 7)[1:], np.zeros(7)])


@pytest.fixture(scope='module')
def pipeline():
    split = scenes.load('train', train_images=7)
    vocabulary = Vocabulary.build(split.captions, 1).with_mask()
    tokens = tokenize_split(split.captions, vocabulary)
    changes = Augmentation(drop_regions=0.3, change_words=0.3, keep_special_tokens=False, num_views=2)
    return Pipeline(split, tokens, vocabulary, 8, 3, 4, changes)


def leaves(batch):
    return batch.images.regions, batch.images.kept, batch.images.counts, batch.texts.ids, batch.texts.lengths


def test_changes_are_a_pure_function_of_seed_step_and_example(pipeline):
    again = dataclasses.replace(pipeline)
    again.batch(5)
    for step in (0, 6):
        for x, y in zip(leaves(pipeline.batch(step)), leaves(again.batch(step)), strict=True):
            np.testing.assert_array_equal(x, y)
    other = dataclasses.replace(pipeline, seed=4)
    text = 11
    draws = [
        augmentation.example_generator(s, n, text, c).random()
        for s, n, c in ((3, 0, 0), (3, 1, 0), (3, 0, 1), (4, 0, 0))
    ]
    assert len(set(draws)) == 4
    assert not np.array_equal(pipeline.batch(0).texts.ids, other.batch(0).texts.ids)


def test_shards_are_the_rows_of_the_whole_batch(pipeline):
    whole = pipeline.batch(2)
    assert len(whole.texts.ids) == 2 * len(whole.image_index) == 16
    assert whole.images.kept.shape == (8, 2, whole.images.regions.shape[1])
    parts = [pipeline.batch(2, shard, 2) for shard in range(2)]
    for x, *halves in zip(leaves(whole), *map(leaves, parts), strict=True):
        np.testing.assert_array_equal(x, np.concatenate(halves))


def test_copies_stand_together_and_differ(pipeline):
    batch = pipeline.batch(0)
    plain = dataclasses.replace(pipeline, augmentation=Augmentation(**UNCHANGED | {'num_views': 2})).batch(0)
    np.testing.assert_array_equal(plain.texts.ids[0::2], plain.texts.ids[1::2])
    assert not np.array_equal(batch.texts.ids[0::2], batch.texts.ids[1::2])
    assert plain.images.kept.sum() == 2 * plain.images.counts.sum()
    assert batch.texts.ids.shape[1] == plain.texts.ids.shape[1]


def test_without_changes_nothing_is_touched(pipeline):
    plain = dataclasses.replace(pipeline, augmentation=Augmentation(**UNCHANGED)).batch(0)
    assert plain.images.kept is None
    np.testing.assert_array_equal(plain.texts.lengths, pipeline.tokens.lengths[pipeline.text_index(0)])


def test_the_mask_is_one_more_word_of_a_vocabulary_that_has_none():
    vocabulary = Vocabulary.build(['a cat'], 1)
    masked = vocabulary.with_mask()
    assert masked.words == (*vocabulary.words, '<mask>')
    assert masked.mask == len(vocabulary)
    assert masked.with_mask() is masked
    assert not masked.continues.any()


def test_word_pieces_need_their_mask():
    pieces = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', 'cat', '##s')
    with pytest.raises(
        UserError, match=r'lack \[MASK\], which masking and changing words require: give the vocab.txt of a BERT'
    ):
        WordPiece.of(pieces).with_mask()
    masked = WordPiece.of((*pieces, '[MASK]')).with_mask()
    assert masked.mask == 6
    np.testing.assert_array_equal(np.flatnonzero(masked.continues), [5])
