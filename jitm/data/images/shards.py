"""Photos in uncompressed tar archives with captions in files of their names (webdataset), as img2dataset writes them.

What an archive lists is kept as a table of Arrow in the cache, if that can be written, and memory-mapped from there.
"""

import contextlib
import dataclasses
import json
import logging
import os
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow

from jitm.data.images.listed import Listed
from jitm.data.images.photo_files import beside
from jitm.data.images.pixels import cached_path, keep
from jitm.data.images.transforms import Photo
from jitm.data.strings import Strings
from jitm.errors import UserError, printable
from jitm.files import ArchiveMember, open_file

FILES, LEFT_OUT = b'files', b'left_out'  # metadata of a table
CHECK = 'shard 1'  # the name of the cached table; another number with other columns or other rules of captions


@dataclasses.dataclass(frozen=True, eq=False)
class Members(Sequence[ArchiveMember]):
    """The photos of some archives, each made when it is indexed.

    Attributes:
      archives: The paths of the archives.
      ends: The number of photos up to the end of each archive, int [A].
      names: The names of the I photos in their archives.
      starts: int64 [I].
      sizes: int64 [I].
    """

    archives: Sequence[str]
    ends: np.ndarray
    names: Strings
    starts: np.ndarray
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> ArchiveMember:
        """Returns a photo, also by a negative number."""
        row = range(len(self))[index]
        archive = np.searchsorted(self.ends, row, side='right')
        return ArchiveMember(self.archives[archive], self.names[row], int(self.starts[row]), int(self.sizes[row]))


class Pairs(NamedTuple):
    """Photos and their captions, as fields of a split.

    Attributes:
      names: The names of the I photos.
      files: Their files.
      captions: T captions.
      image_of_text: The photo of each caption, int32 [T].
    """

    names: Sequence[str]
    files: Sequence[Photo]
    captions: Sequence[str]
    image_of_text: np.ndarray


@dataclasses.dataclass(frozen=True)
class Shards:
    """The photos with captions of some archives in a folder.

    Attributes:
      paths: The paths of the archives.
      tables: The tables of Arrow of the archives, see `_read`.
    """

    paths: Sequence[Path]
    tables: Sequence[pyarrow.Table]

    def __len__(self) -> int:
        """Returns the number of photos with captions."""
        return sum(table.num_rows for table in self.tables)

    @property
    def files(self) -> list[str]:
        """The names of the first three files of each archive."""
        names = (json.loads(table.schema.metadata[FILES]) for table in self.tables)
        return [f'{path.name}/{name}' for path, of_shard in zip(self.paths, names, strict=True) for name in of_shard]

    def listed(self) -> Iterator[Listed]:
        """Yields each photo as a `Listed`."""
        for path, table in zip(self.paths, self.tables, strict=True):
            for name, captions, *member in zip(*(column.to_pylist() for column in table.columns), strict=True):
                yield Listed(name, captions, str(path), file=ArchiveMember(str(path), *member))

    def pairs(self, max_captions: int | None = None) -> Pairs:
        """Returns the photos with their first captions, of which there is one or more.

        Names and captions stay where the tables are, but for captions that `max_captions` selects.
        """
        names, captions, members, starts, sizes = pyarrow.concat_tables(self.tables).columns
        counts = np.concatenate([chunk.value_lengths() for chunk in captions.chunks])
        ends = np.cumsum([table.num_rows for table in self.tables])
        files = Members([*map(str, self.paths)], ends, Strings(members), starts.to_numpy(), sizes.to_numpy())
        texts = Strings(pyarrow.chunked_array([chunk.flatten() for chunk in captions.chunks]))
        image_of_text = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        position = np.arange(len(texts)) - np.repeat(np.cumsum(counts) - counts, counts)
        if max_captions is not None and position.max() >= max_captions:
            first = np.flatnonzero(position < max_captions)
            texts, image_of_text = texts.take(first), image_of_text[first]
        return Pairs(Strings(names), files, texts, image_of_text)


def open_shards(folder: Path, paths: Sequence[Path]) -> Shards:
    """Reads archives, each once: its table is kept until its size or time changes.

    Args:
      folder: The folder of the archives.
      paths: Their paths.

    Raises:
      UserError: If an archive is damaged, or there are files, and no photos with captions.
    """
    shards = Shards(paths, [*map(_table, paths)])
    left_out = sum(int(table.schema.metadata[LEFT_OUT]) for table in shards.tables)
    if left_out:
        logging.warning('%d of %d images have no captions and are left out', left_out, left_out + len(shards))
    if shards.files and not len(shards):
        raise UserError(
            f'{folder} has {printable(", ".join(shards.files[:3]))}, but photos are read with captions in .txt or '
            '.json files of the same names, such as a.jpg and a.txt: write the shards again'
        )
    return shards


def _table(path: Path) -> pyarrow.Table:
    """Returns the table of an archive, memory-mapped if it can be kept."""
    cached = cached_path([str(path)], CHECK)

    table = _map(cached)
    if table is not None:
        return table
    table = _read(path)
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    keep(cached, sink.getvalue())
    kept = _map(cached)
    return table if kept is None else kept


def _map(path: Path) -> pyarrow.Table | None:
    """Returns the table in a file, memory-mapped; None if there is none. No file stays open."""
    with contextlib.suppress(OSError, pyarrow.ArrowInvalid), pyarrow.memory_map(str(path)) as file:
        return pyarrow.ipc.open_file(file).read_all()
    return None


def _read(path: Path) -> pyarrow.Table:
    """Reads the photos of an archive with their captions, see `photo_files.beside`.

    Returns:
      A table with the name of each photo, its captions, its name in the archive, its first byte and its size. The
      metadata have the names of the first files, and the number of photos without captions, which are left out.

    Raises:
      UserError: If the file is not an uncompressed tar archive, has a name twice, or damaged captions.
    """
    members: dict[str, ArchiveMember] = {}
    try:
        with open_file(path) as file, tarfile.open(fileobj=file, mode='r:') as archive:
            for entry in filter(tarfile.TarInfo.isfile, archive):
                name = os.path.normpath(entry.name)
                if name in members:
                    raise UserError(f'{path} has two files {name}: rename one of them')
                members[name] = ArchiveMember(str(path), entry.name, entry.offset_data, entry.size)
    except (OSError, tarfile.TarError) as error:
        raise UserError(f'{path} is not a whole, uncompressed tar archive ({error}): write it again') from None
    listed = beside(path, members, members.get)
    rows = []
    for image in listed:
        image.check_name()
        texts = image.texts()
        if texts:
            member = members[image.name]
            rows.append((f'{path.name}/{image.name}', texts, member.name, member.start, member.size))
    metadata = {FILES: json.dumps([*members][:3]), LEFT_OUT: str(len(listed) - len(rows))}
    types = pyarrow.string(), pyarrow.list_(pyarrow.string()), pyarrow.string(), pyarrow.int64(), pyarrow.int64()
    columns = [*zip(*rows, strict=True)] or [()] * len(types)
    arrays = [pyarrow.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    return pyarrow.table(arrays, ['name', 'captions', 'member', 'start', 'size'], metadata=metadata)
