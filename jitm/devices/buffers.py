"""Arrays that a CPU computes once and updates in place, where its compiler would compute or copy them again."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from chex import Array, ArrayTree

from jitm.devices import policy


def computed_once(x: Array) -> Array:
    """Returns x, which a CPU computes once, as it does its gradient, instead of again at each of its uses.

    The residuals of a deep network add up to a chain of sums through all of its blocks. XLA copies cheap operations
    into each of their uses, so that the time grows with the square of the number of blocks. It does not copy a
    division, here by a one that it does not know; the barrier alone is removed before operations are fused.
    """
    if not policy.copies_cheap_operations():
        return x
    divisor = jax.lax.optimization_barrier(jnp.ones((), x.dtype))
    return x / divisor


def update_if(proceed: Array, update: Callable[[ArrayTree], ArrayTree], state: ArrayTree) -> ArrayTree:
    """Returns the updated state where bool [] `proceed` holds, else the state.

    A CPU would copy a donated state before it selects between the old and the new one. A conditional updates it in
    place.
    """
    if policy.conditionals():
        return jax.lax.cond(proceed, update, lambda state: state, state)
    return jax.tree.map(lambda new, old: jnp.where(proceed, new, old), update(state), state)
