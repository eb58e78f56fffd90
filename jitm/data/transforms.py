"""Decoding and cropping of photos with Pillow, as torchvision and CLIP do: pure functions of a file and a generator."""

import dataclasses
import io
import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from jitm.errors import UserError, check_at_least, check_choice

INTERPOLATIONS = {'bilinear': Image.Resampling.BILINEAR, 'bicubic': Image.Resampling.BICUBIC}
CROPS = ('centre', 'random')
MAX_PIXELS = 10**8  # of a file; one decoded image takes three bytes for each
MAX_ASPECT = 50  # of the longer side to the shorter one
MIN_CROP_ASPECT, MAX_CROP_ASPECT = 3 / 4, 4 / 3
CROP_TRIES = 10
CORNERS = ((0, 0), (1, 0), (0, 1), (1, 1), (0.5, 0.5))  # and the centre, in torchvision's order

Image.MAX_IMAGE_PIXELS = None  # `open_image` checks the size


def open_image(path: str) -> Image.Image:
    """Reads an image file and checks its header; the pixels are not decoded yet.

    Raises:
      UserError: if there is no such file, it is no image, or it is too large or too narrow.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f'{path} cannot be read ({error.strerror}): add the file, or make it readable') from None
    try:
        image = Image.open(io.BytesIO(data))
    except Exception:  # Pillow raises many kinds of errors for damaged headers
        raise UserError(f'{path} is no image that Pillow can read: convert it to JPEG, or leave it out') from None
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise UserError(f'{path} has {width} x {height} pixels: shrink it to at most {MAX_PIXELS} pixels')
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise UserError(f'{path} has {width} x {height} pixels: no side may be {MAX_ASPECT} times the other')
    return image


def check_image(path: str) -> None:
    """Raises a UserError unless an image file can be decoded."""
    image = open_image(path)
    image.draft('RGB', (1, 1))  # reads all of a JPEG, but decodes it at an eighth of its size
    _upright(image, path)


def decode(path: str) -> Image.Image:
    """Decodes an image file as red, green and blue, upright and on a white background.

    Raises:
      UserError: if it cannot be read, or is damaged.
    """
    image = _upright(open_image(path), path)
    if image.mode.startswith('I;16'):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new('RGBA', image.size, 'white'), image.convert('RGBA'))
    return image.convert('RGB')


def _upright(image: Image.Image, path: str) -> Image.Image:
    """Decodes an opened file and turns it upright; raises a UserError if it is damaged."""
    try:
        upright = ImageOps.exif_transpose(image)
    except Exception:
        raise UserError(f'{path} is damaged or cut off: replace the file, or leave it out') from None
    if image.mode in ('I', 'F'):
        raise UserError(f'{path} has pixels of more than 16 bits: convert it to 8 bits per channel')
    return upright


def resize(image: Image.Image, short_side: int, interpolation: str) -> Image.Image:
    """Resizes the shorter side of an image to `short_side` and keeps its aspect (torchvision's Resize)."""
    width, height = (int(short_side * side / min(image.size)) for side in image.size)
    return image.resize((width, height), INTERPOLATIONS[interpolation])


def cut_square(image: Image.Image, size: int, across: float, down: float) -> Image.Image:
    """Cuts a square from an image; 0 is its left or upper end, 0.5 its centre and 1 its right or lower end."""
    left, top = round((image.width - size) * across), round((image.height - size) * down)
    return image.crop((left, top, left + size, top + size))


def sample_box(width: int, height: int, min_area: float, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Samples a part of an image (torchvision's RandomResizedCrop).

    Args:
      width: of the image.
      height: of the image.
      min_area: smallest share of the image's area.
      rng: generator of the example.

    Returns:
      left, top, right and bottom of a box with an aspect ratio in [3/4, 4/3]; the largest central one if ten samples
      do not fit into the image.
    """
    for _ in range(CROP_TRIES):
        area = width * height * rng.uniform(min_area, 1)
        aspect = math.exp(rng.uniform(math.log(MIN_CROP_ASPECT), math.log(MAX_CROP_ASPECT)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    w = min(width, round(height * MAX_CROP_ASPECT))
    h = min(height, round(width / MIN_CROP_ASPECT))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


@dataclasses.dataclass(frozen=True)
class Transform:
    """How a photo becomes a square of pixels.

    Attributes:
      image_size: H and W of the pixels.
      short_side: the shorter side of the photo is resized to this many pixels before the square is cut.
      interpolation: 'bilinear' (VSE++) or 'bicubic' (CLIP).
      crop: of training examples: 'centre', as in evaluation, or 'random', see `sample_box`.
      min_area: smallest share of the photo in a random crop.
      flip: mirrors each training example with probability 1/2.
    """

    image_size: int
    short_side: int
    interpolation: str
    crop: str
    min_area: float
    flip: bool

    def __post_init__(self):
        check_at_least(self.image_size, 1, 'image_size')
        check_at_least(self.short_side, self.image_size, 'short_side')
        check_choice(self.interpolation, tuple(INTERPOLATIONS), 'interpolation')
        check_choice(self.crop, CROPS, 'crop')
        if not 0 < self.min_area <= 1:
            raise ValueError(f'min_area is {self.min_area}; it must be in (0, 1]')

    @property
    def is_random(self) -> bool:
        """Whether training examples are sampled."""
        return self.crop == 'random' or self.flip

    def evaluate(self, image: Image.Image) -> np.ndarray:
        """Returns the square in the centre of the resized image: uint8 [H, W, 3]."""
        return np.asarray(self._centre(image))

    def evaluate_crops(self, image: Image.Image) -> np.ndarray:
        """Returns ten squares (10C): uint8 [10, H, W, 3], those of `CORNERS`, then of the mirror image."""
        resized = resize(image, self.short_side, self.interpolation)
        views = resized, ImageOps.mirror(resized)
        return np.stack([cut_square(view, self.image_size, *corner) for view in views for corner in CORNERS])

    def _centre(self, image: Image.Image) -> Image.Image:
        return cut_square(resize(image, self.short_side, self.interpolation), self.image_size, 0.5, 0.5)

    def sample(self, image: Image.Image, rng: np.random.Generator) -> np.ndarray:
        """Returns a training example: uint8 [H, W, 3]."""
        if self.crop == 'random':
            part = image.crop(sample_box(*image.size, self.min_area, rng))
            image = part.resize((self.image_size, self.image_size), INTERPOLATIONS[self.interpolation])
        else:
            image = self._centre(image)
        mirrored = self.flip and rng.random() < 0.5
        return np.asarray(ImageOps.mirror(image) if mirrored else image)
