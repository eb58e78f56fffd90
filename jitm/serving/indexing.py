"""Makes and updates an index: only new and changed images are encoded, and a killed process is resumed."""

import collections
import concurrent.futures
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from jitm.data.pixels import num_threads
from jitm.errors import UserError
from jitm.files import locked
from jitm.outputs import OutputFolder
from jitm.serving.index import KIND, MANIFEST, Entry, Index, Rows, write
from jitm.serving.sources import ImageSource, Item
from jitm.types import Images

IMAGES_PER_PART = 512  # what a killed process loses at most
READ_AHEAD = 2  # batches that are read while one is encoded
PARTS = 'parts/'

Encode = Callable[[Images], np.ndarray]


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
        return _update(source, output, model, encode, batch_size, report)


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


def _update(
    source: ImageSource,
    folder: OutputFolder,
    model: str,
    encode: Encode,
    batch_size: int,
    report: Callable[[int, int], None] | None,
) -> Index:
    known, complete = _read_known(folder, model)
    changed = [name for name in source.names if not _is_unchanged(source.stat(name), known.entries.get(name))]
    unreadable = _encode_changed(source, changed, known, folder, model, encode, batch_size, report)
    names = [name for name in source.names if name not in unreadable]
    if not names:
        name, problem = next(iter(unreadable.items()))
        raise UserError(f'none of {len(unreadable)} images can be read; the first is {name}: {problem}')
    entries = [known.entries[name] for name in names]
    if complete is None or (complete.entries, complete.unreadable) != (entries, unreadable):
        vectors = np.stack([known.vectors[entry.checksum] for entry in entries])
        write(folder, Rows(entries, vectors), model, unreadable)
    folder.remove(_parts(folder))
    return Index(folder.path)


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


def _encode_changed(
    source: ImageSource,
    names: Sequence[str],
    known: _Known,
    folder: OutputFolder,
    model: str,
    encode: Encode,
    batch_size: int,
    report: Callable[[int, int], None] | None,
) -> dict[str, str]:
    """Reads some images, encodes those whose content is new, and adds them to what is known.

    Returns:
      Name -> problem, of those that cannot be read.
    """
    unreadable, waiting, done = {}, [], 0
    parts = (name for n in itertools.count() if not (folder.path / (name := f'{PARTS}{n}.npz')).exists())
    for items in _read_ahead(source.read, names, batch_size):
        readable = [item for item in items if not item.problem]
        unreadable |= {item.entry.name: item.problem for item in items if item.problem}
        _encode_new(source, readable, known, encode)
        known.entries.update((item.entry.name, item.entry) for item in readable)
        waiting += [item.entry for item in readable]
        done += len(items)
        if len(waiting) >= IMAGES_PER_PART:
            _rows(waiting, known.vectors).write_part(folder, next(parts), model)
            waiting = []
        if report is not None:
            report(done, len(names))
    return unreadable


def _rows(entries: Sequence[Entry], vectors: Mapping[str, np.ndarray]) -> Rows:
    return Rows(entries, np.stack([vectors[entry.checksum] for entry in entries]))


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
