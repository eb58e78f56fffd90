"""An index of images on disk: their vectors, and a manifest of the files that were encoded.

A folder holds `manifest.json`, the file of vectors that it names, and, while images are encoded, the finished parts.
It belongs to jitm, see `outputs.OutputFolder`. Every file is replaced as a whole, and the manifest last, so a process
that is killed leaves an index that is either the old or the new one, and parts from which the next process resumes.
Only new and changed images are encoded.
"""

import collections
import concurrent.futures
import dataclasses
import functools
import itertools
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitm.data.pixels import num_threads
from jitm.errors import UserError, require
from jitm.files import expand, hash_arrays, hash_file, leads_out, locked, parse_json
from jitm.outputs import MARK, OutputFolder, check_own, replacing_own
from jitm.serving.search import Hit, VectorSearch
from jitm.serving.sources import Entry, ImageSource, Item
from jitm.types import Images

FORMAT = 1
KIND = 'an index'
MANIFEST = 'manifest.json'
KEYS = {'format', 'model', 'vectors', 'checksum', 'unreadable', 'images'}
IMAGES_PER_PART = 512  # what a killed process loses at most
READ_AHEAD = 2  # batches that are read while one is encoded
PARTS = 'parts/'
NEIGHBOURS = 32  # per vector of a graph of FAISS (HNSW: Malkov and Yashunin, 2020)
BLOCK = 2**16  # vectors that are added to a graph at a time

Encode = Callable[[Images], np.ndarray]


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
        self.folder = Path(expand(str(folder)))
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


@dataclasses.dataclass(frozen=True)
class _Known:
    """The images that an index, or its unfinished parts, has.

    Attributes:
      entries: The entries by name.
      vectors: float32 [D], by checksum.
    """

    entries: dict[str, Entry]
    vectors: dict[str, np.ndarray]

    def add(self, rows: Rows) -> None:
        self.entries.update((entry.name, entry) for entry in rows.entries)
        self.vectors.update(zip((entry.checksum for entry in rows.entries), rows.vectors, strict=True))

    def rows(self, entries: Sequence[Entry]) -> Rows:
        return Rows(entries, np.stack([self.vectors[entry.checksum] for entry in entries]))


def update(
    source: ImageSource,
    folder: Path,
    model: str,
    encode: Encode,
    batch_size: int,
    report: Callable[[int, int], None] | None = None,
) -> Index:
    """Makes the index of some images, or updates it.

    An image is not encoded again if its file has the same size and time, or its content the same checksum.

    Args:
      source: The images.
      folder: The folder: new, empty or one of an earlier index; it also keeps unfinished work.
      model: A hash of everything besides the image that a vector depends on; images of another model's index are
        encoded anew.
      encode: Maps up to `batch_size` images to vectors float32 [N, D].
      batch_size: Images encoded at a time.
      report: Called with the numbers of finished images and of all images that are read.

    Returns:
      The index, with the images in the order of the source.

    Raises:
      UserError: if no image can be read, a vector is not finite, the folder has files of somebody else or cannot be
        written, or another process writes to it.
    """
    output = OutputFolder(folder, KIND)
    if (index := _read_current(source, output, model, batch_size)) is not None:
        return index
    with locked(folder, f'another process indexes images in {folder}; wait for it, or choose another folder'):
        known, complete = _read_known(output, model)
        changed = [name for name in source.names if not _is_unchanged(source.stat(name), known.entries.get(name))]
        unreadable, waiting, done = {}, [], 0
        parts = (name for n in itertools.count() if not (folder / (name := f'{PARTS}{n}.npz')).exists())
        for items in _read_ahead(source.read, changed, batch_size):
            readable = [item for item in items if not item.problem]
            unreadable |= {item.entry.name: item.problem for item in items if item.problem}
            _encode_new(source, readable, known, encode)
            known.entries.update((item.entry.name, item.entry) for item in readable)
            waiting += [item.entry for item in readable]
            done += len(items)
            if len(waiting) >= IMAGES_PER_PART:
                known.rows(waiting).write_part(output, next(parts), model)
                waiting = []
            if report is not None:
                report(done, len(changed))
        entries = [known.entries[name] for name in source.names if name not in unreadable]
        if not entries:
            name, problem = next(iter(unreadable.items()))
            raise UserError(f'none of {len(unreadable)} images can be read; the first is {name}: {problem}')
        if complete is None or (complete.entries, complete.unreadable) != (entries, unreadable):
            write(output, known.rows(entries), model, unreadable)
        output.remove(_parts(output))
        return Index(folder)


def _parts(folder: OutputFolder) -> list[str]:
    return [name for name in folder.names if name.startswith(PARTS)]


def _read_current(source: ImageSource, folder: OutputFolder, model: str, batch_size: int) -> Index | None:
    """Returns an index that has nothing to update; None for one that has, that is damaged or that does not exist."""
    try:
        index = Index(folder.path)
        index.check()
    except UserError:
        return None  # `_update` states why, unless another process is just replacing the index
    names = [name for name in source.names if name not in index.unreadable]
    if index.model != model or index.names != names or len(source.names) != len(index) + len(index.unreadable):
        return None
    entries = {entry.name: entry for entry in index.entries}
    doubtful = [name for name in source.names if not _is_unchanged(source.stat(name), entries.get(name))]
    if any(name in entries and source.stat(name) for name in doubtful):
        return None
    for items in _read_ahead(source.read, doubtful, batch_size):
        for item in items:
            known = index.unreadable.get(item.entry.name), entries.get(item.entry.name)
            if known != ((item.problem, None) if item.problem else (None, item.entry)):
                return None
    return None if _parts(folder) else index


def _is_unchanged(stat: tuple[int, int] | None, entry: Entry | None) -> bool:
    return stat is not None and entry is not None and stat == (entry.size, entry.time)


def _read_known(folder: OutputFolder, model: str) -> tuple[_Known, Index | None]:
    """Returns the images that a model has encoded, and the index if it is complete and of this model."""
    known, complete = _Known({}, {}), None
    if (folder.path / MANIFEST).exists():
        index = Index(folder.path)
        index.check()
        if index.model == model:
            complete = index
            known.add(Rows(index.entries, index.vectors))
    for name in _parts(folder):
        if (rows := Rows.read_part(folder.path / name, model)) is not None:
            known.add(rows)
    return known, complete


def _encode_new(source: ImageSource, items: Sequence[Item], known: _Known, encode: Encode) -> None:
    """Encodes the images whose content is not known, each content once."""
    new = {item.entry.checksum: item for item in items if item.entry.checksum not in known.vectors}
    if not new:
        return
    vectors = encode(source.stack([item.image for item in new.values()]))
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        name = list(new.values())[int(np.argmin(finite))].entry.name
        raise UserError(f'the vector of {name} is not finite: the model or these features are broken')
    known.vectors.update(zip(new, vectors, strict=True))


def _read_ahead(read: Callable[[str], Item], names: Sequence[str], size: int) -> Iterator[list[Item]]:
    """Yields read images in batches; all cores read the next ones meanwhile."""
    with concurrent.futures.ThreadPoolExecutor(num_threads()) as pool:
        pending = collections.deque()
        for start in range(0, len(names), size):
            pending.append([pool.submit(read, name) for name in names[start : start + size]])
            if len(pending) > READ_AHEAD:
                yield [future.result() for future in pending.popleft()]
        while pending:
            yield [future.result() for future in pending.popleft()]


def check_export(path: Path) -> None:
    """Raises a UserError if the file was written by somebody else, or FAISS is not installed."""
    check_own(path)
    require('faiss', extra='export')


def export(index: Index, path: Path) -> None:
    """Writes an HNSW graph of inner products that `faiss.read_index` reads; its ids are the rows of the index.

    Args:
      index: The vectors.
      path: The output file, new or of jitm.

    Raises:
      UserError: If the file was written by somebody else or cannot be written, or FAISS is not installed.
    """
    check_export(path)
    import faiss

    graph = faiss.IndexHNSWFlat(index.vectors.shape[1], NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
    for start in range(0, len(index), BLOCK):
        graph.add(index.vectors[start : start + BLOCK])
    with replacing_own(path) as file:
        file.write(faiss.serialize_index(graph))
        file.write(MARK)  # FAISS reads as far as the graph
