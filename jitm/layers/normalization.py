"""Norms that stay finite, with finite gradients, at zero; batch normalisation."""

import chex
import jax.numpy as jnp
from flax import linen as nn

from jitm.parallel import sum_over_devices


def l2_normalize(x: chex.Array, axis: int = -1) -> chex.Array:
    """Divides by the Euclidean norm along an axis (VSE++, section 3; no epsilon, as in the released code).

    Args:
      x: [..., D]; any shape.
      axis: the axis that gets norm 1.

    Returns:
      Same shape. A zero row stays zero, with the gradient of the identity.
    """
    squared = jnp.sum(jnp.square(x), axis=axis, keepdims=True)
    return x / jnp.sqrt(jnp.where(squared > 0, squared, 1))


def safe_sqrt(x: chex.Array) -> chex.Array:
    """Square root of a non-negative array whose gradient at zero is 0, not infinite."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)


class BatchNorm(nn.Module):
    """Batch normalisation as in `torch.nn.BatchNorm1d`, over all devices and the real rows only.

    The running variance is the unbiased one (Flax takes the biased), both statistics move by 0.1, eps is 1e-5.

    Attributes:
      scale_init: of the factor; the shift begins at 0.
    """

    scale_init: nn.initializers.Initializer = nn.initializers.ones

    @nn.compact
    def __call__(self, x: chex.Array, mask: chex.Array | None = None, train: bool = False) -> chex.Array:
        """Normalises every feature.

        Args:
          x: [..., D].
          mask: bool [...], the rows that are real; all if None.
          train: normalises with the statistics of this batch and updates the running ones.

        Returns:
          Same shape.
        """
        scale = self.param('scale', self.scale_init, x.shape[-1:])
        bias = self.param('bias', nn.initializers.zeros, x.shape[-1:])
        running_mean = self.variable('batch_stats', 'mean', jnp.zeros, x.shape[-1:])
        running_var = self.variable('batch_stats', 'var', jnp.ones, x.shape[-1:])
        mean, var = running_mean.value, running_var.value
        if train:
            weights = jnp.ones((*x.shape[:-1], 1)) if mask is None else mask[..., None]
            rows = tuple(range(x.ndim - 1))
            total, count = sum_over_devices((jnp.sum(weights * x, rows), jnp.sum(weights)))
            mean = total / count
            squares = sum_over_devices(jnp.sum(weights * jnp.square(x - mean), rows))
            var = squares / count
            if not self.is_initializing():
                unbiased = squares / jnp.maximum(count - 1, 1)
                running_mean.value = 0.9 * running_mean.value + 0.1 * mean
                running_var.value = 0.9 * running_var.value + 0.1 * unbiased
        return (x - mean) / jnp.sqrt(var + 1e-5) * scale + bias
