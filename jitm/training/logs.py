"""Outputs of a training run: metrics, times, TensorBoard, a progress bar, and a warning when a model collapses."""

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tqdm

from jitm.devices import parallel
from jitm.files import RESUMES, writing
from jitm.runs import log
from jitm.runs.log import MetricsFile, read_metrics
from jitm.runs.progress import REPORT_TRAINING_EVERY, Pace, repeated


@contextlib.contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Hides a module that is not imported yet from imports within the block."""
    hidden = sys.modules.setdefault(module, None) is None
    try:
        yield
    finally:
        if hidden:
            del sys.modules[module]


with _hidden('torch'):  # where it is installed tensorboardX imports it, which takes seconds, to log tensors of torch
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.summary import scalar

COLLAPSE_STEPS = 500  # on Flickr8k SelHN leaves the plateau after 190 to 330 steps, VSE++ after 1000 to 1200
COLLAPSE_TOLERANCE = 0.05
PUBLISHED_PLATEAU = 'SAF and SGR as published leave this plateau after 8,000 to 15,000 steps of Flickr30K'
LEGEND = (
    'rsum: the sum of R@1, R@5 and R@10 from image to text (i2t) and from text to image (t2i), in percent; gap: the '
    'mean score of the matching pairs of a batch minus that of their hardest negatives'
)
BAR = '{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]'  # tqdm's own rate counts compiling


class Board:
    """A TensorBoard file, written in this thread: tensorboardX's thread ends at a full disk and blocks training."""

    def __init__(self, folder: Path, step: int):
        """Opens a new file.

        Args:
          folder: The folder of the files of all starts.
          step: The first step of this start; TensorBoard drops later lines of earlier starts.

        Raises:
          UserError: If it cannot be written.
        """
        self._folder = folder
        with writing(folder, RESUMES):
            folder.mkdir(parents=True, exist_ok=True)
            self._events = EventsWriter(str(folder / 'events'))
        self._write(step, session_log=SessionLog(status=SessionLog.START))

    def _write(self, step: int, **content: Any) -> None:
        with writing(self._folder, RESUMES):
            self._events.write_event(Event(wall_time=time.time(), step=step, **content))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Adds values of a step by their names; raises a UserError if they cannot be written."""
        for name, value in values.items():
            self._write(step, summary=scalar(name, value))

    def flush(self) -> None:
        """Flushes the buffer to disk; raises a UserError if that fails."""
        with writing(self._folder, RESUMES):
            self._events.flush()

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):  # already raised, or the values are in `metrics.jsonl`
            self._events.close()


def term_changes(terms: Mapping[str, Mapping[str, Any]], steps_per_epoch: int) -> list[int]:
    """Returns the steps after which a config's terms start or end; the first is 0."""
    epochs = {0}
    for term in terms.values():
        epochs |= {term['start_epoch'], term['end_epoch'] or 0}
    return [epoch * steps_per_epoch for epoch in sorted(epochs)]


def describe_change(terms: Mapping[str, Mapping[str, Any]], epoch: int) -> str:
    """Describes the losses of a config's terms in an epoch and in the one before."""

    def active(epoch: int) -> str:
        spans = {name: range(term['start_epoch'], term['end_epoch'] or epoch + 1) for name, term in terms.items()}
        return ' + '.join(terms[name]['loss'] for name, span in spans.items() if epoch in span)

    return f'the loss is now {active(epoch)} instead of {active(epoch - 1)}, so its values are on another scale'


def advise(terms: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns advice for a config's objective against a collapse."""
    ends = [term['end_epoch'] for term in terms.values() if term['loss'] == 'ranking.sum_of_hinges']
    if None in ends:
        return 'a lower learning rate may help'
    sums = f'more epochs of sum_of_hinges than {max(ends)}' if ends else 'a first epoch of sum_of_hinges'
    if any(term['loss'] == 'ranking.max_of_hinges' for term in terms.values()):
        return f'{sums}, ranking.selective_hard_negative, or a lower learning rate may help; {PUBLISHED_PLATEAU}'
    return f'{sums}, or a lower learning rate may help'


class CollapseMonitor:
    """Detects a collapse: the loss stays at its value for constant scores, 2 x batch x margin for max of hinges.

    Training with hard negatives is known to get stuck on this plateau, where the gradient separates nothing. The first
    steps with other terms do not count: max of hinges starts near this value, and leaves it where it trains well.
    """

    def __init__(self, member: str, changes: Sequence[int] = (0,), advice: str = ''):
        """Makes a monitor of a run's first step.

        Args:
          member: The model whose loss is read.
          changes: The `term_changes` of the run.
          advice: The end of a warning, see `advise`.
        """
        self.member = member
        self._advice = advice
        self._changes = changes
        self._left = 0  # the last logged step off the plateau
        self._warned = None  # the start of the plateau of the last warning

    def update(self, line: Mapping[str, Any]) -> str | None:
        """Updates the monitor with a line of `metrics.jsonl`; returns a warning, once per collapse, else None."""
        keys = [f'{self.member}/{key}' for key in ('ranking_loss', 'collapsed_loss')]
        if not line.keys() >= set(keys):
            return None  # a validation, or a line of an earlier start that is damaged
        step, loss, collapsed_loss = (line[key] for key in ('step', *keys))
        if collapsed_loss <= 0 or abs(loss - collapsed_loss) > COLLAPSE_TOLERANCE * collapsed_loss:
            self._left = step
            return None
        start = max(self._left, *(change for change in self._changes if change < step))
        if step - start < COLLAPSE_STEPS or start == self._warned:
            return None
        self._warned = start
        percent = 100 * COLLAPSE_TOLERANCE
        return (
            f'for {step - start} steps the loss has been within {percent:.0f} % of its value for constant scores (now '
            f'{loss:.2f} of {collapsed_loss:.2f}): the model has collapsed or hardly learns; {self._advice}'
        )


class Logs:
    """All outputs of a training run, in its directory.

    `metrics.jsonl` holds deterministic metrics only, so that two runs can be compared byte by byte; times go to
    `timing.jsonl`. On a terminal a bar shows the progress, else a line every minute.

    Attributes:
      pace: The rate and the time left.
    """

    def __init__(
        self, workdir: Path, restored: int | None, total_steps: int, batch_size: int, monitor: CollapseMonitor
    ):
        """Opens the files and drops lines of later steps than the restored one.

        Args:
          workdir: The run directory.
          restored: The step of the restored checkpoint; None if there was none, which drops everything.
          total_steps: The number of steps of the run.
          batch_size: The size of the global batch, for the throughput.
          monitor: A new monitor; it is updated with the lines of earlier steps.
        """
        workdir.mkdir(parents=True, exist_ok=True)
        # The files, without lines after the restored step.
        step = restored or 0
        last = -1 if restored is None else restored
        self._metrics = MetricsFile(workdir / log.NAME, last)
        self._timing = MetricsFile(workdir / 'timing.jsonl', last)
        self._board = Board(workdir / 'tensorboard', last + 1)
        # The progress.
        disable = None if parallel.is_primary() else True  # None shows it on a terminal only
        self.pace = Pace(step, total_steps)
        self._lines = contextlib.ExitStack()
        self._bar = tqdm.tqdm(total=total_steps, initial=step, bar_format=BAR, disable=disable, dynamic_ncols=True)
        # The monitor, with the lines of earlier starts.
        self._monitor = monitor
        for line in read_metrics(workdir):
            monitor.update(line)
        self._batch_size = batch_size
        self._shown = []  # metrics of the last logged step
        self._mark = (step, time.perf_counter())
        self._waited = 0.0

    def say(self, text: str) -> None:
        """Prints a line above the progress bar."""
        if parallel.is_primary():
            self._bar.write(text)
            sys.stdout.flush()  # a file or a pipe would keep lines back

    def waited(self, seconds: float) -> None:
        """Adds seconds spent waiting for a batch."""
        self._waited += seconds

    def train(self, step: int, epoch: float, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of one training step, after `step` steps."""
        line = self._write(step, 'train', metrics, epoch)
        warning = self._monitor.update(line)
        if warning:
            self.say(f'WARNING step {step}: {warning}')
        self._shown = [f'{key} {metrics[f"{self._monitor.member}/{key}"]:.3g}' for key in ('loss', 'gap')]
        if self.pace.rate:
            self._shown.append(f'pairs/s {self.pace.rate * self._batch_size:,.0f}')
        self._bar.set_postfix_str(', '.join(filter(None, [self.pace.left(), *self._shown])), refresh=False)
        self._bar.update(step - self._bar.n)

    def validation(self, step: int, epoch: float, split: str, metrics: Mapping[str, float], seconds: float) -> None:
        """Logs the metrics of a validation, and the throughput since the last one."""
        self._write(step, split, metrics, epoch)
        # The times since the last validation.
        start, since = self._mark
        trained = time.perf_counter() - since - seconds
        timing = {
            'step': step,
            'train_seconds': trained,
            'validation_seconds': seconds,
            'pairs_per_second': (step - start) * self._batch_size / trained,
            'data_wait_share': self._waited / trained,
        }
        self._timing.write(timing)
        self._board.flush()
        # The line on the terminal.
        recall = f'i2t R@1 {metrics["i2t/recall@1"]:.1f} t2i R@1 {metrics["t2i/recall@1"]:.1f}'
        line = f'step {step} epoch {epoch:.2f} {split} rsum {metrics["rsum"]:.1f} {recall}'
        if step > start:
            rate = f'{timing["pairs_per_second"]:.0f} pairs/s'
            waiting = f'waiting for data {100 * timing["data_wait_share"]:.1f} %'
            line += ' | ' + ', '.join(filter(None, [f'{trained:.0f} s', rate, waiting, self.pace.left()]))
        self._bar.update(step - self._bar.n)
        if step == self._bar.total:
            self._bar.close()
        self.say(line)
        if step == 0:
            self.say(LEGEND)
        self._mark = (step, time.perf_counter())
        self._waited = 0.0

    def __enter__(self) -> 'Logs':
        if self._bar.disable:
            self._lines.enter_context(repeated(REPORT_TRAINING_EVERY, self._say_progress))
        return self

    def _say_progress(self) -> None:
        self.say(', '.join([self.pace.line(), *self._shown]))

    def __exit__(self, *_) -> None:
        self._lines.close()
        self._bar.update(self.pace.step - self._bar.n)
        self._bar.close()
        self._board.close()
        self._metrics.close()
        self._timing.close()

    def _write(self, step: int, part: str, metrics: Mapping[str, float], epoch: float) -> dict[str, Any]:
        line = log.make_line(step, epoch, part, metrics)
        self._metrics.write(line)
        self._board.write(step, {f'{part}/{name}'.replace('@', '_'): value for name, value in metrics.items()})
        return line
