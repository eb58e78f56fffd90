"""Flags that several commands share, their effects, and the text of `--help`."""

import contextlib
import functools
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from absl import flags

from jitm.devices import job
from jitm.errors import UserError
from jitm.files import cache_home, check_local

WIDTH = 100
# As in `jitm.types`, which imports jax.
DTYPES = ('float32', 'bfloat16')
PRECISIONS = ('default', 'high', 'highest')
PROCESS_FLAGS = ('coordinator', 'num_processes', 'process_id')

Flag = functools.partial[Any]  # defines a flag, given its name and `flag_values`


def _kind(define: Callable[..., Any], default: Any = None, **options: Any) -> Callable[..., Flag]:
    """Returns a function that makes flags of one kind from an explanation, a default and further options of absl."""

    def make(explanation: str, default: Any = default, **keywords: Any) -> Flag:
        return functools.partial(define, default=default, help=explanation, **options, **keywords)

    return make


class _Switch(flags.BooleanFlag):
    """A boolean flag and its negation; the error for another value names the two that are allowed."""

    def parse(self, argument: str | bool) -> None:
        try:
            super().parse(argument)
        except flags.IllegalFlagValueError:
            raise flags.IllegalFlagValueError(f'flag --{self.name}={argument}: neither true nor false') from None


def _define_switch(name: str, default: bool, help: str, flag_values: flags.FlagValues) -> None:
    flags.DEFINE_flag(_Switch(name, default, help), flag_values)


class PathParser(flags.ArgumentParser):
    """Parses the path of a file or folder of this machine."""

    def __init__(self, name: str):
        """Stores the name of the flag."""
        self.name = name

    def parse(self, argument: str) -> str:
        """Returns the path; raises a UserError if it is an address."""
        check_local(argument, f'--{self.name}')
        return argument


def _define_path(name: str, **options: Any) -> None:
    flags.DEFINE(PathParser(name), name, serializer=flags.ArgumentSerializer(), **options)


def _define_paths(name: str, **options: Any) -> None:
    flags.DEFINE_multi(PathParser(name), flags.ArgumentSerializer(), name, **options)


path = _kind(_define_path)
paths = _kind(_define_paths)
text = _kind(flags.DEFINE_string)
texts = _kind(flags.DEFINE_multi_string)  # the flag may be repeated
words = _kind(flags.DEFINE_list)  # separated by commas
number = _kind(flags.DEFINE_integer)  # optionally from `lower_bound` to `upper_bound`
count = _kind(flags.DEFINE_integer, lower_bound=1)
switch = _kind(_define_switch, False)


def choice(values: Sequence[str], explanation: str, default: str | None = None) -> Flag:
    """Returns a flag with one of some values."""
    return functools.partial(flags.DEFINE_enum, default=default, enum_values=values, help=explanation)


SPLIT = 'dev'
SHARED = {
    'config': path('NAME:OPTIONS of a preset, or a file of your own; --config.key=value changes a key.'),
    'import': texts('A module or file of your own with the model of a run; repeat the flag for several.', []),
    'workdir': path('The run directory.'),
    'accept_changed_code': switch('Resume with files of your own that have changed, such as a loss or a model.'),
    'split': text('The split of the data set.', SPLIT),
    'step': number('The checkpoint to load; the best on the validation split if not given.'),
    'member': text('The model of `members` to load; the validated one if not given.'),
    'data_root': path('The data folder, if it has moved since training.'),
    'output': path('The output folder; one in eval/ of the run directory, named by the flags, if not given.'),
    'dtype': choice(DTYPES, 'The dtype of the encodings; as in the validation if not given.'),
    'precision': choice(PRECISIONS, 'The precision of float32 products; as in the validation if not given.'),
    'memory_mb': count('Memory budget for scoring in MiB; run.memory_mb of the config if not given.'),
    'compilation_cache': switch(
        'Keep compiled programs in JAX_COMPILATION_CACHE_DIR, by default ~/.cache/jitm/compiled, for the next start.',
        default=True,
    ),
    'coordinator': text(
        'host:port of process 0, if several processes work together; jax finds it under SLURM, Open MPI and in pods.'
    ),
    'num_processes': count('The number of processes, with --coordinator; 1 lets a task of SLURM work alone.'),
    'process_id': number('The number of this process, from 0; with --coordinator.', lower_bound=0),
}


def common(*names: str) -> dict[str, Flag]:
    """Returns some of the flags that several commands share, by their names."""
    return {name: SHARED[name] for name in names}


class Rules(NamedTuple):
    """The flags of a command that go together, by their names.

    Attributes:
      alternatives: Pairs of flags of which exactly one must be given.
      needs: A flag -> another flag that it needs.
      excludes: A flag -> other flags, which nothing reads beside it.
    """

    alternatives: Sequence[tuple[str, str]] = ()
    needs: Mapping[str, str] = MappingProxyType({})
    excludes: Mapping[str, Sequence[str]] = MappingProxyType({})

    def check(self, values: flags.FlagValues) -> None:
        """Raises a UserError if the parsed flags of a command do not go together."""
        for first, second in self.alternatives:
            if bool(values[first].value) == bool(values[second].value):
                raise UserError(f'give either --{first} or --{second}')
        for name, reader in self.needs.items():
            check_read(values, f'--{reader}', values[reader].value, name)
        for name, unread in self.excludes.items():
            for excluded in unread if values[name].value else ():
                if values[excluded].present and values[excluded].value:
                    raise UserError(f'--{excluded} is not read with --{name}: leave one of them out')


def check_read(values: flags.FlagValues, reader: str, is_given: object, *names: str) -> None:
    """Checks flags that nothing reads without a certain reader.

    Args:
      values: The parsed flags of a command.
      reader: The reader, for the message, such as `--html`.
      is_given: Whether the reader is given.
      names: Names of the flags that it reads.

    Raises:
      UserError: If one of the flags is given without it.
    """
    for name in names:
        if values[name].present and not is_given:
            raise UserError(f'--{name} is not read without {reader}: add it, or leave --{name} out')


def given(values: flags.FlagValues, *names: str) -> list[str]:
    """Returns the words of a command line that set the given flags among `names`."""
    arguments = []
    for flag in (values[name] for name in names if values[name].present):
        repeats = isinstance(flag, flags.MultiFlag)
        arguments += [f'--{flag.name}={value}' for value in flag.value] if repeats else [flag.serialize()]
    return arguments


def repeated(command: str, values: flags.FlagValues, words: Sequence[str] = ()) -> str:
    """Returns the command line that repeats a command with its flags and its other words."""
    dashes = ['--'] if any(word.startswith('-') for word in words) else []
    return shlex.join(['jitm', command, *given(values, *values), *dashes, *words])


def photos_folder(values: flags.FlagValues) -> Path | None:
    """Returns the folder of `--photos`, None without the flag; raises a UserError if it does not exist."""
    folder = Path(values.photos) if values.photos else None
    if folder is not None and not folder.is_dir():
        raise UserError(f'{folder} is not a folder; give one as --photos')
    return folder


def keep_compiled(enabled: bool) -> None:
    """Turns JAX's persistent compilation cache on or off; must come before anything is compiled.

    It is on by default, so that a second start loads what the first one compiled. A folder that JAX already has, from
    JAX_COMPILATION_CACHE_DIR, is kept. A folder that cannot be written leaves the cache off.

    Args:
      enabled: Whether compiled programs are kept and read.
    """
    import jax  # not every command needs it

    if not enabled:
        jax.config.update('jax_enable_compilation_cache', False)
        return
    if jax.config.jax_compilation_cache_dir is not None:
        return
    folder = cache_home() / 'compiled'
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            jax.config.update('jax_compilation_cache_dir', str(folder))
            jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)


def start_processes(values: flags.FlagValues) -> None:
    """Joins the other processes, see `jitm.devices.job.join`, which the flags of `PROCESS_FLAGS` name or jax finds.

    Args:
      values: The parsed flags of a command.

    Raises:
      UserError: If only some of the flags are given, or they do not name a process and an address.
    """
    values_of_job = [values[name].value for name in PROCESS_FLAGS]
    coordinator, num_processes, process_id = values_of_job
    if any(value is not None for value in values_of_job) and values_of_job != [None, 1, None]:
        if None in values_of_job:
            raise UserError('--coordinator, --num_processes and --process_id go together; give all three')
        if not re.fullmatch(r'[^\s:]+:\d{1,5}|\[[^\s]+\]:\d{1,5}', coordinator):
            raise UserError(f"--coordinator is '{coordinator}'; give host:port of process 0, such as localhost:1234")
        if process_id >= num_processes:
            wrong = f'--process_id is {process_id}, but --num_processes is {num_processes}'
            raise UserError(f'{wrong}; number the processes from 0')
    if num_processes != 1:
        job.join(*values_of_job)


def describe_flags(defined: Mapping[str, Flag], required: Collection[str]) -> str:
    """Returns the help of a command's flags, the required ones first and the others in the given order.

    Args:
      defined: The flags of a command by name.
      required: The names of the required flags.
    """
    lines = []
    for name in sorted(defined, key=lambda name: name not in required):
        options = defined[name].keywords
        boolean = isinstance(options['default'], bool)
        left = f'  --[no]{name}' if boolean else f'  --{name}'
        left += f' {{{",".join(options["enum_values"])}}}' if 'enum_values' in options else ''
        text = ('Required. ' if name in required else '') + options['help']
        default = ','.join(options['default']) if isinstance(options['default'], list) else options['default']
        text += f' (default: {default})' if default not in (None, '') and not boolean else ''
        if len(left) > 25:
            lines.append(left)
            left = ''
        lines.append(textwrap.fill(f'{left:<27}{text}', WIDTH, subsequent_indent=' ' * 27, break_long_words=False))
    return '\n'.join(lines)
