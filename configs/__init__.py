"""The presets: one file per system, and words of its tables; `jitm settings` lists them.

`load('vse:rvse,selhn,f30k')` returns the config of `--config vse:rvse,selhn,f30k`.
"""

import importlib
import pkgutil
from pathlib import Path

from ml_collections import ConfigDict

FILES = {module.name: Path(__file__).with_name(f'{module.name}.py') for module in pkgutil.iter_modules(__path__)}


def load(preset: str) -> ConfigDict:
    """Returns the config of a preset.

    Args:
      preset: The name of a file of this folder, and after a colon words of its tables.
    """
    name, colon, words = preset.partition(':')
    get_config = importlib.import_module(f'{__name__}.{name}').get_config
    return get_config(words) if colon else get_config()
