"""Pictures as data URIs, for pages without other files."""

import base64
import contextlib
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jitm.data.images.pixels import Photos
from jitm.data.images.transforms import Photo, View, decode
from jitm.data.precomp import MANIFEST
from jitm.data.splits import Split
from jitm.errors import UserError, require
from jitm.files import leads_out, parse_json

if TYPE_CHECKING:
    from PIL import Image

EDGE = 320  # pixels of the longer side of a photograph beside others
LARGE = 640  # and of one alone
SMALL = 128  # pixels; smaller pictures are enlarged without interpolation
SUFFIXES = ('', '.jpg', '.jpeg', '.png')
NO_PICTURES = 'no pictures: add --photos FOLDER'


def uri(content: bytes, kind: str) -> str:
    """Returns a data URI of an image of MIME type `image/KIND`."""
    return f'data:image/{kind};base64,{base64.b64encode(content).decode()}'


def png(pixels: np.ndarray) -> bytes:
    """Returns pixels, uint8 [H, W, 3], as PNG."""
    buffer = io.BytesIO()
    require('PIL.Image', extra='report').fromarray(pixels).save(buffer, 'PNG')
    return buffer.getvalue()


def _reduced(image: 'Image.Image', edge: int = EDGE) -> 'Image.Image':
    """Returns a photograph with at most `edge` pixels on each side."""
    small = image.copy()
    small.thumbnail((edge, edge))
    return small


def thumbnail(photo: Photo, edge: int = EDGE) -> bytes:
    """Returns a photograph, decoded as for models, as JPEG of at most `edge` pixels on each side.

    Raises:
      UserError: If the file is not an image.
    """
    buffer = io.BytesIO()
    decode(photo, lambda image: _reduced(image, edge), smallest=edge).save(buffer, format='JPEG', quality=80)
    return buffer.getvalue()


def pictures_of(split: Split, images: Iterable[int], photos: Path | None, edge: int = EDGE) -> dict[int, str]:
    """Returns the pictures of some images as data URIs.

    Args:
      split: Its pixels are used if it has them.
      images: Indices of the images.
      photos: A folder with the files `IMAGE_ID`, with or without a suffix of an image, or None.
      edge: The longest side of a photograph in pixels.

    Returns:
      {image: data URI}; empty without pixels and folder.

    Raises:
      UserError: If the folder lacks one of the images, or the file is not an image.
    """
    if photos is not None:
        return {image: uri(thumbnail(_find(photos, split.image_ids[image]), edge), 'jpeg') for image in images}
    if isinstance(split.pixels, Photos):
        return {image: uri(thumbnail(split.pixels.files[image], edge), 'jpeg') for image in images}
    if split.pixels is not None:
        return {image: uri(png(split.pixels[image]), 'png') for image in images}
    return {}


def recorded_photos(split: Split, root: str | None) -> Path | None:
    """Returns the folder of the photos from which a split was encoded, if it still has all of them.

    Args:
      split: The split.
      root: The folder of its features, as `jitm encode` wrote it.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, UserError):
        folder = Path(parse_json((Path(root) / MANIFEST).read_bytes())[split.name.rpartition('/')[2]]['photos'])
        for image in split.image_ids:
            _find(folder, image)
        return folder
    return None


def are_small(split: Split) -> bool:
    """Returns whether the pictures of a split are small pixels, and not photographs."""
    return isinstance(split.pixels, np.ndarray) and split.pixels.shape[1] < SMALL


def pixels_of(split: Split, image: int, photos: Path | None = None, view: View | None = None) -> np.ndarray | None:
    """Returns the pixels of an image, uint8 [H, W, 3]; None without pixels and folder, see `pictures_of`.

    Args:
      split: Its pixels are used without a folder.
      image: The index of the image.
      photos: A folder with photographs, see `pictures_of`, or None.
      view: The transform of the model's input, such as `Transform.evaluate`; None for the whole photograph.

    Raises:
      UserError: If the folder lacks the image, or the file is not an image.
    """
    if photos is not None:
        path = _find(photos, split.image_ids[image])
        return decode(path, view) if view else np.asarray(decode(path, _reduced, smallest=EDGE))
    return None if split.pixels is None else split.pixels[image]


def _find(photos: Path, image_id: str) -> Path:
    """Returns the file of an image."""
    paths = [] if leads_out(image_id) else [photos / f'{image_id}{suffix}' for suffix in SUFFIXES]
    existing = [path for path in paths if os.path.isfile(path)]
    if not existing:
        raise UserError(f'{photos} has no file {image_id}; give the --photos whose files are named by the image ids')
    if len(existing) > 1 and existing[0] != paths[0]:
        raise UserError(
            f'{existing[0]} and {existing[1]} both have the name of the image {image_id}; rename one of them'
        )
    return existing[0]
