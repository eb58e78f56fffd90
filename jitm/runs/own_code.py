"""Modules of the user as a part of a run: the hashes of their sources, beside its config."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from jitm.config import names
from jitm.errors import UserError
from jitm.files import hash_file, parse_json, replacing

NAME = 'own_code.json'


def hash_sources(named: Iterable[str]) -> dict[str, str]:
    """Returns the SHA-256 of the file of each module.

    Args:
      named: Names of functions and classes whose modules were imported, as in a config.

    Returns:
      {the module of the name: hex}, without optax, and modules that have no file, such as a notebook.
    """
    files = {module: names.file_of(module) for module in map(names.module_of, named)}
    return {module: hash_file(file) for module, file in files.items() if file and not module.startswith('optax')}


def write(sources: Mapping[str, str], workdir: Path) -> None:
    """Writes the hashes of a run's modules, if they are others than those that it has."""
    if sources != read(workdir):
        with replacing(workdir / NAME) as file:
            file.write((json.dumps(sources, indent=2) + '\n').encode())


def read(workdir: Path) -> dict[str, str]:
    """Returns the hashes of a run's modules; none if they were not written. Raises a UserError if they are damaged."""
    path = workdir / NAME
    try:
        return dict(parse_json(path.read_bytes())) if path.exists() else {}
    except (ValueError, TypeError):
        raise UserError(f'{path} is damaged; restore it, or remove it to accept the present code') from None


def changed_files(workdir: Path) -> list[Path]:
    """Returns the files of imported modules whose source is not that of the run."""
    files = {names.file_of(module): digest for module, digest in read(workdir).items()}
    return [file for file, digest in files.items() if file and hash_file(file) != digest]
