"""Choices between captions, or between images, that are nearly the same: tests of compositional understanding.

A choice is one or several images with several captions, and some pairs of them match. The format of jitm is JSONL with
the fields of `Choice`. The published files of SugarCrepe (Hsieh et al., 2023) and SugarCrepe++, ARO (Yuksekgonul et
al., 2023), Winoground (Thrush et al., 2022) and BiVLC (Miranda et al., 2024) are read, too.
"""

from __future__ import annotations  # Pillow is optional

import json
import reprlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jitm.data.images.transforms import decode
from jitm.data.scenes import SceneSplit
from jitm.data.scenes.parser import falsify
from jitm.errors import UserError
from jitm.files import parse_json, read_bytes, split_lines

if TYPE_CHECKING:
    from PIL import Image

Row = Mapping[str, Any]
ONE, TWO = ((0, 0),), ((0, 0), (1, 1))  # matches of the first caption, and of two pairs
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


class _Fields(NamedTuple):
    """The fields of a row of a file; a missing or wrong one is a UserError that names the row."""

    row: Row
    where: str
    stem: str
    id: str

    def get(self, key: str, kind: type | tuple[type, ...] = str) -> Any:
        value = self.row.get(key)
        if not isinstance(value, kind) or value == '':
            problem = 'no' if value in (None, '') else 'a wrong'
            raise UserError(f"{self.where} has {problem} '{key}': give the file as it was published, or correct it")
        return value

    def texts(self, *keys: str) -> tuple[str, ...]:
        return tuple(map(self.get, keys))


def _sugarcrepe(row: _Fields) -> Choice:
    second = ('caption2',) if 'caption2' in row.row else ()
    group = f'SugarCrepe{"++" * len(second)} {row.stem.partition("_")[0]}'
    captions = row.texts('caption', *second, 'negative_caption')
    matches = tuple((0, caption) for caption in range(1 + len(second)))
    return Choice(row.id, group, row.stem, row.texts('filename'), captions, matches)


def _aro(row: _Fields) -> Choice:
    if 'relation_name' in row.row:
        names = 'ARO relation', row.get('relation_name')
    else:
        names = 'ARO attribute', '_'.join(map(str, row.get('attributes', list)))
    box = tuple(row.get(f'bbox_{side}', (int, float)) for side in 'xywh')
    return Choice(row.id, *names, row.texts('image_path'), row.texts('true_caption', 'false_caption'), ONE, box)


def _winoground(row: _Fields) -> Choice:
    images = row.texts('image_0', 'image_1')
    captions = row.texts('caption_0', 'caption_1')
    return Choice(row.id, 'Winoground', row.get('collapsed_tag'), images, captions, TWO)


def _bivlc(row: _Fields) -> Choice:
    category = '_'.join(row.texts('type', 'subtype')).lower()
    images = row.texts('image', 'negative_image')
    captions = row.texts('caption', 'negative_caption')
    return Choice(row.id, 'BiVLC', category, images, captions, TWO)


def _own(row: _Fields) -> Choice:
    images, captions, matches = (tuple(row.get(key, list)) for key in ('images', 'captions', 'matches'))
    try:
        pairs = tuple((i, c) for i, c in matches)
        box = None if row.row.get('box') is None else tuple(row.row['box'])
        if {type(n) for pair in pairs for n in pair} - {int}:
            raise TypeError
    except (TypeError, ValueError):
        problem = "'matches' are pairs [image, caption] of whole numbers, 'box' 4 numbers"
        raise UserError(f'{row.where}: {problem}; correct them') from None
    return Choice(row.id, *row.texts('group', 'category'), images, captions, pairs, box)


FORMATS: dict[tuple[str, ...], Callable[[_Fields], Choice]] = {  # keys of the first row -> reader
    ('captions', 'matches'): _own,
    ('caption', 'negative_caption', 'negative_image'): _bivlc,
    ('filename', 'negative_caption'): _sugarcrepe,
    ('true_caption', 'false_caption'): _aro,
    ('caption_0', 'caption_1'): _winoground,
}


def read(path: str) -> tuple[list[Choice], dict[str, bytes]]:
    """Reads a file of choices in a format of `FORMATS`: JSON, JSONL, or Parquet with images in it.

    Returns:
      The choices, and name -> image file for images that are in the file itself.

    Raises:
      UserError: If the file cannot be read, has another format, or has a choice that cannot be decided.
    """
    rows = _rows(Path(path))
    pictures = {}
    for where, row in rows:
        for key in [key for key, value in row.items() if isinstance(value, dict) and value.get('bytes')]:
            name = f'{where}, {key}'
            pictures[name], row[key] = row[key]['bytes'], name
    reader = next((reader for keys, reader in FORMATS.items() if rows and {*keys} <= rows[0][1].keys()), None)
    if reader is None:
        keys = '; '.join(', '.join(keys) for keys in FORMATS)
        raise UserError(f'{path} has no choices of a known format: give a file whose rows have one of {keys}')
    choices = [reader(_Fields(row, where, Path(path).stem, str(row['id']))) for where, row in rows]
    for (where, _), choice in zip(rows, choices, strict=True):
        if not all(isinstance(text, str) and text.strip() for text in (*choice.images, *choice.captions)):
            raise UserError(f'{where} has a blank caption or name of an image: write it, or remove the choice')
        if any(len({*names}) < len(names) for names in (choice.images, choice.captions)):
            raise UserError(f'{where} has a caption or an image twice, which always ties: correct or remove the choice')
        within = all(0 <= i < len(choice.images) and 0 <= c < len(choice.captions) for i, c in choice.matches)
        if not within or not 0 < len({*choice.matches}) < len(choice.images) * len(choice.captions):
            raise UserError(f"{where} has wrong 'matches': some pairs must match and others not, by positions from 0")
        box = (0, 0, 1, 1) if choice.box is None else choice.box
        numbers = all(type(side) in (int, float) and abs(side) <= sys.float_info.max for side in box)
        if not numbers or len(box) != 4 or min(box[2:]) <= 0:
            raise UserError(
                f'{where} has the box {reprlib.repr(box)}: give x, y, and a width and height above 0, in pixels'
            )
    return choices, pictures


def _rows(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Reads the rows of a file with an `id`, each with its place for messages."""
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
    for key, row in rows.items():
        if not isinstance(row, dict):
            raise UserError(f"{path}, entry '{key}' is not an object with fields: give a file of choices")
    return [(f"{path}, entry '{key}'", {'id': key} | row) for key, row in rows.items()]


def _parse(text: str) -> dict[Any, Any]:
    """Parses JSON, an object or a list of rows, or else JSONL, whose rows are named `line 1` and so on."""
    try:
        content = parse_json(text)
        rows = content if isinstance(content, dict) else dict(enumerate(content))
        if all(isinstance(row, dict) for row in rows.values()):
            return rows
    except (ValueError, TypeError):
        pass
    rows = {}
    for n, line in enumerate(split_lines(text), 1):
        try:
            rows |= {f'line {n}': parse_json(line)} if line.strip() else {}
        except ValueError:
            raise ValueError(f'line {n} is not JSON') from None
    return rows


def of_scenes(split: SceneSplit) -> list[Choice]:
    """Makes the choices of `scenes`: one of each kind in `parser.KINDS` for each caption, with known truth."""
    choices = []
    for text, (caption, image) in enumerate(zip(split.captions, split.image_of_text, strict=True)):
        for kind, false_caption in falsify(caption, split.graphs[image], np.random.default_rng(text)).items():
            images = (split.image_ids[image],)
            choices.append(Choice(f'{text}-{kind}', 'scenes', kind, images, (caption, false_caption), ONE))
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
