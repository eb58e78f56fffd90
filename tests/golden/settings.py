"""The resolved config of every setting.

`settings.json` holds the default and what each setting changes. `python -m tests.golden.settings` writes it anew, so
that a diff shows what a change of configs/ does to every setting.
"""

import json
from pathlib import Path
from typing import Any

from jitm import config as config_lib
from tests.configs.settings import SETTINGS, load

FILE = Path(__file__).with_suffix('.json')


def changes(setting: str, default: dict[str, Any]) -> dict[str, Any]:
    """Returns the flattened keys of a setting that differ from the default; `absent` are those it does not have."""
    config = flat(setting)
    changed = {key: value for key, value in config.items() if key not in default or default[key] != value}
    return {'absent': sorted(default.keys() - config.keys())} | changed


def flat(setting: str) -> dict[str, Any]:
    """Returns the flattened config of a setting such as vse:fc,max,f30k."""
    return config_lib.flatten(json.loads(json.dumps(load(setting))))


def main() -> None:
    """Writes all settings, one on each line."""
    default = flat('default')
    rows = {'default': default} | {setting: changes(setting, default) for setting in SETTINGS}
    lines = (f'{json.dumps(name)}: {json.dumps(row, sort_keys=True)}' for name, row in rows.items())
    FILE.write_text('{\n' + ',\n'.join(lines) + '\n}\n')


if __name__ == '__main__':
    main()
