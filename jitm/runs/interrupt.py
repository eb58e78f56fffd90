"""SIGINT and SIGTERM: either end a job at once, or ask training to stop after the current step."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

from jitm.errors import InterruptedRun

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def interruptible(folder: Path) -> Iterator[None]:
    """Turns SIGINT and SIGTERM into an InterruptedRun that names the folder from which the job resumes.

    Args:
      folder: where the job keeps its finished parts.

    Raises:
      InterruptedRun: at the first of these signals.
    """
    handlers = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedRun(f'stopped; the same command resumes from {folder}') from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class StopRequest:
    """Notes the first SIGINT or SIGTERM in `requested`; a second one has its default effect."""

    def __enter__(self) -> 'StopRequest':
        self.requested = False
        self._handlers = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def _note(self, number, frame):
        self.requested = True
        self._restore()

    def _restore(self):
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def __exit__(self, *_) -> None:
        self._restore()
