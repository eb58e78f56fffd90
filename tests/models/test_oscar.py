import jax
import numpy as np
import pytest

from jitm.models.oscar import MAX_WORDS, append_tags
from jitm.types import Images, Texts
from tests.support.matchers import MATCHERS, VOCABULARY

END = 3


def make(**changes):
    return MATCHERS['oscar'].clone(**changes)


def make_texts(lengths, width, seed):
    """Texts of random words that end with `END`."""
    rng = np.random.default_rng(seed)
    lengths = np.array(lengths, np.int32)
    ids = rng.integers(4, VOCABULARY, (len(lengths), width)).astype(np.int32)
    ids[np.arange(width) == lengths[:, None] - 1] = END
    return Texts(np.where(np.arange(width) < lengths[:, None], ids, 0), lengths)


def make_inputs():
    rng = np.random.default_rng(0)
    regions, locations = (rng.random((3, 4, size)).astype(np.float32) for size in (6, 7))
    tags = make_texts([3, 0, 2], 4, seed=1)  # the second image has no tags
    images = Images(regions, np.array([4, 3, 1], np.int32), locations=locations, tags=tags)
    return images, make_texts([6, 2, 4], 6, seed=2)


@pytest.mark.parametrize('caption_length', [2, 40, 67, 68, 69, 70])
def test_tags_follow_the_caption_and_are_cut_to_the_maximum(caption_length):
    captions = make_texts([caption_length, 5], 70, seed=3)
    tags = make_texts([9, 0], 12, seed=4)
    got = append_tags(captions, tags)
    for n in range(2):
        words, labels = (side.ids[n, : side.lengths[n]].tolist() for side in (captions, tags))
        room = min(len(labels), MAX_WORDS - len(words))
        want = words + (labels[: room - 1] + labels[-1:] if room else [])  # the last tag is the end
        assert got.lengths[n] == len(want) <= MAX_WORDS
        assert got.ids[n].tolist() == want + [0] * (got.ids.shape[1] - len(want))
    assert got.ids[0, got.lengths[0] - 1] == END


@pytest.mark.parametrize('image_norm', [False, True])
def test_regions_are_normalized_or_not(image_norm):
    params = jax.eval_shape(make(image_norm=image_norm).init, jax.random.key(0), *make_inputs())['params']
    assert ('region_norm' in params) == image_norm


def test_images_without_tags_are_refused():
    images, texts = make_inputs()
    with pytest.raises(ValueError, match='OSCAR reads the tags of images'):
        make().init(jax.random.key(0), images.replace(tags=None), texts)
