"""Sections of a config as arguments of functions and classes, and differences between configs."""

import functools
import inspect
import json
from collections.abc import Callable, Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from jitm.config import names
from jitm.config.hints import check_keys, check_value
from jitm.errors import ArgumentError, UserError, did_you_mean


def check_member(config: Mapping[str, Any], key: str) -> None:
    """Raises a UserError unless a dotted key of a config names one of its members."""
    name = flatten(config)[key]
    if name not in config['members']:
        near = did_you_mean(name, config['members'])
        raise UserError(f"config key '{key}' is '{name}', which is not a member{near}")


def trained_member(config: Mapping[str, Any]) -> str:
    """Returns the member whose training a config evaluates: `evaluation.member`, or the one that it averages."""
    name = config['evaluation']['member']
    return config['members'][name].get('of', name)


def bind(function: Callable, keywords: Mapping[str, Any], *, where: str, later: Collection[str] = ()) -> Callable:
    """Binds a section of a config as the keyword arguments of one function or constructor.

    Args:
      function: The function or class to configure. Values are checked against the hints of its arguments.
      keywords: The section.
      where: The key of the section, for messages.
      later: The names of the arguments that the caller supplies.

    Returns:
      The function with these keywords bound, lists as tuples. When it is called, an ArgumentError becomes a UserError
      that names the config key.

    Raises:
      UserError: If a keyword is unknown (naming the nearest), missing or of a wrong value.
    """
    parameters = parameters_of(function)
    known = [name for name in parameters if name not in later]
    required = [name for name in known if parameters[name].default is inspect.Parameter.empty]
    check_keys(keywords, known, where=where, required=required)
    for key, value in keywords.items():
        check_value(f'{where}.{key}', value, parameters[key].annotation)
    arguments = {key: tuple(value) if isinstance(value, list) else value for key, value in keywords.items()}
    bound = functools.partial(function, **arguments)

    @functools.wraps(bound)
    def call(*args: Any, **others: Any) -> Any:
        try:
            return bound(*args, **others)
        except ArgumentError as error:
            raise error.in_section(where) from error

    return call


def parameters_of(function: Callable) -> Mapping[str, inspect.Parameter]:
    """Returns the parameters of a function or class by name; hints that are strings are evaluated if they can be."""
    try:
        return inspect.signature(function, eval_str=True).parameters
    except Exception:  # a hint of the user's own may name what only a type checker imports
        return inspect.signature(function).parameters


def choose(section: Mapping[str, Any], key: str, *, where: str) -> tuple[str, dict[str, Any]]:
    """Splits a section into the value of the key that names the configured object, and the other keys.

    Raises:
      UserError: If the key is missing, or its value is not a string.
    """
    check_keys(section, section, where=where, required=[key])
    check_value(f'{where}.{key}', section[key], str)
    return section[key], {name: value for name, value in section.items() if name != key}


def bind_named(
    section: Mapping[str, Any],
    key: str,
    package: str,
    *,
    where: str,
    own: Callable[[Any], bool] | None = None,
    later: Collection[str] = (),
    optional: bool = False,
) -> Callable | None:
    """Binds a section of a config as the arguments of the function or class that one of its keys names.

    Args:
      section: The section.
      key: The key with the name.
      package: The package of the name, see `names.resolve`.
      where: The key of the section, for messages.
      own: See `names.resolve`.
      later: The names of the arguments that the caller supplies by keyword; those that it does not have are left out.
      optional: Whether the name may be ''.

    Returns:
      See `bind`; None if the name is ''.

    Raises:
      UserError: If the name or another key is unknown, missing or of a wrong value.
    """
    name, keywords = choose(section, key, where=where)
    if optional and not name:
        check_keys(keywords, (), where=where)
        return None
    function = names.resolve(package, name, where=f'{where}.{key}', own=own)
    taken = {*later} & {*parameters_of(function)}
    bound = bind(function, keywords, where=where, later=taken)

    @functools.wraps(bound)
    def call(*args: Any, **others: Any) -> Any:
        try:
            return bound(*args, **{key: value for key, value in others.items() if key in taken})
        except Exception as error:
            if isinstance(error, UserError) or not names.is_own(function):
                raise
            described = names.describe(error)
            raise UserError(f"config key '{where}.{key}' is '{name}', but it fails: {described}") from error

    return call


def own_names(config: Mapping[str, Any], packages: Mapping[str, str], imports: bool = True) -> dict[str, str]:
    """Returns the functions and classes of the user that a config names, by their keys.

    Args:
      config: The config, or sections of it.
      packages: Pattern of a key -> the package of names of jitm; the first match counts.
      imports: Whether modules of the user are imported, see `names.resolve`.
    """
    own = {}
    for key, name in flatten(config).items():
        package = next((package for pattern, package in packages.items() if fnmatchcase(key, pattern)), None)
        if not package or not isinstance(name, str) or not name:
            continue
        if names.is_own(names.resolve(package, name, where=key, own=callable, imports=imports)):
            own[key] = name
    return own


def flatten(tree: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
    """Returns a nested dict as a flat one, `a.b.c` -> value."""
    flat = {}
    for key, value in tree.items():
        nested = isinstance(value, Mapping) and value
        flat |= flatten(value, f'{prefix}{key}.') if nested else {f'{prefix}{key}': value}
    return flat


def to_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config as it is read from a run directory: tuples are lists.

    Raises:
      UserError: If it is not a dict, or has a value that cannot be written as JSON.
    """
    if not isinstance(config, Mapping):
        raise UserError(f'the config has type {type(config).__name__}; give a dict, such as ConfigDict.to_dict()')
    for key, value in flatten(config).items():
        if '' in key.split('.'):
            raise UserError(f"config key '{key}' has an empty name; name it, or leave it out")
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            problem = f'has type {type(value).__name__}, which cannot be written to config.json'
            raise UserError(f"config key '{key}' {problem}; give a number, a string, a tuple or a dict") from None
    return json.loads(json.dumps(config))


def check_saved(config: Any, workdir: Path) -> dict[str, Any]:
    """Returns the content of a run's `config.json`; raises a UserError, which names the run, if it is not a config."""
    if not isinstance(config, dict) or not config:
        raise UserError(f'{workdir / "config.json"} is damaged; restore it, or choose a new workdir')
    return config


def training_relevant(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flattened config without the keys that cannot affect training: `run` and the paths of files."""
    # The contents of files are compared instead.
    files = ('data.root', 'vocabulary.path', 'relevance.path', 'offline.path', 'data.noise_file')
    return {key: value for key, value in flatten(config).items() if not key.startswith('run.') and key not in files}


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns the training-relevant keys in which two configs differ, as `key: old -> new`."""
    return changes(training_relevant(old), training_relevant(new))


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Returns the keys in which two configs differ, as `key: old -> new`."""
    old, new = flatten(old), flatten(new)
    return [
        f'{key}: {old.get(key, "absent")} -> {new.get(key, "absent")}'
        for key in sorted(old.keys() | new.keys())
        if key not in old or key not in new or old[key] != new[key]
    ]
