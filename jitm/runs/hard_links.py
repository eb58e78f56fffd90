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
    for left in workdir.glob(f'{READING}*'):  # of killed processes, whose links keep removed checkpoints
        if all(name == LOCK or name.isdecimal() for name in os.listdir(left)):
            with contextlib.suppress(UserError, OSError), locked(left, 'it is read'):
                shutil.rmtree(left)
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
