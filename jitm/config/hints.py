"""Values of a config, and of arguments, compared with type hints."""

import dataclasses
import math
import operator
import reprlib
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Real
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval, Le, Lt

from jitm.errors import ArgumentError, UserError, did_you_mean

MUST = 'it must be '
KINDS = {  # type in a hint -> the types of its values, and their name
    bool: (bool, 'True or False'),
    int: (int, 'an integer'),
    float: (Real, 'a number'),
    str: (str, 'a string'),
    tuple: ((tuple, list), 'a tuple'),
    Sequence: ((tuple, list), 'a tuple'),
    dict: (Mapping, 'a dict'),
    Mapping: (Mapping, 'a dict'),
    types.NoneType: (types.NoneType, 'None'),
}
LIMITS = (Ge, Gt, Le, Lt, Interval)
BOUNDS = {
    'ge': (operator.ge, 'at least'),
    'gt': (operator.gt, 'above'),
    'le': (operator.le, 'at most'),
    'lt': (operator.lt, 'below'),
}


def check_keys(
    section: Mapping[str, Any], allowed: Collection[str], *, where: str, required: Iterable[str] | None = None
) -> None:
    """Raises a UserError unless a section, or the whole config where '', has known keys only and all required ones.

    Args:
      section: The section.
      allowed: The keys that it may have.
      where: The dotted key of the section, for messages.
      required: The keys that it must have, by default all.
    """
    prefix = f'{where}.' if where else ''
    for key in section:
        if key not in allowed:
            raise UserError(f"config key '{prefix}{key}' is unknown{did_you_mean(key, allowed)}")
    for key in allowed if required is None else required:
        if key not in section:
            raise UserError(f"config key '{prefix}{key}' is missing and has no default; see jitm/configs/default.py")


def check_value(key: str, value: Any, hint: Any, argument: bool = False) -> None:
    """Checks a value of a config, and the values in a dict or a tuple.

    Args:
      key: The dotted key of the value, '' for the config itself.
      value: The value.
      hint: A type hint: one of `KINDS`, Literal, a TypedDict or dataclass, a union of these, or one of these
        `Annotated` with bounds from annotated_types. A value with another hint is not checked.
      argument: Whether the key names an argument of a loss.

    Raises:
      UserError: If the value does not fit the hint; an ArgumentError for an argument.
    """
    remedy = requirement(value, hint)
    if remedy:
        problem = f'is {reprlib.repr(value)}; {remedy}'
        raise ArgumentError(key, problem) if argument else UserError(f"config key '{key}' {problem}")
    arguments = typing.get_args(hint)
    inner = {}
    if typing.is_typeddict(hint):
        hints = typing.get_type_hints(hint, include_extras=True)
        if hint.__total__:
            check_keys(value, hints, where=key)
        inner = {name: (value[name], hints[name]) for name in value if name in hints}
    elif isinstance(value, Mapping):
        inner = {name: (item, arguments[1]) for name, item in value.items() if len(arguments) == 2}
    elif isinstance(value, tuple | list):
        inner = {str(n): (item, arguments[0]) for n, item in enumerate(value) if arguments}
    for name, (inner_value, inner_hint) in inner.items():
        check_value(f'{key}.{name}' if key else name, inner_value, inner_hint, argument)


def is_array(hint: Any) -> bool:
    """Returns whether a hint is that of an array, such as `Annotated[chex.Array, 'float [Q]']`."""
    arguments = typing.get_args(hint)
    return typing.get_origin(hint) is Annotated and isinstance(arguments[1], str)


def requirement(value: Any, hint: Any) -> str | None:
    """Returns the requirement that a value violates; None if it fits its hint or the hint is not checked."""
    origin = typing.get_origin(hint) or hint
    arguments = typing.get_args(hint)
    if origin is Annotated:
        if is_array(hint):
            return MUST + arguments[1]  # an array, see `jitm.config.arguments`
        return requirement(value, arguments[0]) or _out_of_bounds(value, arguments[1:])
    if origin in (typing.Union, types.UnionType):
        remedies = [requirement(value, member) for member in arguments]
        fits = None in remedies
        return None if fits else MUST + ' or '.join(remedy.removeprefix(MUST) for remedy in remedies)
    if origin is Literal:
        choices = f'use one of {", ".join(map(str, arguments))}' if len(arguments) > 1 else f'{MUST}{arguments[0]}'
        return None if value in arguments else choices
    if dataclasses.is_dataclass(hint) and isinstance(value, hint):
        return None
    is_object = typing.is_typeddict(hint) or dataclasses.is_dataclass(hint)
    permitted, name = KINDS.get(dict if is_object else origin, (object, ''))
    if not isinstance(value, permitted) or (isinstance(value, bool) and origin in (int, float)):
        return f'{MUST}{name}{" of names" if str in arguments else ""}'
    if origin is tuple and arguments[1:] not in ((), (...,)):  # its length is fixed
        wrong = next(filter(None, map(requirement, value, arguments)), '')
        if wrong or len(value) != len(arguments):
            return f'{MUST}a tuple of {len(arguments)}{wrong.replace(MUST, ", each ", 1)}'
    return f'{MUST}finite' if origin is float and not math.isfinite(value) else None


def _out_of_bounds(value: Any, constraints: Collection[Any]) -> str | None:
    """Returns the bounds that a number violates; None if it is within them."""
    violated = False
    bounds = []
    for constraint in constraints:
        for name, bound in dataclasses.asdict(constraint).items() if isinstance(constraint, LIMITS) else ():
            if bound is not None:
                fits, words = BOUNDS[name]
                violated |= not fits(value, bound)
                bounds.append(f'{words} {bound}')
    return MUST + ' and '.join(bounds) if violated else None
