"""Hard links to the files of a checkpoint, which stay readable if its run trains on and removes it."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from jitm.errors import UserError
from jitm.files import LOCK, locked

READING = '.reading_'  # begins the names of folders of hard links


@contextlib.contextmanager
def held_files(folder: Path) -> Iterator[Path]:
    """Yields a folder with the files of a checkpoint, which stay there if its run trains and removes it.

    They are hard links; where there can be none, it is the checkpoint itself. Their folder is locked, unlike one that a
    killed process has left.

    Args:
      folder: The folder of the checkpoint, `checkpoints/{step}` of a run.
    """
    workdir = folder.parent.parent
    _remove_left(workdir)
    with contextlib.ExitStack() as stack:
        try:
            temporary = tempfile.TemporaryDirectory(prefix=READING, dir=workdir)
            links = Path(stack.enter_context(temporary))
            stack.enter_context(locked(links, 'it is removed'))
            held = links / folder.name
            shutil.copytree(folder, held, copy_function=os.link)
        except (OSError, UserError):
            held = folder
        yield held


def _remove_left(workdir: Path) -> None:
    """Removes the hard links of processes that were killed while they read, since they keep removed checkpoints."""
    for links in workdir.glob(f'{READING}*'):
        if all(name == LOCK or name.isdecimal() for name in os.listdir(links)):
            with contextlib.suppress(UserError, OSError), locked(links, 'it is read'):
                shutil.rmtree(links)
