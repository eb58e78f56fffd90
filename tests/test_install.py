"""The wheel and the editable installation, each in an environment of its own, without the network."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

TINY = (
    *('--config.epochs=1', '--config.batch_size=8', '--config.length_multiple=32', '--config.model.embed_dim=8'),
    *('--config.data.train_images=8', '--config.data.dev_images=4', '--config.data.test_images=4'),
)
PARTS = ('pyproject.toml', 'README.md', 'LICENSE', 'configs', 'jitm')

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def clone(tmp_path_factory) -> Path:
    """A copy of the repository in a folder named jitm."""
    folder = tmp_path_factory.mktemp('clones') / 'jitm'
    folder.mkdir()
    subprocess.run(['cp', '-a', *(ROOT / part for part in PARTS), folder], check=True)
    return folder


def run(*command: object, cwd: Path) -> str:
    """Runs a command that must succeed, and returns what it prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(('PYTHON', 'PIP_'))}
    result = subprocess.run([*map(str, command)], cwd=cwd, env=kept, capture_output=True, text=True)
    assert result.returncode == 0, f'{command}\n{result.stdout}{result.stderr}'
    return result.stdout


def install(folder: Path, *what: object) -> Path:
    """Installs jitm beside the packages of this environment; returns the folder of the programs."""
    venv.create(folder, symlinks=True)
    python = folder / 'bin' / 'python'
    (packages,) = folder.glob('lib/python*/site-packages')
    (packages / 'others.pth').write_text(sysconfig.get_path('purelib') + '\n')
    offline = ('--no-index', '--no-deps', '--no-build-isolation', '--ignore-installed')
    run(sys.executable, '-m', 'pip', '--python', python, 'install', '--quiet', *offline, *what, cwd=folder)
    return python.parent


@pytest.fixture(scope='module')
def wheel(clone, tmp_path_factory) -> Path:
    """The wheel of the copy."""
    folder = tmp_path_factory.mktemp('wheel')
    offline = ('--no-index', '--no-deps', '--no-build-isolation')
    run(sys.executable, '-m', 'pip', 'wheel', '--quiet', *offline, '--wheel-dir', folder, clone, cwd=folder)
    (path,) = folder.glob('*.whl')
    return path


def test_the_wheel_has_one_package_with_the_configs(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split('/')[0] for name in names if '.dist-info/' not in name} == {'jitm'}
    files = {f'jitm/configs/{path.name}' for path in (ROOT / 'configs').glob('*.py')}
    assert files <= {*names}


def test_an_installed_wheel_works_in_any_folder(wheel, tmp_path):
    programs, empty = install(tmp_path / 'environment', wheel), tmp_path / 'empty'
    empty.mkdir()
    assert 'vse:rvse,selhn,f30k' in run(programs / 'jitm', 'settings', 'rvse', 'selhn', cwd=empty)
    run(programs / 'jitm', 'train', '--config', 'demo', '--workdir', 'run', *TINY, cwd=empty)
    assert 'rsum' in run(programs / 'jitm', 'eval', '--workdir', 'run', '--split', 'test', cwd=empty)
    foreign = tmp_path / 'foreign'
    (foreign / 'configs').mkdir(parents=True)
    (foreign / 'configs' / '__init__.py').write_text('raise ImportError\n')
    argv = ('-m', 'jitm', 'train', '--config', 'demo', '--workdir', 'run')
    run(programs / 'python', *argv, *TINY, cwd=foreign)


def test_an_editable_installation_is_found_beside_the_clone(clone, tmp_path):
    programs = install(tmp_path / 'environment', '--editable', clone)
    code = 'import jitm; from jitm.configs import vse; print(jitm.__file__, jitm.load)'
    assert str(clone / 'jitm') in run(programs / 'python', '-c', code, cwd=clone.parent)
