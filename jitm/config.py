"""Construction of objects from a config, with errors that name the config key."""

import functools
import inspect
import json
import traceback
from collections.abc import Callable, Collection, Mapping
from typing import Any

from jitm.errors import UserError, did_you_mean

OLD_KEYS = {'rounds', 'rankings'}  # of configs before checkpoint format 4
_ATTENTION = {'raw_feature_norm': 'clipped_l2norm', 'slope': 0.1}
REMOVED = {  # a section, or the function or class that it names -> keys that it had, and the only values that are left
    'offline': {'coupled': False, 'redraw': True},
    'candidates': {'margin_temperature': 5.0},
    'adamw': {'decay_factor': 0.1},
    'scan.SCAN': _ATTENTION,
    'bfan.BFAN': _ATTENTION,
    'sgraf.SGRAF': _ATTENTION | {'normalize_attended': True},
    'naaf.NAAF': {'slope': 0.1, 'smoothing': True},
    'alignment.Mean': {'normalize': True},
    'vision.RegionEncoder': {'output_norm': False, 'weight_norm': False},
    'ranking.selective_hard_negative': {'over_candidates': False},
    'ranking.polynomial': {'positive_coefficients': [0.2, -0.7, 0.5], 'negative_coefficients': [0.9, -0.4, 0.03]},
    'offline.adaptive_offline_quintuplet': {'detach': False, 'clamp': False},
    'distillation.rank_distillation': {'length': 4},
}


def bind(function: Callable, keywords: Mapping[str, Any], *, where: str, later: Collection[str] = ()) -> Callable:
    """Binds a sub-dict of the config as the keyword arguments of one function or constructor.

    Args:
      function: the function or class to configure.
      keywords: the sub-dict.
      where: the sub-dict's key, for messages.
      later: names of the arguments that the caller supplies.

    Returns:
      The function with these keywords bound. When it is called, a ValueError that jitm raises becomes a UserError that
      names the config key.

    Raises:
      UserError: if a keyword is unknown (naming the nearest) or missing.
    """
    parameters = inspect.signature(function).parameters
    known = set(parameters) - set(later)
    for key in keywords:
        if key not in known:
            raise UserError(f"config key '{where}.{key}' is unknown{did_you_mean(key, known)}")
    required = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and name not in {*keywords, *later}
    ]
    if required:
        raise UserError(f"config key '{where}.{required[0]}' is missing and has no default")
    bound = _Bound(function, **keywords)
    bound.where = where
    return bound


class _Bound(functools.partial):
    """A partial function that names its config key in errors."""

    where: str

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        try:
            return super().__call__(*args, **keywords)
        except ValueError as error:
            if not is_raised_by_jitm(error):
                raise
            raise user_error(error, self.where, self.keywords) from error


def is_raised_by_jitm(error: ValueError) -> bool:
    """Whether an error is about an argument; a ValueError of a dependency is a bug and must keep its traceback."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get('__name__', '').startswith('jitm.')


def user_error(error: ValueError, where: str, arguments: Collection[str]) -> UserError:
    """Adds the config key to a message, whose first word usually is the name of an argument."""
    argument, _, rest = str(error).partition(' ')
    if argument.partition('.')[0] in arguments:
        return UserError(f"config key '{where}.{argument}' {rest}")
    return UserError(f"config key '{where}': {error}")


def choose(section: Mapping[str, Any], key: str, *, where: str) -> tuple[Any, dict[str, Any]]:
    """Splits a sub-dict into the value of the key that names the configured object, and the other keys.

    Raises:
      UserError: if the key is missing.
    """
    rest = dict(section)
    if key not in rest:
        raise UserError(f"config key '{where}.{key}' is missing; see jitm/configs/default.py")
    return rest.pop(key), rest


def check_keys(section: Mapping[str, Any], known: Collection[str], *, where: str) -> None:
    """Raises a UserError unless a sub-dict, or the whole config where '', has exactly the known keys."""
    prefix = f'{where}.' if where else ''
    for key in section:
        if key not in known:
            raise UserError(f"config key '{prefix}{key}' is unknown{did_you_mean(key, known)}")
    for key in known:
        if key not in section:
            raise UserError(f"config key '{prefix}{key}' is missing; see jitm/configs/default.py")


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
      UserError: if it is no dict, or has a value that cannot be written as JSON.
    """
    if not isinstance(config, Mapping):
        raise UserError(f'the config is of {type(config).__name__}; give a dict, such as that of ConfigDict.to_dict()')
    for key, value in flatten(config).items():
        if '' in key.split('.'):
            raise UserError(f"config key '{key}' has an empty name; name it, or leave it out")
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise UserError(
                f"config key '{key}' is of {type(value).__name__}, which cannot be written to config.json; give a "
                'number, a string, a tuple or a dict'
            ) from None
    return json.loads(json.dumps(config))


def as_current(config: Any, workdir: Any) -> dict[str, Any]:
    """Returns the saved config of a run without the keys of earlier versions whose value is fixed now.

    Args:
      config: The content of `config.json`.
      workdir: The run directory, for messages.

    Raises:
      UserError: if it is no dict, is empty or has keys of an older format; or if a fixed key has another value.
    """
    if isinstance(config, Mapping) and not OLD_KEYS.isdisjoint(config):
        raise UserError(f'{workdir} holds a run of an older format; train it again with this version in a new workdir')
    if not isinstance(config, Mapping) or not config:
        raise UserError(f'{workdir / "config.json"} is damaged; restore it, or choose a new workdir')
    return _without_removed(config, workdir)


def _without_removed(section: Mapping[str, Any], workdir: Any, where: str = '') -> dict[str, Any]:
    names = (where.rpartition('.')[2], section.get('name'), section.get('loss'))
    fixed = {key: value for name in names if isinstance(name, str) for key, value in REMOVED.get(name, {}).items()}
    current = {}
    for key, value in section.items():
        path = f'{where}.{key}'.lstrip('.')
        if key in fixed and value != fixed[key]:
            raise UserError(
                f"{workdir} holds a run with '{path}' = {value!r}, but this version has {fixed[key]!r} only; "
                'use the version that trained it'
            )
        if isinstance(value, Mapping):
            current[key] = _without_removed(value, workdir, path)
        elif key not in fixed:
            current[key] = value
    return current


def training_relevant(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flattened config without the keys that cannot affect training: `run` and the paths of files."""
    irrelevant = ('data.root', 'vocabulary.path', 'relevance.path', 'offline.path')  # the contents are compared instead
    return {
        key: value for key, value in flatten(config).items() if not key.startswith('run.') and key not in irrelevant
    }


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
