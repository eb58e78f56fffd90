"""Choices between captions, or between images, that are nearly the same: tests of compositional understanding.

One choice is one or several images with several captions, some of which belong together. The format of jitm is JSONL
with the fields of `Choice`. Readers take the published files of SugarCrepe (Hsieh et al., 2023) and SugarCrepe++, ARO
(Yuksekgonul et al., 2023), Winoground (Thrush et al., 2022) and BiVLC (Miranda et al., 2024).
"""

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jitm.data.scenes import SceneSplit
from jitm.data.scenes.falsehoods import falsify
from jitm.data.transforms import decode
from jitm.errors import UserError
from jitm.files import open_file, parse_json

Row = Mapping[str, Any]
Box = tuple[float, float, float, float]
TWO_PAIRS = ((0, 0), (1, 1))


class Choice(NamedTuple):
    """Some images and captions, of which some belong together.

    Attributes:
      id: Its name in the file.
      group: The test that it belongs to, whose categories are averaged, such as `SugarCrepe replace`.
      category: What differs between the captions, such as `replace_att`.
      images: The names of the images.
      captions: The captions.
      matches: The images and captions that belong together, by their positions.
      box: x, y, width and height in pixels, to which the images are cut; None for whole images.
    """

    id: str
    group: str
    category: str
    images: tuple[str, ...]
    captions: tuple[str, ...]
    matches: tuple[tuple[int, int], ...]
    box: Box | None = None


def _get(row: Row, key: str, kind: type | tuple[type, ...], where: str) -> Any:
    value = row.get(key)
    if not isinstance(value, kind) or isinstance(value, bool) or value == '':
        problem = 'no' if value in (None, '') else 'a wrong'
        raise UserError(f"{where} has {problem} '{key}': give the file as it was published, or correct it")
    return value


def _texts(row: Row, keys: Iterable[str], where: str) -> tuple[str, ...]:
    return tuple(_get(row, key, str, where) for key in keys)


def _sugarcrepe(row: Row, where: str, path: Path) -> Choice:
    keys, name, matches = ('caption', 'negative_caption'), 'SugarCrepe', ((0, 0),)
    if 'caption2' in row:
        keys, name, matches = ('caption', 'caption2', 'negative_caption'), 'SugarCrepe++', ((0, 0), (0, 1))
    images, captions = _texts(row, ['filename'], where), _texts(row, keys, where)
    return Choice(str(row['id']), f'{name} {path.stem.partition("_")[0]}', path.stem, images, captions, matches)


def _aro(row: Row, where: str, path: Path) -> Choice:
    if 'relation_name' in row:
        group, category = 'ARO relation', _get(row, 'relation_name', str, where)
    else:
        group, category = 'ARO attribute', '_'.join(map(str, _get(row, 'attributes', list, where)))
    images, captions = _texts(row, ['image_path'], where), _texts(row, ('true_caption', 'false_caption'), where)
    box = tuple(_get(row, f'bbox_{side}', (int, float), where) for side in 'xywh')
    return Choice(str(row['id']), group, category, images, captions, ((0, 0),), box)


def _winoground(row: Row, where: str, path: Path) -> Choice:
    category = _get(row, 'collapsed_tag', str, where)
    images, captions = _texts(row, ('image_0', 'image_1'), where), _texts(row, ('caption_0', 'caption_1'), where)
    return Choice(str(row['id']), 'Winoground', category, images, captions, TWO_PAIRS)


def _bivlc(row: Row, where: str, path: Path) -> Choice:
    category = '_'.join(_texts(row, ('type', 'subtype'), where)).lower()
    images = _texts(row, ('image', 'negative_image'), where)
    captions = _texts(row, ('caption', 'negative_caption'), where)
    return Choice(str(row['id']), 'BiVLC', category, images, captions, TWO_PAIRS)


def _own(row: Row, where: str, path: Path) -> Choice:
    names = _texts(row, ('id', 'group', 'category'), where)
    images, captions, matches = (tuple(_get(row, key, list, where)) for key in ('images', 'captions', 'matches'))
    try:
        pairs, box = tuple((int(i), int(c)) for i, c in matches), tuple(map(float, row.get('box') or ())) or None
        if box and len(box) != 4:
            raise ValueError
    except (TypeError, ValueError):
        raise UserError(f"{where}: 'matches' are pairs [image, caption] and 'box' 4 numbers; correct them") from None
    return Choice(*names, images, captions, pairs, box)


FORMATS: dict[tuple[str, ...], Callable[[Row, str, Path], Choice]] = {  # keys of the first row -> reader
    ('captions', 'matches'): _own,
    ('caption', 'negative_caption', 'negative_image'): _bivlc,
    ('filename', 'negative_caption'): _sugarcrepe,
    ('true_caption', 'false_caption'): _aro,
    ('caption_0', 'caption_1'): _winoground,
}


def read(path: str | Path) -> tuple[list[Choice], dict[str, bytes]]:
    """Reads a file of choices.

    Args:
      path: A file of `FORMATS`: JSON, JSONL, or Parquet with images in it.

    Returns:
      The choices, and name -> image file for images that are in the file itself.

    Raises:
      UserError: If the file cannot be read, is of another format, or has a choice that nothing decides.
    """
    path, pictures = Path(path), {}
    rows = [(where, _take_pictures(row, where, path, pictures)) for where, row in _rows(path)]
    reader = next((reader for keys, reader in FORMATS.items() if rows and {*keys} <= rows[0][1].keys()), None)
    if reader is None:
        keys = '; '.join(', '.join(keys) for keys in FORMATS)
        raise UserError(f'{path} has no choices of a known format: give a file whose rows have one of {keys}')
    choices = [reader(row, where, path) for where, row in rows]
    for (where, _), choice in zip(rows, choices, strict=True):
        _check(choice, where)
    return choices, pictures


def _check(choice: Choice, where: str) -> None:
    """Raises a UserError unless a choice can be decided."""
    if not all(isinstance(text, str) and text.strip() for text in (*choice.images, *choice.captions)):
        raise UserError(f'{where} has a blank caption or name of an image: write it, or remove the choice')
    within = all(0 <= i < len(choice.images) and 0 <= c < len(choice.captions) for i, c in choice.matches)
    if not within or not 0 < len({*choice.matches}) < len(choice.images) * len(choice.captions):
        raise UserError(f"{where} has wrong 'matches': some pairs must match and others not, by positions from 0")


def _rows(path: Path) -> list[tuple[str, Row]]:
    """Reads the rows of a file, each with its place for messages."""
    try:
        with open_file(path) as file:
            content = file.read()
        if path.suffix == '.parquet':
            import pyarrow.parquet  # of tensorflow-datasets; slow to import

            rows = pyarrow.parquet.read_table(pyarrow.BufferReader(content)).to_pylist()
            return [(f'{path}, row {n}', {'id': n, **row}) for n, row in enumerate(rows)]
        return _parse(content.decode('utf-8-sig'), path)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f'{path} cannot be read ({reason}): give the path of a file of choices') from None
    except ValueError as error:  # pyarrow's errors are such, too
        raise UserError(f'{path} is damaged ({str(error).splitlines()[0]}): restore the file') from None


def _parse(text: str, path: Path) -> list[tuple[str, Row]]:
    """Parses JSON, an object or a list of rows, or else JSONL."""
    try:
        content = parse_json(text)
        items = content if isinstance(content, dict) else dict(enumerate(content))
        rows = [(f"{path}, entry '{key}'", row) for key, row in items.items()]
        if rows and not isinstance(rows[0][1], dict):  # the only line of a JSONL file
            rows = [(f'{path}, line 1', content)]
    except (ValueError, TypeError):
        lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
        rows = []
        for n, line in lines:
            try:
                rows.append((f'{path}, line {n}', parse_json(line)))
            except ValueError:
                raise ValueError(f'line {n} is not JSON') from None
    for where, row in rows:
        if not isinstance(row, dict):
            raise UserError(f'{where} is not an object with fields: give a file of choices')
    return [(where, {'id': where.rpartition(' ')[2].strip("'")} | row) for where, row in rows]


def _take_pictures(row: Row, where: str, path: Path, pictures: dict[str, bytes]) -> Row:
    """Moves the image files in a row of Parquet to `pictures`, and leaves their names."""
    embedded = {key: value for key, value in row.items() if isinstance(value, dict) and value.get('bytes')}
    names = {key: f'{path.stem}/{row["id"]}/{key}' for key in embedded}
    pictures.update({names[key]: value['bytes'] for key, value in embedded.items()})
    return row | names


def of_scenes(split: SceneSplit, texts: Sequence[int]) -> list[Choice]:
    """Makes the choices of `scenes`: for some captions one of each kind of `falsehoods.KINDS`, with known truth."""
    choices = []
    for text in map(int, texts):
        image, caption = int(split.image_of_text[text]), split.captions[text]
        false = falsify(caption, split.graphs[image], np.random.default_rng(text))
        for kind, other in false.items():
            names = split.image_ids[image], f'{text}-{kind}'
            choices.append(Choice(names[1], 'scenes', kind, names[:1], (caption, other), ((0, 0),)))
    return choices


class Cut(Sequence):
    """Image files, some of them cut to a box, as PNG; they are read when they are indexed."""

    def __init__(self, files: Sequence[str | bytes], boxes: Sequence[Box | None]):
        """Takes I paths or contents, and for each a box as of `Choice`, or None."""
        self._files, self._boxes = files, boxes

    def __len__(self) -> int:
        """Returns I."""
        return len(self._files)

    def __getitem__(self, index: int) -> str | bytes:
        """Returns a path, or the content of a file."""
        file, box = self._files[index], self._boxes[index]
        if box is None:
            return file
        x, y, width, height = box
        content = io.BytesIO()
        decode(file, lambda photo: photo.crop((x, y, x + width, y + height)).save(content, 'PNG', compress_level=1))
        return content.getvalue()


def as_line(choice: Choice, **further: Any) -> str:
    """Returns a choice, with other fields, as a line of jitm's format."""
    return json.dumps(choice._asdict() | further, ensure_ascii=False) + '\n'
