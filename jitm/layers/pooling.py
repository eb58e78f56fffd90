"""Pooling of a masked set of vectors to one vector.

Every pooling maps features [N, K, D] and a mask bool [N, K] with at least one True per row to [N, D].
"""

import functools
from collections.abc import Callable
from types import MappingProxyType
from typing import Literal

import einops
import jax
import jax.numpy as jnp
import numpy as np
from chex import Array
from flax import linen as nn

from jitm.devices import policy
from jitm.errors import check_choice
from jitm.layers.linear import LINEAR, Linear
from jitm.layers.sequences import GRU
from jitm.types import Count

ACTIVATIONS = MappingProxyType(
    {
        'identity': lambda x: x,
        'tanh': jnp.tanh,
        'relu': nn.relu,
        'gelu': functools.partial(nn.gelu, approximate=False),
        'silu': nn.silu,
        'sigmoid': nn.sigmoid,
    }
)
GPO_DIM = 32  # rank encodings and states
GPO_TEMPERATURE = 0.1  # divides the scores of ranks before their softmax


def mean(features: Array, mask: Array) -> Array:
    """Returns the mean of the valid vectors."""
    total = jnp.sum(jnp.where(mask[..., None], features, 0), axis=1)
    return total / jnp.sum(mask, axis=1, keepdims=True)


def mean_sqrt(features: Array, mask: Array) -> Array:
    """Returns the sum of the valid vectors, divided by the square root of their number."""
    return mean(features, mask) * jnp.sqrt(jnp.sum(mask, axis=1, keepdims=True))


def weighted_mean(features: Array, mask: Array) -> Array:
    """Returns the mean of the valid vectors, weighted by their positions 1, 2, ... (Muennighoff, 2022)."""
    weights = jnp.where(mask, jnp.arange(1, mask.shape[1] + 1), 0)[..., None]
    return jnp.sum(weights * jnp.where(mask[..., None], features, 0), axis=1) / jnp.sum(weights, axis=1)


def maximum(features: Array, mask: Array) -> Array:
    """Returns the maximum of each dimension over the valid vectors."""
    return jnp.max(jnp.where(mask[..., None], features, -jnp.inf), axis=1)


def first(features: Array, mask: Array) -> Array:
    """Returns the first valid vector."""
    return jnp.take_along_axis(features, jnp.argmax(mask, axis=1)[:, None, None], axis=1)[:, 0]


def last(features: Array, mask: Array) -> Array:
    """Returns the last valid vector."""
    index = jnp.max(jnp.where(mask, jnp.arange(mask.shape[1]), 0), axis=1)
    return jnp.take_along_axis(features, index[:, None, None], axis=1)[:, 0]


# Both of these return the sum [N, D] of the values of each dimension of features [N, K, D], in descending order, with
# weights [N, K] of their ranks. Ties rank by position; -inf is no value and ranks last, with weight 0. See
# `policy.sort_to_rank`.


def _weigh_by_counting(features: Array, weights: Array) -> Array:
    weights = jax.vmap(lambda row, rank: row[rank])(weights, descending_ranks(features))
    return jnp.sum(weights * jnp.where(jnp.isneginf(features), 0, features), axis=1)


@jax.custom_vjp
def _weigh_by_sorting(features: Array, weights: Array) -> Array:
    return _sort_and_weigh(features, weights)[0]


def _sort_and_weigh(features: Array, weights: Array) -> tuple[Array, tuple[Array, ...]]:
    positions = jax.lax.broadcasted_iota(jnp.int32, features.shape, 1)
    negative, positions = jax.lax.sort((-features, positions), dimension=1, num_keys=2, is_stable=False)
    ordered = jnp.where(jnp.isinf(negative), 0, -negative)
    return jnp.sum(weights[..., None] * ordered, axis=1), (ordered, positions, weights)


def _spread_weights(residuals: tuple[Array, ...], gradient: Array) -> tuple[Array, Array]:
    """Returns the gradients; a second sort moves the weights back to the positions of the values."""
    ordered, positions, weights = residuals
    weights = jnp.broadcast_to(weights[..., None], ordered.shape)
    _, weights = jax.lax.sort((positions, weights), dimension=1, num_keys=1, is_stable=False)
    return weights * gradient[:, None], jnp.sum(ordered * gradient[:, None], axis=2)


_weigh_by_sorting.defvjp(_sort_and_weigh, _spread_weights)


def descending_ranks(features: Array) -> Array:
    """Returns the rank of each value among the K of its dimension, 0 for the largest; ties rank by position."""
    features = jax.lax.stop_gradient(features)
    ranks = 0
    position = jnp.arange(features.shape[1])[:, None]
    for k in range(features.shape[1]):
        column = features[:, k : k + 1]
        ranks += ((column > features) | ((column == features) & (k < position))).astype(jnp.int32)
    # Without the barrier XLA fuses the counting into each use and repeats it for every element.
    return jax.lax.optimization_barrier(ranks)


def positional_encoding(length: int, dim: int) -> np.ndarray:
    """Returns float32 [length, dim]: sin(p exp(-2i ln(1e4) / dim)) at 2i, cos at 2i + 1 (Vaswani et al., 2017, 3.5)."""
    angles = np.arange(length)[:, None] * np.exp(-np.arange(0, dim, 2) * np.log(1e4) / dim)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, dim).astype(np.float32)


class GPO(nn.Module):
    """Generalized pooling operator: a learned weight for each rank (Chen et al., 2021, VSE-infinity).

    Each dimension is sorted independently. The weights depend only on the number of vectors and are computed once for
    each number. The temperature is part of the released code, not of the paper.
    """

    def setup(self):
        """Creates the GRU over ranks and its output layer."""
        self.gru = GRU(GPO_DIM, bidirectional=True)
        self.linear = Linear(1, use_bias=False)

    def __call__(self, features: Array, mask: Array) -> Array:
        """Pools [N, K, D] with mask [N, K] to [N, D]."""
        weights = self.weights(features.shape[1])[jnp.sum(mask, axis=1) - 1]
        features = jnp.where(mask[..., None], features, -jnp.inf)
        weigh = _weigh_by_sorting if policy.sort_to_rank() else _weigh_by_counting
        return weigh(features, weights)

    def weights(self, size: int) -> Array:
        """Returns the weights of the ranks [K, K]; row k - 1 is for k vectors, with 0 after the k-th."""
        counts = jnp.arange(1, size + 1)
        positions = jnp.asarray(positional_encoding(size, GPO_DIM)[None])
        scores = self.linear(self.gru(positions, counts))[..., 0] / GPO_TEMPERATURE
        return nn.softmax(scores, where=jnp.arange(size) < counts[:, None])


class ESA(nn.Module):
    """Element-wise attention: a softmax over the set for each dimension, of scores W x + b (ESA, released).

    Attributes:
      linear_init: The initialization of W and b, a key of `LINEAR`: 'xavier', as in ESA's code for regions and BERT, or
        'uniform', for the GRU.
    """

    linear_init: str = 'xavier'

    @nn.compact
    def __call__(self, features: Array, mask: Array) -> Array:
        """Pools [N, K, D] with mask [N, K] to [N, D]."""
        scores = LINEAR[self.linear_init](features.shape[-1], name='scores')(features)
        attention = nn.softmax(scores, axis=1, where=mask[..., None])
        return einops.reduce(attention * jnp.where(mask[..., None], features, 0), 'n k d -> n d', 'sum')


POOLINGS = {
    'mean': lambda: mean,
    'mean_sqrt': lambda: mean_sqrt,
    'weighted_mean': lambda: weighted_mean,
    'max': lambda: maximum,
    'first': lambda: first,
    'last': lambda: last,
    'gpo': GPO,
    'esa': ESA,
    'esa_uniform': functools.partial(ESA, 'uniform'),
}

OF_ONE_ELEMENT = 'first', 'last'


def make_pooling(name: str, argument: str) -> Callable[[Array, Array], Array]:
    """Returns a new pooling, one of `POOLINGS`; `argument` is the name of the caller's argument, for messages.

    Raises:
      ArgumentError: If the name is unknown.
    """
    check_choice(name, POOLINGS, argument)
    return POOLINGS[name]()


class Dense(nn.Module):
    """A pooling, a linear layer and an activation, as the modules `Pooling` and `Dense` of sentence-transformers.

    Attributes:
      pooling: The pooling, a key of `POOLINGS`.
      size: The number of outputs F.
      activation: A key of `ACTIVATIONS`.
      use_bias: Whether the linear layer adds a bias.
    """

    pooling: str
    size: Count
    activation: Literal[*ACTIVATIONS]
    use_bias: bool

    @nn.compact
    def __call__(self, features: Array, mask: Array) -> Array:
        """Maps [N, K, D] with mask [N, K] to [N, F]."""
        pooled = make_pooling(self.pooling, 'pooling')(features, mask)
        return ACTIVATIONS[self.activation](Linear(self.size, self.use_bias, name='linear')(pooled))
