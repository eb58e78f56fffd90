"""Pictures as data URIs, for pages without other files."""

import base64
import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from jitm.data.pixels import Photos
from jitm.data.splits import Split
from jitm.errors import UserError

EDGE = 240  # pixels of the longer side of an embedded photograph
SUFFIXES = ('', '.jpg', '.jpeg', '.png')


def uri(content: bytes, kind: str) -> str:
    """Returns a data URI of an image of MIME type `image/KIND`."""
    return f'data:image/{kind};base64,{base64.b64encode(content).decode()}'


def png(pixels: np.ndarray) -> bytes:
    """Returns pixels, uint8 [H, W, 3], as PNG."""
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, pixels, format='png')
    return buffer.getvalue()


def thumbnail(path: Path) -> bytes:
    """Returns a photograph as JPEG of at most `EDGE` pixels on each side.

    Raises:
      UserError: if the file is not an image.
    """
    from PIL import Image  # a requirement of matplotlib

    buffer = io.BytesIO()
    try:
        with Image.open(path) as image:
            image.thumbnail((EDGE, EDGE))
            image.convert('RGB').save(buffer, format='JPEG', quality=80)
    except (OSError, SyntaxError, ValueError) as error:  # PIL raises each of them for damaged files
        raise UserError(f'{path} is not an image that can be read ({error}); replace it') from None
    return buffer.getvalue()


def pictures_of(split: Split, images: Iterable[int], photos: Path | None) -> dict[int, str]:
    """Returns the pictures of some images as data URIs.

    Args:
      split: its pixels are used if it has them.
      images: indices of the images.
      photos: a folder with the files `IMAGE_ID`, with or without a suffix of an image, or None.

    Returns:
      {image: data URI}; empty without pixels and folder.

    Raises:
      UserError: if the folder lacks one of the images, or the file is not an image.
    """
    if photos is not None:
        return {image: uri(thumbnail(_find(photos, split.image_ids[image])), 'jpeg') for image in images}
    if isinstance(split.pixels, Photos):
        return {image: uri(thumbnail(Path(split.pixels.files[image])), 'jpeg') for image in images}
    if split.pixels is not None:
        return {image: uri(png(split.pixels[image]), 'png') for image in images}
    return {}


def pixels_of(split: Split, image: int, photos: Path | None) -> np.ndarray | None:
    """Returns the pixels of an image, uint8 [H, W, 3]; None without pixels and folder, see `pictures_of`.

    Raises:
      UserError: if the folder lacks the image, or the file is not an image.
    """
    if photos is not None:
        from PIL import Image

        with Image.open(io.BytesIO(thumbnail(_find(photos, split.image_ids[image])))) as picture:
            return np.asarray(picture)
    return None if split.pixels is None else split.pixels[image]


def _find(photos: Path, image_id: str) -> Path:
    """Returns the file of an image."""
    for suffix in SUFFIXES:
        path = photos / f'{image_id}{suffix}'
        if path.is_file() and path.resolve().is_relative_to(photos.resolve()):  # ids of a file may lead anywhere
            return path
    raise UserError(f'{photos} has no file {image_id}; give the --photos whose files are named by the image ids')
