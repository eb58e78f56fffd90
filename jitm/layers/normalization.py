"""Norms that stay finite, with finite gradients, at zero."""

import chex
import jax.numpy as jnp


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
