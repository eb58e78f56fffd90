"""Configs that other libraries wrote, of which jitm declares every key.

A dataclass declares a JSON object. The hint of a field holds the values that jitm supports, and its default is the
value that the library takes where the key is missing:

    @declared
    class Dense:
        harmless = 'in_features'

        out_features: int
        bias: bool = True
        use_residual: Literal[False] = False

Any other key is an error, unless it is in `harmless`: keys, separated by blanks, that change no number that jitm
computes. A hint may be another dataclass, or a sequence of one. `remedy` is the end of messages on what jitm does not
support.
"""

import dataclasses
import functools
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from jitm.config.hints import requirement
from jitm.errors import UserError
from jitm.files import parse_json, read_bytes

T = TypeVar('T')
EMPTY = ({}, [])  # values of unknown keys that state nothing
declared = functools.partial(dataclasses.dataclass, frozen=True, kw_only=True)


def neutral(**values: Any) -> type:
    """Returns a base class with keys of which jitm supports one value each, which is the library's default."""
    fields = [(key, typing.Literal[value], value) for key, value in values.items()]
    return dataclasses.make_dataclass('Neutral', fields, frozen=True, kw_only=True)


def read_json(path: Path, kind: type = dict) -> Any:
    """Reads a config; raises a UserError unless it is a JSON object, or a list if that is its kind."""
    try:
        content = parse_json(read_bytes(path))
    except (OSError, ValueError) as error:
        raise UserError(f'{path} cannot be read as JSON ({error}): download it again') from error
    problem = requirement(content, kind)
    if problem:
        raise UserError(f'{path} is JSON of another kind; {problem}: download it again')
    return content


def read_if_present(path: Path) -> dict[str, Any]:
    """Reads a config as `read_json` does; a missing file is an empty object."""
    return read_json(path) if path.is_file() else {}


def read_declared(kind: type[T], path: Path, content: Mapping[str, Any] | None = None, where: str = '') -> T:
    """Reads a JSON object of another library into the dataclass that declares its keys.

    Args:
      kind: A dataclass made by `declared`.
      path: The path of the file.
      content: The object; None reads the file, and a missing file is an empty object.
      where: The place of the object in the file, such as 'text_config.', for messages.

    Returns:
      An instance, with the defaults of missing keys.

    Raises:
      UserError: If the file is no JSON object, a key is unknown or missing, or a value is not supported.
    """
    if content is None:
        content = read_if_present(path)
    harmless = getattr(kind, 'harmless', '').split()
    remedy = getattr(kind, 'remedy', 'give another model')
    hints = typing.get_type_hints(kind, include_extras=True)
    values = {}
    for key, hint in hints.items():
        if key in content:
            values[key] = _read(hint, path, content[key], f'{where}{key}', remedy)
    for key in content:
        if key not in hints and key not in harmless and content[key] not in EMPTY:
            raise UserError(f"{path} has '{where}{key}' {content[key]!r:.80}, which jitm does not know: {remedy}")
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING and field.name not in content:
            raise UserError(f"{path} has no '{where}{field.name}': {remedy}")
    return kind(**values)


def _read(hint: Any, path: Path, value: Any, where: str, remedy: str) -> Any:
    """Reads a value, and the objects in it that its hint declares."""
    problem = requirement(value, hint)
    if problem:
        raise UserError(f"{path} has '{where}' {value!r:.80}; {problem}: {remedy}")
    for kind in filter(dataclasses.is_dataclass, (hint, *typing.get_args(hint))):
        if isinstance(value, Mapping):
            return read_declared(kind, path, value, f'{where}.')
        if isinstance(value, list):
            return [_read(kind, path, item, f'{where}.{n}', remedy) for n, item in enumerate(value)]
    return value
