"""Config files as a user writes them, and configs with other values."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG_FILE = """
from math import inf, nan

from ml_collections import ConfigDict


def get_config():
    return ConfigDict({!r})
"""


def write_config(path: Path, config: Mapping[str, Any]) -> Path:
    """Writes a config file and returns its path."""
    path.write_text(CONFIG_FILE.format(dict(config)))
    return path


def changed(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of nested dicts with other values of dotted keys."""
    config = copy.deepcopy(dict(config))
    for key, value in changes.items():
        *sections, last = key.split('.')
        section = config
        for name in sections:
            section = section.setdefault(name, {})
        section[last] = value
    return config
