"""How the entry scripts start and end: flags, errors of one sentence, exit codes."""

import logging
import runpy
import sys
from collections.abc import Callable, Sequence

from absl import app, flags
from absl import logging as absl_logging

from jitm.errors import (
    EXIT_INTERRUPTED,
    EXIT_NOT_FINITE,
    EXIT_USER_ERROR,
    InterruptedRun,
    NotFiniteError,
    UserError,
    did_you_mean,
)


def _check_config_flags(argv: Sequence[str]) -> None:
    """Raises a UserError for a config file that cannot be read and for `--config.a.b` that it does not have."""
    words = [word for argument in argv for word in argument.split('=', 1)]
    path = next((words[n + 1] for n, word in enumerate(words[:-1]) if word in ('--config', '-config')), None)
    if path is None:
        return
    try:
        config = runpy.run_path(path)['get_config']()
    except FileNotFoundError:
        raise UserError(f'config file {path} does not exist; configs/ holds the published settings') from None
    except KeyError:
        raise UserError(f'config file {path} has no get_config function') from None
    except AttributeError as error:
        raise UserError(f'config file {path}: {" ".join(str(error).split())}') from None
    for argument in argv:
        if not argument.startswith('--config.'):
            continue
        node, key = config, argument.removeprefix('--config.').split('=')[0]
        for part in key.split('.'):
            if part not in node:
                raise UserError(f"config key '{key}' is unknown{did_you_mean(part, node)}")
            node = node[part]


def _parse_flags(argv: Sequence[str]) -> list[str]:
    try:
        _check_config_flags(argv)
        return app.parse_flags_with_usage(argv) if '--help' in argv else flags.FLAGS(argv)
    except UserError as error:
        _exit(error, EXIT_USER_ERROR)
    except (flags.Error, TypeError, ValueError) as error:
        _exit(f'{" ".join(str(error).split())} (--help lists the flags)', EXIT_USER_ERROR)


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
        except InterruptedRun as error:
            _exit(error, EXIT_INTERRUPTED)
        except NotFiniteError as error:
            _exit(error, EXIT_NOT_FINITE)

    app.run(call, flags_parser=_parse_flags)
