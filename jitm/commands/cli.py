"""The program `jitm`: finds the command, parses its flags, and turns errors into a sentence and an exit code."""

import difflib
import functools
import gc
import importlib
import inspect
import io
import logging
import os
import re
import runpy
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from absl import flags
from absl import logging as absl_logging
from ml_collections import ConfigDict

import jitm
from jitm import configs
from jitm.commands import flags as shared
from jitm.config import names
from jitm.errors import InterruptedRun, NotFiniteError, UserError, did_you_mean, printable
from jitm.files import expand

COMMANDS = (
    *('train', 'eval', 'mine', 'audit', 'choices', 'encode', 'convert', 'average'),
    *('search', 'explorer', 'sweep', 'words', 'report', 'settings', 'completion'),
)
HELP = ('--help', '-h', '-help')
NO_CONFIG = '--config is missing; jitm settings lists the published presets'


def _one_line(error: BaseException) -> str:
    """Returns the message of an error on one line, for a KeyError without quotes."""
    return ' '.join(str(error.args[0] if isinstance(error, KeyError) else error).split())


def _split_overrides(argv: Sequence[str]) -> tuple[list[str], dict[str, str | None]]:
    """Separates the words `--config.key=value`, `--config.key value` and `--noconfig.key` from the others.

    Returns:
      The other words, and key -> the text of its value; None for a flag without one.
    """
    words = list(argv)
    arguments = []
    overrides = {}
    while words:
        word = words.pop(0)
        match = re.fullmatch(r'--?(no)?config\.([^=]*)(?:=(.*))?', word, re.DOTALL)
        if match:
            negated, key, value = match.groups()
            if value is None and not negated and words and not words[0].startswith('--'):
                value = words.pop(0)
            overrides[key] = 'false' if negated else value
        else:
            arguments.append(word)
    return arguments, overrides


def _find_config(name: str) -> Path:
    """Returns the file of a config.

    Args:
      name: A name of `configs.FILES`, or a path. Where configs/NAME.py does not exist, jitm's own file is meant.

    Raises:
      UserError: If there is no such file.
    """
    path = Path(name)
    if name not in configs.FILES and path.is_file():
        return path
    short = path.stem if path == Path('configs', f'{path.stem}.py') else name
    if short in configs.FILES:
        return configs.FILES[short]
    nearest = difflib.get_close_matches(path.stem, configs.FILES, n=1)
    hint = f", did you mean '{nearest[0]}'?" if nearest else '; jitm settings lists the published presets'
    problem = 'is not a regular file' if path.exists() else 'does not exist'
    raise UserError(f'config file {name} {problem}{hint}')


def read_config(argument: str) -> dict[str, Any]:
    """Returns the config of `NAME`, `NAME:OPTIONS`, `FILE` or `FILE:OPTIONS`.

    Raises:
      UserError: If there is no such file, it cannot be run, or it raises an error about the options.
    """
    name, colon, options = argument.partition(':')
    if not name:
        raise UserError(NO_CONFIG)
    path = _find_config(name)
    try:
        scope = runpy.run_path(str(path))
    except (Exception, SystemExit) as error:  # the file is the user's program and can raise anything
        raise UserError(f'config file {name} cannot be run: {type(error).__name__}: {_one_line(error)}') from None
    if 'get_config' not in scope:
        raise UserError(f'config file {name} has no get_config function')
    if colon and not inspect.signature(scope['get_config']).parameters:
        raise UserError(f"config file {name} has no options, but '{options}' is given after the colon; leave it out")
    try:
        config = scope['get_config'](*([options] if colon else []))
        if isinstance(config, ConfigDict):
            return config.to_dict()
    except (Exception, SystemExit) as error:
        raise UserError(f'config file {name}: {_one_line(error)}') from None
    raise UserError(f'config file {name}: get_config returns {type(config).__name__}; return a ConfigDict')


def load_usage(name: str) -> ModuleType:
    """Returns the module of a command's help, arguments and flags.

    Raises:
      UserError: If no command has this name.
    """
    if name not in COMMANDS:
        near = did_you_mean(name, COMMANDS)
        raise UserError(f"'{name}' is not a command of jitm{near or '; jitm --help lists them'}")
    return importlib.import_module(f'jitm.commands.usage.{name}')


@functools.cache
def load_command(name: str) -> ModuleType:
    """Returns the module that does the work of a command.

    Its imports make many objects and no garbage: the collector does not run meanwhile, nor looks at them later.
    """
    gc.disable()
    try:
        return importlib.import_module(f'jitm.commands.{name}')
    finally:
        gc.freeze()
        gc.enable()


def _flags_of(usage: ModuleType) -> dict[str, shared.Flag]:
    """Returns the flags of a command; all that read or write runs have --import."""
    return usage.FLAGS | (shared.common('import') if 'workdir' in usage.FLAGS else {})


def define_flags(usage: ModuleType) -> flags.FlagValues:
    """Returns the flags of a command, not parsed."""
    values = flags.FlagValues()
    values.set_gnu_getopt()
    for name, define in _flags_of(usage).items():
        define(name, flag_values=values)
    return values


def _parse(usage: ModuleType, argv: Sequence[str]) -> tuple[flags.FlagValues, list[str]]:
    """Parses the arguments of a command.

    Args:
      usage: The module of `load_usage`.
      argv: The arguments.

    Returns:
      The flags, with the config as the value of `--config`, and the positional arguments.

    Raises:
      UserError: If a flag is unknown, missing or has a value of another type.
    """
    name = usage.__name__.rpartition('.')[2]
    see_help = f' (jitm {name} --help lists the flags)'
    values = define_flags(usage)
    argv, config_flags = _split_overrides(argv) if 'config' in values else (argv, {})
    try:
        words = values(['jitm', *argv])[1:]
    except flags.UnrecognizedFlagError as error:
        nearest = next(iter(difflib.get_close_matches(error.flagname, values, n=1)), None)
        if 'config' in values and not nearest:
            from jitm.config import overrides  # imports jax, which not every command needs

            key = overrides.find_key(configs.load('default').to_dict(), error.flagname)
            nearest = key and f'config.{key}{"".join(error.flagvalue.partition("=")[1:])}'
        hint = f", did you mean '--{nearest}'?" if nearest else ''
        raise UserError(f"Unknown command line flag '{error.flagname}'{hint}{see_help}") from None
    except (flags.Error, TypeError, ValueError) as error:
        raise UserError(f'{error}{see_help}') from None
    for name in values:
        values[name].value = expand(values[name].value)
    if words and not hasattr(usage, 'ARGUMENTS'):
        raise UserError(f"'{words[0]}' is not a flag{see_help}")

    if config_flags and values.config is None:
        raise UserError(NO_CONFIG)
    if 'config' in values and values.config is not None:
        values['config'].value = read_config(values.config)
    if config_flags:
        from jitm.training.sections import override  # imports jax, which not every command needs

        values['config'].value = override(values.config, config_flags)
    for required in getattr(usage, 'REQUIRED', ()):
        if values[required].value in (None, '', [], ['']):
            raise UserError(f'--{required} is missing{see_help}')
    if hasattr(usage, 'RULES'):
        usage.RULES.check(values)
    return values, words


def _help(name: str, usage: ModuleType) -> str:
    """Returns the help of a command: its usage, its docstring and its flags."""
    defined = _flags_of(usage)
    required = getattr(usage, 'REQUIRED', ())
    words = ['usage: jitm', name, *([usage.ARGUMENTS] if hasattr(usage, 'ARGUMENTS') else [])]
    words += [f'--{flag} {flag.upper()}' for flag in required]
    words += ['[flags]'] if len(defined) > len(required) else []
    described = shared.describe_flags(defined, required)
    return '\n\n'.join([' '.join(words), inspect.getdoc(usage).strip(), f'flags:\n{described}'])


def _list_commands() -> str:
    lines = ['usage: jitm COMMAND [flags]', '', 'Trains, evaluates and applies image-text matching models.', '']
    for name in COMMANDS:
        lines.append(f'  {name:<12}{load_usage(name).__doc__.splitlines()[0]}')
    return '\n'.join(
        [*lines, '', 'jitm COMMAND --help describes a command and its flags, jitm --version prints the version.']
    )


def _run(argv: Sequence[str]) -> None:
    """Runs a command, or prints the requested help."""
    if not argv or argv[0] in HELP:
        print(_list_commands())
        return
    if argv == ['--version']:
        print(f'jitm {jitm.__version__}')
        return
    name, *arguments = argv
    usage = load_usage(name)
    if any(word in HELP for word in arguments):
        print(_help(name, usage))
        return
    values, words = _parse(usage, arguments)
    command = load_command(name)
    if 'compilation_cache' in values:
        shared.keep_compiled(values.compilation_cache)
    for module in values['import'].value if 'import' in values else ():
        names.import_own(module)
    command.main(values, *([words] if hasattr(usage, 'ARGUMENTS') else []))


def _set_up_output() -> None:
    """Prints only characters of the terminal; on stderr messages of jitm, warnings of others and errors of absl."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors='replace')
    warnings.filterwarnings('ignore', r'Image size \(\d+ pixels\) exceeds limit')  # Pillow; the photos raise an error
    logging.basicConfig(format='%(levelname)s: %(message)s', level=logging.WARNING)
    logging.getLogger(jitm.__name__).setLevel(logging.INFO)
    absl_logging.get_absl_logger().setLevel(logging.ERROR)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `jitm COMMAND ...`.

    Args:
      argv: The command and its arguments; the arguments of the process if None.

    Returns:
      The exit code: 0; 2 for an error of the user; 75 for an interrupted job that the same command resumes; 76 for a
      loss or gradient that is not finite.
    """
    try:
        _set_up_output()
        _run(sys.argv[1:] if argv is None else list(argv))
        return 0
    except BrokenPipeError:  # the reader of the output, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (UserError, InterruptedRun, NotFiniteError) as error:
        stopped = error
    except OSError as error:
        if error.filename is None:
            raise
        stopped = UserError(f'{error.filename}: {error.strerror}; choose another path')
    prefix = 'error: ' if isinstance(stopped, UserError) else ''
    print(f'{prefix}{printable(str(stopped))}', file=sys.stderr, flush=True)
    return stopped.exit_code
