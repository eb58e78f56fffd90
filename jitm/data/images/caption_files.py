"""The captions of images in one file, in the formats that data sets of photos have.

The content of a file decides its format: the columns in its first line and their delimiter, or the keys of
its objects.
"""

import ast
import contextlib
import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jitm.errors import UserError, printable
from jitm.files import open_file, parse_json, read_text, split_lines

SUFFIXES = ('.avif', '.bmp', '.gif', '.jfif', '.jp2', '.jpeg', '.jpg', '.png', '.tif', '.tiff', '.webp')
CAPTION = ('captions', 'caption', 'text', 'comment', 'title', 'raw', 'description')  # keys or columns of captions
DEV = ('dev', 'val', 'validation', 'valid')  # names of the same split
RESTVAL = 'restval'  # images of COCO's validation set that most published systems train on
SPLITS = {*DEV, 'train', 'test', RESTVAL}
ID = (int, float, str)  # types of COCO's ids
DELIMITERS = '\t|;,'
# An image at the start of a line.
NAME = rf'\s*("(?:[^"]|"")*"|.*?(?:{"|".join(map(re.escape, SUFFIXES))})(?:#\d+)?)\s*'
NAMED = {mark: re.compile(NAME + re.escape(mark), re.IGNORECASE) for mark in DELIMITERS}  # the name and its delimiter
NUMBERED = re.compile(r'caption_(\d+)')
PIECE = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""  # a text in Python

Row = tuple[str, dict[str, Any]]  # the file and line or entry, for messages, and the columns or keys


class Listed(NamedTuple):
    """An image as a file lists it.

    Attributes:
      name: The path of the image file, relative to one of the folders of a `Listing`.
      captions: Its captions as the file has them, not checked: texts, null or anything else.
      where: The file and the line or entry, for messages.
      split: The name of its split; '' if the file does not state it.
    """

    name: str
    captions: list[Any]
    where: str
    split: str = ''


class Columns(NamedTuple):
    """The names that the columns or keys of images and captions may have, the first ones first."""

    image: tuple[str, ...] = ('file_name', 'filename', 'image', 'image_name', 'image_path', 'image_file', 'filepath')
    caption: tuple[str, ...] = CAPTION

    def known(self, names: Sequence[str]) -> bool:
        """Returns whether some names have one of an image and one of captions."""
        caption = any(name in self.caption or NUMBERED.fullmatch(name) for name in names)
        return caption and any(name in self.image for name in names)

    def listed(self, row: dict[str, Any], where: str) -> Listed:
        """Returns the image of a row."""
        numbered = sorted(filter(NUMBERED.fullmatch, row), key=lambda name: int(NUMBERED.fullmatch(name)[1]))
        if numbered and (caption_column := next((name for name in self.caption[:2] if name in row), None)):
            raise UserError(f"{where} has '{caption_column}' and '{numbered[0]}': leave one of these columns or keys")
        captions = [row[name] for name in numbered] if numbered else captions_in(row, where, self.caption)
        name = next((name for name in self.image if name in row), self.image[0])
        split = str(row.get('split') or '').strip()
        return Listed(_get(row, name, str, where), captions, where, split.lower() if split.lower() in SPLITS else split)


class Unknown(Exception):
    """A file has no captions; the message describes its content."""


def captions_in(row: dict[str, Any], where: str, keys: Sequence[str] = CAPTION) -> list[Any]:
    """Returns the captions in an object or a row of a table: a text, a list of texts, or one as JSON or Python.

    They are not checked. A row without the keys has the caption None.

    Raises:
      UserError: If a list in Python has no commas.
    """
    captions = next((row[key] for key in keys if key in row), None)
    if isinstance(captions, str) and (text := captions.strip())[:1] + text[-1:] in ('[]', '()'):
        for parse in (parse_json, ast.literal_eval):
            with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                parsed = parse(text)
                if isinstance(parsed, list | tuple) and {*map(type, parsed)} <= {str, type(None)}:
                    if parse is ast.literal_eval and text.count(',') < len(re.findall(PIECE, text)) - 1:
                        raise UserError(f'{where} has a list of captions without commas between them: write it as JSON')
                    return [*parsed]
    return captions if isinstance(captions, list) else [captions]


def _get(item: dict, key: str, kinds: type | tuple[type, ...], where: str) -> Any:
    if not isinstance(item.get(key), kinds):
        raise UserError(f"{where} has no valid '{key}': add it")
    return item[key]


def _entries(path: Path, items: Any, key: str) -> list[Row]:
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise UserError(f"{path} has no list '{key}' of objects: write it again")
    return [(f'{path}, {key}[{number}]', item) for number, item in enumerate(items)]


def _read_json(path: Path, columns: Columns) -> list[Row]:
    """Reads COCO's annotations, Karpathy's data sets, and lists of objects with an image and captions."""
    try:
        tree = parse_json(read_text(path))
    except ValueError:
        return _read_json_lines(path, columns)
    if isinstance(tree, dict) and 'annotations' in tree:
        return _coco(path, tree, columns)
    if isinstance(tree, dict) and 'images' in tree:
        return [(where, _karpathy(image, where, columns)) for where, image in _entries(path, tree['images'], 'images')]
    if not isinstance(tree, list) or not tree or not isinstance(tree[0], dict):
        raise Unknown(f'has {printable(str([*tree] if isinstance(tree, dict) else tree))[:80]}')
    return _entries(path, tree, '')


def _karpathy(image: dict, where: str, columns: Columns) -> dict[str, Any]:
    folder = image.get('filepath')
    split = _get(image, 'split', str, where)
    sentences = captions_in(image, where, ['sentences'])
    captions = [sentence.get('raw') if isinstance(sentence, dict) else sentence for sentence in sentences]
    name = Path(folder if isinstance(folder, str) else '') / _get(image, 'filename', str, where)
    return {columns.image[0]: str(name), columns.caption[0]: captions, 'split': split}


def _coco(path: Path, tree: dict, columns: Columns) -> list[Row]:
    rows: dict[int | float | str, Row] = {}
    for where, item in _entries(path, tree.get('images'), 'images'):
        name = _get(item, 'file_name', str, where)
        number = _get(item, 'id', ID, where)
        row = where, {columns.image[0]: name, columns.caption[0]: []}
        if rows.setdefault(number, row)[1][columns.image[0]] != name:
            raise UserError(f'{where} has the id {number} of another image: give each image an id of its own')
    for where, item in _entries(path, tree['annotations'], 'annotations'):
        image = _get(item, 'image_id', ID, where)
        if image not in rows:
            raise UserError(f'{where} has the image_id {image}, which is not an id of its images: add the image')
        rows[image][1][columns.caption[0]].append(item.get('caption'))
    return [*rows.values()]


def _read_json_lines(path: Path, columns: Columns) -> list[Row]:
    """Reads lines of JSON objects.

    Raises:
      Unknown: If the first line is none.
      UserError: If another line is none.
    """
    rows = []
    for number, line in enumerate(split_lines(read_text(path)), 1):
        if not line.strip():
            continue
        try:
            rows.append((f'{path}, line {number}', {**parse_json(line)}))
        except (ValueError, TypeError):
            problem = f'line {number} is not a JSON object'
            raise (UserError(f'{path}, {problem}: write it again') if rows else Unknown(problem)) from None
    return rows


def _read_table(path: Path, columns: Columns) -> list[Row]:
    """Reads a table with a header, or lines of the name of an image and a caption without one."""
    with open_file(path) as file:
        first = file.readline(2**16)
    try:
        first = first.decode('utf-8-sig').strip()
    except UnicodeDecodeError:
        raise Unknown('is not UTF-8 in line 1') from None
    for delimiter in DELIMITERS:
        names = [_unquote(name) for name in first.split(delimiter)]
        names = [name if name in columns.image + columns.caption else name.lower() for name in names]
        header = columns.known(names)
        if header:
            break
        named = NAMED[delimiter].match(first)
        if named:
            numbered = re.match(rf'\s*\d+\s*{re.escape(delimiter)}', first[named.end() :])
            names = [columns.image[0], *(['number'] if numbered else []), columns.caption[0]]
            break
    else:
        raise Unknown("starts with '{}'".format(printable(first.replace('\t', r'\t'))[:80]))
    text = read_text(path)
    rows = _csv_rows(text, delimiter, len(names)) or [*_lines(path, text, delimiter, names, columns)]
    rows = [(f'{path}, line {number}', dict(zip(names, fields, strict=True))) for number, fields in rows[header:]]
    wrong = next((where for where, row in rows if not header and not row.get('number', '0').isdecimal()), None)
    if wrong:
        raise UserError(f'{wrong} has no number of its caption, but line 1 has one: add a header such as image,caption')
    image = next(name for name in columns.image if name in names)
    return [(where, row | {image: re.sub(r'#\d+$', '', row[image])}) for where, row in rows]


def _csv_rows(text: str, delimiter: str, width: int) -> list[tuple[int, list[str]]] | None:
    """Returns the rows of CSV with their last lines; None if the text has other rows, such as captions with commas."""
    reader = csv.reader(io.StringIO(text, newline=''), delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        rows = [(reader.line_num, [*map(str.strip, fields)]) for fields in reader if any(map(str.strip, fields))]
    except csv.Error:
        return None
    starts = ((field, line.end()) for _, fields in rows for field in fields for line in re.finditer('\n', field))
    swallowed = any(NAMED[delimiter].match(*start) for start in starts)  # a row between two quotes
    return None if swallowed or any(len(fields) != width for _, fields in rows) else rows


def _lines(
    path: Path, text: str, delimiter: str, names: list[str], columns: Columns
) -> Iterator[tuple[int, list[str]]]:
    """Yields the fields of each line, where the caption is the remainder after the other columns."""
    caption = next((names.index(name) for name in columns.caption if name in names), None)
    for number, line in enumerate(split_lines(text), 1):
        if not line.strip():
            continue
        named = NAMED[delimiter].match(line) if names[0] in columns.image else None
        fields = [named[1], *line[named.end() :].split(delimiter)] if named else line.split(delimiter)
        surplus = len(fields) - len(names)
        joined = re.fullmatch(r'\s*(\d+)(?:\s\s+|\t)(.+)', fields[-1])
        if joined and surplus == -1 and caption == len(names) - 1:
            fields[-1:], surplus = joined.groups(), 0  # a line of Flickr30k's results.csv lacks this delimiter
        if surplus > 0 and caption is not None:
            fields[caption : caption + surplus + 1] = [delimiter.join(fields[caption : caption + surplus + 1])]
        elif surplus:
            raise UserError(
                f'{path}, line {number} has {len(fields)} fields, but the header has {len(names)}: add what is '
                f"missing, or put quotes around a caption with '{delimiter}'"
            )
        if delimiter in ',;' and any(field.lstrip().startswith('"') and field.count('"') % 2 for field in fields):
            raise UserError(f'{path}, line {number} has a field with an open quote: close it')
        yield number, [*map(_unquote, fields)]


def _unquote(field: str) -> str:
    """Removes blanks around a field and the quotes of CSV; Kaggle's file has them around captions with commas only."""
    field = field.strip()
    quoted = len(field) > 1 and field[0] == field[-1] == '"' and '"' not in field[1:-1].replace('""', '')
    return field[1:-1].replace('""', '"') if quoted else field


READERS = {'.json': _read_json, '.jsonl': _read_json_lines, '.jsonlines': _read_json_lines}  # others are tables


def read_file(path: Path, columns: Columns) -> list[Listed]:
    """Reads the images that a file lists, with their captions.

    Raises:
      OSError, Unknown: If the file cannot be read, or has no captions.
      UserError: If a row is damaged.
    """
    rows = READERS.get(path.suffix.lower(), _read_table)(path, columns)
    if rows and not columns.known([*rows[0][1]]):
        raise Unknown(f'has the keys {printable(", ".join(rows[0][1]))[:80]}')
    return [columns.listed(row, where) for where, row in rows]
