"""An index of images on disk: their vectors, and a manifest of the files that were encoded.

A folder holds `manifest.json`, the file of vectors that it names, and, while images are encoded, the finished parts.
It belongs to jitm, see `outputs.OutputFolder`. Every file is replaced as a whole, and the manifest last, so a process
that is killed leaves an index that is either the old or the new one, and parts from which the next process resumes.
Only new and changed images are encoded.
"""

import collections
import concurrent.futures
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitm.data.images.pixels import NUM_THREADS
from jitm.errors import UserError
from jitm.files import expand, hash_arrays, hash_file, leads_out, locked, parse_json, read_bytes
from jitm.files.outputs import Job, OutputFolder
from jitm.inference.engine import concatenate
from jitm.runs.progress import ignore
from jitm.serving.images import Entry, ImageReader
from jitm.serving.search import Hit, VectorSearch
from jitm.types import Images

FORMAT = 1
KIND = 'an index'
MANIFEST = 'manifest.json'
KEYS = {'format', 'model', 'vectors', 'checksum', 'unreadable', 'images'}
IMAGES_PER_PART = 512  # a killed process loses at most these
READ_AHEAD = 2  # batches that are read while one is encoded


class Index:
    """Encoded images in a folder, to be searched with `LoadedRun.search`.

    Attributes:
      folder: The path of the folder.
      model: A hash of the model that encoded the images, see `LoadedRun.model_key`.
      entries: The files of the I images.
      names: The names of the I images, in the order of the hits' indices.
      vectors: The vectors, float32 [I, D], memory-mapped.
      unreadable: The reason for each image that was left out, by name.
    """

    def __init__(self, folder: str | Path):
        """Opens an index.

        Args:
          folder: The folder that `LoadedRun.index` wrote.

        Raises:
          UserError: If there is none, or it is damaged.
        """
        self.folder = Path(expand(str(folder)))
        manifest = _read_manifest(self.folder)
        try:
            self.model = str(manifest['model'])
            self.unreadable = dict(manifest['unreadable'])
            self.entries = [Entry(*entry) for entry in manifest['images']]
            self.names = [entry.name for entry in self.entries]
            self._file = self.folder / manifest['vectors']
            self._checksum = manifest['checksum']
            if leads_out(manifest['vectors']) or not self._file.is_file():
                raise ValueError('it has no file of vectors')
            self.vectors = np.load(self._file, mmap_mode='r')
            if self.vectors.dtype != np.float32 or self.vectors.shape[:-1] != (len(self.entries),):
                raise ValueError('its vectors are others')
        except (OSError, ValueError, TypeError, EOFError):
            raise _damaged(self.folder) from None

    def __len__(self) -> int:
        """Returns I."""
        return len(self.entries)

    def __repr__(self) -> str:
        return f'<Index of {len(self):,} images in {self.folder}>'

    @functools.cached_property
    def _search(self) -> VectorSearch:
        return VectorSearch(self.vectors)

    def check(self) -> None:
        """Raises a UserError unless the file of vectors has its checksum."""
        if not self._file.is_file() or hash_file(self._file) != self._checksum:
            raise _damaged(self.folder)

    def top(self, queries: np.ndarray, top_k: int) -> list[list[Hit]]:
        """Returns the images with the largest inner products for each query, see `VectorSearch.top`."""
        return list(map(self._named, self._search.top(queries, top_k)))

    def _named(self, hits: Sequence[Hit]) -> list[Hit]:
        return [hit._replace(name=self.names[hit.index]) for hit in hits]


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = parse_json(read_bytes(path))
    except (OSError, ValueError):
        manifest = None
    if not isinstance(manifest, dict) or not manifest.keys() >= KEYS:
        problem = f'{folder} is not an index of jitm: its {MANIFEST} is missing or damaged'
    elif manifest['format'] != FORMAT:
        problem = f'{path} has format {manifest["format"]}, this version reads {FORMAT}'
    else:
        return manifest
    raise UserError(f'{problem}; choose a new folder, and jitm search makes one')


def _damaged(folder: Path) -> UserError:
    return UserError(f'the index {folder} is damaged; remove {folder / MANIFEST}, and jitm search makes it again')


def update(
    reader: ImageReader,
    folder: Path,
    model: str,
    encode: Callable[[Images], np.ndarray],
    batch_size: int,
    report: Callable[[int, int], None] = ignore,
) -> Index:
    """Makes the index of some images, or updates it.

    An image is not encoded again if its file has the same size and time, or its content the same checksum.

    Args:
      reader: The images.
      folder: The folder: new, empty or with an earlier index; it also keeps unfinished work.
      model: A hash of all inputs of a vector besides the image; an index made by another model is rebuilt.
      encode: A function from up to `batch_size` images to vectors float32 [N, D].
      batch_size: The number of images encoded at a time.
      report: A function called with the numbers of finished images and of all images that are read.

    Returns:
      The index, with the images in the order of the reader.

    Raises:
      UserError: If no image can be read, a vector is not finite, the folder has other files or cannot be
        written, or another process writes to it.
    """
    output = OutputFolder(folder, KIND)
    job = output.begin(model)
    index = _read_current(reader, job, folder, model, batch_size)
    if index is not None:
        return index
    with locked(folder, f'another process indexes images in {folder}; wait for it, or choose another folder'):
        # The known images: entries by name, and vectors by checksum.
        complete = _read_complete(folder, model)
        parts = [] if complete is None else [(complete.entries, complete.vectors)]
        saved = [(_parse_entries(part), part['vectors']) for part in job.parts()]
        entries = {}
        vectors = {}
        for entries_of_part, vectors_of_part in [*parts, *saved]:
            entries |= {entry.name: entry for entry in entries_of_part}
            vectors |= {entry.checksum: vector for entry, vector in zip(entries_of_part, vectors_of_part, strict=True)}
        # The new and the changed images.
        new_names = _changed(reader, entries)
        part = len(saved)
        unreadable = {}
        waiting = []
        done = 0
        for items in _read_ahead(reader, new_names, batch_size):
            unreadable |= {entry.name: image for entry, image in items if isinstance(image, str)}
            readable = [(entry, image) for entry, image in items if not isinstance(image, str)]
            new = {entry.checksum: (entry, image) for entry, image in readable if entry.checksum not in vectors}
            if new:  # each content once
                vectors |= zip(new, _encode([*new.values()], encode), strict=True)
            entries |= {entry.name: entry for entry, _ in readable}
            waiting += [entry for entry, _ in readable]
            done += len(items)
            if len(waiting) >= IMAGES_PER_PART:
                job.save(part, entries=json.dumps(waiting), vectors=_stacked(waiting, vectors))
                part += 1
                waiting = []
            report(done, len(new_names))
        # The index.
        stored = [entries[name] for name in reader.names if name not in unreadable]
        if not stored:
            name, problem = next(iter(unreadable.items()))
            raise UserError(f'none of {len(unreadable)} images can be read; the first is {name}: {problem}')
        if complete is None or (complete.entries, complete.unreadable) != (stored, unreadable):
            write(output, stored, _stacked(stored, vectors), model, unreadable)
        output.end_jobs()
        return Index(folder)


def write(
    folder: OutputFolder, entries: Sequence[Entry], vectors: np.ndarray, model: str, unreadable: Mapping[str, str]
) -> None:
    """Writes an index, and removes the vectors and the parts that it replaces; for the arguments see `Index`.

    Raises:
      UserError: If it cannot be written.
    """
    name = f'vectors-{hash_arrays([vectors])[:16]}.npy'
    with folder.replacing(name) as file:
        np.save(file, vectors)
    manifest = {
        'format': FORMAT,
        'model': model,
        'vectors': name,
        'checksum': hash_file(folder.path / name),
        'unreadable': unreadable,
        'images': entries,
    }
    folder.write(MANIFEST, json.dumps(manifest, indent=0))
    folder.remove(set(folder.names) - {name, MANIFEST})


def _stacked(entries: Sequence[Entry], vectors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the vectors [N, D] of N entries, by their checksums."""
    return np.stack([vectors[entry.checksum] for entry in entries])


def _parse_entries(part: Mapping[str, np.ndarray]) -> list[Entry]:
    return [Entry(*entry) for entry in parse_json(str(part['entries']))]


def _changed(reader: ImageReader, entries: Mapping[str, Entry]) -> list[int]:
    """Returns the rows of the images that are new, or whose file may have changed since it had its entry."""
    rows = []
    for row, name in enumerate(reader.names):
        entry = entries.get(name)
        stat = reader.stat(row)
        if entry is None or stat != (entry.size, entry.time):
            rows.append(row)
    return rows


def _read_current(reader: ImageReader, job: Job, folder: Path, model: str, batch_size: int) -> Index | None:
    """Returns an index that is up to date; None if it is outdated, damaged or missing."""
    try:
        index = Index(folder)
        index.check()
    except UserError:
        return None  # `update` reports why, unless another process is replacing the index
    names = [name for name in reader.names if name not in index.unreadable]
    if index.model != model or index.names != names or len(reader.names) != len(index) + len(index.unreadable):
        return None
    entries = {entry.name: entry for entry in index.entries}
    doubtful = _changed(reader, entries)
    if any(reader.names[row] in entries and reader.stat(row) for row in doubtful):
        return None
    for entry, image in itertools.chain.from_iterable(_read_ahead(reader, doubtful, batch_size)):
        stored = index.unreadable.get(entry.name), entries.get(entry.name)
        if stored != ((image, None) if isinstance(image, str) else (None, entry)):
            return None
    return None if job.names else index  # `update` removes them


def _read_complete(folder: Path, model: str) -> Index | None:
    """Returns the index in a folder; None if there is none, or it belongs to another model."""
    if not (folder / MANIFEST).exists():
        return None
    index = Index(folder)
    index.check()
    return index if index.model == model else None


def _encode(items: Sequence[tuple[Entry, Images]], encode: Callable[[Images], np.ndarray]) -> np.ndarray:
    """Encodes images as vectors [N, D]; raises a UserError that names an image whose vector is not finite."""
    vectors = encode(concatenate([image for _, image in items]))
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        name = items[int(np.argmin(finite))][0].name
        raise UserError(f'the vector of {name} is not finite: the model or these features are broken')
    return vectors


def _read_ahead(reader: ImageReader, rows: Sequence[int], size: int) -> Iterator[list[tuple[Entry, Images | str]]]:
    """Yields images in batches; all cores read the next ones meanwhile."""
    with concurrent.futures.ThreadPoolExecutor(NUM_THREADS) as pool:
        pending = collections.deque()
        for start in range(0, len(rows), size):
            pending.append([pool.submit(reader.read, row) for row in rows[start : start + size]])
            if len(pending) > READ_AHEAD:
                yield [future.result() for future in pending.popleft()]
        while pending:
            yield [future.result() for future in pending.popleft()]
