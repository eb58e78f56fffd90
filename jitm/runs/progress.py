"""Progress of long jobs over pairs of images and captions."""

import dataclasses
import datetime
import sys
import time

REPORT_EVERY = 10  # seconds


@dataclasses.dataclass(frozen=True)
class Progress:
    """Progress of a job.

    Attributes:
      pairs: pairs scored so far, those read from disk included.
      total: pairs of the job.
      rate: pairs per second of this process.
      seconds_left: estimated from the rate.
    """

    pairs: int
    total: int
    rate: float
    seconds_left: float

    @classmethod
    def since(cls, start: float, found: int, scored: int, total: int) -> 'Progress':
        """Returns the progress of a job.

        Args:
          start: the `time.perf_counter()` at which scoring started.
          found: pairs read from disk.
          scored: pairs scored since `start`.
          total: pairs of the job.
        """
        rate = scored / (time.perf_counter() - start)
        return cls(found + scored, total, rate, (total - found - scored) / rate)


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
        left = datetime.timedelta(seconds=round(progress.seconds_left))
        print(
            f'scored {progress.pairs:,} of {progress.total:,} pairs, {progress.rate:,.0f} pairs/s, {left} left',
            file=sys.stderr,
            flush=True,
        )
