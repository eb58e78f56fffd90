"""The files that tiny settings read."""

from pathlib import Path

import pytest

from tests.golden import steps


@pytest.fixture(scope='session')
def folder(tmp_path_factory) -> Path:
    """The folder with the files of `steps.write_files`."""
    folder = tmp_path_factory.mktemp('golden')
    steps.write_files(folder)
    return folder
