"""Names of functions and classes in a config, from jitm or from the user's own modules."""

import contextlib
import difflib
import functools
import hashlib
import importlib
import importlib.util
import os
import pkgutil
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from jitm.errors import UserError, did_you_mean, stated_names

_JITM = Path(__file__).parents[1]
_LIBRARIES = ('site-packages', 'dist-packages', '<frozen', sysconfig.get_path('stdlib'))


def resolve(
    package: str,
    name: str,
    *,
    where: str,
    own: Callable[[Any], bool] | None = None,
    imports: bool = True,
) -> Callable:
    """Returns a function or class of a package of jitm, or of a module of the user.

    Importing a module runs it. A config that the user did not write must therefore not decide what is imported.

    Args:
      package: The package, such as `jitm.losses`, or a module.
      name: A dotted path in the package, such as `ranking.max_of_hinges`. With `own`, also the dotted path of another
        module that can be imported in the working directory, such as `my_losses.my_hinge`, or a file and a name,
        such as `path/to/my_losses.py:my_hinge`.
      where: The config key with the name, for messages.
      own: Whether an object of a module of the user may be named; None for objects of jitm only.
      imports: Whether a module of the user is imported; otherwise the user must have imported it.

    Raises:
      UserError: If the module does not exist, cannot be imported or has no such public name.
    """
    wrong = f"config key '{where}' is '{name}', but"
    file, colon, attribute = name.rpartition(':')
    if own and '/' in name and not colon:
        raise UserError(f'{wrong} a function of a file has the form path/to/FILE.py:NAME')
    if own and colon:
        module = _import_file(Path(file), wrong) if imports else _imported(file, wrong)
        return _attribute(module, attribute, wrong, own)
    module_name, _, attribute = name.rpartition('.')
    if not module_name and name in _modules(package):
        module_name = name  # the function that has the name of its module
    elif not module_name and _modules(package):
        raise UserError(f'{wrong} names of {package} have the form MODULE.NAME{_near_full_name(package, name)}')
    path = _modules(package).get(module_name, f'{package}.{module_name}') if module_name else package
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if not path.startswith(error.name or ' '):
            raise
        find = _import_module if imports else _imported
        module = find(module_name, wrong) if own else None
        if module:
            return _attribute(module, attribute, wrong, own)
        near = did_you_mean(module_name, _modules(package))
        if own and 'did you mean' not in near:
            near = f', and no {module_name} in {os.getcwd()}'
        raise UserError(f'{wrong} there is no module {path}{near}') from None
    public = _public(module)
    if attribute not in public:
        papers = stated_names({name: getattr(module, name) for name in public})
        raise UserError(f"{wrong} {path} has no '{attribute}'{did_you_mean(attribute, public, papers)}")
    return getattr(module, attribute)


def import_own(module: str) -> None:
    """Imports a module of the user, whose classes runs may then name.

    Args:
      module: The dotted path of a module that can be imported in the working directory, or the path of a file.

    Raises:
      UserError: If there is no such module, or it cannot be imported.
    """
    wrong = f"--import is '{module}', but"
    if module.endswith('.py'):
        _import_file(Path(module), wrong)
    elif not _import_module(module, wrong):
        raise UserError(f'{wrong} there is no module {module} in {os.getcwd()}')


def module_of(name: str) -> str:
    """Returns the module of a name that `resolve` accepts: its dotted path, or the path of its file."""
    return name.rpartition(':' if ':' in name else '.')[0]


def file_of(module: str) -> Path | None:
    """Returns the file of a module of the user, see `module_of`; None if it was not imported, or has none any more."""
    with contextlib.suppress(UserError):
        file = getattr(_imported(module, ''), '__file__', None) or ''
        return Path(file) if os.path.isfile(file) else None
    return None


def _public(module: ModuleType) -> list[str]:
    """Returns the names of the public functions and classes that a module defines."""
    public = {key: value for key, value in vars(module).items() if not key.startswith('_')}
    return [key for key, value in public.items() if callable(value) and value.__module__ == module.__name__]


@functools.cache
def _modules(package: str) -> dict[str, str]:
    """Returns the dotted paths of the modules of a package and its folders by their names; none if it is a module."""
    path = getattr(importlib.import_module(package), '__path__', ())
    modules = [module.name for module in pkgutil.walk_packages(path, f'{package}.')]
    paths = {module.rpartition('.')[2]: module for module in sorted(modules, key=len, reverse=True)}
    return dict(sorted(paths.items()))


def _near_full_name(package: str, name: str) -> str:
    """Returns a hint to append to a message about a name without its module."""
    modules = _modules(package)
    full_names = {module: f'{module}.NAME' for module in modules}
    papers = {}
    for module, path in modules.items():
        with contextlib.suppress(ImportError):  # an optional library is missing
            imported = importlib.import_module(path)
            public = _public(imported)
            full_names |= {name: name if name == module else f'{module}.{name}' for name in public}
            papers |= stated_names({full_names[attribute]: getattr(imported, attribute) for attribute in public})
    near = difflib.get_close_matches(name, full_names, n=1)
    meant = papers.get(name.lower()) or ''.join(full_names[nearest] for nearest in near)
    return f", did you mean '{meant}'?" if meant else '; see jitm/configs/default.py'


def is_own(value: Any) -> bool:
    """Whether a function or class is defined outside of jitm."""
    return str(value.__module__).partition('.')[0] != 'jitm'


def _attribute(module: ModuleType, name: str, wrong: str, own: Callable[[Any], bool]) -> Callable:
    """Returns a public object of a module of the user."""
    public = {key: value for key, value in vars(module).items() if not key.startswith('_')}
    permitted = {key: value for key, value in public.items() if own(value) and is_own(value)}
    if name in permitted:
        return permitted[name]
    if name in public:
        kinds = 'a loss is a function, a source a function of split, a model a class of flax.linen.Module'
        raise UserError(f'{wrong} {kinds}: name one of your own')
    raise UserError(f"{wrong} {module.__name__} has no '{name}'{did_you_mean(name, permitted)}")


def _import_module(name: str, wrong: str) -> ModuleType | None:
    """Imports a module as Python does in the working directory; None if there is none."""
    folder = os.getcwd()
    with _importing(wrong):
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f'{name}.'.startswith(f'{error.name}.'):
                raise
            return None
        finally:
            sys.path.remove(folder)


def _import_file(file: Path, wrong: str) -> ModuleType:
    """Imports a file once; the name of its module is the stem of the file with a hash of its path."""
    if not file.is_file():
        raise UserError(f'{wrong} there is no file {file}')
    name = f'{file.stem}_{hashlib.sha256(bytes(file.resolve())).hexdigest()[:8]}'
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file.absolute())
        if spec is None:
            raise UserError(f'{wrong} {file} is not a file of Python')
        sys.modules[name] = importlib.util.module_from_spec(spec)
        with _importing(wrong):
            try:
                spec.loader.exec_module(sys.modules[name])
            except BaseException:
                del sys.modules[name]
                raise
    return sys.modules[name]


def _imported(module: str, wrong: str) -> ModuleType:
    """Returns a module that the user has imported: that of this dotted path or file, or the only one of its name.

    A run may be loaded in another folder than that of its training, and its file may have moved.
    """
    if module in sys.modules:
        return sys.modules[module]
    path = Path(module if module.endswith('.py') else f'{module.rpartition(".")[2]}.py')
    modules = {}
    for imported in list(sys.modules.values()):
        file = getattr(imported, '__file__', None) or ''
        if Path(file).name == path.name and _is_of_user(file):
            modules[Path(file).resolve()] = imported
    if len(modules) > 1 and path.resolve() not in modules:
        files = ' and '.join(map(str, modules))
        raise UserError(f'{wrong} {module} may be {files}: import one of them, or start where {module} is one')
    if not modules:
        problem = f'{module} is not in jitm: if you trust it, give --import {module}, in Python import it'
        raise UserError(f'{wrong} {problem}')
    return modules.get(path.resolve()) or next(iter(modules.values()))


def _is_of_library(file: str) -> bool:
    return any(part in file for part in _LIBRARIES)


def _is_of_user(file: str) -> bool:
    return not _is_of_library(file) and not Path(file).is_relative_to(_JITM)


@contextlib.contextmanager
def _importing(wrong: str) -> Iterator[None]:
    """Names file and line of an error in a module of the user, which can raise anything."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(f'{wrong} its module cannot be imported: {describe(error)}') from None


def describe(error: BaseException) -> str:
    """Describes an error and the innermost line of the traceback in user code, or else in jitm.

    Args:
      error: An error that was caught.

    Returns:
      One line, such as 'TypeError in line 7 of my_losses.py (x + y): unsupported operand'.
    """
    if isinstance(error.__cause__, AttributeError) and not isinstance(error, AttributeError):
        error = error.__cause__  # which Flax leaves out, but it names the attribute
    message = (str(error).strip().splitlines() or [''])[0]
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        return f'{kind} in line {error.lineno} of {error.filename}: {error.msg}'
    frames = traceback.extract_tb(error.__traceback__)
    inner = [frame for frame in frames if not _is_of_library(frame.filename)] or frames
    frame = ([frame for frame in inner if _is_of_user(frame.filename)] or inner)[-1]
    return f'{kind} in line {frame.lineno} of {frame.filename}: {frame.line}: {message}'
