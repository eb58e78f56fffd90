"""Products and linear layers."""

import jax
import jax.numpy as jnp
from chex import Array
from flax import linen as nn


def symmetric_uniform(bound: float) -> nn.initializers.Initializer:
    """Returns an initializer that samples from U(-bound, bound)."""

    def init(key, shape, dtype=jnp.float32):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def product(equation: str, x: Array, y: Array) -> Array:
    """Returns the `einsum` of two arrays, computed in the dtype of the second one, as float32 or wider."""
    y = jnp.asarray(y)  # without x64 an array of NumPy becomes float32
    wide = jnp.promote_types(y.dtype, jnp.float32)
    return jnp.einsum(equation, x.astype(y.dtype), y, preferred_element_type=wide)


class Linear(nn.Module):
    """x W + b, both initialized from U(-1/sqrt(inputs), 1/sqrt(inputs)) as in `torch.nn.Linear`.

    Attributes:
      features: The number of outputs.
      use_bias: Adds b.
      fan_in: The number of inputs that bounds the initialization; None for the number of x.
    """

    features: int
    use_bias: bool = True
    fan_in: int | None = None

    @nn.compact
    def parameters(self, size: int) -> tuple[Array, Array | None]:
        """Returns the kernel [size, features] and the bias [features], None without one."""
        uniform = symmetric_uniform((self.fan_in or size) ** -0.5)
        kernel = self.param('kernel', uniform, (size, self.features))
        return kernel, self.param('bias', uniform, (self.features,)) if self.use_bias else None

    def __call__(self, x: Array) -> Array:
        """Maps [..., inputs] to [..., features]."""
        kernel, bias = self.parameters(x.shape[-1])
        return jnp.dot(x, kernel) if bias is None else jnp.dot(x, kernel) + bias


class WeightNormLinear(Linear):
    """x W + b, where each column of W is l v / |v|, as `torch.nn.utils.weight_norm` of `torch.nn.Linear`.

    The direction v is initialized as a column of `Linear`, and the length l as |v|.
    """

    @nn.compact
    def parameters(self, size: int) -> tuple[Array, Array | None]:
        """See `Linear`."""
        direction, bias = super().parameters(size)
        norm = jnp.linalg.norm(direction, axis=0)
        return direction * (self.param('length', lambda _: norm) / norm), bias


class XavierLinear(Linear):
    """x W + b with W from U(-r, r), r = sqrt(6 / (inputs + outputs)), and b = 0, as in the SCAN lineage."""

    @nn.compact
    def parameters(self, size: int) -> tuple[Array, Array | None]:
        """See `Linear`."""
        kernel = self.param('kernel', nn.initializers.xavier_uniform(), (size, self.features))
        return kernel, self.param('bias', nn.initializers.zeros, (self.features,)) if self.use_bias else None

    def __call__(self, x: Array) -> Array:
        """Maps [..., inputs] to float32 [..., features]; the product is in half precision if x is."""
        kernel, bias = self.parameters(x.shape[-1])
        y = product('...i,io->...o', x, kernel.astype(x.dtype))
        return y if bias is None else y + bias


LINEAR = {'uniform': Linear, 'xavier': XavierLinear}  # initialization -> layer
