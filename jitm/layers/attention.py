"""Cross-attention between all words and all regions of many pairs, computed without the attended vectors.

The elements of each item of one side (the queries) attend to the elements of each item of the other side (the context).
All arrays of pairs, among them scores and weights, are [C, K, Q, M]: C items of K context elements, Q items of M query
elements. Masks are bool, [C, K] and [Q, M], and True for the valid elements.

An attended vector is sum_k a_k v_k. Its product with a query q is sum_k a_k <v_k, q>, and its squared norm is a' G a
with the Gram matrix G of the context, so neither needs the vector.
"""

from collections.abc import Callable

import einops
import jax
import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.layers.linear import product
from jitm.layers.normalization import l2_normalize, safe_sqrt
from jitm.types import Elements

FOCALS = ('equal', 'prob')
AGGREGATIONS = ('LogSumExp', 'Mean', 'Max', 'Sum')
EPSILON = 1e-8
SLOPE = 0.1  # leaky ReLU on negative similarities


def unit_elements(vectors: Array, mask: Array) -> Elements:
    """L2-normalizes the valid elements [N, K, D] and sets the others to zero (SCAN, section 3)."""
    return Elements(l2_normalize(jnp.where(mask[..., None], vectors, 0)), mask)


def gram(context: Elements) -> Array:
    """Returns the inner products of the elements of each item: float32 [C, K, K]."""
    if context.gram is not None:
        return context.gram
    return product('cjd,ckd->cjk', context.vectors, context.vectors)


def similarities(context: Elements, queries: Elements) -> Array:
    """Returns the inner products of all context elements with all query elements: float32 [C, K, Q, M]."""
    return product('ckd,qmd->ckqm', context.vectors, queries.vectors)


def best_similarities(scores: Array, context_mask: Array) -> Array:
    """Returns the maximum of [C, K, Q, M] over the valid context elements: [C, Q, M]."""
    return jnp.max(jnp.where(einops.rearrange(context_mask, 'c k -> c k 1 1'), scores, -jnp.inf), axis=1)


def mean_best_similarity(context: Elements, queries: Elements) -> Array:
    """Returns the mean over the query elements of their similarity with the most similar context element: [C, Q]."""
    best = best_similarities(similarities(context, queries), context.mask)
    return jnp.mean(best, axis=-1, where=queries.mask)


def add_directions(score: Callable[..., Array], images: Elements, texts: Elements) -> Array:
    """Adds the scores of words that attend to regions and of regions that attend to words: [I, T].

    Args:
      score: The function `(direction, similarities, context, queries) -> [C, Q]`.
      images, texts: The elements of I images and T texts, whose similarities are computed once.
    """
    scores = similarities(images, texts)
    words = score('t2i', scores, images, texts)
    regions = score('i2t', einops.rearrange(scores, 'i r t l -> t l i r'), texts, images)
    return words + regions.T


def normalize_over_queries(scores: Array, query_mask: Array) -> Array:
    """Clips similarities with a leaky ReLU and L2-normalizes them over the query elements (SCAN, section 3.1.1).

    The slope of the ReLU is 0.1, as in the released code of SCAN, BFAN, SGRAF, DBL and NAAF; in the papers it is 0.
    Padded query elements become 0.
    """
    scores = jnp.where(query_mask, nn.leaky_relu(scores, SLOPE), 0)
    return scores / (safe_sqrt(jnp.sum(jnp.square(scores), axis=-1, keepdims=True)) + EPSILON)


def attend(scores: Array, context_mask: Array, inverse_temperature: float) -> Array:
    """Returns the unnormalized attention of each query element to the context (SCAN, eq. 4 without its denominator).

    Weights are above 0, and 0 for padded elements. All uses are scale-invariant: cosines, and comparisons between
    weights. Scores are at most 1 and the inverse temperature lambda at most 30, so that float32 holds sums of squares.
    """
    return jnp.where(einops.rearrange(context_mask, 'c k -> c k 1 1'), jnp.exp(inverse_temperature * scores), 0)


def normalize(weights: Array) -> Array:
    """Makes the weights [C, K, Q, M] of `attend` or `focus` sum to 1 over the context; weights of 0 stay 0."""
    total = jnp.sum(weights, axis=1, keepdims=True)
    return weights / jnp.where(total > 0, total, 1)


def word_by_region(weights: Array, queries: Elements, direction: str) -> Array:
    """Arranges the weights of `attend` or `focus` by word and region: [I, T, L, R].

    The queries are words in the direction 't2i' and regions in 'i2t'. The weights of a query element sum to 1; they are
    0 if it is padding or attends to no element.
    """
    weights = jnp.where(queries.mask, normalize(weights), 0)
    return einops.rearrange(weights, 'i r t l -> i t l r' if direction == 't2i' else 't l i r -> i t l r')


def focus(weights: Array, context_mask: Array, focal: str) -> Array:
    """Sets the weights of irrelevant elements to 0 (BFAN, eq. 4 to 8).

    'equal' keeps an element whose weight is above the mean, 'prob' one above the mean that is weighted by the square
    roots of the weights. All weights become 0 where none is above the mean, as with a single element.
    """
    constant = jax.lax.stop_gradient(weights)
    mask = einops.rearrange(context_mask, 'c k -> c k 1 1')
    top = jnp.max(constant, axis=1, keepdims=True)
    if focal == 'equal':
        above = jnp.sum(mask, axis=1, keepdims=True) * constant > jnp.sum(constant, axis=1, keepdims=True)
    else:
        root = jnp.sqrt(constant)
        above = constant * jnp.sum(root, axis=1, keepdims=True) > jnp.sum(constant * root, axis=1, keepdims=True)
        # If the top has nearly all of the weight, float32 may not resolve that it is above the mean.
        above |= constant == top
    unequal = jnp.min(jnp.where(mask, constant, jnp.inf), axis=1, keepdims=True) < top
    return jnp.where(above & unequal, weights, 0)


@jax.custom_vjp
def attended(weights: Array, vectors: Array) -> Array:
    """Returns what each query element attends to: sums [C, Q, M, D] of vectors [C, K, D], for weights [C, K, Q, M]."""
    return product('ckqm,ckd->cqmd', weights, vectors)


def _gradient_of_attended(arguments: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    # In this order a CPU transposes the weights, which are few, and not the cotangent.
    weights, vectors = arguments
    of_weights = einops.rearrange(product('cqmd,ckd->cqmk', cotangent, vectors), 'c q m k -> c k q m')
    of_vectors = product('ckqm,cqmd->ckd', weights, cotangent)
    return of_weights.astype(weights.dtype), of_vectors.astype(vectors.dtype)


attended.defvjp(lambda *arguments: (attended(*arguments), arguments), _gradient_of_attended)


def attended_norm(weights: Array, gram_matrix: Array) -> Array:
    """Returns the norm of each query element's attended vector, [C, Q, M]; 1 where it is 0, for use as a divisor."""
    # The terms of the squared norm nearly cancel; rounded to bfloat16, they could leave less than 0.
    products = jnp.einsum('cjqm,cjk->ckqm', weights, gram_matrix, precision=jax.lax.Precision.HIGHEST)
    squared = jnp.sum(products * weights, axis=1)
    return jnp.sqrt(jnp.where(squared > 0, squared, 1))


def attended_cosine(scores: Array, weights: Array, gram_matrix: Array) -> Array:
    """Returns the cosine of each query element, a unit vector, with its attended vector: [C, Q, M] (SCAN, eq. 5).

    It is 0 if either vector is zero. `scores` are inner products, and `weights` need not be normalized.
    """
    return jnp.sum(weights * scores, axis=1) / attended_norm(weights, gram_matrix)


def aggregate(relevance: Array, query_mask: Array, aggregation: str, inverse_temperature: float) -> Array:
    """Aggregates the relevance [C, Q, M] of query elements to scores [C, Q] (SCAN, eq. 6 and 7).

    LogSumExp is log(sum_m exp(lambda r_m)) / lambda; only it reads the inverse temperature lambda.
    """
    if aggregation == 'LogSumExp':
        return nn.logsumexp(inverse_temperature * relevance, axis=-1, where=query_mask) / inverse_temperature
    if aggregation == 'Max':
        return jnp.max(jnp.where(query_mask, relevance, -jnp.inf), axis=-1)
    if aggregation == 'Sum':
        return jnp.sum(jnp.where(query_mask, relevance, 0), axis=-1)
    return jnp.mean(relevance, axis=-1, where=query_mask)
