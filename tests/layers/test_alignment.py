"""The alignments of SGRAF and DBL, and the reasoning on them, against numbers worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jitm.errors import UserError
from jitm.layers import alignment
from jitm.models import sgraf
from jitm.types import Elements

NODES = jnp.eye(2)[None, None]  # two orthogonal alignments of one pair
TWO = jnp.ones((1, 2), bool)


def logistic(x):
    return 1 / (1 + np.exp(-x))


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def linear(kernel, bias=0.0):
    kernel = jnp.float32(kernel)
    return {'kernel': kernel, 'bias': jnp.zeros(kernel.shape[1]) + jnp.float32(bias)}


def as_variables(params, statistics):
    return {'params': params, 'batch_stats': jax.tree.map(jnp.float32, statistics)}


def self_attention(scores, slots=None):
    """A module whose local and whole vectors are the tanh of the element and of the mean, and its parameters."""
    params = {'local': linear(np.eye(2)), 'whole': linear(np.eye(2)), 'scores': linear(scores)}
    return alignment.SelfAttention(0.0, slots), params


def test_self_attention_weighs_elements():
    """Logits ln 3 and 0 weigh e1 and e2 as 3 to 1; their mean is (0.5, 0.5), and the third element is padding."""
    model, params = self_attention([[np.log(3) / (np.tanh(1) * np.tanh(0.5))], [0]])
    vectors = jnp.array([[[1.0, 0], [0, 1], [7, 7]]])
    got = model.apply({'params': params}, vectors, jnp.array([[True, True, False]]))
    np.testing.assert_allclose(got, np.array([[3, 1]]) / np.sqrt(10), rtol=1e-5)


def test_self_attention_normalizes_slots_and_the_mean():
    model, params = self_attention([[2], [0]], slots=2)
    # Slot 0: (1 - 0.2) / 2 + 0.1, and slot 1: 9 everywhere. The mean's first dimension: 3 (0.5 - 0.1) / 2 + 0.2.
    params['local_norm'] = {'scale': jnp.array([1.0, 0]), 'bias': jnp.array([0.1, 9])}
    params['whole_norm'] = {'scale': jnp.array([3.0, 1]), 'bias': jnp.array([0.2, 0])}
    statistics = {
        'local_norm': {'mean': np.array([0.2, 9]), 'variance': np.array([4, 1]) - 1e-5},
        'whole_norm': {'mean': np.array([0.1, 0]), 'variance': np.array([4, 1]) - 1e-5},
    }
    got = model.apply(as_variables(params, statistics), jnp.eye(2)[None], TWO)
    first = logistic(2 * (np.tanh(0.5) - np.tanh(9)) * np.tanh(0.8))
    np.testing.assert_allclose(got, [unit(np.array([first, 1 - first]))], rtol=1e-5)


def test_self_attention_in_training_uses_the_statistics_of_the_batch():
    """Slot 0 is in both images, slot 1 in one and slot 2 in none, which keeps its running statistics."""
    vectors = np.random.default_rng(0).normal(size=(2, 3, 2)).astype(np.float32)
    mask = np.array([[True, True, False], [True, False, False]])
    model, params = self_attention([[2], [-1]], slots=3)
    params |= {f'{name}_norm': {'scale': jnp.ones(n), 'bias': jnp.zeros(n)} for name, n in (('local', 3), ('whole', 2))}
    means = np.stack([vectors[0, :2].mean(0), vectors[1, 0]])
    slots = vectors[:, 0].ravel(), vectors[0, 1], np.array([3.0])
    own = {
        'local_norm': {'mean': np.array([x.mean() for x in slots]), 'variance': np.array([x.var() for x in slots])},
        'whole_norm': {'mean': means.mean(0), 'variance': means.var(0)},
    }
    old = jax.tree.map(lambda x: np.full_like(x, 3), own)
    got, changed = model.apply(as_variables(params, old), vectors, mask, True, mutable=['batch_stats'])
    np.testing.assert_allclose(got, model.apply(as_variables(params, own), vectors, mask), rtol=1e-5)
    # The variances are unbiased where they are stored: slots have 4 and 2 numbers, dimensions of the mean 2.
    own['local_norm']['variance'] = own['local_norm']['variance'] * [4 / 3, 2, 1] + [0, 0, 3]
    own['whole_norm']['variance'] = own['whole_norm']['variance'] * 2
    want = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, old, own)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), changed['batch_stats'], want)


def test_more_regions_than_slots_are_refused():
    with pytest.raises(UserError, match='images have up to 5 regions, but the model has slots for 4'):
        alignment.SelfAttention(0.0, 4).init(jax.random.key(0), jnp.ones((1, 5, 2)), jnp.ones((1, 5), bool))


def test_an_alignment_compares_two_vectors():
    params = {'linear': linear([[1, 1], [0, 1]], [0, 0.1])}
    got = alignment.Alignments(2).apply({'params': params}, jnp.array([[[1.0, 0]]]), jnp.array([[0.0, 2]]))
    np.testing.assert_allclose(got, [[unit(np.array([1, 5.1]))]], rtol=1e-6)


def test_mean_of_alignments():
    nodes = jnp.array([[[[3.0, 0], [0, 1], [7, 7]]]])  # the third is padding
    got = alignment.Mean().apply({}, nodes, jnp.array([[True, True, False]]), False)
    np.testing.assert_allclose(got, [[unit(np.array([3, 1]))]], rtol=1e-6)


def test_graph_reasoning():
    """Nodes 1 and -1 with M = 1: the softmax of +-c averages them to +-tanh(c), and the negative one is cut to 0."""
    params = {f'query_bias_{n}': jnp.float32([b]) for n, b in enumerate((0, 0, 0.3))}
    for n, (query, key, graph) in enumerate([(2, 0.5, 3), (0.7, 1, 0.9), (1.1, -0.6, 2)]):
        params |= {
            f'query_{n}': jnp.float32([[query]]),
            f'key_{n}': jnp.float32([[key]]),
            f'graph_{n}': linear([[graph]]),
        }
    x = 3 * np.tanh(1)  # c = query * key = 1
    x, y = 0.9 * logistic(0.7 * x**2) * x, 0.9 * 0.5 * x  # node 1 is 0, asks for nothing, and weighs all alike
    first = logistic((1.1 * x + 0.3) * -0.6 * (x - y))
    want = 2 * (first * x + (1 - first) * y)
    nodes = jnp.array([[[[1.0], [-1], [7]]], [[[-1], [-1], [7]]]])  # of two images; in the second all become 0
    got = alignment.GraphReasoning(3).apply({'params': params}, nodes, jnp.array([[True, True, False]]), False)
    np.testing.assert_allclose(got, [[[want]], [[0]]], rtol=1e-5)


FILTRATION = {'scale': jnp.float32(2), 'bias': jnp.float32(0)}


def filtration(relevance, **statistics):
    return as_variables(FILTRATION | {'relevance': linear(relevance)}, statistics)


def test_attention_filtration():
    """Gates 3/4 and 1/2 of two orthogonal alignments weigh them as 3 to 2."""
    variables = filtration([[3 + np.log(3)], [3]], mean=3, variance=4 - 1e-5)
    got = alignment.AttentionFiltration().apply(variables, NODES, TWO, False)
    np.testing.assert_allclose(got, [[np.array([3, 2]) / np.sqrt(13)]], rtol=1e-5)


def test_attention_filtration_normalizes_each_text_in_training():
    model, relevance = alignment.AttentionFiltration(), np.array([[1.5], [-0.5]])
    nodes = np.random.default_rng(0).normal(size=(3, 2, 4, 2)).astype(np.float32)  # three images, two texts
    lengths = 4, 2
    mask = np.arange(4) < np.array(lengths)[:, None]
    old = filtration(relevance, mean=0.2, variance=3.0)
    got = model.apply(old, nodes, mask, True)
    values = [(nodes[:, t, :n] @ relevance).ravel() for t, n in enumerate(lengths)]
    for t, x in enumerate(values):
        own = filtration(relevance, mean=x.mean(), variance=x.var())
        np.testing.assert_allclose(got[:, t], model.apply(own, nodes, mask, False)[:, t], rtol=1e-4)
    moments = model.apply(old, nodes, mask, method='moments')
    unbiased = [np.mean(x) for x in values], [np.var(x, ddof=1) for x in values]
    np.testing.assert_allclose(moments, unbiased, rtol=1e-5, atol=1e-6)
    # The last text has the weight 0.1, the one before it 0.09.
    _, changed = model.apply(old, jnp.array([1.0, 2]), jnp.array([5.0, 7]), method='update', mutable=['batch_stats'])
    want = {'mean': 0.81 * 0.2 + 0.09 + 0.1 * 2, 'variance': 0.81 * 3 + 0.09 * 5 + 0.1 * 7}
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), changed['batch_stats'], want)


@pytest.mark.parametrize('wholes', [False, True])
def test_scores_of_sgraf(wholes):
    """Words e1 and e2 attend to e1 and e2 at ln 3, with unit length: both differ from them in both dimensions."""
    whole = nn.Dense(1) if wholes else None
    model = sgraf.SGRAF(
        embed_dim=2,
        image=nn.Dense(1),
        text=nn.Dense(1),
        alignment_dim=2,
        image_whole=whole,
        text_whole=whole,
        reasoning=alignment.Mean(),
        lambda_softmax=np.log(3),
        activation='sigmoid' if wholes else 'tanh',
    )
    params = {'local': {'linear': linear(np.eye(2))}, 'whole': {'linear': linear(2 * np.eye(2), [0, 0.1])}}
    params['score'] = linear([[2], [1]], [0.1])
    images = Elements(jnp.eye(2)[None], TWO, whole=jnp.array([[1.0, 0]]))
    texts = Elements(jnp.eye(2)[None], TWO, whole=jnp.array([[0.0, 2]]))
    difference = unit((np.array([3, 1]) / np.sqrt(10) - [1, 0]) ** 2)
    nodes = np.stack([difference, difference[::-1]])
    if wholes:
        nodes = np.concatenate([[unit(np.array([2, 8.1]))], nodes])
    got = model.apply({'params': params}, images, texts, method='alignments')
    np.testing.assert_allclose(got, [[nodes]], rtol=1e-5)
    score = unit(nodes.mean(0)) @ [2, 1] + 0.1
    got = model.apply({'params': params}, images, texts, method='score_block')
    np.testing.assert_allclose(got, [[logistic(score) if wholes else np.tanh(score)]], rtol=1e-5)
