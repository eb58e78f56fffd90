"""Cross-attention against numbers worked out by hand: two regions, two words, two dimensions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jitm.layers import attention
from jitm.models import bfan, scan
from jitm.types import Elements

SIDES = {'embed_dim': 2, 'image': nn.Dense(1), 'text': nn.Dense(1)}
VECTORS = np.array([[0.8, 0.6], [0, 1]])  # of the words, and their inner products with the regions e1 and e2
REGIONS = Elements(jnp.eye(2)[None], jnp.ones((1, 2), bool))
WORDS = Elements(jnp.pad(jnp.float32(VECTORS), [(0, 1), (0, 0)])[None], jnp.array([[True, True, False]]))


def logistic(x):
    return 1 / (1 + np.exp(-x))


def as_pairs(rows):
    """Numbers [K, M] of one pair as [1, K, 1, M]."""
    return jnp.float32(rows)[None, :, None]


def test_similarities_are_clipped_and_normalized():
    got = attention.normalize_over_queries(as_pairs([[0.8, 0.6, 7], [0.6, -0.8, 7]]), WORDS.mask)
    clipped = np.array([0.6, -0.08])
    want = [[0.8, 0.6, 0], [*clipped / np.linalg.norm(clipped), 0]]
    np.testing.assert_allclose(got, as_pairs(want), atol=1e-6)


def test_attention_is_a_softmax_over_the_valid_context():
    scores = as_pairs([[1, 0], [0, 0], [5, 5]])  # the third element is padding
    weights = attention.attend(scores, WORDS.mask, np.log(3))
    np.testing.assert_allclose(attention.normalize(weights), as_pairs([[3 / 4, 1 / 2], [1 / 4, 1 / 2], [0, 0]]))
    np.testing.assert_array_equal(attention.normalize(0 * weights), 0)


def test_attended_vectors_enter_by_their_gram_matrix():
    """Words e1 and e2 attend to (2, 0) and (1, 1) with the weights (1, 1) and (0, 0), the vectors (3, 1) and (0, 0)."""
    context = Elements(jnp.array([[[2.0, 0], [1, 1]]]), REGIONS.mask)
    scores, gram = attention.similarities(context, REGIONS), attention.gram(context)
    np.testing.assert_array_equal(scores, as_pairs([[2, 0], [1, 1]]))
    weights = as_pairs([[1, 0], [1, 0]])
    np.testing.assert_allclose(attention.attended_norm(weights, gram), [[[np.sqrt(10), 1]]])
    np.testing.assert_allclose(attention.attended_cosine(scores, weights, gram), [[[3 / np.sqrt(10), 0]]])


@pytest.mark.parametrize(
    ('aggregation', 'want'),
    [('Mean', 0.5), ('Sum', 1.0), ('Max', 0.8), ('LogSumExp', np.log(np.exp(2 * 0.8) + np.exp(2 * 0.2)) / 2)],
)
def test_relevance_is_aggregated_over_the_valid_queries(aggregation, want):
    relevance = jnp.array([[[0.8, 0.2, 0.9]]])
    np.testing.assert_allclose(attention.aggregate(relevance, WORDS.mask, aggregation, 2.0), [[want]], rtol=1e-6)


# The words' similarities with the regions are (0.8, 0.6) and (0, 1). Over the words, those of region 0 become (1, 0).
NORM = np.sqrt(0.6**2 + 1)


@pytest.mark.parametrize(
    ('direction', 'difference', 'cosine'),  # difference of a query element's normalized similarities
    [('t2i', [1 - 0.6 / NORM, -1 / NORM], 0), ('i2t', [0.8, 0.6 - 1], 0.6)],  # cosine of the two context elements
)
def test_scan(direction, difference, cosine):
    first = logistic(3 * np.array(difference))  # the weights of context element 0
    weights = np.stack([first, 1 - first], axis=1)
    model = scan.SCAN(**SIDES, direction=direction, lambda_softmax=3.0, aggregation='Mean', lambda_lse=6.0)
    got = model.apply({}, REGIONS, WORDS, method='attention_block')[direction]
    np.testing.assert_allclose(got[0, 0, :2], weights if direction == 't2i' else weights.T, rtol=1e-5)
    np.testing.assert_array_equal(got[0, 0, 2], 0)
    similarity = VECTORS if direction == 't2i' else VECTORS.T
    norms = np.sqrt(first**2 + (1 - first) ** 2 + 2 * cosine * first * (1 - first))
    score = model.apply({}, REGIONS, WORDS, method='score_block')
    np.testing.assert_allclose(score, [[np.mean(np.sum(weights * similarity, axis=1) / norms)]], rtol=1e-5)


@pytest.mark.parametrize(
    ('focal', 'weights', 'kept'),
    [  # sum w^1.5 / sum w^0.5 is 0.341 in the second case and 0.340 in the third
        ('equal', [0.405, 0.335, 0.26], [0.405, 0.335, 0]),
        ('prob', [0.42, 0.335, 0.245], [0.42, 0, 0]),
        ('prob', [0.41, 0.345, 0.245], [0.41, 0.345, 0]),
    ],
)
def test_what_is_above_the_mean_is_kept(focal, weights, kept):
    weights, kept = (jnp.float32([*x, 0]).reshape(1, 4, 1, 1) for x in (weights, kept))  # and padding
    np.testing.assert_array_equal(attention.focus(weights, jnp.array([[True, True, True, False]]), focal), kept)


@pytest.mark.parametrize('focal', attention.FOCALS)
def test_equal_weights_leave_nothing_to_focus_on(focal):
    focus = jax.jit(attention.focus, static_argnums=2)
    for weight in (1.0, 0.1, 1 / 3, 1.7e6):
        for real_ones in (1, 3):
            for padded in (3, 32, 36):
                mask = np.arange(padded)[None] < real_ones
                weights = jnp.where(jnp.asarray(mask)[..., None, None], weight, 0) * jnp.ones((1, padded, 2, 29))
                np.testing.assert_array_equal(focus(weights, mask, focal), 0)


@pytest.mark.parametrize('focal', attention.FOCALS)
def test_bfan(focal):
    """Of two elements the more similar is kept: word n and region n choose each other, with cosines 0.8 and 1."""
    model = bfan.BFAN(**SIDES, focal=focal, lambda_softmax=20.0)

    def apply(method, regions):
        return jax.jit(lambda regions: model.apply({}, regions, WORDS, method=method))(regions)

    got = apply('attention_block', REGIONS)
    for direction in ('t2i', 'i2t'):
        np.testing.assert_array_equal(got[direction], [[[[1, 0], [0, 1], [0, 0]]]])
    np.testing.assert_allclose(apply('score_block', REGIONS), [[1.8]], rtol=1e-6)
    # No word has a choice, and the region keeps word 0.
    region = REGIONS.first(1)
    got = apply('attention_block', region)
    np.testing.assert_array_equal(got['t2i'], [[[[0], [0], [0]]]])
    np.testing.assert_array_equal(got['i2t'], [[[[1], [0], [0]]]])
    np.testing.assert_allclose(apply('score_block', region), [[0.8]], rtol=1e-6)
