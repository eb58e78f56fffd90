"""Alignment vectors of words with their attended regions, and reasoning on them (SGRAF, DBL)."""

import functools

import einops
import jax
import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.devices import policy
from jitm.errors import UserError
from jitm.layers import normalization
from jitm.layers.attention import EPSILON
from jitm.layers.linear import XavierLinear, product
from jitm.layers.normalization import MOMENTUM, BatchNorm, l2_normalize, masked_moments
from jitm.types import Count, Rate


class SelfAttention(nn.Module):
    """Pools regions or words to one vector, by their mean weighted with self-attention (SGRAF, eq. 1 to 3).

    Attributes:
      dropout: The rate of dropout, 0.4 in the released code.
      slots: The maximum number of regions. Each slot has its own batch normalization, over images and dimensions, as
        in the released code; None for texts, which are not normalized.
    """

    dropout: Rate
    slots: Count | None

    @nn.compact
    def __call__(self, vectors: Array, mask: Array, train: bool = False) -> Array:
        """Pools elements [N, K, D] with a mask [N, K] of the valid ones to unit vectors [N, D]."""
        dropout = nn.Dropout(self.dropout, deterministic=not train)
        valid = einops.rearrange(mask, 'n k -> n k 1')
        mean = jnp.sum(jnp.where(valid, vectors, 0), axis=1) / jnp.sum(valid, axis=1)
        local = XavierLinear(vectors.shape[-1], name='local')(vectors)
        common = XavierLinear(vectors.shape[-1], name='whole')(mean)
        if self.slots is not None:
            local = self._normalize_slots(local, mask, train)
            common = BatchNorm(name='whole_norm')(common, train=train)
        local = dropout(nn.tanh(local))
        common = dropout(nn.tanh(common))
        scores = XavierLinear(1, name='scores')(local * einops.rearrange(common, 'n d -> n 1 d'))
        weights = nn.softmax(jnp.where(valid, scores, -jnp.inf), axis=1)
        return l2_normalize(jnp.sum(weights * vectors, axis=1))

    def _normalize_slots(self, local: Array, mask: Array, train: bool) -> Array:
        regions = mask.shape[1]
        if regions > self.slots:  # the data may change after the model was built: hence no ArgumentError
            raise UserError(f'images have up to {regions} regions, but the model has slots for {self.slots}')
        padded = jnp.pad(local, [(0, 0), (0, self.slots - regions), (0, 0)])
        mask = jnp.pad(mask, [(0, 0), (0, self.slots - regions)])
        norm = BatchNorm(name='local_norm')
        normalized = norm(einops.rearrange(padded, 'n k d -> n d k'), einops.rearrange(mask, 'n k -> n 1 k'), train)
        return einops.rearrange(normalized, 'n d k -> n k d')[:, :regions]


class Mean(nn.Module):
    """Averages the alignments (DBL, eq. 2) and L2-normalizes the mean, as in the code; the paper does not."""

    over_images = False

    @nn.compact
    def __call__(self, nodes: Array, mask: Array, train: bool) -> Array:
        """Maps alignments [I, T, N, M] with a mask [T, N] of the valid ones to vectors [I, T, M]."""
        valid = mask[..., None]
        return l2_normalize(jnp.sum(jnp.where(valid, nodes, 0), axis=2) / jnp.sum(valid, axis=1))


class GraphReasoning(nn.Module):
    """SGR: similarity graph reasoning over all alignments, whose first node is the result (SGRAF, eq. 7 and 8).

    The edge (W_q s_i + b_q) . (W_k s_j + b_k) is computed with one product with W_q W_k' instead of two. b_k adds a
    constant to all edges of a node, which the softmax cancels, so it is left out. The last step computes only the first
    node.

    Attributes:
      steps: The number of steps, 3 as published.
    """

    steps: Count
    over_images = False

    @nn.compact
    def __call__(self, nodes: Array, mask: Array, train: bool) -> Array:
        """Maps alignments [I, T, N, M] with a mask [T, N] of the valid ones to vectors [I, T, M]."""
        *steps, last = map(self._parameters, range(self.steps), [nodes.shape[-1]] * self.steps)

        def step(nodes, parameters):
            return _reason(nodes, nodes, mask, *parameters), None

        if steps:
            stacked = jax.tree.map(lambda *x: jnp.stack(x), *steps)
            nodes, _ = jax.lax.scan(step, nodes, stacked, unroll=policy.unroll())
        return _reason(nodes[:, :, :1], nodes, mask, *last)[:, :, 0]

    def _parameters(self, n: int, size: int) -> tuple[Array, ...]:
        xavier = nn.initializers.xavier_uniform()
        zeros = nn.initializers.zeros
        query = self.param(f'query_{n}', xavier, (size, size))
        query_bias = self.param(f'query_bias_{n}', zeros, (size,))
        key = self.param(f'key_{n}', xavier, (size, size))
        return query, query_bias, key, *XavierLinear(size, name=f'graph_{n}').parameters(size)


def _reason(
    sources: Array,
    nodes: Array,
    mask: Array,
    query: Array,
    query_bias: Array,
    key: Array,
    kernel: Array,
    bias: Array,
) -> Array:
    """Computes a step of SGR: [I, T, S, M] from sources [I, T, S, M] and nodes [I, T, N, M], for a mask [T, N]."""
    queries = product('itnm,mk->itnk', sources, product('mi,ki->mk', query, key))
    queries += product('i,ki->k', query_bias, key)
    edges = product('itnm,itom->itno', queries, nodes)
    edges = nn.softmax(jnp.where(mask[:, None], edges, -jnp.inf))
    mixed = product('itno,itom->itnm', edges, nodes)
    return nn.relu(product('itnm,mk->itnk', mixed, kernel.astype(mixed.dtype)) + bias)


class AttentionFiltration(nn.Module):
    """SAF: similarity attention filtration, the mean of alignments weighted by relevance (SGRAF, eq. 9 and 10).

    The relevance is batch-normalized as in the released code. The normalization has one channel and reads one text at
    a time: in training each text is normalized with the statistics of its own alignments with all images, and the
    running statistics are updated once per text, the longest first.
    """

    over_images = True

    def setup(self):
        """Creates the parameters and the running statistics."""
        self.relevance = XavierLinear(1)
        self.scale = self.param('scale', nn.initializers.ones, ())
        self.bias = self.param('bias', nn.initializers.zeros, ())
        self.mean = self.variable('batch_stats', 'mean', jnp.zeros, ())
        self.variance = self.variable('batch_stats', 'variance', jnp.ones, ())

    def __call__(self, nodes: Array, mask: Array, train: bool) -> Array:
        """Maps alignments [I, T, N, M] with a mask [T, N] of the valid ones to vectors [I, T, M]."""
        relevance = self.relevance(nodes)[..., 0]
        mean = self.mean.value
        variance = self.variance.value
        if train:
            mean, variance, _ = masked_moments(relevance, mask, axes=(0, 2))
            mean = mean[:, None]
            variance = variance[:, None]
        normalized = (relevance - mean) * (self.scale / jnp.sqrt(variance + normalization.EPSILON)) + self.bias
        weights = jnp.where(mask, nn.sigmoid(normalized), 0)
        weights = weights / (jnp.sum(weights, axis=-1, keepdims=True) + EPSILON)
        return l2_normalize(product('itn,itnm->itm', weights, nodes))

    def moments(self, nodes: Array, mask: Array) -> tuple[Array, Array]:
        """Returns mean and unbiased variance [T] of each text's relevance to all images, for the running statistics."""
        mean, variance, count = masked_moments(self.relevance(nodes)[..., 0], mask, axes=(0, 2))
        return mean, variance * count / jnp.maximum(count - 1, 1)

    def update(self, mean: Array, variance: Array) -> None:
        """Updates the running statistics with the statistics of texts [T], one after the other."""
        weights = (1 - MOMENTUM) * MOMENTUM ** jnp.arange(len(mean))[::-1]
        for running, new in ((self.mean, mean), (self.variance, variance)):
            running.value = MOMENTUM ** len(mean) * running.value + jnp.sum(weights * new)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def repeat(x: Array, count: int) -> Array:
    """Repeats the array [...] as [count, ...]."""
    # The gradient is a sum over the copies. As a product with ones it is ten times as fast on a CPU as XLA's sum.
    return jnp.broadcast_to(x, (count, *x.shape))


repeat.defvjp(
    lambda x, count: (repeat(x, count), None),
    lambda count, _, cotangent: (product('n,n...->...', jnp.ones(count), cotangent),),
)


class Alignments(nn.Module):
    """l2norm(W (x - y)^2 + b), the alignment of two vectors (SGRAF, eq. 4; DBL, eq. 1; squared in the code).

    Attributes:
      features: The size M of an alignment.
    """

    features: int

    @nn.compact
    def __call__(self, images: Array, texts: Array) -> Array:
        """Compares vectors [I, T, ..., D] of every image with [T, ..., D] of every text: [I, T, ..., M]."""
        difference = jnp.square(images - repeat(texts, len(images))).astype(texts.dtype)
        return l2_normalize(XavierLinear(self.features, name='linear')(difference))
