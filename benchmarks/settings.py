"""Loads the published settings that are benchmarked: 'configs/vse.py:fc,max,f30k'."""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

ROOT = Path(__file__).resolve().parent.parent


def load_config(setting: str) -> ConfigDict:
    """Returns the config of a setting, as the flag `--config` reads it.

    Args:
      setting: the path of a config file, a colon, and its words.
    """
    path, _, words = setting.partition(':')
    get_config = runpy.run_path(str(ROOT / path))['get_config']
    return get_config(words) if words else get_config()
