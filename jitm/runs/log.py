"""`metrics.jsonl`, with one line per logged step, and the description of a run in its checkpoints."""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jitm.errors import UserError
from jitm.files import RESUMES, hash_file, parse_json, read_json_lines, replacing, writing

NAME = 'metrics.jsonl'
MANIFEST = 'manifest.json'  # of a checkpoint: its files and their SHA-256
DESCRIPTION = Path('run', 'metadata')  # of a checkpoint: the description of its run


class MetricsFile:
    """A JSONL file with one line per logged step, however often the run was resumed."""

    def __init__(self, path: Path, step: int):
        """Opens the file and drops lines of later steps, and incomplete lines, of an interrupted start.

        Args:
          path: The file.
          step: The last step whose lines are kept.

        Raises:
          UserError: if it is damaged, or cannot be written.
        """
        lines = [line for line in read_lines(path) if line['step'] <= step]
        with replacing(path) as file:
            file.write(b''.join(map(_encode, lines)))
        self._path, self._file = path, path.open('ab')

    def write(self, line: Mapping[str, object]) -> None:
        """Appends one line, which must have a `step`; raises a UserError if it cannot be written."""
        with writing(self._path, RESUMES):
            self._file.write(_encode(line))
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):  # of a line whose error was raised
            self._file.close()


def _encode(line: Mapping[str, object]) -> bytes:
    return (json.dumps(line) + '\n').encode()


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
    lines = read_json_lines(path)
    for number, line in enumerate(lines, 1):
        if not isinstance(line.get('step'), int):
            raise UserError(f'{path} is damaged in line {number}; restore the file, or remove it')
    return lines


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """Reads the lines of a run's `metrics.jsonl`, see `read_lines`."""
    return read_lines(workdir / NAME)


def read_description(workdir: Path) -> dict[str, Any] | None:
    """Reads the description of a run in its last checkpoint, or in the one before if it is damaged there.

    Only the description is compared with its checksum, which is fast. None if no checkpoint has a whole one.
    """
    steps = (path.name for path in (workdir / 'checkpoints').glob('*') if path.name.isdecimal())
    for step in sorted(steps, key=int, reverse=True):
        folder = workdir / 'checkpoints' / step
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            data = (folder / DESCRIPTION).read_bytes()
            if parse_json((folder / MANIFEST).read_bytes())[str(DESCRIPTION)] == hashlib.sha256(data).hexdigest():
                return parse_json(data)
    return None


def unfinished(workdir: Path) -> str:
    """Returns 'step 234 of 468' for a run whose last checkpoint is not at the end of its training; '' for others."""
    described = read_description(workdir)
    with contextlib.suppress(KeyError, TypeError):  # converted or exported
        total = described['steps_per_epoch'] * described['config']['epochs']
        step = max(int(path.name) for path in (workdir / 'checkpoints').glob('*') if path.name.isdecimal())
        return f'step {step} of {total}' if step < total else ''
    return ''


def checkpoint_digest(workdir: Path, step: int) -> str:
    """Returns a digest of all files of a checkpoint; '' if it does not exist."""
    with contextlib.suppress(OSError):
        return hash_file(workdir / 'checkpoints' / str(step) / MANIFEST)
    return ''
