"""A full disk: one sentence, and the same command resumes once there is room."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from jitm.runs.checkpoint import Checkpoints
from tests.drills import runs
from tests.same import assert_same_run

COMMANDS = (runs.TRAIN, (*runs.EVALUATE, '--save_sims'), runs.MINE)


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[str | None]:
    """Mounts a tmpfs within the block.

    Args:
      folder: where it is mounted.
      size: in KiB.

    Yields:
      Why it could not be mounted; None if it was.
    """
    folder.mkdir(parents=True)
    command = ['mount', '-t', 'tmpfs', '-o', f'size={size}k', 'tmpfs', str(folder)]
    mount = shutil.which('mount')
    done = subprocess.run(command, capture_output=True, text=True) if mount else None
    if done is None or done.returncode:
        yield f'no tmpfs can be mounted: {done.stderr.strip() if done else "there is no mount"}'
        return
    try:
        yield None
    finally:
        subprocess.run(['umount', '--lazy', str(folder)], check=True)


def _fill(folder: Path, room: int) -> Path:
    """Fills the disk of a folder but for some KiB; returns the file that does."""
    path = folder / 'filler'
    with path.open('wb') as file:
        file.truncate(0)
        file.write(bytes(max(0, shutil.disk_usage(folder).free - 1024 * room)))
    return path


def check(base: Path, folder: Path, room: int, argv: tuple[str, ...]) -> str | None:
    """Tries a command on a disk with little room, and again when there is more.

    Args:
      base: the folder of `runs.write_base`.
      folder: an empty folder on a small disk.
      room: in KiB.
      argv: the command; if it trains, then a new run.

    Returns:
      What is wrong; None if nothing is.
    """
    work = shutil.copytree(base, folder / 'work')
    if argv == runs.TRAIN:
        shutil.rmtree(work / 'run')
    filler = _fill(folder, room)
    with runs.inside(work):
        first = runs.call(argv)
        if not (first.code == 2 and first.error.count('\n') == 1 and 'No space left on device' in first.error):
            return f'exit code {first.code}, {first.error[-600:]!r}'
        if [path for path in work.rglob('*.json') if not path.stat().st_size]:
            return 'an empty JSON file is left'
        if (work / 'run').exists() and not Checkpoints(work / 'run').whole_steps():
            return f'{[path.name for path in (work / "run").iterdir()]} without a checkpoint is left'
        filler.unlink()
        second = runs.call(argv)
    if second.code:
        return f'the second start: exit code {second.code}, {second.error[-600:]!r}'
    if argv == runs.TRAIN:
        assert_same_run(work / 'run', base / 'run')
    return None
