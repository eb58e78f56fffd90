"""The paired bootstrap against loops over its definition."""

import numpy as np
import pytest

from jitm.analysis.bootstrap import difference, mean_rsums, resample, rsum_by_image
from jitm.analysis.matrices import Matrix
from jitm.metrics import ranks, retrieval_metrics

IMAGES, CAPTIONS = 12, 3
IMAGE_OF_TEXT = np.repeat(np.arange(IMAGES), CAPTIONS)


def make_sims(seed, signal=1.0):
    own = np.arange(IMAGES)[:, None] == IMAGE_OF_TEXT
    noise = np.random.default_rng(seed).normal(size=(IMAGES, IMAGES * CAPTIONS))
    return (np.round(noise, 1) + signal * own).astype(np.float32)  # rounded, so that there are ties


def resampled_rsum(sims, images):
    """The rsum of the queries of some images, given with repetitions; each searches the whole split."""
    i2t, t2i = ranks(sims, IMAGE_OF_TEXT)
    texts = [text for image in images for text in range(CAPTIONS * image, CAPTIONS * (image + 1))]
    return sum(
        100 * np.mean([way[query] < k for query in queries])
        for way, queries in ((i2t, images), (t2i, texts))
        for k in (1, 5, 10)
    )


@pytest.mark.parametrize('seed', range(3))
def test_mean_over_images_is_rsum(seed):
    sims = make_sims(seed)
    assert np.mean(rsum_by_image(sims, IMAGE_OF_TEXT)) == pytest.approx(retrieval_metrics(sims, IMAGE_OF_TEXT)['rsum'])


def test_bootstrap_equals_a_loop_over_resamples():
    """Two seeds of each setting, averaged in each resample."""
    settings = [[make_sims(0, 1.2), make_sims(1, 1.0)], [make_sims(2), make_sims(3, 0.9)]]
    evaluated = {
        n: [Matrix(path=None, protocol={}, sims=sims) for sims in matrices] for n, matrices in enumerate(settings)
    }
    counts = resample(IMAGES, resamples=200, seed=4)
    got = difference(*mean_rsums(evaluated).values(), counts)

    def loop(images):
        first, second = (np.mean([resampled_rsum(sims, images) for sims in matrices]) for matrices in settings)
        return first - second

    differences = [loop(np.repeat(np.arange(IMAGES), row.astype(int))) for row in counts]
    assert got.rsum == pytest.approx(loop(np.arange(IMAGES)))
    np.testing.assert_allclose((got.low, got.high), np.quantile(differences, [0.025, 0.975]))
    assert got.ahead == np.mean(np.array(differences) > 1e-9)
    assert got.low < got.rsum < got.high
    assert 0 < got.ahead < 1


def test_resamples_have_all_images_and_are_reproducible():
    counts = resample(7, resamples=5000, seed=1)
    np.testing.assert_array_equal(counts.sum(axis=1), 7)
    np.testing.assert_allclose(counts.mean(axis=0), 1, atol=0.05)
    np.testing.assert_array_equal(counts, resample(7, resamples=5000, seed=1))
    assert (counts != resample(7, resamples=5000, seed=2)).any()


def test_equal_settings_differ_by_exactly_zero():
    """Three seeds in two orders: the sums of thirds differ in the last bit, the comparison does not."""
    one, two, three = (rsum_by_image(make_sims(n), IMAGE_OF_TEXT) for n in range(3))
    first, second = (one + two + three) / 3, (three + two + one) / 3
    for a, b in ((one, one), (first, second)):
        got = difference(a, b, resample(IMAGES))
        assert (got.low, got.high, got.ahead) == (0, 0, 0)
        assert got.rsum == pytest.approx(0, abs=1e-9)


def test_a_setting_that_is_always_better_is_ahead_in_all_resamples():
    sims = make_sims(0)
    perfect = sims + 100 * (np.arange(IMAGES)[:, None] == IMAGE_OF_TEXT)
    values = [rsum_by_image(one, IMAGE_OF_TEXT) for one in (perfect, make_sims(5, -3.0))]
    got = difference(*values, resample(IMAGES))
    back = difference(*values[::-1], resample(IMAGES))
    assert got.ahead == 1
    assert back.ahead == 0
    assert got.low > 0
    assert (back.rsum, back.low, back.high) == pytest.approx((-got.rsum, -got.high, -got.low))


def test_the_interval_covers_the_difference_of_the_population():
    """Samples of images from a population of known mean difference: about 95 % of the intervals cover it."""
    rng = np.random.default_rng(1)
    population = rng.choice([0.0, 100.0, 300.0], size=20000, p=[0.5, 0.3, 0.2])
    samples, nothing = rng.choice(population, size=(300, 80)), np.zeros(80)
    results = [difference(sample, nothing, resample(80, 500, seed)) for seed, sample in enumerate(samples)]
    covered = np.mean([result.low <= population.mean() <= result.high for result in results])
    assert 0.91 <= covered <= 0.98
