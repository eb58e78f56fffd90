"""Imports follow the arrows of the design: nobody imports from a higher level."""

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT

# A module may import from its own level's folder and from lower levels.
LEVELS = [
    {'errors', 'types', 'metrics', 'losses'},
    {'parallel', 'files', 'generation', 'reranking'},
    {'config', 'layers', 'data', 'published'},
    {'tiles'},
    {'matcher'},
    {'models', 'synthesis', 'training.checkpoint', 'analysis'},
    {'importers', 'scoring'},
    {'evaluation'},
    {'words'},
    {'explain', 'mining'},
    {'training', 'inference'},
    {'cli'},
    {'mining.__main__', 'words.__main__', 'sweep'},
]
PURE = {'types', 'metrics', 'losses'}
MODULES = sorted((ROOT / 'jitm').rglob('*.py'))


def room(module: str) -> str:
    """The part of a module's name that has a level: `training.step` -> `training`."""
    rooms = [name for level in LEVELS for name in level]
    return max((name for name in rooms if f'{module}.'.startswith(f'{name}.')), key=len, default='')


def level(module: str) -> int:
    return next(n for n, rooms in enumerate(LEVELS) if room(module) in rooms)


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, 'relative import'
            names |= {f'{node.module}.{alias.name}' for alias in node.names}
    return names


@pytest.mark.parametrize('path', MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downward(path):
    module = '.'.join(path.relative_to(ROOT / 'jitm').with_suffix('').parts).removesuffix('.__init__')
    if module == '__init__':
        return
    for name in imports(path):
        assert not name.startswith(('train', 'eval', 'configs'))
        if not name.startswith('jitm.'):
            if room(module) in PURE and module != 'losses':
                assert name.split('.')[0] in {'jax', 'numpy', 'chex', 'flax', 'collections', 'itertools', 'typing'}, (
                    name
                )
            continue
        imported = name.removeprefix('jitm.')
        if room(imported) == room(module):
            continue
        assert level(imported) < level(module), f'{module} imports {imported}'
        assert not (room(module) == 'losses' and room(imported) != 'types')


def test_every_module_has_a_level_and_none_is_called_utils():
    for path in MODULES:
        module = '.'.join(path.relative_to(ROOT / 'jitm').with_suffix('').parts).removesuffix('.__init__')
        assert module == '__init__' or room(module), module
        assert path.stem not in {'utils', 'util', 'helpers', 'misc'}


def test_defaults_stand_in_the_configs():
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == 'get':
                assert not (isinstance(node.value, ast.Name) and node.value.id in {'config', 'cfg'}), path
