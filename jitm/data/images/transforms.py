"""Decoding and cropping of photos with Pillow, as torchvision and CLIP do: functions of a photo and a generator."""

from __future__ import annotations  # Pillow is optional

import contextlib
import ctypes
import dataclasses
import io
import itertools
import math
import os
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, Union

import numpy as np

from jitm.data.images.image_bytes import Budget, reading
from jitm.errors import ArgumentError, UserError, check_choice, require
from jitm.files import ArchiveMember
from jitm.types import Count, Index, Share

if TYPE_CHECKING:
    from PIL import Image

INTERPOLATIONS = {'bilinear': 2, 'bicubic': 3}  # name -> its number in Pillow
MIRROR = 0  # Pillow's number for flipping left and right
CROPS = ('centre', 'random')
MAX_PIXELS = 2**30 // 12  # the largest photo; above Pillow's own limit it warns of a decompression bomb
LARGE = 25_000_000  # pixels of a photo, whose memory is returned at once
MAX_ASPECT = 50  # the longer side over the shorter one
MIN_CROP_ASPECT = 3 / 4
MAX_CROP_ASPECT = 4 / 3
CROP_TRIES = 10
CORNERS = ((0, 0), (1, 0), (0, 1), (1, 1), (0.5, 0.5))  # and the centre, in torchvision's order

Photo = Union[str, os.PathLike, bytes, 'Image.Image']
View = Callable[['Image.Image'], np.ndarray]  # from a decoded photo to an array
Result = TypeVar('Result')


def is_photo(value: object) -> bool:
    """Returns whether a value is a `Photo`, that is the path of an image file, its bytes, or a photo of Pillow."""
    pillow = sys.modules.get('PIL.Image')  # imported wherever a photo of Pillow exists
    return isinstance(value, str | os.PathLike | bytes) or (pillow is not None and isinstance(value, pillow.Image))


# Shared by all threads. A thread acquires bytes, see `reading`, before pixels, so that there is no deadlock.
_PIXELS = Budget(250_000_000)  # 4 to 12 bytes of memory each


def decode(
    photo: Photo, view: Callable[[Image.Image], Result], name: str = 'the photo', smallest: int | None = None
) -> Result:
    """Decodes a photo and applies a function to it; training, evaluation, search and pages all decode photos this way.

    The function gets red, green and blue, turned upright by the EXIF orientation, transparent pixels on white, and 16
    bits scaled to 8. The number of pixels that all threads decode at a time is bounded, until the function returns.

    Args:
      photo: The path of an image file, its bytes, or a photo of Pillow.
      view: The function; it neither changes nor keeps the photo.
      name: The name of bytes and of a photo of Pillow in messages.
      smallest: The number of pixels that each side keeps at least, for a JPEG that may be decoded at a half, a quarter
        or an eighth of its size; None for the whole size.

    Raises:
      UserError: If it cannot be read, is damaged, too large or too narrow.
    """
    if isinstance(photo, str | os.PathLike):
        with reading(photo) as file:
            return decode(file.data, view, str(photo), smallest)
    image = _open(photo, name) if isinstance(photo, bytes) else photo
    _check_header(image, name)
    if isinstance(photo, bytes) and smallest is not None:
        image.draft('RGB', (smallest, smallest))
    pixels = image.width * image.height
    with _PIXELS.take(pixels):
        try:
            return view(_convert(image, name))
        finally:
            if pixels > LARGE and image is not photo:
                image.close()
                with contextlib.suppress(OSError, AttributeError):  # glibc would keep the memory for each thread
                    ctypes.CDLL(None).malloc_trim(0)


def check_image(path: str | os.PathLike) -> str:
    """Returns the SHA-256 of an image file, as hex; raises a UserError unless it can be decoded."""
    try:
        with reading(path) as file:
            decode(file.data, lambda image: None, str(path), smallest=1)  # decodes a JPEG at an eighth of its size
            return file.checksum
    except UserError as error:
        if not isinstance(path, ArchiveMember):
            raise
        command = shlex.join(['tar', '--delete', f'--file={path.archive}', path.name])
        raise UserError(f'{error}; `{command}` removes it from the archive') from None


def _open(data: bytes, name: str) -> Image.Image:
    """Reads the header of an image file; the pixels are not decoded yet."""
    Image = require('PIL.Image', extra='photos')
    if not data:
        raise UserError(f'{name} is empty: copy it again, or leave it out')
    try:
        return Image.open(io.BytesIO(data))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # the warning where a program raises it
        raise UserError(f'{name} has too many pixels for Pillow: shrink it') from None
    except Exception as error:  # Pillow raises many kinds of errors for damaged headers
        unknown = isinstance(error, Image.UnidentifiedImageError)  # whose message names an object
        reason = 'Pillow can read' + ('' if unknown else f' ({" ".join(str(error).split())})')
        raise UserError(f'{name} is not an image that {reason}: convert it to JPEG, or leave it out') from None


def _check_header(image: Image.Image, name: str) -> None:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise UserError(f'{name} has {width} x {height} pixels: shrink it to at most {MAX_PIXELS} pixels')
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise UserError(f'{name} has {width} x {height} pixels: no side may be {MAX_ASPECT} times the other')
    if image.mode in ('I', 'F'):
        raise UserError(f'{name} has pixels of more than 16 bits: convert it to 8 bits per channel')


def _convert(image: Image.Image, name: str) -> Image.Image:
    """Decodes an opened photo as red, green and blue, see `decode`; nothing is copied if it is that already."""
    from PIL import ExifTags, Image, ImageOps

    try:
        image.load()
        if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
            image = ImageOps.exif_transpose(image)
        if image.mode.startswith('I;16'):
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.has_transparency_data:
            image = image if image.mode == 'RGBA' else image.convert('RGBA')
            image = Image.alpha_composite(Image.new('RGBA', image.size, 'white'), image)
        return image if image.mode == 'RGB' else image.convert('RGB')
    except Exception as error:
        reason = ' '.join(str(error).split())
        raise UserError(f'{name} is damaged or cut off ({reason}): replace the file, or leave it out') from None


def sample_box(width: int, height: int, min_area: float, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Samples a part of an image (torchvision's RandomResizedCrop).

    Args:
      width: The width of the image.
      height: The height of the image.
      min_area: The smallest share of the image's area.
      rng: The generator of the example.

    Returns:
      left, top, right and bottom of a box with an aspect ratio in [3/4, 4/3]; the largest central one if ten samples
      do not fit into the image.
    """
    for _ in range(CROP_TRIES):
        area = width * height * rng.uniform(min_area, 1)
        aspect = math.exp(rng.uniform(math.log(MIN_CROP_ASPECT), math.log(MAX_CROP_ASPECT)))
        w = round(math.sqrt(area * aspect))
        h = round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left = int(rng.integers(width - w + 1))
            top = int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    w = min(width, round(height * MAX_CROP_ASPECT))
    h = min(height, round(width / MIN_CROP_ASPECT))
    left = (width - w) // 2
    top = (height - h) // 2
    return left, top, left + w, top + h


@dataclasses.dataclass(frozen=True)
class Transform:
    """The conversion of a photo to a square of pixels.

    Attributes:
      image_size: The height and width of the pixels.
      short_side: The number of pixels to which the shorter side is resized before the square is cut; 0 to resize both
        sides to `image_size` instead, which changes the aspect (SigLIP).
      interpolation: The filter for resizing, 'bilinear' (VSE++) or 'bicubic' (CLIP).
      crop: The crop of training examples: 'centre', as in evaluation, or 'random', see `sample_box`.
      min_area: The smallest share of the photo in a random crop.
      flip: Whether each training example is mirrored with probability 1/2.
    """

    image_size: Count
    short_side: Index
    interpolation: str
    crop: str
    min_area: Share
    flip: bool

    def __post_init__(self):
        if 0 < self.short_side < self.image_size:
            raise ArgumentError('short_side', f'is {self.short_side}; it must be at least {self.image_size}')
        check_choice(self.interpolation, INTERPOLATIONS, 'interpolation')
        check_choice(self.crop, CROPS, 'crop')

    @property
    def is_random(self) -> bool:
        """Whether training examples are sampled."""
        return self.crop == 'random' or self.flip

    def evaluate(self, image: Image.Image) -> np.ndarray:
        """Returns the square in the centre of the resized image: uint8 [H, W, 3]."""
        return np.asarray(self._cut(self._resize(image)))

    def evaluate_crops(self, image: Image.Image) -> np.ndarray:
        """Returns ten squares (10C): uint8 [10, H, W, 3], at `CORNERS` of the image, then of its mirror image."""
        resized = self._resize(image)
        views = itertools.product((resized, resized.transpose(MIRROR)), CORNERS)
        return np.stack([self._cut(view, *corner) for view, corner in views])

    def _cut(self, image: Image.Image, across: float = 0.5, down: float = 0.5) -> Image.Image:
        """Cuts a square from an image; 0 is its left or upper end, 0.5 its centre and 1 its right or lower end."""
        left = round((image.width - self.image_size) * across)
        top = round((image.height - self.image_size) * down)
        return image.crop((left, top, left + self.image_size, top + self.image_size))

    def _resize(self, image: Image.Image) -> Image.Image:
        """Resizes an image as torchvision's Resize does, which keeps the aspect if the shorter side is given."""
        size = self.image_size, self.image_size
        if self.short_side:
            size = tuple(int(self.short_side * side / min(image.size)) for side in image.size)
        return image.resize(size, INTERPOLATIONS[self.interpolation])

    def sample(self, image: Image.Image, rng: np.random.Generator) -> np.ndarray:
        """Returns a training example: uint8 [H, W, 3]."""
        if self.crop == 'random':
            part = image.crop(sample_box(*image.size, self.min_area, rng))
            image = part.resize((self.image_size, self.image_size), INTERPOLATIONS[self.interpolation])
        else:
            image = self._cut(self._resize(image))
        mirrored = self.flip and rng.random() < 0.5
        return np.asarray(image.transpose(MIRROR) if mirrored else image)
