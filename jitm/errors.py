"""Errors a user can cause, and the exit codes of the commands."""

import difflib
import importlib
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType, ModuleType

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 75  # the state was saved: the same command resumes the run
EXIT_NOT_FINITE = 76  # the loss or a gradient was not finite: the last finite state was kept

LISTED = 40  # the most names that a message lists
LONGEST = 2000  # characters of a message; a value in it may have millions


class UserError(Exception):
    """One sentence that names the file, the config key or the shape and what to do; commands exit with 2.

    The middle of a long message is left out.
    """

    exit_code = EXIT_USER_ERROR

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= LONGEST else f'{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}'


class ArgumentError(ValueError):
    """A wrong value of an argument that a config may set; `config.section.bind` names its config key.

    Attributes:
      argument: The name of the argument.
      problem: The rest of the message: the value and what to do.
    """

    def __init__(self, argument: str, problem: str):
        super().__init__(argument, problem)
        self.argument = argument
        self.problem = problem

    def __str__(self) -> str:
        return f'{self.argument} {self.problem}'

    def in_section(self, where: str) -> UserError:
        """Returns the error of the user who set the argument in a section of a config."""
        return UserError(f"config key '{where}.{self.argument}' {self.problem}")


class InterruptedRun(Exception):
    """SIGTERM or SIGINT was received and the state was saved; the same command resumes the run."""

    exit_code = EXIT_INTERRUPTED


class NotFiniteError(Exception):
    """The loss or a gradient is NaN or infinite; the message names the step and the file with the batch."""

    exit_code = EXIT_NOT_FINITE


def require(module: str, *, extra: str) -> ModuleType:
    """Imports a module of a package that only an extra of jitm installs.

    Args:
      module: The name of the module, such as `PIL.Image`.
      extra: The extra of pyproject.toml that lists the package, such as `photos`.

    Raises:
      UserError: If the package is not installed; the message has the command that installs it.
    """
    package = module.partition('.')[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or package).partition('.')[0] != package:
            raise
        install = f"run pip install -e '.[{extra}]' in jitm's clone"
        raise UserError(f'the package {package} is not installed: {install}') from None


_UNSAFE = re.compile('[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]')


def printable(text: str) -> str:
    """Returns text, such as the name of a file, for a terminal or a page.

    Control characters, line separators, overrides of the text direction and bytes that are not UTF-8 are replaced.
    """
    return _UNSAFE.sub('\N{REPLACEMENT CHARACTER}', text)


def check_choice(value: str, choices: Iterable[str], name: str) -> None:
    """Raises an ArgumentError unless a value is one of the choices.

    Args:
      value: The argument.
      choices: The permitted values.
      name: The argument's name.
    """
    if value not in choices:
        nearest = difflib.get_close_matches(str(value), choices, n=1)
        hint = f" (did you mean '{nearest[0]}'?)" if nearest else ''
        raise ArgumentError(name, f"is '{value}'; use one of {', '.join(choices)}{hint}")


def did_you_mean(name: str, names: Iterable[str], meant: Mapping[str, str] = MappingProxyType({})) -> str:
    """Returns a hint to append to a message about an unknown name.

    Args:
      name: The unknown name.
      names: The known names.
      meant: Aliases -> known names.

    Returns:
      `, did you mean 'x'?` with the nearest known name; if none is near the list of up to `LISTED` known names, or ''.
    """
    names = sorted(names)
    nearest = difflib.get_close_matches(name, [*names, *meant], n=1)
    if nearest:
        return f", did you mean '{meant.get(nearest[0], nearest[0])}'?"
    return f'; known are {", ".join(names)}' if 0 < len(names) <= LISTED else ''


def stated_names(objects: Mapping[str, object]) -> dict[str, str]:
    """Returns the names of papers that docstrings start with, such as `selhn`, with the name of the first of these."""
    heads = {name: re.match('[^:\n]*(?=:)', value.__doc__ or '') for name, value in reversed(objects.items())}
    words = ((word, name) for name, head in heads.items() if head for word in re.split(r'[\s(,;)]+', head[0]))
    return {word.lower().replace('+', 'p'): name for word, name in words if word[:1].isupper()}
