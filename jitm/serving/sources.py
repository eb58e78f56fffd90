"""Where the images of an index come from: photos, the features of a split, or a file of features."""

import hashlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jitm.data.arrays import open_npy
from jitm.data.photo_files import list_files
from jitm.data.pixels import Photos
from jitm.data.precomp import FEATURES, name_texts, read_lines
from jitm.data.splits import Split, take_images
from jitm.data.text import tokenize_tags
from jitm.data.transforms import View, decode, reading
from jitm.encoders.networks import FeatureNetwork, crops_of
from jitm.errors import UserError
from jitm.report.pictures import pictures_of, thumbnail, uri
from jitm.runs.run import Run, check_split
from jitm.serving.encodings import images_of_crops
from jitm.serving.inputs import SplitData, images_of, reads_photos, transform_of
from jitm.types import Images


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


class Item(NamedTuple):
    """An image that was read.

    Attributes:
      entry: Its file, or its features.
      image: What `stack` of a source takes; None if it cannot be read.
      problem: Why it cannot be read; '' if it can.
    """

    entry: Entry
    image: Any
    problem: str = ''


class PhotoFiles:
    """Image files, named as given.

    Attributes:
      label: A name of the images for the folder of their index.
      names: The names of the I images, unique, in the order of the index.
    """

    def __init__(
        self,
        names: Sequence[str],
        photos: Photos,
        label: str,
        problems: Mapping[str, str] | None = None,
        view: View | None = None,
        as_images: Callable[[np.ndarray], Images] | None = None,
    ):
        """Takes the files in the order of their names.

        Args:
          names: The names of the I photos, unique.
          photos: The files, and how they become pixels.
          label: See `PhotoFiles`.
          problems: The reason for each photo that is not read, by name.
          view: Maps a decoded photo to an array; None for the pixels that are read in evaluation.
          as_images: Maps the arrays of N photos to those that a model reads; None if they are pixels.
        """
        self.label, self.names, self._photos, self._problems = label, list(names), photos, problems or {}
        self._view, self._as_images = view, as_images or (lambda pixels: Images(pixels=pixels))
        self._row = {name: row for row, name in enumerate(self.names)}

    def _path(self, name: str) -> str | os.PathLike:
        return self._photos.files[self._row[name]]

    def stat(self, name: str) -> tuple[int, int] | None:
        """Returns size in bytes and time in nanoseconds of a file, equal if its content is; None if it is not read."""
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
                    pixels = decode(file.data, self._view or self._photos.transform.evaluate, str(path))
                    return Item(Entry(name, file.size, file.time, file.checksum), pixels)
            except UserError as error:
                problem = str(error).removeprefix(f'{path} ')
        return Item(Entry(name, 0, 0, ''), None, problem)

    def stack(self, images: Sequence[np.ndarray]) -> Images:
        """Returns decoded photos as a model reads them."""
        return self._as_images(np.stack(images))

    def check(self, run: Run) -> None:
        """Raises a UserError unless a run reads photos."""
        check_photos(run, 'photos')

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
          split: The images.
          run: The run.
          photos: A folder with their pictures, see `pictures_of`.
          label: See `PhotoFiles`; the name of the split if None.

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


ImageSource = PhotoFiles | SplitImages


def unique_ids(split: Split) -> list[str]:
    """Returns the ids of the images of a split, or their numbers where an id occurs twice."""
    ids = list(split.image_ids)
    return ids if len(set(ids)) == len(ids) else list(map(str, range(len(ids))))


def read_features(path: Path) -> Split:
    """Opens a file of features as a split without captions.

    Args:
      path: A `.npy` file of floats [I, R, F], or of vectors [I, F]. The images of `x_ims.npy` have the names in
        `x_ids.txt`; those of others have numbers.

    Raises:
      UserError: if it is not such a file, or the names are not those of the images.
    """
    regions = open_npy(str(path))
    regions = regions[:, None] if regions.ndim == 2 else regions
    if regions.ndim != 3 or not regions.size:
        raise UserError(f'{path} has shape {list(regions.shape)}; give features [images, regions, features]')
    return Split(
        name=path.name,
        regions=regions,
        counts=np.full(len(regions), regions.shape[1], np.int32),
        captions=(),
        image_of_text=np.zeros(0, np.int32),
        image_ids=_read_names(path, len(regions)),
    )


def _read_names(path: Path, images: int) -> tuple[str, ...]:
    """Returns the names of the images of a file of features, which may be listed once for each of their captions."""
    names = path.with_name(f'{path.name.removesuffix(FEATURES)}_ids.txt')
    if not path.name.endswith(FEATURES) or not names.exists():
        return tuple(map(str, range(images)))
    ids = read_lines(str(names))
    if len(ids) == images or (not len(ids) % images and not name_texts(ids, len(ids))):
        return ids[:: len(ids) // images]
    if len(ids := tuple(name for name, _ in itertools.groupby(ids))) != images:
        raise UserError(f'{names} names {len(ids)} images, but {path.name} has {images}: give an id for each')
    return ids


def check_photos(run: Run, photos: str) -> None:
    """Raises a UserError unless a run reads photos."""
    if not reads_photos(run):
        raise UserError(
            f'{run.workdir} has a model of region features of an unknown network, which cannot read {photos}; give a '
            'file of their features'
        )


def open_source(
    images: str | Path | SplitData | ImageSource,
    run: Run,
    photos: Path | None = None,
    network: Callable[[], FeatureNetwork] | None = None,
) -> ImageSource:
    """Returns images as a source.

    Args:
      images: A folder of photos, a file of features (see `read_features`), a split, or a source, which is returned
        unchanged.
      run: The run whose model reads them.
      photos: A folder with the pictures of a split, see `pictures_of`.
      network: Returns the network that encoded the features of the run, see `LoadedRun.network`.

    Raises:
      UserError: if the model cannot read these images.
    """
    if isinstance(images, SplitData):
        split = images.split
        if (
            isinstance(split.pixels, Photos)
            and not isinstance(split.pixels.files[0], bytes)
            and 'pixels' in run.model.reads
        ):
            return PhotoFiles(unique_ids(split), split.pixels, split.name.replace('/', '_'))
        return SplitImages(split, run, photos)
    if not isinstance(images, str | Path):
        return images
    path = Path(images).absolute()
    label = f'{path.name}_{hashlib.sha256(bytes(path)).hexdigest()[:8]}'
    if path.is_dir():
        check_photos(run, f'the photos of {path}')
        names, problems = list_files(path)
        transform = transform_of(run)
        files = Photos([str(path / name) for name in names], transform)
        if 'pixels' in run.model.reads:
            return PhotoFiles(names, files, label, problems)
        view = crops_of(transform, run.encoded_by['crops'])
        return PhotoFiles(names, files, label, problems, view, lambda crops: images_of_crops(network(), crops))
    return SplitImages(read_features(path), run, photos, label)
