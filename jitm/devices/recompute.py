"""What a step keeps in memory for its gradient, and what it computes a second time."""

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
from chex import ArrayTree
from jax.core import ShapedArray
from jax.extend.core import Primitive, Var

from jitm.devices import parallel, policy

LONG_SUM = 128  # the terms of each number of a product
DEFAULT = 2**31  # where a device does not know the size of its memory, as a CPU

_budget: contextvars.ContextVar[float] = contextvars.ContextVar('budget', default=0.0)  # bytes


def device_budget(megabytes: int | None) -> float:
    """Returns the bytes of `run.activations_mb`; by default a quarter of the memory of a device."""
    if megabytes is not None:
        return megabytes * 2**20
    return parallel.memory_bytes() / 4 or DEFAULT


@contextlib.contextmanager
def _keeping(num_bytes: float) -> Iterator[None]:
    token = _budget.set(num_bytes)
    try:
        yield
    finally:
        _budget.reset(token)


def keep_within(num_bytes: float, function: Callable) -> Callable:
    """Returns a function, in whose trace each loop that uses `recompute` may keep so many bytes."""

    @functools.wraps(function)
    def call(*arguments):
        with _keeping(num_bytes):
            return function(*arguments)

    return call


def keeping_share(share: float) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which each loop may keep a share of these bytes."""
    return _keeping(share * _budget.get())


def recompute(function: Callable, count: int, *arguments: ArrayTree) -> Callable:
    """Returns a function whose gradient recomputes what does not fit into the memory.

    What the gradients of all calls need is kept if it fits into the bytes of `keep_within`; otherwise, and always on a
    CPU, the results of products with long sums, if these fit; otherwise only the arguments. The function may keep more
    for one call, from the bytes left.

    Args:
      function: The function, which a loop calls; it may use `recompute` itself.
      count: The number of calls.
      *arguments: Arguments of a call.
    """

    budget = _budget.get()
    kinds = (_everything, _products) if policy.keeps_everything() else (_products,)
    for keeping in kinds if budget else ():
        bytes_kept = count * _bytes_for_gradient(keeping(keep_within(0, function)), *arguments)
        if bytes_kept <= budget:
            return keeping(keep_within((budget - bytes_kept) / count, function))
    return jax.checkpoint(keep_within(budget, function))


def _everything(function: Callable) -> Callable:
    return function


def _products(function: Callable) -> Callable:
    return jax.checkpoint(function, policy=_has_long_sums)


def _has_long_sums(primitive: Primitive, *arrays: ShapedArray, **parameters: Any) -> bool:
    """Whether an operation is a product whose result takes longer to compute again than to keep and read."""
    if primitive is not jax.lax.dot_general_p:
        return False
    (summed, _), _ = parameters['dimension_numbers']
    return math.prod(arrays[0].shape[axis] for axis in summed) >= LONG_SUM


def _bytes_for_gradient(function: Callable, *arguments: ArrayTree) -> int:
    """Returns the bytes that the gradient of a call needs, besides the arguments and what all calls share."""
    pure, shared = jax.closure_convert(function, *arguments)
    jaxpr = jax.make_jaxpr(lambda *inputs: jax.vjp(pure, *inputs)[1])(*arguments, *shared).jaxpr
    inputs = jaxpr.invars[: len(jax.tree.leaves(arguments))]
    dependent = set(inputs)  # what depends on the arguments
    for equation in jaxpr.eqns:
        if any(isinstance(x, Var) and x in dependent for x in equation.invars):
            dependent.update(equation.outvars)
    residuals = {x for x in jaxpr.outvars if isinstance(x, Var) and x in dependent} - {*inputs}
    return sum(x.aval.size * x.aval.dtype.itemsize for x in residuals)
