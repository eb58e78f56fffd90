import numpy as np
import pytest

from experiments import selected
from jitm.data import scenes
from jitm.data.pairs.cider import Relevance

RNG = np.random.default_rng(0)


@pytest.fixture(scope='module')
def split():
    return scenes.load('dev', dev_images=40)


def test_each_selection_is_its_maximum_among_the_negatives():
    target, anchor = RNG.random((7, 7)), RNG.random((7, 7))
    found = selected.select(target + 9 * np.eye(7), anchor, RNG)
    assert found.keys() == selected.SELECTIONS.keys()
    for query in range(7):
        others = [n for n in range(7) if n != query]
        assert found['hardest'][query] == max(others, key=lambda n: target[query, n])
        assert found['anchor'][query] == max(others, key=lambda n: target[query, n] - anchor[query, n])
        assert found['random'][query] != query


def test_batches_have_each_image_once(split):
    drawn = list(selected.batches(split, 16, RNG))
    assert [len(texts) for texts in drawn] == [16, 16]
    assert len(np.unique(split.image_of_text[np.concatenate(drawn)])) == 32


def test_an_anchor_that_knows_the_matches_avoids_them(split):
    """The target scores by CIDEr alone; an anchor with the same scores for what matches leaves the others."""
    phi = RNG.random((split.num_images, split.num_texts)).astype(np.float32)
    phi[split.image_of_text, np.arange(split.num_texts)] = 0.9
    relevance = Relevance(lambda images, texts: phi[np.ix_(images, texts)])
    found = selected.compare(phi, np.where(phi > 0.5, phi, 0), relevance, split, 20, seed=0)
    assert found['hardest']['% the hardest'] == 100
    assert found['hardest']['CIDEr'] > 0.9 > 0.5 > found['anchor']['CIDEr']
    assert found['hardest']['% probable matches'] > found['random']['% probable matches'] > 0
    assert found['anchor']['% probable matches'] == found['anchor']['% above their pair'] == 0
