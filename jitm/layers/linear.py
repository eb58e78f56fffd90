"""Linear layers with PyTorch's default initialisation."""

import chex
import jax
import jax.numpy as jnp
from flax import linen as nn


def symmetric_uniform(bound: float) -> nn.initializers.Initializer:
    """U(-bound, bound)."""

    def init(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


class Linear(nn.Module):
    """x W + b, both drawn from U(-1/sqrt(inputs), 1/sqrt(inputs)) as `torch.nn.Linear` does.

    Attributes:
      features: outputs.
      use_bias: adds b.
    """

    features: int
    use_bias: bool = True

    @nn.compact
    def __call__(self, x: chex.Array) -> chex.Array:
        """Maps [..., inputs] to [..., features]."""
        uniform = symmetric_uniform(x.shape[-1] ** -0.5)
        dense = nn.Dense(self.features, self.use_bias, kernel_init=uniform, bias_init=uniform, name='dense')
        nn.share_scope(self, dense)
        return dense(x)
