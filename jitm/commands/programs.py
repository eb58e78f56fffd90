"""Command lines that work as printed in the shell that started this process, whether or not .venv is activated."""

import importlib.util
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path


def _relative(path: Path) -> str:
    """Returns a path as it is typed in the working directory."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _find(name: str) -> str | None:
    """Returns how to start a program of this Python installation; None if it has none of this name."""
    path = Path(sysconfig.get_path('scripts')) / name
    on_path = shutil.which(name)
    if not path.exists():
        return None
    return name if on_path and Path(on_path).absolute() == path else _relative(path)


def jitm(*words: object) -> str:
    """Returns a command line of jitm.

    Args:
      words: A command and its arguments.
    """
    python = _find(Path(sys.executable).name) or sys.executable
    program = _find('jitm')
    return shlex.join([*([program] if program else [python, '-m', 'jitm']), *map(str, words)])


def _pip(*packages: str) -> str:
    """Returns a command line that installs packages."""
    python = _find(Path(sys.executable).name) or sys.executable
    return shlex.join([python, '-m', 'pip', 'install', '--quiet', *packages])


def page(workdir: Path, split: str, query: str, words: Sequence[str] = ()) -> str:
    """Returns a command line that shows what a run finds; it installs what pages need first if that is missing.

    Args:
      workdir: The run directory.
      split: The split to search.
      query: A caption whose results become a page; '' for the explorer, which shows any model.
      words: Further words of the command.
    """
    run = '--workdir', workdir, '--split', split, *words
    dashes = ['--'] if query.startswith('-') else []
    search = 'search', *run, '--html', workdir / 'found.html', *dashes, query
    extra, module, command = ('report', 'jinja2', search) if query else ('explorer', 'starlette', ('explorer', *run))
    installed = importlib.util.find_spec(module)
    return jitm(*command) if installed else f'{_pip("-e", f".[{extra}]")} && {jitm(*command)}'


def print_run(folder: Path, *lines: str, words: Sequence[str] = ()) -> None:
    """Prints a run directory that a command made, further lines, and the command that evaluates it with some words."""
    evaluate = jitm('eval', '--workdir', folder, *words)
    print(f'run          {folder}  (checkpoints/)', *lines, f'evaluate     {evaluate}', sep='\n')


def tensorboard(folder: Path) -> str:
    """Returns a command line that shows the curves in a folder; it installs TensorBoard first if there is none.

    Args:
      folder: The folder of the event files.
    """
    installed = _find('tensorboard') or (shutil.which('tensorboard') and 'tensorboard')
    program = installed or _relative(Path(sysconfig.get_path('scripts')) / 'tensorboard')
    show = shlex.join([program, '--logdir', str(folder)])
    return show if installed else f'{_pip("tensorboard")} && {show}'
