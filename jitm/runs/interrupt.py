"""SIGINT and SIGTERM: end a job at once, or ask training to stop after the current step.

Python runs signal handlers between two instructions of the main thread, so none runs while XLA compiles, and XLA's
callbacks swallow a KeyboardInterrupt. The programs of jitm therefore react in a thread, see `watched`; the Python API
installs handlers while it trains or mines.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from jitm.errors import EXIT_INTERRUPTED, InterruptedRun

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def _handling(handler) -> Iterator[None]:
    """Installs a handler of both signals within the block; in a thread, where Python allows none, it does nothing."""
    in_thread = threading.current_thread() is not threading.main_thread()
    old = {} if in_thread else {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


class _Watch:
    """The reaction of a program to a signal: `request` is asked to stop first, then the process ends with `message`."""

    def __init__(self):
        self.message = 'interrupted before anything was saved'
        self.request: StopRequest | None = None

    @contextlib.contextmanager
    def saying(self, message: str, request: 'StopRequest | None' = None) -> Iterator[None]:
        """Replaces the message, and the request if there is one, within the block."""
        previous = self.message, self.request
        self.message = message
        self.request = request or self.request
        try:
            yield
        finally:
            self.message, self.request = previous

    def read(self, pipe: int) -> None:
        """Reacts to each signal whose number arrives in a pipe, until it is closed."""
        while number := os.read(pipe, 1):
            if number[0] not in SIGNALS:
                continue
            if self.request is None or self.request.requested:
                _say(self.message)
                os._exit(EXIT_INTERRUPTED)
            self.request.requested = True
            _say(
                f'{signal.Signals(number[0]).name}: the current step is finished and saved, which may take a minute if '
                'it is being compiled; a second signal ends the run at once'
            )


def _say(message: str) -> None:
    """Prints a message, on a terminal below a progress bar and the ^C behind it."""
    sys.stdout.flush()
    print('\n' * sys.stderr.isatty() + message, file=sys.stderr, flush=True)


_watch: _Watch | None = None


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Reacts to signals in a thread within the block: the whole of a program, in its main thread."""
    global _watch
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    _watch = _Watch()
    thread = threading.Thread(target=_watch.read, args=(reader,), daemon=True)
    with _handling(lambda number, frame: None):
        old = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(old)
            os.close(writer)
            thread.join()
            os.close(reader)
            _watch = None


@contextlib.contextmanager
def interruptible(folder: Path) -> Iterator[None]:
    """Ends a job at SIGINT or SIGTERM with a message that names the folder from which it resumes.

    Args:
      folder: The folder of the finished parts of the job.

    Raises:
      InterruptedRun: At the first of these signals, if the program is not `watched`, which ends the process.
    """
    message = f'stopped; the same command resumes from {folder}'
    try:
        with _watch.saying(message) if _watch else _handling(signal.default_int_handler):
            yield
    except KeyboardInterrupt:
        raise InterruptedRun(message) from None


class StopRequest:
    """Notes the first SIGINT or SIGTERM in `requested`; a second one has its default effect, or ends the program."""

    def __enter__(self) -> 'StopRequest':
        self.requested = False
        self._block = contextlib.ExitStack()
        message = 'stopped at once; the same command resumes from the last checkpoint'
        self._block.enter_context(_watch.saying(message, self) if _watch else _handling(self._note))
        return self

    def _note(self, number, frame):
        self.requested = True
        self._block.close()

    def __exit__(self, *_) -> None:
        self._block.close()
