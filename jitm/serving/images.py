"""Sets of images for a loaded run: any of them is opened, or checked, as a split.

Photos for a run on features are encoded by the network that encoded its training data.
"""

import dataclasses
import hashlib
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jitm.data.arrays import BOXES, are_boxes, open_npy
from jitm.data.correspondence import name_texts
from jitm.data.images.image_bytes import reading
from jitm.data.images.photo_files import list_files
from jitm.data.images.pixels import Photos
from jitm.data.images.transforms import Photo, Transform, View, decode, is_photo
from jitm.data.precomp import FEATURES, read_lines
from jitm.data.splits import Split, check_images, take_images
from jitm.data.text.vocabularies import tokenize_tags
from jitm.errors import UserError
from jitm.runs.run import Run, check_split
from jitm.types import Images

CENTRE = {'crop': 'centre', 'min_area': 1.0, 'flip': False}  # only training samples crops


def is_list(value: Any) -> bool:
    """Returns whether a value has items on axis 0: a split, a list, a tuple, photos or an array."""
    listed = isinstance(value, Sequence | Split | Photos) and not isinstance(value, str | bytes)
    return listed or getattr(value, 'ndim', 0) > 0


def make_transform(size: int, data: Mapping[str, Any]) -> Transform:
    """Returns the evaluation transform of photos to square pixels of a size, with the resizing keys of `data`."""
    keys = {key: data[key] for key in ('short_side', 'interpolation') if data.get(key) is not None}
    return Transform(**{'short_side': size, 'interpolation': 'bilinear'} | keys, image_size=size, **CENTRE)


def transform_of(run: Run) -> Transform:
    """Returns the transform of photos to the pixels of a run, or of the network of its features, as in its training."""
    reads = 'pixels' in run.model.reads
    size, data = (run.image_size, run.config['data']) if reads else (run.encoded_by['image_size'], run.encoded_by)
    return make_transform(size[0], data)


def reads_photos(run: Run) -> bool:
    """Returns whether a run reads pixels, or features of a known network."""
    return 'pixels' in run.model.reads or run.encoded_by is not None


def check_photos(run: Run, photos: str) -> None:
    """Raises a UserError unless a run reads photos."""
    if not reads_photos(run):
        raise UserError(
            f'{run.workdir} has a model of region features of an unknown network, which cannot read {photos}; give a '
            'file of their features'
        )


def view_of(run: Run) -> View | None:
    """Returns the transform of photos for a run, see `decode`; None if it reads features of an unknown network."""
    return transform_of(run).evaluate if reads_photos(run) else None


def photo_files(split: Split, run: Run) -> Sequence[Photo]:
    """Returns the paths of the photos that a run, or the network of its features, reads; () for other images."""
    pixels = split.pixels
    reads = 'pixels' in run.model.reads or split.regions is None
    return pixels.files if reads and isinstance(pixels, Photos) and not isinstance(pixels.files[0], bytes) else ()


def check_readable(split: Split, run: Run) -> None:
    """Raises a UserError unless a run, or the network of its features, reads the images of a split."""
    if photo_files(split, run):
        check_photos(run, 'photos')
    else:
        check_split(split, run)


def open_images(images: str | Path | Split, run: Run) -> Split:
    """Opens images for a run.

    Args:
      images: A folder of photos, a file of features (see `read_features`), or a split.
      run: The run whose model, or the network of its features, reads them.

    Returns:
      The split; the names of photos are their paths in the folder, those that cannot be read included.

    Raises:
      UserError: If the run cannot read these images.
    """
    path = None if isinstance(images, Split) else Path(images).absolute()
    if path is not None and path.is_dir():
        check_photos(run, f'the photos of {path}')
        names, _ = list_files(path)
        files = Photos([str(path / name) for name in names], transform_of(run))
        return Split(path.name, pixels=files, image_ids=tuple(names))
    split = images if path is None else read_features(path)
    check_readable(split, run)
    return _for_network(split, run) if 'pixels' not in run.model.reads and photo_files(split, run) else split


def _for_network(split: Split, run: Run) -> Split:
    """Returns a split whose photos become the pixels that the network of a run's features reads."""
    check_photos(run, 'photos')
    return dataclasses.replace(split, pixels=dataclasses.replace(split.pixels, transform=transform_of(run)))


def read_features(path: Path) -> Split:
    """Opens a file of features as a split without captions.

    Args:
      path: A `.npy` file of floats [I, R, F], or of vectors [I, F]. The images of `x_ims.npy` have the names in
        `x_ids.txt`, where each may be listed once per caption; images of other files have numbers.

    Raises:
      UserError: If it is not such a file, or the names do not fit the images.
    """
    regions = open_npy(str(path))
    regions = regions[:, None] if regions.ndim == 2 else regions
    if regions.ndim != 3 or not regions.size:
        raise UserError(f'{path} has shape {list(regions.shape)}; give features [images, regions, features]')
    images = len(regions)
    names = path.with_name(f'{path.name.removesuffix(FEATURES)}_ids.txt')
    ids = tuple(map(str, range(images)))
    if path.name.endswith(FEATURES) and names.exists():
        lines = read_lines(str(names))
        if len(lines) == images or (not len(lines) % images and not name_texts(lines, len(lines))):
            ids = lines[:: len(lines) // images]
        else:
            ids = tuple(name for name, _ in itertools.groupby(lines))
        if len(ids) != images:
            raise UserError(f'{names} names {len(ids)} images, but {path.name} has {images}: give an id for each')
    counts = np.full(images, regions.shape[1], np.int32)
    return Split(name=path.name, regions=regions, counts=counts, image_ids=ids)


def is_one_image(image: Any, run: Run) -> bool:
    """Returns whether a value is one image and not several: a photo, its pixels, its features or a vector."""
    if is_photo(image):
        return reads_photos(run)
    return getattr(image, 'ndim', 4) == 3 if 'pixels' in run.model.reads else getattr(image, 'ndim', 3) < 3


def as_split(images: Any, run: Run, boxes: Any = None, tags: Any = None) -> Split:
    """Checks images for a run; for the arguments and errors see `LoadedRun.encode_image`.

    Returns:
      A split with the inputs of the model, or with the pixels for the network of its features.
    """
    reads = run.model.reads
    for name, inputs, part in (('boxes', boxes, 'locations'), ('tags', tags, 'tags')):
        if inputs is not None and part not in reads:
            raise UserError(f'{run.workdir} has a model that does not read {name}: leave them out')
    images = [images] if is_photo(images) else images
    if is_list(images) and not len(images):
        raise UserError('there are no images; give at least one')
    if isinstance(images, Split):
        split = images
    elif isinstance(images, Photos):
        split = Split('images', pixels=images)
    elif is_list(images) and all(map(is_photo, images)):
        check_photos(run, 'photos')
        files = [  # a photo of Pillow, which may occur twice, is loaded by one thread
            row if isinstance(row, str | os.PathLike | bytes) else decode(row, lambda photo: photo.copy(), f'image {n}')
            for n, row in enumerate(images)
        ]
        split = Split('images', pixels=Photos(files, transform_of(run)))
    elif 'pixels' in reads:
        split = Split('images', pixels=images)
    else:
        split = _pad_features(images, run.feature_size)
    if 'pixels' in reads:
        _check_pixels(split.pixels, run)
    elif split.regions is None and isinstance(split.pixels, Photos):
        split = _for_network(split, run)
    else:
        check_images(split, ('regions',))
        if split.feature_size != run.feature_size:
            raise UserError(
                f'images have features of shape {list(split.regions.shape)}; the run was trained on '
                f'[images, regions, {run.feature_size}]'
            )
    if boxes is not None:
        if split.regions is None:
            raise UserError('photos are encoded with boxes of their own: leave boxes out')
        split = dataclasses.replace(split, boxes=_pad_boxes(boxes, split.counts))
    if 'tags' in reads:
        tags = split.tags if tags is None else tags
        if tags is None:
            raise UserError(f'{run.workdir} has a model that reads object tags: give the tags of each image')
        if not is_list(tags) or len(tags) != len(split) or not all(isinstance(words, str) for words in tags):
            raise UserError(f"tags must be {len(split)} strings, such as 'dog person', one for each image")
        split = dataclasses.replace(split, tags=tuple(tags))
    return split


def _check_pixels(pixels: Any, run: Run) -> None:
    """Raises a UserError unless a value is uint8 [I, H, W, 3] with the height and the width of a run, or `Photos`."""
    expected = [*run.image_size, 3]
    shape = getattr(pixels, 'shape', ())
    dtype = getattr(pixels, 'dtype', None)
    if len(shape) != 4 or list(shape[1:]) != expected or dtype != np.uint8:
        received = f'{dtype} of shape {list(shape)}' if shape else type(pixels).__name__
        raise UserError(
            f'images are {received}; give a list of photos, or pixels of uint8 '
            f'[images, {expected[0]}, {expected[1]}, 3]'
        )


def _pad_features(images: Any, size: int) -> Split:
    """Pads features to the same number of regions.

    Args:
      images: Features [I, R, F], or a list of I arrays [R_i, F] or vectors [F].
      size: F.

    Raises:
      UserError: If they have other shapes or values.
    """
    shape = getattr(images, 'shape', None)
    if not is_list(images) or (shape is not None and len(shape) < 3):
        received = type(images).__name__ if shape is None else f'shape {list(shape)}'
        raise UserError(
            f'images are of {received}; give features [images, regions, {size}], or a list of [regions, {size}]'
        )
    arrays = [np.atleast_2d(_read_array(image, f'image {number}')) for number, image in enumerate(images)]
    for number, array in enumerate(arrays):
        if array.ndim != 2 or array.shape[1] != size or not len(array):
            raise UserError(
                f'image {number} has features of shape {list(array.shape)}; the run was trained on [regions, {size}]'
            )
    return Split('images', regions=_pad(arrays), counts=np.array(list(map(len, arrays)), np.int32))


def _pad_boxes(boxes: Any, counts: np.ndarray) -> np.ndarray:
    """Pads the boxes of images to float32 [I, R, 4]; raises a UserError for wrong shapes or values."""
    if not is_list(boxes):
        raise UserError(f'boxes have type {type(boxes).__name__}; give x1 y1 x2 y2 of the regions of each image')
    boxes = [_read_array(array, f'the boxes of image {number}') for number, array in enumerate(boxes)]
    shapes = [list(array.shape) for array in boxes]
    expected = [[int(count), 4] for count in counts]
    if shapes != expected:
        raise UserError(f'boxes have the shapes {shapes}; these images need {expected}')
    if not all(map(are_boxes, boxes)):
        raise UserError(f'boxes must be {BOXES}')
    return _pad(boxes)


def _read_array(value: Any, content: str) -> np.ndarray:
    """Returns real numbers as an array; raises a UserError for anything else."""
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.array(None)
    if not (jnp.issubdtype(array.dtype, jnp.floating) or np.issubdtype(array.dtype, np.integer) or array.dtype == bool):
        received = f'an array of {array.dtype}' if hasattr(value, 'dtype') else type(value).__name__
        raise UserError(f'{content} must be an array of real numbers, not {received}')
    return array


def _pad(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Pads arrays, each [R, D], with zeros to float32 [I, R, D]."""
    padded = np.zeros((len(arrays), max(map(len, arrays)), arrays[0].shape[1]), np.float32)
    with np.errstate(over='ignore'):  # infinite numbers raise an error in `image_batches`
        for row, array in zip(padded, arrays, strict=True):
            row[: len(array)] = array
    return padded


class Entry(NamedTuple):
    """The file, or the features, from which a vector was encoded.

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


class ImageReader:
    """Reads the images of a split one by one, and detects changes.

    Attributes:
      names: The names of the I images, unique, in the order of the index.
    """

    def __init__(self, split: Split, run: Run):
        """Prepares to read the images as the model of a run, or the network of its features, does."""
        self.names = split.names
        self._split = dataclasses.replace(split, scale=run.feature_scale)
        self._reads = run.model.reads
        self._tags = tokenize_tags(split.tags, run.vocabulary) if 'tags' in self._reads else None
        self._files = photo_files(split, run)
        self._crops = 0 if 'pixels' in self._reads or not self._files else run.encoded_by['crops']

    def stat(self, row: int) -> tuple[int, int] | None:
        """Returns size in bytes and time in nanoseconds of a photo, equal if its content is; None for other images."""
        try:
            stat = os.stat(self._files[row]) if self._files else None
        except OSError:
            return None
        return stat and (stat.st_size, stat.st_mtime_ns)

    def read(self, row: int) -> tuple[Entry, Images | str]:
        """Reads an image in one pass.

        Returns:
          The entry, and the image with an axis of 1; a photo for the network of features has its crops as pixels, uint8
          [1, C, H, W, 3]. For a photo that cannot be read the reason instead.
        """
        name = self.names[row]
        if not self._files:
            image = take_images(self._split, np.array([row]), self._reads, self._tags)
            content = b''.join(np.ascontiguousarray(leaf).tobytes() for leaf in jax.tree.leaves(image))
            return Entry(name, len(content), 0, hashlib.sha256(content).hexdigest()), image
        path = self._files[row]
        transform = self._split.pixels.transform
        view = transform.evaluate_crops if self._crops > 1 else transform.evaluate
        try:
            with reading(path) as file:
                pixels = decode(file.data, view, str(path))[None]
                image = Images(pixels=pixels[:, None] if self._crops == 1 else pixels)
                return Entry(name, file.size, file.time, file.checksum), image
        except UserError as error:
            return Entry(name, 0, 0, ''), str(error).removeprefix(f'{path} ')
