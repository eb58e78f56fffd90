"""`metrics.jsonl`, with one line per logged step; each checkpoint records the checksum of its lines."""

import contextlib
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jitm.errors import UserError
from jitm.files import RESUMES, read_json_lines, replacing, writing

NAME = 'metrics.jsonl'
MANIFEST = 'manifest.json'  # of a checkpoint: its files and their SHA-256
DESCRIPTION = Path('run', 'metadata')  # of a checkpoint: the description of its run


class MetricsFile:
    """A JSONL file with one line per logged step, however often the run was resumed."""

    def __init__(self, path: Path, step: int):
        """Opens the file and drops lines of later steps, and incomplete lines, of an interrupted start.

        Args:
          path: the file.
          step: the last step whose lines are kept.

        Raises:
          UserError: if it is damaged, or cannot be written.
        """
        lines = [line for line in _read_lines(path) if line['step'] <= step]
        kept = b''.join(map(_encode, lines))
        with replacing(path) as file:
            file.write(kept)
        self._path, self._file = path, path.open('ab')
        self._size, self._digest = len(kept), hashlib.sha256(kept)

    def write(self, line: Mapping[str, object]) -> None:
        """Appends one line, which must have a `step`; raises a UserError if it cannot be written."""
        with writing(self._path, RESUMES):
            data = _encode(line)
            self._file.write(data)
            self._file.flush()
        self._size += len(data)
        self._digest.update(data)

    def record(self) -> dict[str, Any]:
        """Returns the size in bytes and the SHA-256 of all lines, for `check_record`."""
        return {'size': self._size, 'sha256': self._digest.hexdigest()}

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):  # of a line whose error was raised
            self._file.close()


def _encode(line: Mapping[str, object]) -> bytes:
    return (json.dumps(line) + '\n').encode()


def make_line(step: int, epoch: float, part: str, metrics: Mapping[str, float]) -> dict[str, Any]:
    """Returns a line of `metrics.jsonl`; the part is 'train' or the split of a validation."""
    return {'step': step, 'epoch': epoch, 'part': part, **metrics}


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Reads the lines of a file with one line per logged step; raises a UserError if one has no step."""
    lines = read_json_lines(path)
    for number, line in enumerate(lines, 1):
        if not isinstance(line.get('step'), int):
            raise UserError(f'{path} is damaged in line {number}; restore the file, or remove it')
    return lines


def read_metrics(workdir: Path) -> list[dict[str, Any]]:
    """Reads the lines of a run's `metrics.jsonl`; none if there is no such file."""
    return _read_lines(workdir / NAME)


def rebuild_metrics(workdir: Path, validations: Sequence[Mapping[str, object]]) -> None:
    """Writes a missing `metrics.jsonl` of a resumed run, with a warning.

    Args:
      workdir: the run directory.
      validations: the lines of all validations that its checkpoints hold.
    """
    path = workdir / NAME
    if path.exists():
        return
    steps = ', '.join(str(line['step']) for line in validations)
    logging.warning('%s is missing: the validations of the checkpoints (%s) are written again', path, steps or 'none')
    with replacing(path) as file:
        file.write(b''.join(map(_encode, validations)))


def read_description(workdir: Path) -> dict[str, Any] | None:
    """Reads the description of a run in its last checkpoint, or in the one before if it is damaged there.

    Only the description is compared with its checksum, which is fast. None if no checkpoint has a whole one.
    """
    steps = (path.name for path in (workdir / 'checkpoints').glob('*') if path.name.isdecimal())
    for step in sorted(steps, key=int, reverse=True):
        folder = workdir / 'checkpoints' / step
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            data = (folder / DESCRIPTION).read_bytes()
            if json.loads((folder / MANIFEST).read_bytes())[str(DESCRIPTION)] == hashlib.sha256(data).hexdigest():
                return json.loads(data)
    return None


def check_record(workdir: Path, description: Mapping[str, Any] | None) -> None:
    """Warns if the lines of `metrics.jsonl` are not those that a checkpoint has recorded.

    They are not refused, since no model depends on them.

    Args:
      workdir: the run directory.
      description: the result of `read_description`.
    """
    path, record = workdir / NAME, (description or {}).get('logged')
    if not record or not path.exists():  # checkpoints of earlier versions have no record
        return
    if hashlib.sha256(path.read_bytes()[: record['size']]).hexdigest() != record['sha256']:
        logging.warning(
            '%s is not as its checkpoints have recorded it: lines are damaged or lost; restore the file if you can, no '
            'model depends on it',
            path,
        )
