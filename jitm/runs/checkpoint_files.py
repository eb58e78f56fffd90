"""The files of checkpoints, which can be read without Orbax: manifests, descriptions of runs, and hard links.

A checkpoint is the folder `checkpoints/{step}` of a run. Its manifest has a checksum of each file, since Orbax does not
notice a flipped byte.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jitm.errors import UserError
from jitm.files import LOCK, hash_file, locked, parse_json, replacing

FOLDER = 'checkpoints'
MANIFEST = 'manifest.json'  # the files of a checkpoint and their SHA-256
DESCRIPTION = Path('run', 'metadata')  # the description of the run
READING = '.reading_'  # prefix of folders of hard links


def list_steps(folder: Path) -> list[int]:
    """Returns the steps of all checkpoints in a folder, which may be missing, whole or not, in ascending order."""
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal()) if folder.is_dir() else []


def _digests(checkpoint: Path) -> dict[str, str]:
    files = sorted(path for path in checkpoint.rglob('*') if path.is_file() and path.name != MANIFEST)
    return {str(path.relative_to(checkpoint)): hash_file(path) for path in files}


def write_manifest(checkpoint: Path) -> None:
    """Writes the checksums of all files of a checkpoint, which is whole from then on."""
    digests = json.dumps(_digests(checkpoint)).encode()
    with replacing(checkpoint / MANIFEST) as file:
        file.write(digests)


def damaged_file(checkpoint: Path) -> Path | None:
    """Returns the first file of a checkpoint that differs from its manifest, or the manifest; None if it is whole."""
    try:
        manifest = dict(parse_json((checkpoint / MANIFEST).read_text()))
    except (OSError, ValueError, TypeError):
        return checkpoint / MANIFEST
    try:
        digests = _digests(checkpoint)
    except FileNotFoundError:  # the run trains on, and removes it now
        return checkpoint / MANIFEST
    different = (name for name in sorted(manifest | digests) if manifest.get(name) != digests.get(name))
    return next((checkpoint / name for name in different), None)


def checkpoint_digest(workdir: Path, step: int) -> str:
    """Returns a digest of all files of a checkpoint; '' if it does not exist."""
    with contextlib.suppress(OSError):
        return hash_file(workdir / FOLDER / str(step) / MANIFEST)
    return ''


def read_description(workdir: Path) -> dict[str, Any] | None:
    """Reads the description of a run in its last checkpoint, or in the one before if it is damaged there.

    Only the description is compared with its checksum, which is fast. None if no checkpoint has a whole one.
    """
    for step in reversed(list_steps(workdir / FOLDER)):
        checkpoint = workdir / FOLDER / str(step)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            data = (checkpoint / DESCRIPTION).read_bytes()
            if parse_json((checkpoint / MANIFEST).read_bytes())[str(DESCRIPTION)] == hashlib.sha256(data).hexdigest():
                return parse_json(data)
    return None


def unfinished(workdir: Path) -> str:
    """Returns 'step 234 of 468' for a run whose last checkpoint is not at the end of its training; '' for others."""
    described = read_description(workdir)
    if not described or 'steps_per_epoch' not in described:  # a converted or exported run
        return ''
    step = list_steps(workdir / FOLDER)[-1]
    total = described['steps_per_epoch'] * described['config']['epochs']
    return f'step {step} of {total}' if step < total else ''


@contextlib.contextmanager
def held_files(checkpoint: Path) -> Iterator[Path]:
    """Yields a folder with the files of a checkpoint, which remain if its run trains on and removes it.

    They are hard links; without support for links, it is the checkpoint itself. Their folder is locked, unlike one left
    by a killed process.
    """
    workdir = checkpoint.parent.parent
    for left in workdir.glob(f'{READING}*'):  # links left by killed processes keep removed checkpoints
        if all(name == LOCK or name.isdecimal() for name in os.listdir(left)):
            with contextlib.suppress(UserError, OSError), locked(left, 'it is read'):
                shutil.rmtree(left)
    with contextlib.ExitStack() as stack:
        try:
            temporary = tempfile.TemporaryDirectory(prefix=READING, dir=workdir)
            links = Path(stack.enter_context(temporary))
            stack.enter_context(locked(links, 'it is removed'))
            held = links / checkpoint.name
            shutil.copytree(checkpoint, held, copy_function=os.link)
        except (OSError, UserError):
            held = checkpoint
        yield held
