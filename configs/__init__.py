"""The presets: one file per system, and options of its tables; `jitm settings` lists them.

`load('vse:rvse,selhn,f30k')` returns the config of `--config vse:rvse,selhn,f30k`.
"""

import importlib
import pkgutil
from pathlib import Path

from ml_collections import ConfigDict

from jitm.errors import UserError, did_you_mean

FILES = {module.name: Path(__file__).with_name(f'{module.name}.py') for module in pkgutil.iter_modules(__path__)}
SYSTEMS = [name for name in FILES if name not in ('common', 'default', 'meanings', 'reduced', 'tuning')]


def tables(system: str) -> list[list[str]]:
    """Returns the options of a system's presets, a list for each table, whose first option is the default."""
    return importlib.import_module(f'{__name__}.{system}').get_config.tables()


def load(preset: str) -> ConfigDict:
    """Returns the config of a preset.

    Args:
      preset: The name of a file of this folder, and after a colon options of its tables, or of `tuning.TUNING`.

    Raises:
      UserError: If there is no such file.
    """
    name, colon, options = preset.partition(':')
    if name not in FILES:
        raise UserError(f"preset '{preset}' names no system{did_you_mean(name, FILES)}")
    get_config = importlib.import_module(f'{__name__}.{name}').get_config
    return get_config(options) if colon else get_config()
