"""Cross-attention of every word with every region of many pairs at once, without attended vectors.

Each item of one side (its elements are the context) is attended by the elements of each item of the other side (the
queries). All arrays of pairs are [C, K, Q, M]: C items of K context elements, Q items of M query elements.

An attended vector is sum_k a_k v_k. Its product with a query q is sum_k a_k <v_k, q>, and its squared norm is a' G a
with the Gram matrix G of the context, so neither needs the vector.
"""

import chex
import einops
import jax
import jax.numpy as jnp
from flax import linen as nn

from jitm.errors import UserError
from jitm.layers.linear import product
from jitm.layers.normalization import l2_normalize, safe_sqrt
from jitm.types import Elements

NORMALIZATIONS = ('clipped_l2norm', 'l2norm', 'clipped_l1norm', 'l1norm', 'clipped', 'softmax', 'no_norm')
FOCALS = ('equal', 'prob')
AGGREGATIONS = ('LogSumExp', 'Mean', 'Max', 'Sum')
EPSILON = 1e-8


def unit_elements(vectors: chex.Array, mask: chex.Array) -> Elements:
    """Gives each real element [N, K, D] norm 1, and zeros to the others (SCAN, section 3)."""
    return Elements(l2_normalize(jnp.where(mask[..., None], vectors, 0)), mask)


def gram(context: Elements) -> chex.Array:
    """The inner products of each item's own elements: float32 [C, K, K]."""
    return product('cjd,ckd->cjk', context.vectors, context.vectors)


def similarities(context: Elements, queries: Elements) -> chex.Array:
    """The inner product of every context element with every query element: float32 [C, K, Q, M]."""
    return product('ckd,qmd->ckqm', context.vectors, queries.vectors)


def normalize_over_queries(scores: chex.Array, query_mask: chex.Array, normalization: str, slope: float) -> chex.Array:
    """What the released code of SCAN calls `raw_feature_norm` (SCAN, section 3.1.1, has clipped_l2norm).

    Args:
      scores: [C, K, Q, M].
      query_mask: bool [Q, M], which query elements are real.
      normalization: one of `NORMALIZATIONS`; 'clipped' ones pass scores through a leaky ReLU first, and the norms are
        over the query elements. The released code has no working L1 norm; here it is the sum of absolute values.
      slope: of the leaky ReLU, 0.1 as released; 0 is the paper's ReLU.

    Returns:
      [C, K, Q, M], zero at padded query elements.
    """
    if normalization not in NORMALIZATIONS:
        raise UserError(
            f"config key 'model.raw_feature_norm' is '{normalization}'; take one of {', '.join(NORMALIZATIONS)}"
        )
    if normalization == 'softmax':
        return nn.softmax(scores, axis=-1, where=query_mask)
    if normalization.startswith('clipped'):
        scores = nn.leaky_relu(scores, slope)
    scores = jnp.where(query_mask, scores, 0)
    if normalization.endswith('l2norm'):
        return scores / (safe_sqrt(jnp.sum(jnp.square(scores), axis=-1, keepdims=True)) + EPSILON)
    if normalization.endswith('l1norm'):
        return scores / (jnp.sum(jnp.abs(scores), axis=-1, keepdims=True) + EPSILON)
    return scores


def attend(scores: chex.Array, context_mask: chex.Array, temperature: float) -> chex.Array:
    """Attention of each query element over the context, up to a factor (SCAN, eq. 4, before its denominator).

    Whatever uses it does not depend on its length: cosines, and which weights are above others.

    Args:
      scores: [C, K, Q, M], at most 1.
      context_mask: bool [C, K], which context elements are real; every item has one.
      temperature: lambda, what scores are multiplied by; see `check_temperature`.

    Returns:
      [C, K, Q, M], above 0; 0 for padded elements.
    """
    return jnp.where(einops.rearrange(context_mask, 'c k -> c k 1 1'), jnp.exp(temperature * scores), 0)


def check_temperature(temperature: float) -> None:
    """Raises a UserError unless sums of squared exponentials of scores times the temperature are float32."""
    if not 0 < temperature <= 30:
        raise UserError(f"config key 'model.lambda_softmax' is {temperature}; it must be above 0 and at most 30")


def shares(weights: chex.Array) -> chex.Array:
    """Makes the weights [C, K, Q, M] of `attend` or `focus` add up to 1 over the context, if any is above 0."""
    total = jnp.sum(weights, axis=1, keepdims=True)
    return weights / jnp.where(total > 0, total, 1)


def word_by_region(weights: chex.Array, queries: Elements, direction: str) -> chex.Array:
    """Lays weights out for the eye.

    Args:
      weights: [C, K, Q, M], of `attend` or `focus`.
      queries: Q items of M elements.
      direction: 't2i', the queries are words; or 'i2t', regions.

    Returns:
      [I, T, L, R], adding up to 1 over the context (the regions in t2i, the words in i2t); all 0 for a query element
      that is padding or attends to nothing.
    """
    weights = jnp.where(queries.mask, shares(weights), 0)
    return einops.rearrange(weights, 'i r t l -> i t l r' if direction == 't2i' else 't l i r -> i t l r')


def focus(weights: chex.Array, context_mask: chex.Array, focal: str) -> chex.Array:
    """Takes attention away from irrelevant elements (BFAN, eq. 4 to 8).

    Args:
      weights: [C, K, Q, M], of `attend`.
      context_mask: bool [C, K].
      focal: 'equal' compares an element's weight with the mean; 'prob' with the others', each counting by the square
        root of its own.

    Returns:
      [C, K, Q, M]; where no element is above, as with a single one, all are 0.
    """
    if focal not in FOCALS:
        raise UserError(f"config key 'model.focal' is '{focal}'; take one of {', '.join(FOCALS)}")
    constant, mask = jax.lax.stop_gradient(weights), einops.rearrange(context_mask, 'c k -> c k 1 1')
    top = jnp.max(constant, axis=1, keepdims=True)
    if focal == 'equal':
        above = jnp.sum(mask, axis=1, keepdims=True) * constant > jnp.sum(constant, axis=1, keepdims=True)
    else:
        root = jnp.sqrt(constant)
        above = constant * jnp.sum(root, axis=1, keepdims=True) > jnp.sum(constant * root, axis=1, keepdims=True)
        above |= constant == top  # which has nearly all of the weight at times, and is ahead by less than float32 tells
    unequal = jnp.min(jnp.where(mask, constant, jnp.inf), axis=1, keepdims=True) < top
    return jnp.where(above & unequal, weights, 0)


def attended_norm(weights: chex.Array, gram_matrix: chex.Array) -> chex.Array:
    """The norm of each query element's attended vector.

    Args:
      weights: [C, K, Q, M].
      gram_matrix: [C, K, K], of the context.

    Returns:
      [C, Q, M]; 1 where it is 0, to be divided by.
    """
    products = jnp.einsum('cjqm,cjk->ckqm', weights, gram_matrix, precision=jax.lax.Precision.HIGHEST)
    squared = jnp.sum(products * weights, axis=1)
    return jnp.sqrt(jnp.where(squared > 0, squared, 1))


def attended_cosine(scores: chex.Array, weights: chex.Array, gram_matrix: chex.Array) -> chex.Array:
    """The cosine of each query element, which has norm 1, and its attended vector (SCAN, eq. 5).

    Args:
      scores: [C, K, Q, M], inner products.
      weights: [C, K, Q, M], up to a factor for each query element.
      gram_matrix: [C, K, K], of the context.

    Returns:
      [C, Q, M]; 0 if either is zero.
    """
    return jnp.sum(weights * scores, axis=1) / attended_norm(weights, gram_matrix)


def masked_mean(x: chex.Array, mask: chex.Array) -> chex.Array:
    """The mean of [..., Q, M] over the real elements of mask [Q, M]: [..., Q]."""
    return jnp.sum(jnp.where(mask, x, 0), axis=-1) / jnp.sum(mask, axis=-1)


def aggregate(relevance: chex.Array, query_mask: chex.Array, aggregation: str, temperature: float) -> chex.Array:
    """One score of all query elements' (SCAN, eq. 6 and 7).

    Args:
      relevance: [C, Q, M].
      query_mask: bool [Q, M].
      aggregation: one of `AGGREGATIONS`.
      temperature: lambda of LogSumExp, log(sum_m exp(lambda r_m)) / lambda; the others have no use for it.

    Returns:
      [C, Q].
    """
    if aggregation == 'LogSumExp':
        return nn.logsumexp(temperature * relevance, axis=-1, where=query_mask) / temperature
    if aggregation == 'Max':
        return jnp.max(jnp.where(query_mask, relevance, -jnp.inf), axis=-1)
    if aggregation == 'Sum':
        return jnp.sum(jnp.where(query_mask, relevance, 0), axis=-1)
    if aggregation == 'Mean':
        return masked_mean(relevance, query_mask)
    raise UserError(f"config key 'model.aggregation' is '{aggregation}'; take one of {', '.join(AGGREGATIONS)}")
