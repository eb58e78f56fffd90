"""NAAF against loops in float64: scores, mined thresholds, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm import parallel
from jitm.models import naaf
from jitm.types import Elements
from tests.models import cross_attention_oracle as oracle
from tests.models.test_matchers import MATCHERS

MODEL = MATCHERS['naaf']
MINIMUM = MODEL.minimum_words


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


def train(images, texts, model=MODEL):
    """Scores of training, and the thresholds that it leaves."""
    scores, changed = model.apply(state(), images, texts, True, method='similarity', mutable=['batch_stats'])
    return scores, changed['batch_stats']


def trained_scores(images, captions, used):
    texts = zip(captions, used, strict=True)
    return np.array([[oracle.naaf_score(V, W, threshold=t, smooth=False) for V in images] for W, t in texts]).T


@pytest.mark.parametrize('threshold', [0.0, 0.5, 0.9])
def test_evaluation_is_the_loop_with_the_safe_threshold(threshold):
    images, captions = make_pairs()
    encoded = padded(images), padded(captions)
    got = MODEL.apply(state(0.3, threshold), *encoded, method='similarity')
    want = oracle.score_matrix(oracle.naaf_score, images, captions, threshold=threshold, smooth=True)
    np.testing.assert_allclose(got, want, atol=1e-5)
    if threshold == 0.9:
        other = oracle.score_matrix(oracle.naaf_score, images, captions, threshold=threshold, smooth=False)
        assert np.abs(want - other).max() > 0.01


def test_options_are_those_of_the_loop():
    images, captions = make_pairs()
    model = MODEL.clone(lambda_softmax=9.0, lambda_smoothing=1e4)  # each word is alike to itself alone
    got = model.apply(state(0.3, 0.9), padded(images), padded(captions), method='similarity')
    options = {'threshold': 0.9, 'smooth': False, 'softmax_temperature': 9.0}
    np.testing.assert_allclose(got, oracle.score_matrix(oracle.naaf_score, images, captions, **options), atol=1e-5)


def test_weights_are_those_of_matching_regions():
    images, captions = make_pairs(3)
    encoded = padded(images), padded(captions)
    got = MODEL.apply(state(0.3, 0.6), *encoded, method='weights')
    assert got.shape == (*encoded[0].mask.shape, *encoded[1].mask.shape)
    totals = np.maximum(np.sum(got, axis=1, keepdims=True), 1e-8)
    for i, V in enumerate(images):
        for t, W in enumerate(captions):
            want, _ = oracle.naaf_attention(V, W, threshold=0.6)
            np.testing.assert_allclose((got / totals)[i, : len(V), t, : len(W)].T, want, atol=1e-5)
            np.testing.assert_array_equal(got[i, len(V) :, t], 0)
    unmatched = np.sum(got, axis=1) == 0
    assert 0 < unmatched[:, encoded[1].mask].mean() < 1


@pytest.mark.parametrize('minimum', [MINIMUM, 1, 12, 200])
def test_training_mines_thresholds_as_the_loop_does(minimum):
    images, captions = make_pairs()
    used, threshold, safe_threshold = oracle.naaf_thresholds(images, captions, minimum=minimum)
    got, left = train(padded(images), padded(captions), MODEL.clone(minimum_words=minimum))
    np.testing.assert_allclose(got, trained_scores(images, captions, used), atol=1e-5)
    np.testing.assert_allclose([left['threshold'], left['safe_threshold']], [threshold, safe_threshold], atol=1e-5)
    assert (threshold > 0.1) == (minimum < 200)
    if minimum < 12:
        found = np.argmax(got, axis=0) == np.arange(8)
        assert 0 < found.sum() < 8
        assert safe_threshold > 0


@pytest.mark.slow
def test_gradients_are_those_of_the_loop_with_constant_thresholds():
    images, captions = make_pairs(4, noise=0.5, seed=3)
    used, threshold, _ = oracle.naaf_thresholds(images, captions, minimum=MINIMUM)
    assert np.sum(used > 0.1) >= 2
    weights = np.random.default_rng(0).normal(size=(4, 4))

    def loss(images, texts):
        scores, left = train(images, texts)
        return jnp.sum(weights * scores), left

    encoded = padded(images), padded(captions)
    got, left = jax.grad(loss, (0, 1), has_aux=True, allow_int=True)(*encoded)
    np.testing.assert_allclose(left['threshold'], threshold, atol=1e-5)

    def value(*items):
        return np.sum(weights * trained_scores(items[:4], items[4:], used))

    want = oracle.numerical_gradient(value, images + captions)
    for elements, items in zip(got, (want[:4], want[4:]), strict=True):
        for n, item in enumerate(items):
            np.testing.assert_allclose(elements.vectors[n, : len(item)], item, atol=1e-4)
        assert np.isfinite(elements.vectors).all()


def test_thresholds_are_reset_for_each_training_batch():
    images, captions = map(padded, make_pairs())
    first = MODEL.init(jax.random.key(0), images, captions, True, method='similarity')
    assert first['batch_stats'] == {'threshold': 0, 'safe_threshold': 0}
    _, left = train(images, captions)
    again = MODEL.apply({'batch_stats': left}, images, captions, True, method='similarity', mutable=['batch_stats'])
    assert again[1]['batch_stats'] == left
    scores = MODEL.apply({'batch_stats': left}, images, captions, method='similarity')
    same = MODEL.apply(state(0.9, left['safe_threshold']), images, captions, method='similarity')
    np.testing.assert_array_equal(scores, same)


@pytest.mark.slow
def test_devices_rank_the_images_of_all(monkeypatch):
    images, captions = map(padded, make_pairs())

    def loss(images):
        scores, left = train(images, captions)
        return jnp.sum(jnp.square(scores)), (scores, left)

    step = jax.grad(loss, has_aux=True, allow_int=True)
    gradient, (scores, left) = step(images)
    halves = jax.tree.map(lambda x: x.reshape(2, 4, *x.shape[1:]), images)
    monkeypatch.setattr(parallel, '_in_data_parallel', lambda: True)
    gradients, (rows, thresholds) = jax.vmap(step, axis_name=parallel.AXIS)(halves)
    np.testing.assert_allclose(rows.reshape(8, 8), scores, atol=1e-6)
    np.testing.assert_allclose(gradients.vectors.reshape(gradient.vectors.shape), gradient.vectors, atol=1e-5)
    for name, value in left.items():
        assert value > 0.1
        np.testing.assert_allclose(thresholds[name], [value] * 2, atol=1e-6)


def test_the_boundary_is_the_root_of_the_released_equation():
    rng = np.random.default_rng(0)
    for _ in range(200):
        alpha = rng.uniform(0.5, 4)
        positives, negatives = rng.normal(0.5, 0.2, 5), rng.normal(rng.uniform(0, 0.7), 0.2, 5)
        want, _ = oracle.naaf_boundary(positives, negatives, -1, -1, alpha)
        samples = np.stack([positives, negatives]).astype(np.float32)
        got = naaf.decision_boundary(np.mean(samples, 1), np.std(samples, 1, ddof=1), alpha)
        np.testing.assert_allclose(got if 0 <= got <= 1 else 0, want, atol=1e-4)


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
    statistics = naaf.initial_statistics().replace(threshold=jnp.float32(0.3), safe_threshold=jnp.float32(0.2))
    statistics = naaf.add_words(statistics, jnp.float32(samples), jnp.ones(len(samples[0]), bool))
    moved = naaf.move_thresholds(statistics, alpha)
    for got, new, old in zip((moved.threshold, moved.safe_threshold), want, (0.3, 0.2), strict=True):
        if new is not None:
            np.testing.assert_allclose(got, 0.7 * new + 0.3 * old, rtol=1e-5)
