"""Arrays and numbers that are given to losses, compared with the hints of their arguments."""

import functools
import inspect
import re
import typing
from collections.abc import Callable
from numbers import Real
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jitm.config.hints import MUST, check_value, is_array
from jitm.errors import ArgumentError

Loss = TypeVar('Loss', bound=Callable)
ARRAYS = {'bool': np.bool_, 'int': np.integer, 'float': np.floating}  # kind of an array -> its dtypes

check_argument = functools.partial(check_value, argument=True)
check_once = functools.lru_cache(typed=True)(check_argument)  # a step calls a loss several times with its margin


def checked(loss: Loss) -> Loss:
    """Lets a loss raise an ArgumentError for an argument that does not fit its hint, also where it is traced.

    Arrays may be lists or tensors of torch, masks may have 0 and 1, and floats may be integers.
    """
    signature = inspect.signature(loss, eval_str=True)
    hints = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    forms = {name: _form(hint) for name, hint in hints.items()}
    arrays = [name for name, hint in hints.items() if is_array(hint)]

    @functools.wraps(loss)
    def call(*args: Any, **keywords: Any) -> Any:
        bound = signature.bind(*args, **keywords)
        arguments = bound.arguments
        sizes = {}
        for name, value in arguments.items():
            form = forms[name]
            may_be_scalar = name not in arrays
            if may_be_scalar and getattr(value, 'shape', None) == ():
                if isinstance(value, jax.core.Tracer):
                    continue  # such as a learned temperature
                arguments[name] = value = np.asarray(value).item()
            if form and value is not None and not (may_be_scalar and isinstance(value, Real)):
                arguments[name] = _check_array(name, value, form, sizes)
            else:
                check = check_once if isinstance(value, Real) else check_argument
                check(name, value, hints[name])
        _check_masks(arguments.get('positives'), arguments.get('negatives'))
        return loss(*bound.args, **bound.kwargs)

    return call


def _form(hint: Any) -> str:
    """Returns the text of an array's hint, such as 'float [Q, C]'; '' for a hint of no array."""
    members = [hint] if is_array(hint) else typing.get_args(hint)
    arrays = [member for member in members if is_array(member)]
    return typing.get_args(arrays[0])[1] if arrays else ''


def _check_array(name: str, value: Any, form: str, sizes: dict[str, int]) -> jax.Array | np.ndarray:
    """Returns an array of a form; `sizes` maps the axes of earlier arguments to their sizes, and is extended."""
    kind = form.partition(' ')[0]
    axes = re.findall('[A-Z]', form)
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
    measured = dict(zip(axes, array.shape, strict=False))
    fits = len(axes) == array.ndim and sizes | measured == measured | sizes
    if not fits or not jnp.issubdtype(array.dtype, ARRAYS[kind]):
        sizes_shown = ''.join(f', {axis} = {size}' for axis, size in sizes.items())
        raise ArgumentError(name, f'is {array.dtype} {list(array.shape)}; {MUST}{form}{sizes_shown}')
    sizes |= measured
    return array


def _check_masks(positives: Any, negatives: Any) -> None:
    """Raises an ArgumentError if a candidate is in both masks, where these are given and not traced."""
    for mask in (positives, negatives):
        if mask is None or isinstance(mask, jax.core.Tracer):
            return
    if np.logical_and(positives, negatives).any():
        raise ArgumentError('negatives', 'has candidates that are in positives, too; take them out of one')
