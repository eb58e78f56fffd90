"""SIGINT and SIGTERM: end a job at once, or ask training to stop after the current step.

Python runs signal handlers between two instructions of the main thread, so none runs while XLA compiles, and XLA's
callbacks swallow a KeyboardInterrupt. The programs of jitm therefore wait for signals in a thread, see `watched`; the
Python API installs handlers while it trains or mines.
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

# For each block of a program that is `watched`: the message of its end, and what is asked to stop before.
_blocks: list[tuple[str, 'StopRequest | None']] = []


@contextlib.contextmanager
def _reacting(message: str, request: 'StopRequest | None', handler) -> Iterator[None]:
    """Decides what a signal does within the block: the reaction of the thread in a program, else a handler.

    In a thread, where Python allows no handler, a signal does what it did before. Without a request, that of the block
    around it stays.
    """
    if _blocks:
        _blocks.append((message, request or _blocks[-1][1]))
        try:
            yield
        finally:
            _blocks.pop()
        return
    in_thread = threading.current_thread() is not threading.main_thread()
    old = {} if in_thread else {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _say(message: str) -> None:
    """Prints a message, on a terminal below a progress bar and the ^C behind it."""
    sys.stdout.flush()
    print('\n' * sys.stderr.isatty() + message, file=sys.stderr, flush=True)


def _wait() -> None:
    """Reacts to each signal, as the innermost block says, until the program has left all blocks."""
    while (number := signal.sigwait(SIGNALS)) and _blocks:
        message, request = _blocks[-1]
        if request is None or request.requested:
            _say(message)
            os._exit(EXIT_INTERRUPTED)
        request.requested = True
        _say(
            f'{signal.Signals(number).name}: the current step is finished and saved, which may take a minute if it is '
            'being compiled; a second signal ends the run at once'
        )


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Reacts to signals in a thread within the block: the whole of a program, in its main thread."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # threads that start later inherit this
    thread = threading.Thread(target=_wait, daemon=True)
    _blocks.append(('interrupted before anything was saved', None))
    thread.start()
    try:
        yield
    finally:
        _blocks.clear()
        signal.pthread_kill(thread.ident, signal.SIGINT)  # ends the thread
        thread.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
        with _reacting(message, None, signal.default_int_handler):
            yield
    except KeyboardInterrupt:
        raise InterruptedRun(message) from None


class StopRequest:
    """Notes the first SIGINT or SIGTERM in `requested`; a second one has its default effect, or ends the program."""

    def __enter__(self) -> 'StopRequest':
        self.requested = False
        self._block = contextlib.ExitStack()
        message = 'stopped at once; the same command resumes from the last checkpoint'
        self._block.enter_context(_reacting(message, self, self._note))
        return self

    def _note(self, number, frame):
        self.requested = True
        self._block.close()

    def __exit__(self, *_) -> None:
        self._block.close()
