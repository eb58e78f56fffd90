import numpy as np
import pytest

import jitm
from jitm.data import scenes
from jitm.errors import UserError
from jitm.evaluation import protocol
from tests.evaluation.test_protocol import run  # noqa: F401
from tests.test_train import finished  # noqa: F401


@pytest.fixture(scope='module')
def split():
    return scenes.load('dev', train_images=16, dev_images=10, test_images=10)


def test_scores_are_those_of_an_evaluation(run, split, finished):  # noqa: F811
    _, sims = protocol.evaluate_runs([run], 'dev', 1)
    features = [np.asarray(split.regions[i, : split.counts[i]]) for i in range(10)]
    many = jitm.score(run, features, split.captions)
    np.testing.assert_allclose(many, sims, atol=1e-6)
    one = jitm.score(finished[0], features[3], split.captions[7])
    assert one.shape == ()
    np.testing.assert_allclose(one, sims[3, 7], atol=1e-6)
    np.testing.assert_allclose(jitm.score(run, features[3], split.captions[5:8]), sims[3, 5:8], atol=1e-6)
    np.testing.assert_allclose(jitm.score(run, features[2:5], split.captions[7]), sims[2:5, 7], atol=1e-6)


def test_a_vector_is_one_region(run, split):  # noqa: F811
    vector = np.asarray(split.regions[0, 0])
    assert jitm.score(run, vector, 'a red circle') == jitm.score(run, vector[None], 'a red circle')
    assert jitm.score(run, np.stack([vector[None]] * 2), ['a red circle']).shape == (2, 1)


def test_what_cannot_be_scored_is_refused(run, split):  # noqa: F811
    features = np.asarray(split.regions[0])
    with pytest.raises(UserError, match=r'image 1 has features of shape \[3, 7\]; .* trained on \[regions, 200\]'):
        jitm.score(run, [features, np.zeros((3, 7))], 'a red circle')
    with pytest.raises(UserError, match='image 0 has features that are not finite'):
        jitm.score(run, features * np.nan, 'a red circle')
    for images, texts in (([], 'a red circle'), (features, [])):
        with pytest.raises(UserError, match='at least one image and one text'):
            jitm.score(run, images, texts)
    with pytest.raises(UserError, match='is not a run directory'):
        jitm.score('nowhere', features, 'a red circle')
    with pytest.raises(AttributeError, match="no attribute 'scores'"):
        _ = jitm.scores
