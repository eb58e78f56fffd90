"""The requirements, the wheel and the editable installation, each in an environment of its own, without the network."""

import ast
import functools
import itertools
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

TINY = (
    *('--config.epochs=1', '--config.batch_size=8', '--config.length_multiple=32', '--config.model.embed_dim=8'),
    *('--config.data.train_images=8', '--config.data.dev_images=4', '--config.data.test_images=4'),
)
PARTS = ('pyproject.toml', 'README.md', 'LICENSE', 'configs', 'jitm')
PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
EXTRAS = PROJECT['optional-dependencies']


# Imports every module and runs commands that need an extra, where none is installed.
MISSING = {
    ('PIL', 'photos'): [
        *('train', '--config', 'vsepp:squeezenet,scratch,f8k', '--config.data.root=photo', '--workdir', 'photos')
    ],
    ('jinja2', 'report'): ['report', 'empty/run', 'empty/run'],
    ('textblob', 'graphs'): [
        *('words', '--workdir', 'empty/run', '--split', 'test', '--perturbations', 'noun', '--min_count', '1')
    ],
    ('starlette', 'explorer'): ['explorer', '--workdir', 'empty/run'],
    ('faiss', 'export'): ['search', '--workdir', 'empty/run', '--split', 'test', '--export', 'vectors', 'a ring'],
    ('eccv_caption', 'eccv'): ['eval', '--workdir', 'empty/run', '--split', 'test', '--eccv'],
}
WITHOUT_EXTRAS = f"""
import contextlib, importlib, io, pkgutil, jitm
from jitm.commands import cli
for module in pkgutil.walk_packages(jitm.__path__, 'jitm.'):
    if module.name != 'jitm.__main__':
        importlib.import_module(module.name)
for command in {list(MISSING.values())}:
    with contextlib.redirect_stderr(io.StringIO()) as error, contextlib.redirect_stdout(io.StringIO()):
        code = cli.main(command)
    print(code, error.getvalue().splitlines()[-1])
"""


def distributions(requirements: Iterable[str]) -> set[str]:
    """Returns the names of the distributions that requirements name, on this platform and without extras."""
    parsed = map(Requirement, requirements)
    return {canonicalize_name(one.name) for one in parsed if not one.marker or one.marker.evaluate({'extra': ''})}


packages_distributions = functools.cache(metadata.packages_distributions)


@functools.cache
def requirements_of(name: str) -> set[str]:
    """Returns what a distribution requires itself; nothing if it is not installed."""
    try:
        return distributions(metadata.requires(name) or ())
    except metadata.PackageNotFoundError:
        return set()


def all_requirements(names: set[str]) -> set[str]:
    """Returns installed distributions with all that they require."""
    found, new = set(), names
    while new:
        found |= new
        new = set().union(*map(requirements_of, new)) - found
    return found


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Yields the packages that a module imports with the extras that `require` names, '' for plain imports."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition('.')[0], '') for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.partition('.')[0], ''
        elif isinstance(node, ast.Call) and getattr(node.func, 'id', '') == 'require':
            for module in ast.walk(node.args[0]):  # a constant, unless it is a variable of a loop over constants
                if isinstance(module, ast.Constant):
                    yield module.value.partition('.')[0], node.keywords[0].value.value


def test_every_import_is_of_a_requirement():
    direct = distributions([*PROJECT['dependencies'], *itertools.chain.from_iterable(EXTRAS.values())])
    plain = direct.union(*map(requirements_of, direct))
    known = packages_distributions()
    found = {pair for path in (ROOT / 'jitm').rglob('*.py') for pair in imports(path)}
    for package, extra in sorted(found):
        names = {canonicalize_name(name) for name in known.get(package, [package])}
        allowed = distributions(EXTRAS[extra]) if extra else plain
        if package not in {*sys.stdlib_module_names, 'jitm'}:
            assert names & allowed, f'{package} is imported, but not among the requirements of {extra or "jitm"}'


def benchmark_imports(package: str, name: str, lines: str = '^ *') -> set[str]:
    """Returns the packages that a benchmark imports, and those that modules of its package import at their top."""
    text = (ROOT / package / f'{name}.py').read_text()
    found = re.findall(lines + r'(?:import|from) (\w+)', text, re.MULTILINE)
    others = ', '.join(re.findall(lines + f'from {package} import (.+)$', text, re.MULTILINE))
    return {*found}.union(*(benchmark_imports(package, other, '^') for other in others.split(', ') if other))


@pytest.mark.parametrize('page', sorted((ROOT / 'docs').rglob('*.md')), ids=lambda page: page.name)
def test_printed_benchmarks_need_what_their_page_installs(page):
    text, known = page.read_text(), packages_distributions()
    extras = set(re.findall(r"pip install -e '\.\[(.+?)]'", text))
    direct = distributions(PROJECT['dependencies']).union(
        *(all_extras(extra) for names in extras for extra in names.split(','))
    )
    allowed = all_requirements(direct)
    own = {*sys.stdlib_module_names, 'jitm', 'benchmarks', 'experiments', 'configs', 'tests'}
    for of, name in set(re.findall(r'^python -m (benchmarks|experiments) (\w+)', text, re.MULTILINE)):
        for package in benchmark_imports(of, name) - own:
            names = {canonicalize_name(one) for one in known.get(package, [package])}
            assert names & allowed, f'{page.name} prints {of} {name}, but does not install {package}'


def all_extras(extra: str) -> set[str]:
    """Returns the distributions of an extra and of those that it names."""
    direct = distributions(EXTRAS[extra])
    inner = [Requirement(one) for one in EXTRAS[extra]]
    return direct.union(*(all_extras(name) for one in inner if one.name == 'jitm' for name in one.extras)) - {'jitm'}


def fake_python(path: Path, version: str) -> Path:
    """Writes a program that prints a version whatever it is asked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho {version}\n')
    path.chmod(0o755)
    return path


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Runs make with the PATH alone, since the make that runs the tests passes its variables on."""
    command = ['make', f'--makefile={ROOT}/Makefile', *arguments]
    return subprocess.run(command, cwd=folder, env={'PATH': os.environ['PATH']}, capture_output=True, text=True)


@pytest.mark.parametrize('version', ['3.10.13', '3.14.0', ''])
def test_make_names_the_pythons_that_jitm_needs(tmp_path, version):
    (tmp_path / 'pyproject.toml').touch()
    python = fake_python(tmp_path / 'bin' / 'python', version)
    refused = make(tmp_path, 'demo', f'PYTHON={python}')
    stated = f'jitm needs Python 3.11 to 3.13, and {python} is {version or "not there"}: make demo PYTHON=python3.11'
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (2, stated)
    assert not (tmp_path / '.venv').exists()
    assert PROJECT['requires-python'] == '>=3.11,<3.14'


def test_make_replaces_an_environment_of_another_python(tmp_path):
    (tmp_path / 'pyproject.toml').touch()
    fake_python(tmp_path / '.venv' / 'bin' / 'python', '3.11.7')
    for stamp in ('runtime', 'dev'):
        (tmp_path / '.venv' / stamp).touch()
    other = fake_python(tmp_path / 'bin' / 'python', '3.13.0')
    for arguments, replaced in (((), False), ((f'PYTHON={other}',), True)):
        printed = make(tmp_path, '--dry-run', 'test', *arguments)
        assert printed.returncode == 0
        assert (f'{other} -m venv --clear .venv' in printed.stdout) is replaced
        assert ("-e '.[dev]'" in printed.stdout) is replaced


@pytest.mark.slow
@pytest.mark.parametrize(('extra', 'python'), [('cuda12', '3.11'), ('cuda13', '3.13'), ('tpu', '3.12')])
def test_the_extras_of_accelerators_resolve(extra, python):
    command = (sys.executable, '-m', 'uv', 'pip', 'compile', '--quiet', '--python-platform', 'x86_64-manylinux_2_31')
    lines = run(*command, '--python-version', python, '--extra', extra, 'pyproject.toml', cwd=ROOT).splitlines()
    assert any(line.startswith('libtpu' if extra == 'tpu' else f'jax-{extra}-plugin') for line in lines)


def test_the_base_installation_has_few_requirements():
    assert len(PROJECT['dependencies']) <= 15


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
    """Installs jitm in a new environment that has its requirements alone; returns the folder of the programs."""
    venv.create(folder, symlinks=True)
    python = folder / 'bin' / 'python'
    (packages,) = folder.glob('lib/python*/site-packages')
    for name in all_requirements(distributions([*PROJECT['dependencies'], 'setuptools'])):  # which builds
        distribution = metadata.distribution(name)
        for part in {file.parts[0] for file in distribution.files} - {'..', '__pycache__'}:
            if not (packages / part).exists():  # several distributions may share a namespace
                (packages / part).symlink_to(distribution.locate_file(part))
    offline = ('--no-index', '--no-deps', '--no-build-isolation', '--ignore-installed')
    run(sys.executable, '-m', 'pip', '--python', python, 'install', '--quiet', *offline, *what, cwd=folder)
    return python.parent


@pytest.fixture(scope='module')
def wheel(clone, tmp_path_factory) -> Path:
    """The wheel of the source distribution of the copy."""
    folder = tmp_path_factory.mktemp('wheel')
    build = f'from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})'
    run(sys.executable, '-c', build, cwd=clone)
    (source,) = folder.glob('jitm-*.tar.gz')
    offline = ('--no-index', '--no-deps', '--no-build-isolation')
    run(sys.executable, '-m', 'pip', 'wheel', '--quiet', *offline, '--wheel-dir', folder, source, cwd=folder)
    (path,) = folder.glob('*.whl')
    return path


@pytest.mark.slow
def test_the_wheel_has_one_package_with_the_configs(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split('/')[0] for name in names if '.dist-info/' not in name} == {'jitm'}
    files = {f'jitm/configs/{path.name}' for path in (ROOT / 'configs').glob('*.py')}
    assert files | {'jitm/py.typed', 'jitm/evaluation/published.json'} <= {*names}


@pytest.mark.slow
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
    (tmp_path / 'photo' / 'train').mkdir(parents=True)
    (tmp_path / 'photo' / 'train' / 'metadata.jsonl').write_text('{"file_name": "a.png", "captions": ["a ring"]}\n')
    (tmp_path / 'photo' / 'train' / 'a.png').write_bytes(b'a')
    expected = [
        f"2 error: the package {package} is not installed: run pip install -e '.[{extra}]' in jitm's clone"
        for package, extra in MISSING
    ]
    assert run(programs / 'python', '-c', WITHOUT_EXTRAS, cwd=tmp_path).splitlines() == expected


@pytest.mark.slow
def test_an_editable_installation_is_found_beside_the_clone(clone, tmp_path):
    programs = install(tmp_path / 'environment', '--editable', clone)
    code = 'import jitm; from jitm.configs import vse; print(jitm.__file__, jitm.load)'
    assert str(clone / 'jitm') in run(programs / 'python', '-c', code, cwd=clone.parent)
