"""Outputs of a training run: JSONL metrics, TensorBoard, a progress bar, and a warning when a model collapses."""

import datetime
import json
import time
from collections.abc import Mapping
from pathlib import Path

import tqdm
from tensorboardX import SummaryWriter

from jitm import parallel
from jitm.files import replacing

COLLAPSE_PATIENCE = 10
COLLAPSE_TOLERANCE = 0.05


class MetricsFile:
    """A JSONL file with one line per logged step, however often the run was resumed."""

    def __init__(self, path: Path, step: int):
        """Opens the file and drops lines of later steps, and incomplete lines, of an interrupted start.

        Args:
          path: the file.
          step: the last step whose lines are kept.
        """
        kept = []
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                if json.loads(line)['step'] > step:
                    break
            except ValueError:
                break
            kept.append(line + '\n')
        with replacing(path) as file:
            file.write(''.join(kept).encode())
        self._file = path.open('a')

    def write(self, line: Mapping[str, object]) -> None:
        """Appends one line, which must have a `step`."""
        self._file.write(json.dumps(line) + '\n')
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def read_metrics(workdir: Path) -> list[dict]:
    """Reads the lines of a run's `metrics.jsonl`."""
    return [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]


class CollapseMonitor:
    """Detects a collapse: the loss stays at its value for constant scores, 2 x batch x margin for max of hinges.

    Training with hard negatives is known to get stuck on this plateau, where the gradient separates nothing.
    """

    def __init__(self):
        self._collapsed_for = 0

    def update(self, loss: float, collapsed_loss: float) -> str | None:
        """Updates the monitor with a logged step; returns a warning, once per collapse, else None."""
        collapsed = collapsed_loss > 0 and abs(loss - collapsed_loss) <= COLLAPSE_TOLERANCE * collapsed_loss
        self._collapsed_for = self._collapsed_for + 1 if collapsed else 0
        if self._collapsed_for != COLLAPSE_PATIENCE:
            return None
        return (
            f'the loss is {loss:.2f}, its value for constant scores ({collapsed_loss:.2f}): the model has collapsed or '
            'has not started to learn; a lower learning rate, or a first epoch of sum_of_hinges, may help'
        )


class Logs:
    """All outputs of a training run, in its directory.

    `metrics.jsonl` holds deterministic metrics only, so that two runs can be compared byte by byte; times go to
    `timing.jsonl`.
    """

    def __init__(self, workdir: Path, restored: int | None, total_steps: int, batch_size: int):
        """Opens the files and drops lines of later steps than the restored one.

        Args:
          workdir: the run directory.
          restored: step of the restored checkpoint; None if there was none, which drops everything.
          total_steps: of the run.
          batch_size: of the global batch, for the throughput.
        """
        workdir.mkdir(parents=True, exist_ok=True)
        step, last = restored or 0, -1 if restored is None else restored
        self._metrics = MetricsFile(workdir / 'metrics.jsonl', last)
        self._timing = MetricsFile(workdir / 'timing.jsonl', last)
        self._board = SummaryWriter(str(workdir / 'tensorboard'), purge_step=last + 1)
        disable = None if parallel.is_primary() else True  # None shows it on a terminal only
        self._bar = tqdm.tqdm(total=total_steps, initial=step, unit='step', disable=disable, dynamic_ncols=True)
        self._monitor = CollapseMonitor()
        self._batch_size = batch_size
        self._mark = (step, time.perf_counter())
        self._waited = 0.0

    def say(self, text: str) -> None:
        """Prints a line above the progress bar."""
        if parallel.is_primary():
            self._bar.write(text)

    def waited(self, seconds: float) -> None:
        """Adds seconds spent waiting for a batch."""
        self._waited += seconds

    def train(self, step: int, epoch: float, metrics: Mapping[str, float], member: str) -> None:
        """Logs the metrics of one training step, after `step` steps."""
        self._write(step, 'train', metrics, epoch)
        warning = self._monitor.update(metrics[f'{member}/ranking_loss'], metrics[f'{member}/collapsed_loss'])
        if warning:
            self.say(f'WARNING step {step}: {warning}')
        shown = {'loss': metrics[f'{member}/loss'], 'gap': metrics[f'{member}/gap']}
        self._bar.set_postfix({key: f'{value:.3g}' for key, value in shown.items()}, refresh=False)
        self._bar.update(step - self._bar.n)

    def validation(self, step: int, epoch: float, split: str, metrics: Mapping[str, float], seconds: float) -> None:
        """Logs the metrics of a validation, and the throughput since the last one."""
        self._write(step, split, metrics, epoch)
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
        recall = f'i2t R@1 {metrics["i2t/recall@1"]:.1f} t2i R@1 {metrics["t2i/recall@1"]:.1f}'
        line = f'step {step} epoch {epoch:.2f} {split} rsum {metrics["rsum"]:.1f} {recall}'
        if step > start:
            line += f' | {trained:.0f} s, {timing["pairs_per_second"]:.0f} pairs/s'
            line += f', waiting for data {100 * timing["data_wait_share"]:.1f} %'
            left = (self._bar.total - step) * (trained + seconds) / (step - start)
            line += f', {datetime.timedelta(seconds=round(left))} left'
        self.say(line)
        self._mark, self._waited = (step, time.perf_counter()), 0.0

    def __enter__(self) -> 'Logs':
        return self

    def __exit__(self, *_) -> None:
        self._bar.close()
        self._board.close()
        self._metrics.close()
        self._timing.close()

    def _write(self, step: int, part: str, metrics: Mapping[str, float], epoch: float) -> None:
        self._metrics.write({'step': step, 'epoch': epoch, 'part': part, **metrics})
        for name, value in metrics.items():
            self._board.add_scalar(f'{part}/{name}'.replace('@', '_'), value, step)
