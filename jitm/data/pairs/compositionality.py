"""Choices between captions, or between images, that are nearly the same: tests of compositional understanding.

A choice is one or several images with several captions, and some pairs of them match. The format of jitm is JSONL with
the fields of `Choice`. The published files of SugarCrepe (Hsieh et al., 2023) and SugarCrepe++, ARO (Yuksekgonul et
al., 2023), Winoground (Thrush et al., 2022) and BiVLC (Miranda et al., 2024) are read, too.
"""

from __future__ import annotations  # Pillow is optional

import contextlib
import json
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np

from jitm.config.hints import check_value
from jitm.data.images.transforms import decode
from jitm.data.scenes import SceneSplit
from jitm.data.scenes.parser import falsify
from jitm.errors import ArgumentError, UserError
from jitm.files import parse_json, read_bytes, split_lines

if TYPE_CHECKING:
    from PIL import Image

Row = Mapping[str, Any]
MAX_BOX = 2  # sides of a box relative to its photo


class Choice(NamedTuple):
    """Some images and captions; some pairs of them match.

    Attributes:
      id: Its name in the file.
      group: The test that it belongs to, whose categories are averaged, such as `SugarCrepe replace`.
      category: The kind of difference between the captions, such as `replace_att`.
      images: The names of the images.
      captions: The captions.
      matches: The positions of matching images and captions.
      box: x, y, width and height in pixels, to which the images are cut; None for whole images. The part outside
        of an image is black.
    """

    id: str
    group: str
    category: str
    images: tuple[str, ...]
    captions: tuple[str, ...]
    matches: tuple[tuple[int, int], ...]
    box: tuple[float, ...] | None = None


class Own(TypedDict, total=False):
    """A row in the format of jitm, see `Choice`."""

    group: str
    category: str
    images: Sequence[str]
    captions: Sequence[str]
    matches: Sequence[Sequence[int]]
    box: Sequence


def _own(row: Row, name: str) -> Choice:
    """Returns the choice in a row in the format of jitm; an error as of `Format.read`, or an ArgumentError."""
    check_value('', row, Own, argument=True)
    matches = tuple(map(tuple, row['matches']))
    parts = {key: tuple(row[key]) for key in ('images', 'captions', 'box') if key in row}
    return Choice(str(row['id']), row['group'], row['category'], matches=matches, **parts)


class Format(NamedTuple):
    """Which fields of the rows of a published file are the parts of a choice.

    Attributes:
      group: The group, where `{}` is the first word of the name of the file.
      category: The function from a row and the name of the file to the category.
      images, captions, box: The fields with the images, the captions and the box.
      matches: See `Choice`.
    """

    group: str
    category: Callable[[Row, str], str]
    images: tuple[str, ...]
    captions: tuple[str, ...]
    matches: tuple[tuple[int, int], ...] = ((0, 0),)
    box: tuple[str, ...] = ()

    def read(self, row: Row, name: str) -> Choice:
        """Returns the choice in a row of a file with a name.

        Raises:
          KeyError, TypeError: If a field is missing or wrong.
        """
        parts = [tuple(map(row.__getitem__, keys)) for keys in (self.images, self.captions)]
        box = tuple(map(row.__getitem__, self.box))
        group = self.group.format(name.partition('_')[0])
        return Choice(str(row['id']), group, self.category(row, name), *parts, self.matches, box or None)


ARO = {
    'images': ('image_path',),
    'captions': ('true_caption', 'false_caption'),
    'box': ('bbox_x', 'bbox_y', 'bbox_w', 'bbox_h'),
}
TWO = ((0, 0), (1, 1))
FORMATS: dict[str, Callable[[Row, str], Choice]] = {  # a field of the first row -> reader; the first one counts
    'matches': _own,
    'negative_image': Format(
        'BiVLC',
        lambda row, _: f'{row["type"]}_{row["subtype"]}'.lower(),
        images=('image', 'negative_image'),
        captions=('caption', 'negative_caption'),
        matches=TWO,
    ).read,
    'caption2': Format(
        'SugarCrepe++ {}',
        lambda _, name: name,
        images=('filename',),
        captions=('caption', 'caption2', 'negative_caption'),
        matches=((0, 0), (0, 1)),
    ).read,
    'negative_caption': Format(
        'SugarCrepe {}', lambda _, name: name, images=('filename',), captions=('caption', 'negative_caption')
    ).read,
    'relation_name': Format('ARO relation', lambda row, _: row['relation_name'], **ARO).read,
    'attributes': Format('ARO attribute', lambda row, _: '_'.join(row['attributes']), **ARO).read,
    'collapsed_tag': Format(
        'Winoground',
        lambda row, _: row['collapsed_tag'],
        images=('image_0', 'image_1'),
        captions=('caption_0', 'caption_1'),
        matches=TWO,
    ).read,
}


def read(path: str) -> tuple[list[Choice], dict[str, bytes]]:
    """Reads a file of choices in a format of `FORMATS`: JSON, JSONL, or Parquet with images in it.

    Returns:
      The choices, and name -> image file for images that are in the file itself.

    Raises:
      UserError: If the file cannot be read, has another format, or has a choice that cannot be decided.
    """
    rows = _rows(Path(path))
    first = next(iter(rows.values()), {})
    reader = next((FORMATS[key] for key in FORMATS if key in first), None)
    if reader is None:
        fields = ', '.join(FORMATS)
        raise UserError(f'{path} has no choices of a known format: give a file whose rows have one of {fields}')
    choices = []
    pictures = {}
    for where, row in rows.items():
        for key, value in row.items():
            if isinstance(value, dict) and value.get('bytes'):
                row[key] = f'{where}, {key}'
                pictures[row[key]] = value['bytes']
        try:
            choice = reader(row, Path(path).stem)
        except ArgumentError as error:
            raise UserError(f'{where}: {error}') from None
        except (KeyError, TypeError) as error:
            problem = f'no {error}' if isinstance(error, KeyError) else f'a wrong field ({error})'
            raise UserError(f'{where} has {problem}: give the file as it was published, or correct it') from None
        _check(choice, where)
        choices.append(choice)
    return choices, pictures


def _check(choice: Choice, where: str) -> None:
    """Raises a UserError unless a choice can be decided."""
    images = len(choice.images)
    captions = len(choice.captions)
    if not all(isinstance(text, str) and text.strip() for text in (*choice.images, *choice.captions)):
        raise UserError(f'{where} has a blank caption or name of an image: write it, or remove the choice')
    if len({*choice.images}) < images or len({*choice.captions}) < captions:
        raise UserError(f'{where} has a caption or an image twice, which always ties: correct or remove the choice')
    pairs = {*np.ndindex(images, captions)}
    if not 0 < len({*choice.matches}) < len(pairs) or not pairs.issuperset(choice.matches):
        raise UserError(f"{where} has wrong 'matches': some pairs must match and others not, by positions from 0")
    box = (0, 0, 1, 1) if choice.box is None else choice.box
    numbers = all(type(side) in (int, float) and abs(side) <= sys.float_info.max for side in box)
    if not numbers or len(box) != 4 or min(box[2:]) <= 0:
        remedy = 'give x, y, and a width and height above 0, in pixels'
        raise UserError(f'{where} has the box {reprlib.repr(box)}: {remedy}')


def _rows(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the rows of a file with an `id`, without missing values, by their places for messages."""
    try:
        content = read_bytes(path)
        if path.suffix == '.parquet':
            import pyarrow.parquet  # comes with tensorflow-datasets; slow to import

            rows = dict(enumerate(pyarrow.parquet.read_table(pyarrow.BufferReader(content)).to_pylist()))
        else:
            rows = _parse(content.decode('utf-8-sig'))
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f'{path} cannot be read ({reason}): give the path of a file of choices') from None
    except ValueError as error:  # includes pyarrow's errors
        raise UserError(f'{path} is damaged ({str(error).splitlines()[0]}): restore the file') from None
    named = {}
    for key, row in rows.items():
        where = f"{path}, entry '{key}'"
        if not isinstance(row, dict):
            raise UserError(f'{where} is not an object with fields: give a file of choices')
        named[where] = {'id': key} | {name: value for name, value in row.items() if value is not None}
    return named


def _parse(text: str) -> dict[Any, Any]:
    """Parses JSON, an object or a list of rows, or else JSONL, whose rows are named `line 1` and so on."""
    rows = None
    with contextlib.suppress(ValueError):
        rows = parse_json(text)
    rows = dict(enumerate(rows)) if isinstance(rows, list) else rows
    if isinstance(rows, dict) and all(isinstance(row, dict) for row in rows.values()):
        return rows
    rows = {}
    for number, line in enumerate(split_lines(text), 1):
        if line.strip():
            try:
                rows[f'line {number}'] = parse_json(line)
            except ValueError:
                raise ValueError(f'line {number} is not JSON') from None
    return rows


def of_scenes(split: SceneSplit) -> list[Choice]:
    """Makes the choices of `scenes`: one of each kind in `parser.KINDS` for each caption, with known truth."""
    choices = []
    for text, (caption, image) in enumerate(zip(split.captions, split.image_of_text, strict=True)):
        for kind, false_caption in falsify(caption, split.graphs[image], np.random.default_rng(text)).items():
            images = (split.image_ids[image],)
            choices.append(Choice(f'{text}-{kind}', 'scenes', kind, images, (caption, false_caption), ((0, 0),)))
    return choices


class Cut(list):
    """Image files, (path or content, box or None, name in messages), which are cut to their boxes when indexed."""

    def __getitem__(self, index: int) -> str | Image.Image:
        """Returns a path, or a decoded photo."""
        file, box, name = super().__getitem__(index)
        if isinstance(file, str) and box is None:
            return file
        part = decode(file, lambda photo: _cut(photo, box, name), name)
        return decode(part, lambda _: part, name)  # a part may be too narrow


def _cut(photo: Image.Image, box: tuple[float, ...] | None, name: str) -> Image.Image:
    """Returns the part of a photo in a box; raises a UserError if that has none of the photo, or is far larger."""
    x, y, width, height = box or (0, 0, *photo.size)
    large = width > MAX_BOX * photo.width or height > MAX_BOX * photo.height
    left, top, right, bottom = (0, 0, 0, 0) if large else map(round, (x, y, x + width, y + height))
    if min(right, photo.width) <= max(left, 0) or min(bottom, photo.height) <= max(top, 0):
        raise UserError(
            f'{name} has the box {box}, but its photo has {photo.width} x {photo.height} pixels: give a box that has '
            f'some of it and sides of at most {MAX_BOX} times its own'
        )
    return photo.crop((left, top, right, bottom))


def as_line(choice: Choice, **fields: Any) -> str:
    """Returns a choice, with other fields, as a line of jitm's format."""
    return json.dumps(choice._asdict() | fields, ensure_ascii=False) + '\n'
