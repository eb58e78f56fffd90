"""Configs as flat dicts and as JSON, and differences between them."""

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jitm.errors import UserError, did_you_mean


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


def parameters_of(function: Callable) -> Mapping[str, inspect.Parameter]:
    """Returns the parameters of a function or class by name; hints that are strings are evaluated if they can be."""
    try:
        return inspect.signature(function, eval_str=True).parameters
    except Exception:  # a hint of the user's own may name what only a type checker imports
        return inspect.signature(function).parameters


def flatten(tree: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
    """Returns a nested dict as a flat one, `a.b.c` -> value."""
    flat = {}
    for key, value in tree.items():
        nested = isinstance(value, Mapping) and value
        flat |= flatten(value, f'{prefix}{key}.') if nested else {f'{prefix}{key}': value}
    return flat


def listing(config: Mapping[str, Any]) -> list[str]:
    """Returns a line for each key of a config, as `key: value`."""
    return [f'{key}: {value}' for key, value in sorted(flatten(config).items())]


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
    old = flatten(old)
    new = flatten(new)
    return [
        f'{key}: {old.get(key, "absent")} -> {new.get(key, "absent")}'
        for key in sorted(old.keys() | new.keys())
        if key not in old or key not in new or old[key] != new[key]
    ]
