"""`metrics.jsonl`, with one line per logged step."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jitm.errors import UserError
from jitm.files import RESUMES, open_file, parse_json, replacing, writing

NAME = 'metrics.jsonl'


class MetricsFile:
    """A JSONL file with one line per logged step, however often the run was resumed."""

    def __init__(self, path: Path, step: int):
        """Opens the file and drops lines of later steps, and incomplete lines, of an interrupted start.

        Args:
          path: The file.
          step: The last step whose lines are kept.

        Raises:
          UserError: If it is damaged, or cannot be written.
        """
        lines = [line for line in read_lines(path) if line['step'] <= step]
        with replacing(path) as file:
            file.write(''.join(json.dumps(line) + '\n' for line in lines).encode())
        self._path = path
        self._file = path.open('ab')

    def write(self, line: Mapping[str, object]) -> None:
        """Appends one line, which must have a `step`; raises a UserError if it cannot be written."""
        with writing(self._path, RESUMES):
            self._file.write((json.dumps(line) + '\n').encode())
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):  # a failed write has already raised
            self._file.close()


def best_time(rsums: Mapping[float, float]) -> float | None:
    """Returns the step or epoch of the best validation: of the highest rsum, the latest of ties; None without one."""
    return max(rsums, key=lambda time: (rsums[time], time), default=None)


def make_line(step: int, epoch: float, part: str, metrics: Mapping[str, float]) -> dict[str, Any]:
    """Returns a line of `metrics.jsonl`; the part is 'train' or the split of a validation."""
    return {'step': step, 'epoch': epoch, 'part': part, **metrics}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Reads a file of `MetricsFile`.

    Args:
      path: The file; a missing one has no lines, and a partial last line is left out.

    Raises:
      UserError: If a line is damaged or has no step.
    """
    if not path.exists():
        return []
    lines = []
    try:
        with open_file(path) as file:
            for text in file.read().split(b'\n')[:-1]:
                line = dict(parse_json(text))
                if not isinstance(line.get('step'), int):
                    raise TypeError('a step is an integer')
                lines.append(line)
    except (OSError, ValueError, TypeError):
        raise UserError(f'{path} is damaged in line {len(lines) + 1}; restore the file, or remove it') from None
    return lines


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """Reads the lines of a run's `metrics.jsonl`, see `read_lines`."""
    return read_lines(workdir / NAME)
