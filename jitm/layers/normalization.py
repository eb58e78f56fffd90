"""Norms with finite gradients at zero, masks, masked statistics, and batch normalization as in PyTorch."""

from collections.abc import Sequence

import einops
import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.devices import collectives

EPSILON = 1e-5  # added to the variance of a batch normalization
MOMENTUM = 0.9  # the weight of the old running statistics at each step (PyTorch's 0.1)


def l2_normalize(x: Array, axis: int = -1) -> Array:
    """Divides the vectors along an axis by their Euclidean norm, without an epsilon, as VSE++ released it.

    A zero vector stays zero, with the gradient of the identity.
    """
    squared = jnp.sum(jnp.square(x), axis=axis, keepdims=True)
    return x / jnp.sqrt(jnp.where(squared > 0, squared, 1))


def zero_padding(x: Array, mask: Array) -> Array:
    """Sets the elements of [N, K, D] outside of a mask bool [N, K] to zero."""
    return jnp.where(einops.rearrange(mask, 'n k -> n k 1'), x, 0)


def safe_sqrt(x: Array) -> Array:
    """Returns the square root of a non-negative array; its gradient at zero is 0, not infinite."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


def masked_moments(x: Array, mask: Array, axes: Sequence[int] | None = None) -> tuple[Array, Array, Array]:
    """Returns the mean and the biased variance over the rows of all devices, in float32 at least.

    Args:
      x: [..., D].
      mask: bool, the valid values, broadcast to x.
      axes: The reduced axes; None for all but the last.

    Returns:
      Mean, variance and number of valid values, each with the shape of x without the axes; 0 without valid values.
    """
    axes = tuple(range(x.ndim - 1)) if axes is None else tuple(axes)
    mask = jnp.broadcast_to(mask, x.shape)
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))

    def totals(*values):
        sums = [jnp.sum(value, axes, keepdims=True).astype(x.dtype) for value in values]
        return collectives.sum_over_devices(jnp.stack(sums))

    count, total = totals(mask, jnp.where(mask, x, 0))
    mean = total / jnp.maximum(count, 1)
    variance = totals(jnp.where(mask, jnp.square(x - mean), 0))[0] / jnp.maximum(count, 1)
    return jnp.squeeze(mean, axes), jnp.squeeze(variance, axes), jnp.squeeze(count, axes)


class BatchNorm(nn.Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over all rows of all devices, as `torch.nn.BatchNorm1d`.

    Training normalizes with the biased variance of the batch and averages the unbiased one, unlike Flax. A batch of one
    row, which has no unbiased variance and which PyTorch rejects, leaves the running statistics as they are.

    Attributes:
      scale_init: The initializer of the scale.
      epsilon: The number added to the variance.
    """

    scale_init: nn.initializers.Initializer = nn.initializers.ones
    epsilon: float = EPSILON

    @nn.compact
    def __call__(self, x: Array, mask: Array | None = None, train: bool = False) -> Array:
        """Normalizes the last axis of [..., D].

        Args:
          x: The values.
          mask: bool [..., 1] or [..., D], the values that the statistics are computed from; None for all.
          train: Uses the statistics of the batch and updates the running ones, in 'batch_stats'.
        """
        shape = x.shape[-1:]
        running_mean = self.variable('batch_stats', 'mean', jnp.zeros, shape)
        running_variance = self.variable('batch_stats', 'variance', jnp.ones, shape)
        scale = self.param('scale', self.scale_init, shape)
        bias = self.param('bias', nn.initializers.zeros, shape)
        mean = running_mean.value
        variance = running_variance.value
        if train:
            mean, variance, count = masked_moments(x, jnp.ones_like(x, bool) if mask is None else mask)
            if not self.is_initializing():
                unbiased = variance * count / jnp.maximum(count - 1, 1)
                for running, new in ((running_mean, mean), (running_variance, unbiased)):
                    updated = MOMENTUM * running.value + (1 - MOMENTUM) * new
                    running.value = jnp.where(count > 1, updated, running.value)
        return (x - mean) * (scale / jnp.sqrt(variance + self.epsilon)) + bias
