"""Imports point downward: a folder imports from lower levels only."""

import ast
from pathlib import Path

import pytest

from tests.conftest import ROOT

# One level per folder or module of jitm, low to high.
LEVELS = [
    {'errors', 'metrics', 'types'},
    {'configs', 'devices', 'files'},
    {'config', 'layers'},
    {'data', 'losses'},
    {'models', 'pages'},
    {'importers', 'runs'},
    {'inference', 'synthesis'},
    {'encoders'},
    {'evaluation'},
    {'mining', 'report'},
    {'serving', 'training'},
    {'api', 'commands'},
    {'__main__'},
]
PURE = {'types', 'metrics', 'losses'}
LOSSES_IMPORT = ('jitm.errors.', 'jitm.config.arguments.', 'jitm.types.', 'jitm.losses.')
PURE_PACKAGES = {'jax', 'numpy', 'chex', 'flax', 'annotated_types', 'collections', 'itertools', 'typing', 'sys'}
MODULES = sorted((ROOT / 'jitm').rglob('*.py'))
PAPERS = {'vse', 'aoq', 'dbl', 'tags', 'uniter', 'selhn', 'rvse', 'faghri', 'fan', 'diao', 'li', 'chen'}


def folder_of(module: str) -> str:
    """The folder or module directly below jitm: `training.step` -> `training`."""
    return module.partition('.')[0]


def level(module: str) -> int:
    return next(n for n, folders in enumerate(LEVELS) if folder_of(module) in folders)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, 'relative import'
            names |= {f'{node.module}.{alias.name}' for alias in node.names}
    return names


def name_of(path: Path) -> str:
    return '.'.join(path.relative_to(ROOT / 'jitm').with_suffix('').parts).removesuffix('.__init__')


@pytest.mark.parametrize('path', MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downward(path):
    module = name_of(path)
    if module == '__init__':
        return
    for name in imports(path):
        assert not name.startswith(('train', 'eval', 'configs'))
        if name.startswith('jitm.'):
            imported = name.removeprefix('jitm.')
            neighbours = folder_of(imported) == folder_of(module)
            assert neighbours or level(imported) < level(module), f'{module} imports {imported}'
        elif folder_of(module) in PURE:
            assert name.partition('.')[0] in PURE_PACKAGES | {'__future__'}, name


def test_losses_import_errors_arguments_and_types_only():
    for path in (ROOT / 'jitm' / 'losses').glob('*.py'):
        modules = {f'{name}.' for name in imports(path) if name.startswith('jitm.')}
        assert all(name.startswith(LOSSES_IMPORT) for name in modules), path


def test_sources_of_pairs_import_no_step():
    for path in (ROOT / 'jitm' / 'training' / 'sources').glob('*.py'):
        modules = {name.split('.')[2] for name in imports(path) if name.startswith('jitm.training.')}
        assert modules <= {'label_estimators', 'objective', 'source', 'sources'}, path


def test_every_module_has_a_level_and_a_name():
    for path in MODULES:
        module = name_of(path)
        assert module == '__init__' or level(module) >= 0, module
        assert path.stem not in {'utils', 'util', 'helpers', 'misc', 'common'}


def test_configs_have_no_defaults_in_code():
    for path in MODULES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Attribute) and node.attr == 'get':
                assert not (isinstance(node.value, ast.Name) and node.value.id in {'config', 'cfg'}), path


def test_training_step_names_no_paper():
    text = (ROOT / 'jitm' / 'training' / 'step.py').read_text().lower()
    for character in set(text) - set('abcdefghijklmnopqrstuvwxyz'):
        text = text.replace(character, ' ')
    assert not PAPERS & set(text.split())


def test_reports_never_read_a_model():
    models = ('api', 'importers', 'inference', 'layers', 'mining', 'models', 'runs.run', 'synthesis', 'training')
    for path in (ROOT / 'jitm' / 'report').glob('*.py'):
        assert not [
            name for name in imports(path) if f'{name}.'.startswith(tuple(f'jitm.{folder}.' for folder in models))
        ], path
