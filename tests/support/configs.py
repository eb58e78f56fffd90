"""Config files as a user writes them."""

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
