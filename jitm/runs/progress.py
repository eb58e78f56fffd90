"""Progress of long jobs: training steps, and pairs of images and captions."""

import contextlib
import dataclasses
import datetime
import sys
import threading
import time
from collections.abc import Callable, Iterator

REPORT_EVERY = 10  # seconds between lines of a job over pairs
REPORT_TRAINING_EVERY = 60  # seconds


def ignore(*_: object) -> None:
    """Reports nothing."""


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


@contextlib.contextmanager
def repeated(seconds: float, function: Callable[[], None]) -> Iterator[None]:
    """Calls a function every so many seconds, in a thread, until the block ends.

    Args:
      seconds: The period; the first call comes after one.
      function: It may print; an error of writing is left to the next line of the main thread.
    """
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            with contextlib.suppress(OSError):
                function()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class Pace:
    """Rate and time left of a training run.

    Attributes:
      step: The number of steps done; to be updated after each.
    """

    def __init__(self, step: int, total: int, clock: Callable[[], float] = time.perf_counter):
        """Starts the clock.

        Args:
          step: The number of steps done before.
          total: The number of steps of the run.
          clock: A function that returns seconds.
        """
        self.step = step
        self._total = total
        self._clock = clock
        self._first = step
        self._start = clock()
        self._compiled = 0  # steps that compiled
        self._once = self._again = 0.0  # seconds outside of steps: compiling, and recurring work
        self._doing: tuple[str, float] | None = None  # work that is not a step, and its start

    @contextlib.contextmanager
    def doing(self, activity: str, compiles: bool = False) -> Iterator[None]:
        """Names the work in the block, which is excluded from the rate.

        Args:
          activity: The work, such as 'evaluating dev'.
          compiles: Whether it is a step that compiles, which is also excluded from the time left.
        """
        start = self._clock()
        self._doing = activity, start
        try:
            yield
        finally:
            self._doing = None
            if compiles or self._timed <= 0:
                self._once += self._clock() - start
            else:
                self._again += self._clock() - start
            self._compiled += compiles

    @property
    def _timed(self) -> int:
        return self.step - self._first - self._compiled

    @property
    def rate(self) -> float:
        """Steps per second; 0 before a step has been timed."""
        return self._timed / (self._clock() - self._start - self._once - self._again) if self._timed > 0 else 0.0

    def left(self) -> str:
        """Returns the time left, as hours:minutes:seconds; '' before a step has been timed."""
        if self._timed <= 0:
            return ''
        spent = self._clock() - self._start - self._once
        return f'{_duration(spent * (self._total - self.step) / self._timed)} left'

    def line(self) -> str:
        """Returns a line about the present moment."""
        text = f'step {self.step} of {self._total}'
        doing = self._doing
        if doing:
            activity, since = doing
            return f'{text}: {activity} for {_duration(self._clock() - since)}'
        return f'{text}, {self.rate:.3g} steps/s, {self.left()}' if self.rate else text


@dataclasses.dataclass(frozen=True)
class Progress:
    """Progress of a job.

    Attributes:
      pairs: Pairs scored so far, those read from disk included.
      total: Pairs of the job.
      rate: Pairs per second of this process.
      seconds_left: Estimated seconds left, from the rate.
    """

    pairs: int
    total: int
    rate: float
    seconds_left: float

    @classmethod
    def since(cls, start: float, finished: int, scored: int, total: int) -> 'Progress':
        """Returns the progress of a job.

        Args:
          start: The `time.perf_counter()` at which scoring started.
          finished: Pairs read from disk.
          scored: Pairs scored since `start`.
          total: Pairs of the job.
        """
        rate = scored / (time.perf_counter() - start)
        return cls(finished + scored, total, rate, (total - finished - scored) / rate)


class ProgressPrinter:
    """Prints the progress of a job to stderr, at most every ten seconds."""

    def __init__(self):
        """Starts the clock."""
        self._printed = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        """Prints a line if the last one is more than `REPORT_EVERY` seconds old."""
        if time.monotonic() - self._printed < REPORT_EVERY:
            return
        self._printed = time.monotonic()
        left = _duration(progress.seconds_left)
        print(
            f'scored {progress.pairs:,} of {progress.total:,} pairs, {progress.rate:,.0f} pairs/s, {left} left',
            file=sys.stderr,
            flush=True,
        )
