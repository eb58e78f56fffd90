"""An index of images on disk: their vectors, and a manifest of the files that were encoded.

A folder holds `manifest.json`, the file of vectors that it names, and, while images are encoded, the finished parts.
It belongs to jitm, see `outputs.OutputFolder`. Every file is replaced as a whole, and the manifest last, so a process
that is killed leaves an index that is either the old or the new one, and parts from which the next process resumes.
"""

import dataclasses
import functools
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jitm.errors import UserError
from jitm.files import hash_arrays, hash_file, leads_out, parse_json
from jitm.outputs import OutputFolder
from jitm.serving.vectors import Hit, VectorSearch

FORMAT = 1
KIND = 'an index'
MANIFEST = 'manifest.json'
KEYS = {'format', 'model', 'vectors', 'checksum', 'unreadable', 'images'}


class Entry(NamedTuple):
    """The file, or the features, of which a vector was encoded.

    Attributes:
      name: The name, unique within the index; the path of a photo within the folder.
      size: The size of the file, or of the features, in bytes.
      time: The time of modification of the file in nanoseconds; 0 for features.
      checksum: SHA-256 of the content, as hex.
    """

    name: str
    size: int
    time: int
    checksum: str


@dataclasses.dataclass(frozen=True)
class Rows:
    """Encoded images.

    Attributes:
      entries: The entries of N images.
      vectors: float32 [N, D].
    """

    entries: Sequence[Entry]
    vectors: np.ndarray

    def write_part(self, folder: OutputFolder, name: str, model: str) -> None:
        """Writes the rows as a part of an unfinished index; replaces the file atomically."""
        with folder.replacing(name) as file:
            np.savez(file, model=model, entries=json.dumps(self.entries), vectors=self.vectors)

    @classmethod
    def read_part(cls, path: Path, model: str) -> 'Rows | None':
        """Reads what `write_part` wrote; None if it is damaged or was made by another model."""
        try:
            with path.open('rb') as whole, np.load(whole) as file:
                if str(file['model']) != model:
                    return None
                return cls([Entry(*entry) for entry in parse_json(str(file['entries']))], file['vectors'])
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error):
            return None


class Index:
    """Encoded images in a folder, to be searched with `LoadedRun.search`.

    Attributes:
      folder: The path of the folder.
      model: A hash of the model that encoded the images, see `LoadedRun.model_key`.
      entries: The files of the I images.
      vectors: The vectors, float32 [I, D], memory-mapped.
      unreadable: The reason for each image that was left out, by name.
    """

    def __init__(self, folder: str | Path):
        """Opens an index.

        Args:
          folder: Where `LoadedRun.index` wrote it.

        Raises:
          UserError: if there is none, or it is damaged.
        """
        self.folder = Path(folder)
        manifest = _read_manifest(self.folder)
        try:
            self.model, self.unreadable = str(manifest['model']), dict(manifest['unreadable'])
            self.entries = [Entry(*entry) for entry in manifest['images']]
            self._file, self._checksum = self.folder / manifest['vectors'], manifest['checksum']
            if leads_out(manifest['vectors']) or not self._file.is_file():
                raise ValueError('it has no file of vectors')
            self.vectors = np.load(self._file, mmap_mode='r')
        except (OSError, ValueError, TypeError, EOFError):
            raise _damaged(self.folder) from None
        if self.vectors.dtype != np.float32 or self.vectors.shape[:-1] != (len(self.entries),):
            raise _damaged(self.folder)

    def __len__(self) -> int:
        """Returns I."""
        return len(self.entries)

    def __repr__(self) -> str:
        return f'<Index of {len(self):,} images in {self.folder}>'

    @property
    def names(self) -> list[str]:
        """The names of the I images, in the order of the hits' indices."""
        return [entry.name for entry in self.entries]

    def row(self, name: str) -> int | None:
        """Returns the position of an image; None if the index has none of this name."""
        return next((row for row, entry in enumerate(self.entries) if entry.name == name), None)

    @functools.cached_property
    def _search(self) -> VectorSearch:
        return VectorSearch(self.vectors)

    def check(self) -> None:
        """Raises a UserError unless the file of vectors has its checksum."""
        if not self._file.is_file() or hash_file(self._file) != self._checksum:
            raise _damaged(self.folder)

    def check_model(self, model: str, run: str) -> None:
        """Raises a UserError unless the index is one of a run, described by `run`, whose model has this hash."""
        if self.model != model:
            raise UserError(
                f'the index {self.folder} was made by another model than {run}; make it anew with jitm search or '
                'run.index'
            )

    def top(self, queries: np.ndarray, top_k: int) -> list[list[Hit]]:
        """Returns the images with the largest inner products for each query, see `VectorSearch.top`."""
        found = self._search.top(queries, top_k)
        return [[hit._replace(name=self.entries[hit.index].name) for hit in hits] for hits in found]


def write(folder: OutputFolder, rows: Rows, model: str, unreadable: Mapping[str, str]) -> None:
    """Writes an index, and removes the vectors and the parts that it replaces.

    Args:
      folder: The output.
      rows: The encoded images.
      model: See `Index`.
      unreadable: See `Index`.

    Raises:
      UserError: if it cannot be written.
    """
    vectors = f'vectors-{hash_arrays([rows.vectors])[:16]}.npy'
    with folder.replacing(vectors) as file:
        np.save(file, rows.vectors)
    manifest = {
        'format': FORMAT,
        'model': model,
        'vectors': vectors,
        'checksum': hash_file(folder.path / vectors),
        'unreadable': dict(unreadable),
        'images': [list(entry) for entry in rows.entries],
    }
    with folder.replacing(MANIFEST) as file:
        file.write(json.dumps(manifest, indent=0).encode())
    folder.remove(set(folder.names) - {vectors, MANIFEST})


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(f'{folder} is not an index of jitm: it has no {MANIFEST}; jitm search makes one')
    try:
        manifest = parse_json(path.read_bytes())
    except (OSError, ValueError):
        manifest = None
    if not isinstance(manifest, dict) or not manifest.keys() >= KEYS:
        raise UserError(
            f'{folder} is not an index of jitm, or its {MANIFEST} is damaged; choose a new folder, and jitm search '
            'makes one'
        )
    if manifest['format'] != FORMAT:
        raise UserError(
            f'{path} has format {manifest["format"]}, this version reads {FORMAT}; choose a new folder, and jitm '
            'search makes one'
        )
    return manifest


def _damaged(folder: Path) -> UserError:
    return UserError(f'the index {folder} is damaged; remove {folder / MANIFEST}, and jitm search makes it anew')
