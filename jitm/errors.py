"""Errors a user can cause, and the exit codes of the entry scripts."""

import difflib
from collections.abc import Iterable

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 75  # the run was saved: the same command goes on
EXIT_NOT_FINITE = 76  # the loss or a gradient was not finite: the last good state was kept


class UserError(Exception):
    """One sentence that names the file, key or shape and says what to do; the entry scripts exit with 2."""


class InterruptedRun(Exception):
    """SIGTERM or SIGINT came and the state was saved; the same command goes on."""


class NotFiniteError(Exception):
    """The loss or a gradient is NaN or infinite; the message names the step and the file with the batch."""


def check_rate(rate: float, key: str) -> None:
    """Raises a UserError unless a rate of dropout is in [0, 1)."""
    if not 0 <= rate < 1:
        raise UserError(f"config key '{key}' is {rate}; it must be in [0, 1)")


def check_choice(value: str, known: Iterable[str], key: str) -> None:
    """Raises a UserError unless a value is one of those known."""
    if value not in known:
        raise UserError(f"config key '{key}' is '{value}'; take one of {', '.join(known)}")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `, did you mean 'x'?` for the nearest known name, the known names where none is near, '' without any."""
    known = sorted(known)
    if not known:
        return ''
    nearest = difflib.get_close_matches(name, known, n=1)
    return f", did you mean '{nearest[0]}'?" if nearest else f'; known are {", ".join(known)}'
