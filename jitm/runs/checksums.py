"""The manifest of a checkpoint: a checksum of each file, since Orbax does not notice a flipped byte."""

import json
from pathlib import Path

from jitm.files import hash_file, parse_json, replacing
from jitm.runs.log import MANIFEST


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob('*') if path.is_file() and path.name != MANIFEST)
    return {str(path.relative_to(folder)): hash_file(path) for path in files}


def write_manifest(folder: Path) -> None:
    """Writes the checksums of all files of a checkpoint, which is whole from then on."""
    digests = json.dumps(_digests(folder)).encode()
    with replacing(folder / MANIFEST) as file:
        file.write(digests)


def damaged_file(folder: Path) -> Path | None:
    """Returns the first file of a checkpoint that differs from its manifest, or the manifest; None if it is whole."""
    try:
        manifest = dict(parse_json((folder / MANIFEST).read_text()))
    except (OSError, ValueError, TypeError):
        return folder / MANIFEST
    try:
        digests = _digests(folder)
    except FileNotFoundError:  # the run that is read trains, and removes it now
        return folder / MANIFEST
    changed = (name for name in sorted(manifest | digests) if manifest.get(name) != digests.get(name))
    return next((folder / name for name in changed), None)


def is_whole(folder: Path) -> bool:
    """Returns whether all files of a checkpoint match its manifest."""
    return damaged_file(folder) is None
