"""Where the images of an index come from: photos, the features of a split, or a file of features."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jitm.analysis.pictures import pictures_of, thumbnail, uri
from jitm.data.pipeline import take_images, tokenize_tags
from jitm.data.pixels import Photos
from jitm.data.precomp import open_npy
from jitm.data.splits import Split
from jitm.data.transforms import RAW, decode, reading
from jitm.errors import UserError
from jitm.runs.run import Run, check_split
from jitm.serving.index import Entry
from jitm.serving.inputs import Data, images_of, transform_of
from jitm.types import Images

SUFFIXES = ('.avif', '.bmp', '.gif', '.jfif', '.jp2', '.jpeg', '.jpg', '.png', '.tif', '.tiff', '.webp')
FOREIGN = ('.heic', '.heif', '.hif', '.jxl', *RAW)  # photos that Pillow does not read without other packages


class Item(NamedTuple):
    """An image that was read.

    Attributes:
      entry: its file, or its features.
      image: what `Source.stack` takes; None if it cannot be read.
      problem: why it cannot be read; '' if it can.
    """

    entry: Entry
    image: Any
    problem: str = ''


class Source(Protocol):
    """Images to index.

    Attributes:
      label: a name of the images for the folder of their index.
      names: of the I images, unique, in the order of the index.
    """

    label: str
    names: Sequence[str]

    def stat(self, name: str) -> tuple[int, int] | None:
        """Returns size and time of an image's file, equal if its content is; None if it must be read to know."""
        ...

    def read(self, name: str) -> Item:
        """Reads an image; called in several threads."""
        ...

    def stack(self, images: Sequence[Any]) -> Images:
        """Returns read images as those of a model."""
        ...

    def check(self, run: Run) -> None:
        """Raises a UserError unless the model of a run can read these images."""
        ...

    def take(self, names: Sequence[str], run: Run) -> Any:
        """Returns some images in the form that `LoadedRun.encode_image` of a run reads."""
        ...

    def pictures(self, names: Sequence[str]) -> dict[str, str]:
        """Returns the pictures of some images as data URIs, name -> URI; without those that have none."""
        ...


class PhotoFiles:
    """Image files, named as given."""

    def __init__(self, names: Sequence[str], photos: Photos, label: str, problems: Mapping[str, str] | None = None):
        """Takes the files in the order of their names.

        Args:
          names: of the I photos, unique.
          photos: the files, and how they become pixels.
          label: see `Source`.
          problems: name -> reason, of those that are not read.
        """
        self.label, self.names, self._photos, self._problems = label, list(names), photos, problems or {}
        self._row = {name: row for row, name in enumerate(self.names)}

    def _path(self, name: str) -> str:
        return self._photos.files[self._row[name]]

    def stat(self, name: str) -> tuple[int, int] | None:
        """Returns size in bytes and time in nanoseconds of a file; None if it is not read."""
        if name in self._problems:
            return None
        try:
            stat = os.stat(self._path(name))
        except OSError:
            return None
        return stat.st_size, stat.st_mtime_ns

    def read(self, name: str) -> Item:
        """Decodes a photo as in evaluation."""
        path, problem = self._path(name), self._problems.get(name, '')
        if not problem:
            try:
                with reading(path) as file:
                    pixels = decode(file.data, self._photos.transform.evaluate, path)
                    return Item(Entry(name, file.size, file.time, file.checksum), pixels)
            except UserError as error:
                problem = str(error).removeprefix(f'{path} ')
        return Item(Entry(name, 0, 0, ''), None, problem)

    def stack(self, images: Sequence[np.ndarray]) -> Images:
        """Returns decoded photos as pixels."""
        return Images(pixels=np.stack(images))

    def check(self, run: Run) -> None:
        """Raises a UserError unless the model of a run reads pixels."""
        _check_reads_pixels(run, 'photos')

    def take(self, names: Sequence[str], run: Run) -> list[str]:
        """Returns the paths of some photos, which a run decodes as it does in evaluation."""
        return [self._path(name) for name in names]

    def pictures(self, names: Sequence[str]) -> dict[str, str]:
        """Returns the pictures of some photos."""
        return {name: uri(thumbnail(self._path(name)), 'jpeg') for name in names}


class SplitImages:
    """The images of a split, named by their ids, or by their numbers where an id occurs twice."""

    def __init__(self, split: Split, run: Run, photos: Path | None = None, label: str | None = None):
        """Checks that the model of a run can read the images of a split.

        Args:
          split: the images.
          run: the run.
          photos: a folder with their pictures, see `pictures_of`.
          label: see `Source`; the name of the split if None.

        Raises:
          UserError: if it cannot.
        """
        self.label = split.name.replace('/', '_') if label is None else label
        self.split, self._reads, self._photos = split, run.model.reads, photos
        self.check(run)
        self._tags = tokenize_tags(split.tags, run.vocabulary) if 'tags' in self._reads else None
        self.names = unique_ids(split)
        self._row = {name: row for row, name in enumerate(self.names)}

    def stat(self, name: str) -> None:
        """Returns None: features are compared by their checksums, which is fast."""

    def read(self, name: str) -> Item:
        """Reads the features of an image."""
        row = self._row[name]
        content = b''.join(np.ascontiguousarray(leaf).tobytes() for leaf in jax.tree.leaves(self.stack([row])))
        return Item(Entry(name, len(content), 0, hashlib.sha256(content).hexdigest()), row)

    def stack(self, images: Sequence[int]) -> Images:
        """Returns the features of some rows."""
        return take_images(self.split, np.array(images), self._reads, self._tags)

    def check(self, run: Run) -> None:
        """Raises a UserError unless the split has the features, or pixels, that a run reads."""
        check_split(self.split, run)

    def take(self, names: Sequence[str], run: Run) -> Any:
        """Returns the features, or pixels, of some images."""
        return images_of(self.split, run.model.reads)[np.array([self._row[name] for name in names])]

    def pictures(self, names: Sequence[str]) -> dict[str, str]:
        """Returns the pictures of some images."""
        found = pictures_of(self.split, [self._row[name] for name in names], self._photos)
        return {self.names[row]: picture for row, picture in found.items()}


def unique_ids(split: Split) -> list[str]:
    """Returns the ids of the images of a split, or their numbers where an id occurs twice."""
    ids = list(split.image_ids)
    return ids if len(set(ids)) == len(ids) else list(map(str, range(len(ids))))


def read_features(path: Path) -> Split:
    """Opens a file of features as a split without captions, whose images are named by their numbers.

    Args:
      path: a `.npy` file of floats [I, R, F], or of vectors [I, F].

    Raises:
      UserError: if it is not such a file.
    """
    regions = open_npy(str(path))
    regions = regions[:, None] if regions.ndim == 2 else regions
    if regions.ndim != 3 or not regions.size:
        raise UserError(f'{path} has shape {list(regions.shape)}; give features [images, regions, features]')
    counts = np.full(len(regions), regions.shape[1], np.int32)
    return Split(path.name, regions, counts, (), np.zeros(0, np.int32), tuple(map(str, range(len(regions)))))


def read_folder(folder: Path, run: Run, label: str) -> PhotoFiles:
    """Lists the image files of a folder and of the folders in it, without hidden ones.

    Links that lead out of the folder, and folders that cannot be read, are listed as problems.

    Raises:
      UserError: if there are none, the folder cannot be read, or the model of the run does not read pixels.
    """
    _check_reads_pixels(run, f'the photos of {folder}')
    names, problems, inside = [], {}, os.path.realpath(folder)

    def leave_out(error: OSError) -> None:
        problems[os.path.relpath(error.filename, folder)] = f'cannot be read ({error.strerror}): make it readable'

    for parent, folders, files in os.walk(folder, onerror=leave_out):
        folders[:] = [name for name in folders if not name.startswith('.')]
        for name in [*filter(_is_photo, files), *folders]:
            path = os.path.join(parent, name)
            relative = os.path.relpath(path, folder)
            if os.path.islink(path) and not Path(os.path.realpath(path)).is_relative_to(inside):
                problems[relative] = f'is a link that leads out of {folder}: copy what it leads to, or leave it out'
            elif name not in folders:
                names.append(relative)
    if os.curdir in problems:
        raise UserError(f'{folder} {problems[os.curdir]}')
    names = sorted([*names, *problems])
    if not names:
        raise UserError(f'{folder} has no image files ({", ".join(SUFFIXES)}); give a folder with photos')
    return PhotoFiles(names, Photos([str(folder / name) for name in names], transform_of(run)), label, problems)


def _check_reads_pixels(run: Run, photos: str) -> None:
    if 'pixels' not in run.model.reads:
        raise UserError(
            f'{run.workdir} has a model of region features, which cannot read {photos}; give a file of their features'
        )


def _is_photo(name: str) -> bool:
    return name.lower().endswith((*SUFFIXES, *FOREIGN)) and not name.startswith('.')


def open_source(images: str | Path | Data | Source, run: Run, photos: Path | None = None) -> Source:
    """Returns images as a source.

    Args:
      images: a folder of photos, a file of features (see `read_features`), a split, or a source, which is returned
        unchanged.
      run: the run whose model reads them.
      photos: a folder with the pictures of a split, see `pictures_of`.

    Raises:
      UserError: if the model cannot read these images.
    """
    if isinstance(images, Data):
        split = images.split
        if isinstance(split.pixels, Photos) and 'pixels' in run.model.reads:
            return PhotoFiles(unique_ids(split), split.pixels, split.name.replace('/', '_'))
        return SplitImages(split, run, photos)
    if not isinstance(images, str | Path):
        return images
    path = Path(images).absolute()
    label = f'{path.name}_{hashlib.sha256(bytes(path)).hexdigest()[:8]}'
    if path.is_dir():
        return read_folder(path, run, label)
    return SplitImages(read_features(path), run, photos, label)
