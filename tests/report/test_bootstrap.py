"""The paired bootstrap against loops over its definition."""

import numpy as np
import pytest

from jitm.errors import UserError
from jitm.metrics import ranks, retrieval_metrics
from jitm.report.bootstrap import difference, hits, mean_hits, over_seeds_and_images, rsum
from jitm.report.matrices import Matrix

IMAGES = 12
EVEN = np.repeat(np.arange(IMAGES), 3)
UNEVEN = np.random.default_rng(0).permutation([*range(IMAGES), 0, 0, 0, 0, 5, 7, 7])


def make(seed, signal=1.0, image_of_text=EVEN):
    """Similarities of images with one or more captions, in any order."""
    own = np.arange(IMAGES)[:, None] == image_of_text
    noise = np.random.default_rng(seed).normal(size=own.shape)
    sims = (np.round(noise, 1) + signal * own).astype(np.float32)  # rounded, so that there are ties
    return Matrix(path=None, image_of_text=image_of_text, protocol={}, captions='', sims=sims)


def resampled_rsum(matrix, images):
    """The rsum of the queries of some images, given with repetitions; each searches the whole split."""
    i2t, t2i = ranks(matrix.sims, matrix.image_of_text)
    texts = [text for image in images for text in np.flatnonzero(matrix.image_of_text == image)]
    return sum(
        100 * np.mean([way[query] < k for query in queries])
        for way, queries in ((i2t, images), (t2i, texts))
        for k in (1, 5, 10)
    )


@pytest.mark.parametrize('image_of_text', [EVEN, UNEVEN])
def test_hits_of_all_images_are_rsum(image_of_text):
    matrix = make(1, image_of_text=image_of_text)
    assert hits(matrix).rsum() == pytest.approx(retrieval_metrics(matrix.sims, image_of_text)['rsum'])


@pytest.mark.parametrize('image_of_text', [EVEN, UNEVEN])
def test_bootstrap_is_that_of_a_loop_over_resamples(image_of_text):
    """Two seeds of each group, averaged in each resample; the resamples of the loop are others."""
    strengths = ((0, 1.2), (1, 1.0)), ((2, 1.0), (3, 0.9))
    groups = [[make(*strength, image_of_text) for strength in seeds] for seeds in strengths]
    first, second = (mean_hits([hits(matrix) for matrix in group]) for group in groups)
    got = difference(first, second)

    def loop(images):
        one, other = (np.mean([resampled_rsum(matrix, images) for matrix in matrices]) for matrices in groups)
        return one - other

    resamples = np.random.default_rng(4).integers(IMAGES, size=(300, IMAGES))
    differences = [loop(images) for images in resamples]
    exact = [rsum(*(values[resamples] for values in (one.i2t, one.t2i, one.texts)), axis=-1) for one in (first, second)]
    np.testing.assert_allclose(exact[0] - exact[1], differences, atol=1e-9)
    assert got.rsum == pytest.approx(loop(np.arange(IMAGES)))
    width = got.high - got.low
    np.testing.assert_allclose((got.low, got.high), np.quantile(differences, [0.025, 0.975]), atol=0.1 * width)
    assert got.ahead == pytest.approx(np.mean(np.array(differences) > 1e-9), abs=0.1)
    assert got.low < got.rsum < got.high
    assert 0 < got.ahead < 1


@pytest.mark.parametrize('image_of_text', [EVEN, UNEVEN])
def test_interval_over_seeds_and_images_is_that_of_a_loop(image_of_text):
    """Three seeds; the resamples of the loop are others."""
    first, second = ([make(seed, signal, image_of_text) for seed in range(3)] for signal in (1.5, 1.0))
    rng = np.random.default_rng(4)
    differences = []
    for _ in range(300):
        images = rng.integers(IMAGES, size=IMAGES)
        by_seed = [
            resampled_rsum(first[seed], images) - resampled_rsum(second[seed], images)
            for seed in rng.integers(3, size=3)
        ]
        differences.append(np.mean(by_seed))
    low, high = over_seeds_and_images([*map(hits, first)], [*map(hits, second)])
    expected = np.quantile(differences, [0.025, 0.975])
    np.testing.assert_allclose((low, high), expected, atol=0.12 * (high - low))


def test_equal_groups_differ_by_exactly_zero():
    """Three seeds in two orders: the sums of thirds differ in the last bit, the comparison does not."""
    one, two, three = map(make, range(3))
    for a, b in (([one], [one]), ([one, two, three], [three, two, one])):
        got = difference(*(mean_hits([hits(matrix) for matrix in group]) for group in (a, b)))
        assert (got.low, got.high, got.ahead) == (0, 0, 0)
        assert got.rsum == pytest.approx(0, abs=1e-9)


def test_one_image_is_not_enough():
    sims = np.ones((1, 2), np.float32)
    with pytest.raises(UserError, match=r'a\.npy has one image'):
        hits(Matrix(path='a.npy', image_of_text=np.zeros(2, int), protocol={}, captions='', sims=sims))
