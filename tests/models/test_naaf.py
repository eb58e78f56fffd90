"""NAAF against numbers worked out by hand; tests/parity compares it with PyTorch, with thresholds and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.devices import parallel
from jitm.models import naaf_thresholds
from jitm.types import Elements
from tests.golden.steps import reduce
from tests.support.matchers import MATCHERS

MODEL = MATCHERS['naaf']


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def make_pairs(count=8, noise=0.8, seed=1039):
    """Ragged unit vectors; each caption's words are like regions of its image, so that some captions find it."""
    rng = np.random.default_rng(seed)
    images = [unit(rng.normal(size=(rng.integers(3, 6), 4))) for _ in range(count)]
    captions = []
    for regions in images:
        words = regions[rng.integers(len(regions), size=rng.integers(2, 6))]
        captions.append(unit(words + noise * rng.normal(size=words.shape)))
    return images, captions


def padded(items):
    """Ragged vectors as the elements of a model."""
    vectors = np.zeros((len(items), max(map(len, items)) + 1, items[0].shape[1]), np.float32)
    for n, item in enumerate(items):
        vectors[n, : len(item)] = item
    return Elements(jnp.asarray(vectors), np.arange(vectors.shape[1]) < np.array([[len(x)] for x in items]))


def state(threshold=0.0, safe_threshold=0.0):
    return {'batch_stats': {'threshold': jnp.float32(threshold), 'safe_threshold': jnp.float32(safe_threshold)}}


def train(images, texts):
    """Scores of training, and the thresholds that it leaves."""
    scores, changed = similarity(state(), images, texts, True)
    return scores, changed['batch_stats']


def similarity(variables, images, texts, train=False):
    """The scores, and in training the new thresholds; compiled anew, since tests change the platform."""
    keywords = {'train': train, 'method': 'similarity', 'mutable': ['batch_stats'] if train else False}
    return jax.jit(lambda *inputs: MODEL.apply(*inputs, **keywords))(variables, images, texts)


def test_thresholds_are_recorded_and_reset_for_each_batch():
    images, captions = map(padded, make_pairs())
    first = jax.jit(lambda key: MODEL.init(key, images, captions, True, method='similarity'))(jax.random.key(0))
    assert first['batch_stats'] == {'threshold': 0, 'safe_threshold': 0}
    scores, left = train(images, captions)
    recorded = 0.652013, 0.315031, 49.623221
    np.testing.assert_allclose([left['threshold'], left['safe_threshold'], reduce(scores)], recorded, atol=5e-5)
    again = similarity({'batch_stats': left}, images, captions, True)
    assert again[1]['batch_stats'] == left
    scores = similarity({'batch_stats': left}, images, captions)
    same = similarity(state(0.9, left['safe_threshold']), images, captions)
    np.testing.assert_array_equal(scores, same)


@pytest.mark.parametrize('seed', [0, 1])
def test_tiles_of_texts_have_the_thresholds_of_one_after_the_other(seed, monkeypatch):
    images, captions = map(padded, make_pairs(count=24, noise=1.2, seed=seed))
    want, left = train(images, captions)
    monkeypatch.setattr(parallel, 'platform', lambda: 'gpu')
    scores, thresholds = train(images, captions)
    assert left['threshold'] > 0.1
    np.testing.assert_allclose(scores, want, atol=1e-6)
    np.testing.assert_allclose(list(thresholds.values()), list(left.values()), atol=1e-6)


def density(x, values):
    return np.exp(-0.5 * ((x - np.mean(values)) / np.std(values, ddof=1)) ** 2) / np.std(values, ddof=1)


@pytest.mark.parametrize('alpha', [1.0, 2.0, 3.0])
@pytest.mark.parametrize('ratio', [0.5, 1.0, 2.0])
def test_the_boundary_is_where_one_density_is_alpha_times_the_other(alpha, ratio):
    """Matches spread less than mismatches do, as much, or more."""
    deviations = np.array([-1.5, -0.5, 0.5, 1.5])
    samples = np.stack([0.7 + 0.05 * ratio * deviations, 0.3 + 0.05 * deviations])
    boundary = naaf_thresholds.decision_boundary(samples.mean(1), samples.std(1, ddof=1), alpha)
    assert 0.3 < boundary < 0.7
    np.testing.assert_allclose(density(boundary, samples[0]), alpha * density(boundary, samples[1]), rtol=1e-4)


@pytest.mark.parametrize(
    ('samples', 'alpha', 'want'),
    [
        ([[0.85, 0.95], [0.88, 0.92]], 1e4, (0, 0.9 - 3 * 0.05 * 2**0.5)),  # dense enough only above 1
        ([[0.1, 0.9], [0.2, 0.3]], 2.0, (None, 0)),  # three deviations below the mean is below 0
        ([[0.4, 0.6], [0.2, 0.8]], 4.0, (0.3, 0.2)),  # one density is at most 3 times the other: both stay
        ([[0.5, 0.5], [0.2, 0.2]], 2.0, (0.3, 0.2)),  # all words are alike
        ([[0.5], [0.2]], 2.0, (0.3, 0.2)),
    ],
)
def test_boundaries_that_are_nowhere_or_outside(samples, alpha, want):
    statistics = naaf_thresholds.describe(jnp.float32(samples), jnp.ones(len(samples[0]), bool))
    start = jnp.float32([0.3, 0.2])
    moved = naaf_thresholds.move_thresholds(start, naaf_thresholds.estimate_thresholds(statistics, alpha))
    for got, new, old in zip(moved, want, start, strict=True):
        if new is not None:
            np.testing.assert_allclose(got, 0.7 * new + 0.3 * old, rtol=1e-5)
