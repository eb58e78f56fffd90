"""What a run tells: JSONL metrics, TensorBoard, the progress bar, and a warning when a model collapses."""

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
    """A JSONL file that holds each step once, however often the run was stopped."""

    def __init__(self, path: Path, step: int):
        """Opens the file and drops what an earlier start wrote after `step`, a half-written line included."""
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
        """Appends one line, which must have a 'step'."""
        self._file.write(json.dumps(line) + '\n')
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def read_metrics(workdir: Path) -> list[dict]:
    """The lines of a run's `metrics.jsonl`."""
    return [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]


class CollapseMonitor:
    """Notices a loss that stays where equal scores would put it: 2 x batch x margin for max of hinges.

    This is the plateau on which hard-negative training is known to get stuck; the gradient there pulls nothing apart.
    """

    def __init__(self):
        self._sitting = 0

    def update(self, loss: float, collapsed_loss: float) -> str | None:
        """Takes one logged step; returns a warning, once per plateau."""
        sits = collapsed_loss > 0 and abs(loss - collapsed_loss) <= COLLAPSE_TOLERANCE * collapsed_loss
        self._sitting = self._sitting + 1 if sits else 0
        if self._sitting != COLLAPSE_PATIENCE:
            return None
        return (
            f'the loss sits at {loss:.2f}, where it is when all scores are equal ({collapsed_loss:.2f}): the model has '
            'collapsed or has not started to learn; a lower learning rate or epochs of sum_of_hinges first may help'
        )


class Logs:
    """All outputs of a training run, in its directory.

    `metrics.jsonl` holds what the seed decides and nothing else, so that two runs can be compared byte for byte;
    times go to `timing.jsonl`.
    """

    def __init__(self, workdir: Path, restored: int | None, total_steps: int, batch_size: int):
        """Opens the files and drops what they say of later than the restored step, everything if none was."""
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
        """Counts time spent waiting for a batch."""
        self._waited += seconds

    def train(self, step: int, epoch: float, metrics: Mapping[str, float], member: str) -> None:
        """Takes the metrics of one training step, after `step` steps."""
        self._write(step, 'train', metrics, epoch)
        warning = self._monitor.update(metrics[f'{member}/ranking_loss'], metrics[f'{member}/collapsed_loss'])
        if warning:
            self.say(f'WARNING step {step}: {warning}')
        shown = {'loss': metrics[f'{member}/loss'], 'gap': metrics[f'{member}/gap']}
        self._bar.set_postfix({key: f'{value:.3g}' for key, value in shown.items()}, refresh=False)
        self._bar.update(step - self._bar.n)

    def validation(self, step: int, epoch: float, split: str, metrics: Mapping[str, float], seconds: float) -> None:
        """Takes the metrics of a validation, and the time since the last one."""
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
