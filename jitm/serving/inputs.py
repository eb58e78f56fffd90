"""Images and captions for a loaded run: region features of any layout, checked and padded, and splits."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

import jax.numpy as jnp
import numpy as np

from jitm.data.pixels import Photos
from jitm.data.splits import BOXES, Split, are_boxes
from jitm.data.text import Tokens, join, tokenize_tags
from jitm.data.transforms import Transform, View, decode, is_photo
from jitm.errors import UserError
from jitm.runs.run import Run

CENTRE = {'crop': 'centre', 'min_area': 1.0, 'flip': False}  # only training samples crops


@dataclasses.dataclass(frozen=True)
class ImageFeatures(Sequence):
    """The region features of I images; item i is a float array [R_i, F].

    Attributes:
      regions: float [I, R, F], possibly a memory-mapped file.
      counts: The number of valid regions of each image, int32 [I].
      boxes: float32 [I, R, 4] as x1 y1 x2 y2 in fractions of width and height; None if not known.
      tags: The object tags of each image in one string; None if not known.
    """

    regions: np.ndarray
    counts: np.ndarray
    boxes: np.ndarray | None = None
    tags: Sequence[str] | None = None

    def __len__(self) -> int:
        """Returns I."""
        return len(self.counts)

    def __repr__(self) -> str:
        return f'<{len(self)} images of up to {self.regions.shape[1]} regions of {self.regions.shape[2]} features>'

    def __getitem__(self, index: Any) -> Union[np.ndarray, 'ImageFeatures']:
        """Returns the features of one image, or of those that a slice or an index array selects."""
        if np.ndim(index) == 0 and not isinstance(index, slice):
            return np.asarray(self.regions[index])[: self.counts[index]]
        boxes = None if self.boxes is None else self.boxes[index]
        tags = None if self.tags is None else np.array(self.tags, object)[index].tolist()
        return ImageFeatures(self.regions[index], self.counts[index], boxes, tags)


def _pad(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Pads arrays, each [R, D], with zeros to float32 [I, R, D]."""
    padded = np.zeros((len(arrays), max(map(len, arrays)), arrays[0].shape[1]), np.float32)
    with np.errstate(over='ignore'):  # what is infinite in float32 is refused where it is encoded
        for row, array in zip(padded, arrays, strict=True):
            row[: len(array)] = array
    return padded


def images_of(split: Split, reads: Collection[str]) -> ImageFeatures | Photos | np.ndarray:
    """Returns the region features of a split, or its pixels if a model reads those, see `Matcher.reads`."""
    if 'pixels' in reads or split.regions is None:
        return split.pixels
    return ImageFeatures(split.regions, split.counts, split.boxes, split.tags)


@dataclasses.dataclass(frozen=True)
class SplitData:
    """A split of a data set.

    Attributes:
      name: The name, such as 'scenes/test'.
      images: The region features of the I images, or their pixels uint8 [I, H, W, 3].
      captions: The T captions.
      image_of_text: The image that each caption describes, int32 [T].
      image_ids: I names.
      split: The same as the library's own type, with the pixels if there are any.
    """

    name: str
    images: ImageFeatures | Photos | np.ndarray
    captions: tuple[str, ...]
    image_of_text: np.ndarray
    image_ids: tuple[str, ...]
    split: Split

    def __repr__(self) -> str:
        return repr(self.split)

    def captions_of(self, image: int) -> list[str]:
        """Returns the captions of an image."""
        return [self.captions[text] for text in np.flatnonzero(self.image_of_text == image)]

    def first_caption(self, image: int) -> str:
        """Returns the first caption of an image, '' if it has none."""
        return next(iter(self.captions_of(image)), '')

    def images_with(self, caption: str) -> set[int]:
        """Returns the images that have a caption."""
        return {int(image) for own, image in zip(self.captions, self.image_of_text, strict=True) if own == caption}


def data_of(split: Split, reads: Collection[str] = ('regions',)) -> SplitData:
    """Returns a split with the images that a model reads, see `Matcher.reads`."""
    images = images_of(split, reads)
    return SplitData(split.name, images, split.captions, split.image_of_text, split.image_ids, split)


def is_list(value: Any) -> bool:
    """Returns whether a value has items on axis 0: a list, a tuple or an array."""
    return getattr(value, 'ndim', 0) > 0 or (isinstance(value, Sequence) and not isinstance(value, str | bytes))


def read_array(value: Any, what: str) -> np.ndarray:
    """Returns real numbers as an array; raises a UserError for anything else."""
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.array(None)
    if not (jnp.issubdtype(array.dtype, jnp.floating) or np.issubdtype(array.dtype, np.integer) or array.dtype == bool):
        given = f'an array of {array.dtype}' if hasattr(value, 'dtype') else type(value).__name__
        raise UserError(f'{what} must be an array of real numbers, not {given}')
    return array


def check_features(images: Any, boxes: Any, size: int) -> ImageFeatures:
    """Checks images and boxes, and pads them to the same number of regions.

    Args:
      images: Features [I, R, F], a list of I arrays [R_i, F] or vectors [F], or `ImageFeatures`.
      boxes: [I, R, 4] or a list of I arrays [R_i, 4], or None.
      size: F.

    Raises:
      UserError: if they have other shapes or values.
    """
    if isinstance(images, ImageFeatures):
        if images.regions.shape[2] != size:
            raise UserError(
                f'images have features of shape {list(images.regions.shape)}; the run was trained on '
                f'[images, regions, {size}]'
            )
        return images if boxes is None else dataclasses.replace(images, boxes=_read_boxes(boxes, list(images)))
    shape = getattr(images, 'shape', None)
    if not is_list(images) or (shape is not None and len(shape) < 3):
        given = type(images).__name__ if shape is None else f'shape {list(shape)}'
        raise UserError(
            f'images are of {given}; give features [images, regions, {size}], or a list of [regions, {size}]'
        )
    arrays = [np.atleast_2d(read_array(image, f'image {number}')) for number, image in enumerate(images)]
    if not arrays:
        raise UserError(f'there are no images; give features [images, regions, {size}]')
    for number, array in enumerate(arrays):
        if array.ndim != 2 or array.shape[1] != size or not len(array):
            raise UserError(
                f'image {number} has features of shape {list(array.shape)}; the run was trained on [regions, {size}]'
            )
    boxes = None if boxes is None else _read_boxes(boxes, arrays)
    return ImageFeatures(_pad(arrays), np.array(list(map(len, arrays)), np.int32), boxes)


def _read_boxes(boxes: Any, images: Sequence[np.ndarray]) -> np.ndarray:
    """Pads the boxes of images to float32 [I, R, 4]; raises a UserError for wrong shapes or values."""
    if not is_list(boxes):
        raise UserError(f'boxes are of {type(boxes).__name__}; give x1 y1 x2 y2 of the regions of each image')
    boxes = [read_array(one, f'the boxes of image {number}') for number, one in enumerate(boxes)]
    shapes, wanted = [list(one.shape) for one in boxes], [[len(image), 4] for image in images]
    if shapes != wanted:
        raise UserError(f'boxes have the shapes {shapes}; these images need {wanted}')
    if not all(map(are_boxes, boxes)):
        raise UserError(f'boxes must be {BOXES}')
    return _pad(boxes)


def reads_photos(run: Run) -> bool:
    """Returns whether a run reads pixels, or features of a known network."""
    return 'pixels' in run.model.reads or run.encoded_by is not None


def transform_of(run: Run) -> Transform:
    """Returns how photos become the pixels that a run, or the network of its features, reads: as in its training."""
    reads = 'pixels' in run.model.reads
    size, data = (run.image_size, run.config['data']) if reads else (run.encoded_by['image_size'], run.encoded_by)
    return make_transform(size[0], data)


def view_of(run: Run) -> View | None:
    """Returns how a run sees a photo, see `decode`; None if it reads features of an unknown network."""
    return transform_of(run).evaluate if reads_photos(run) else None


def make_transform(size: int, data: Mapping[str, Any]) -> Transform:
    """Returns how photos become square pixels of a size, with what `data` says of the resizing, as in evaluation."""
    given = {key: data[key] for key in ('short_side', 'interpolation') if data.get(key) is not None}
    return Transform(**{'short_side': size, 'interpolation': 'bilinear'} | given, image_size=size, **CENTRE)


def are_photos(images: Any) -> bool:
    """Returns whether a value is a list of photos, see `decode`."""
    return is_list(images) and len(images) > 0 and all(map(is_photo, images))


def check_pixels(images: Any, run: Run) -> Photos | np.ndarray:
    """Checks images for a model of pixels.

    Args:
      images: Pixels uint8 [I, H, W, 3], or a list of photos, see `decode`; paths are decoded when they are indexed.
      run: The run.

    Raises:
      UserError: if they are neither, or a photo cannot be read.
    """
    wanted = [*run.image_size, 3]
    if are_photos(images):
        transform = transform_of(run)
        if all(isinstance(image, str | Path) for image in images):
            return Photos(list(map(str, images)), transform)
        return np.stack([decode(image, transform.evaluate, f'image {n}') for n, image in enumerate(images)])
    shape, dtype = getattr(images, 'shape', ()), getattr(images, 'dtype', None)
    if len(shape) != 4 or list(shape[1:]) != wanted or dtype != np.uint8:
        given = f'{dtype} of shape {list(shape)}' if shape else type(images).__name__
        raise UserError(
            f'images are {given}; give a list of photos, or pixels of uint8 [images, {wanted[0]}, {wanted[1]}, 3]'
        )
    return images


def is_one_image(image: Any, run: Run) -> bool:
    """Returns whether a value is one image and not several: a photo, its pixels, its features or a vector."""
    if is_photo(image):
        return reads_photos(run)
    return getattr(image, 'ndim', 4) == 3 if 'pixels' in run.model.reads else getattr(image, 'ndim', 3) < 3


def check_tags(tags: Any, run: Run, num_images: int) -> Tokens | None:
    """Checks and encodes the object tags of images; None for models that do not read them."""
    if 'tags' not in run.model.reads:
        return None
    if tags is None:
        raise UserError(f'{run.workdir} has a model that reads object tags: give the tags of each image')
    if not is_list(tags) or len(tags) != num_images or not all(isinstance(words, str) for words in tags):
        raise UserError(f"tags must be {num_images} strings, such as 'dog person', one for each image")
    return tokenize_tags(tags, run.vocabulary)


def read_captions(captions: Sequence[str], run: Run) -> Tokens:
    """Checks and tokenizes T captions.

    Raises:
      UserError: if there are no captions, one is not a string or empty, or one is longer than the model reads.
    """
    if not is_list(captions):
        raise UserError(f'captions are of {type(captions).__name__}; give a list of strings')
    if not len(captions):
        raise UserError('there are no captions; give at least one')
    for number, caption in enumerate(captions):
        if not isinstance(caption, str):
            raise UserError(f'caption {number} is of {type(caption).__name__}; give a string')
        if not caption.strip():
            raise UserError(f'caption {number} is empty; give at least one word')
    tokens = join([run.vocabulary.encode(caption) for caption in captions])
    longest, most = int(tokens.lengths.argmax()), run.model.text_format.max_length
    if most is not None and tokens.lengths[longest] > most:
        raise UserError(
            f'caption {longest} has {tokens.lengths[longest]} tokens, special tokens included, but the model reads '
            f'at most {most}; shorten it'
        )
    return tokens
