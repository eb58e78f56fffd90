"""Arrays and numbers that are given to losses, compared with the hints of their arguments."""

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable
from numbers import Real
from typing import Annotated, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jitm.config.hints import MUST, check_value
from jitm.errors import ArgumentError

Loss = TypeVar('Loss', bound=Callable)
ARRAYS = {'bool': np.bool_, 'int': np.integer, 'float': np.floating}  # kind of an array -> its dtypes


def checked(loss: Loss) -> Loss:
    """Lets a loss raise an ArgumentError for an argument that does not fit its hint, also where it is traced.

    Arrays may be lists or tensors of torch, masks may have 0 and 1, and floats may be integers.
    """
    signature = inspect.signature(loss, eval_str=True)

    @functools.wraps(loss)
    def call(*args: Any, **keywords: Any) -> Any:
        bound = signature.bind(*args, **keywords)
        sizes = {}
        for name, value in bound.arguments.items():
            bound.arguments[name] = _argument(name, value, signature.parameters[name].annotation, sizes)
        masks = [bound.arguments.get(name) for name in ('positives', 'negatives')]
        are_concrete = all(mask is not None and not isinstance(mask, jax.core.Tracer) for mask in masks)
        if are_concrete and np.logical_and(*map(np.asarray, masks)).any():
            raise ArgumentError('negatives', 'has candidates that are in positives, too; take them out of one')
        return loss(*bound.args, **bound.kwargs)

    return call


def _argument(name: str, value: Any, hint: Any, sizes: dict[str, int]) -> Any:
    """Returns a checked argument; `sizes` maps the axes of earlier arguments to their sizes, and is extended."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    arrays = (typing.get_args(kind)[1] for kind in kinds if typing.get_origin(kind) is Annotated)
    dtype = next((part for part in arrays if isinstance(part, str)), None)
    if getattr(value, 'shape', None) == () and (dtype is None or len(kinds) > 1):
        if isinstance(value, jax.core.Tracer):
            return value  # such as a learned temperature
        value = value.item() if hasattr(value, 'item') else value
    if dtype is None or value is None or (len(kinds) > 1 and isinstance(value, Real)):
        check_value(name, value, hint, argument=True)
        return value
    kind = dtype.split(' ')[0]
    axes = re.findall('[A-Z]', dtype)
    try:
        array = value if isinstance(value, jax.Array) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, and tensors with gradients
        raise ArgumentError(name, f'is not an array: {error}') from None
    if not isinstance(array, jax.core.Tracer):
        if kind == 'float' and jnp.issubdtype(array.dtype, np.integer):
            array = array.astype(np.float32)
        if kind == 'bool' and np.isin(array, (0, 1)).all():
            array = array.astype(bool)
    if array.dtype == np.float16:
        raise ArgumentError(name, 'is float16, too coarse for a loss; it must be float32 or bfloat16')
    if 0 in array.shape[1:]:
        raise ArgumentError(name, f'is empty: it has the shape {list(array.shape)}')
    fits = len(axes) == array.ndim and all(
        sizes.get(axis, size) == size for axis, size in zip(axes, array.shape, strict=True)
    )
    if not fits or not jnp.issubdtype(array.dtype, ARRAYS[kind]):
        sizes_shown = ''.join(f', {axis} = {size}' for axis, size in sizes.items())
        raise ArgumentError(name, f'is {array.dtype} {list(array.shape)}; {MUST}{dtype}{sizes_shown}')
    sizes |= zip(axes, array.shape, strict=True)
    return array
