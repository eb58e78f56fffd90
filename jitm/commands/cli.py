"""How the entry scripts start and end: flags, errors of one sentence, exit codes."""

import logging
import re
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from jitm import parallel
from jitm.errors import (
    EXIT_INTERRUPTED,
    EXIT_NOT_FINITE,
    EXIT_USER_ERROR,
    InterruptedRun,
    NotFiniteError,
    UserError,
    did_you_mean,
)


def _one_line(error: Exception) -> str:
    """The error's words on one line; ml_collections' dump of the whole config is left out."""
    text = re.sub(r'Other fields present: .*?(?=Did you mean|\Z)', '', str(error), flags=re.DOTALL)
    text = ' '.join(text.replace('\\n', ' ').split())
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in '\'"'
    return text[1:-1] if quoted else text


def _check_config_flags(argv: Sequence[str]) -> None:
    """Raises a UserError for a config file that cannot be read and for `--config.a.b` that it does not have."""
    words = [word for argument in argv for word in argument.split('=', 1)]
    path = next((words[n + 1] for n, word in enumerate(words[:-1]) if word in ('--config', '-config')), None)
    if path is None:
        return
    try:
        scope = runpy.run_path(path)
    except FileNotFoundError:
        raise UserError(f'config file {path} does not exist; configs/ holds the published settings') from None
    except Exception as error:  # it is the user's program: anything can come
        raise UserError(f'config file {path} cannot be run: {type(error).__name__}: {_one_line(error)}') from None
    if 'get_config' not in scope:
        raise UserError(f'config file {path} has no get_config function')
    try:
        config = scope['get_config']()
    except Exception as error:
        raise UserError(f'config file {path}: {_one_line(error)}') from None
    for argument in argv:
        if not argument.startswith('--config.'):
            continue
        node, key = config, argument.removeprefix('--config.').split('=')[0]
        for part in key.split('.'):
            if part not in node:
                raise UserError(f"config key '{key}' is unknown{did_you_mean(part, node)}")
            node = node[part]


def parse_config(argv: Sequence[str]) -> dict[str, Any]:
    """Reads the config that a command line describes, as the flags of train.py are read.

    Args:
      argv: `--config` and `--config.key=value`, of which the last one counts; other flags are passed over.

    Returns:
      A nested dict.

    Raises:
      UserError: if the file cannot be read, a key is unknown or a value of another type.
    """
    _check_config_flags(argv)
    values = flags.FlagValues()
    values.set_gnu_getopt()
    config_flags.DEFINE_config_file('config', flag_values=values, sys_argv=list(argv))
    try:
        values(argv, known_only=True)
    except (flags.Error, TypeError, ValueError) as error:
        raise UserError(_one_line(error)) from None
    return values.config.to_dict()


def _parse_flags(argv: Sequence[str]) -> list[str]:
    try:
        _check_config_flags(argv)
        return app.parse_flags_with_usage(argv) if '--help' in argv else flags.FLAGS(argv)
    except UserError as error:
        _exit(error, EXIT_USER_ERROR)
    except (flags.Error, TypeError, ValueError) as error:
        _exit(f'{_one_line(error)} (--help lists the flags)', EXIT_USER_ERROR)


def _exit(message: object, code: int) -> None:
    print(f'error: {message}' if code == EXIT_USER_ERROR else message, file=sys.stderr, flush=True)
    sys.exit(code)


def run(main: Callable[[], None]) -> None:
    """Parses the flags, calls `main`, and turns the errors we know into a sentence and an exit code."""

    def call(argv: Sequence[str]) -> None:
        logging.basicConfig(format='%(levelname)s: %(message)s', level=logging.WARNING, force=True)
        absl_logging.get_absl_logger().setLevel(logging.ERROR)
        try:
            if argv[1:]:
                raise UserError(f"'{argv[1]}' is not a flag; --help lists the flags")
            main()
        except UserError as error:
            _exit(error, EXIT_USER_ERROR)
        except OSError as error:
            if error.filename is None:
                raise
            _exit(f'{error.filename}: {error.strerror}; choose another path', EXIT_USER_ERROR)
        except KeyboardInterrupt:
            _exit('interrupted before anything was saved', 128 + signal.SIGINT)
        except InterruptedRun as error:
            _exit(error, EXIT_INTERRUPTED)
        except NotFiniteError as error:
            _exit(error, EXIT_NOT_FINITE)

    app.run(call, flags_parser=_parse_flags)


def define_process_flags() -> None:
    """Defines the flags of work on several hosts."""
    flags.DEFINE_string('coordinator', None, 'host:port of process 0, for work on several hosts.')
    flags.DEFINE_integer('num_processes', None, 'Number of processes in all, with --coordinator.')
    flags.DEFINE_integer('process_id', None, 'Number of this process from 0, with --coordinator.')


def start_processes() -> None:
    """Joins the other processes if these flags are given.

    Raises:
      UserError: if only some of them are.
    """
    given = [flags.FLAGS[name].value for name in ('coordinator', 'num_processes', 'process_id')]
    if all(value is None for value in given):
        return
    if None in given:
        raise UserError('--coordinator, --num_processes and --process_id go together; give all three')
    parallel.start_processes(*given)
