"""The captions of images in one file, in the formats that data sets of photos have.

The content of a file decides its format: the columns in its first line and their delimiter, or the keys of
its objects.
"""

import ast
import contextlib
import csv
import io
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jitm.data.images.listed import Listed
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

JSON = ('.json', '.jsonl', '.jsonlines')  # suffixes; files with others are tables

Row = tuple[str, dict[str, Any]]  # the file and line or entry, for messages, and the columns or keys


class Columns(NamedTuple):
    """The names that the columns or keys of images and captions may have, the first ones first."""

    image: tuple[str, ...] = ('file_name', 'filename', 'image', 'image_name', 'image_path', 'image_file', 'filepath')
    caption: tuple[str, ...] = CAPTION

    def known(self, names: Collection[str]) -> bool:
        """Returns whether some names have one of an image and one of captions."""
        caption = any(name in self.caption or NUMBERED.fullmatch(name) for name in names)
        return caption and _first(self.image, names) is not None

    def listed(self, rows: list[Row]) -> list[Listed]:
        """Returns the images of rows with the same columns or keys.

        Raises:
          Unknown: If these are none of an image and of captions.
        """
        if rows and not self.known(rows[0][1]):
            raise Unknown(f'has the keys {printable(", ".join(rows[0][1]))[:80]}')
        return [self._listed(row, where) for where, row in rows]

    def _listed(self, row: dict[str, Any], where: str) -> Listed:
        numbered = sorted(filter(NUMBERED.fullmatch, row), key=lambda name: int(name.removeprefix('caption_')))
        joint = _first(self.caption[:2], row)
        if numbered and joint:
            raise UserError(f"{where} has '{joint}' and '{numbered[0]}': leave one of these columns or keys")
        captions = [row[name] for name in numbered] if numbered else captions_in(row, where, self.caption)
        name = _get(row, _first(self.image, row) or self.image[0], str, where)
        split = str(row.get('split') or '').strip()
        return Listed(name, captions, where, split.lower() if split.lower() in SPLITS else split)


class Unknown(Exception):
    """A file has no captions; the message describes its content."""


def _first(names: Sequence[str], row: Collection[str]) -> str | None:
    """Returns the first name that a row has; None if it has none."""
    return next((name for name in names if name in row), None)


def captions_in(row: dict[str, Any], where: str, keys: Sequence[str] = CAPTION) -> list[Any]:
    """Returns the captions in an object or a row of a table: a text, a list of texts, or one as JSON or Python.

    They are not checked. A row without the keys has the caption None.

    Raises:
      UserError: If a list in Python has no commas.
    """
    captions = row.get(_first(keys, row))
    if isinstance(captions, str):
        captions = _parse_list(captions.strip(), where) or captions
    return captions if isinstance(captions, list) else [captions]


def _parse_list(text: str, where: str) -> list[str | None]:
    """Parses a list or a tuple of texts in JSON or Python; [] if the text is none."""
    if text[:1] + text[-1:] not in ('[]', '()'):
        return []
    for parse in (parse_json, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            parsed = parse(text)
            if {*map(type, parsed)} <= {str, type(None)}:
                break
    else:
        return []
    if parse is ast.literal_eval and text.count(',') < len(re.findall(PIECE, text)) - 1:
        raise UserError(f'{where} has a list of captions without commas between them: write it as JSON')
    return [*parsed]


def _get(item: dict, key: str, kinds: type | tuple[type, ...], where: str) -> Any:
    if not isinstance(item.get(key), kinds):
        raise UserError(f"{where} has no valid '{key}': add it")
    return item[key]


def _entries(path: Path, items: Any, key: str) -> list[Row]:
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise UserError(f"{path} has no list '{key}' of objects: write it again")
    return [(f'{path}, {key}[{number}]', item) for number, item in enumerate(items)]


def _read_json(path: Path, columns: Columns) -> list[Listed]:
    """Reads COCO's annotations, Karpathy's data sets, and objects with an image and captions, in a list or in lines."""
    text = read_text(path)
    try:
        tree = parse_json(text)
    except ValueError:
        return columns.listed(_read_json_lines(path, text))
    if isinstance(tree, dict):
        if 'annotations' in tree:
            return _coco(path, tree)
        if 'images' in tree:
            return [_karpathy(image, where) for where, image in _entries(path, tree['images'], 'images')]
        return columns.listed([(f'{path}, line 1', tree)])
    if not isinstance(tree, list) or not tree or not isinstance(tree[0], dict):
        raise Unknown(f'has {printable(str(tree))[:80]}')
    return columns.listed(_entries(path, tree, ''))


def _karpathy(image: dict, where: str) -> Listed:
    """Returns an image of Karpathy's data sets."""
    split = _get(image, 'split', str, where)
    folder = image.get('filepath')
    name = Path(folder if isinstance(folder, str) else '', _get(image, 'filename', str, where))
    sentences = captions_in(image, where, ['sentences'])
    captions = [sentence.get('raw') if isinstance(sentence, dict) else sentence for sentence in sentences]
    return Listed(str(name), captions, where, split)


def _coco(path: Path, tree: dict) -> list[Listed]:
    """Returns the images of COCO's annotations."""
    images: dict[int | float | str, Listed] = {}
    for where, item in _entries(path, tree.get('images'), 'images'):
        image = Listed(_get(item, 'file_name', str, where), [], where)
        number = _get(item, 'id', ID, where)
        if images.setdefault(number, image).name != image.name:
            raise UserError(f'{where} has the id {number} of another image: give each image an id of its own')
    for where, item in _entries(path, tree['annotations'], 'annotations'):
        number = _get(item, 'image_id', ID, where)
        if number not in images:
            raise UserError(f'{where} has the image_id {number}, which is not an id of its images: add the image')
        images[number].captions.append(item.get('caption'))
    return [*images.values()]


def _read_json_lines(path: Path, text: str) -> list[Row]:
    """Reads lines of JSON objects.

    Raises:
      Unknown: If the first line is none.
      UserError: If another line is none.
    """
    rows = []
    for number, line in enumerate(split_lines(text), 1):
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
    delimiter, names, is_header = _read_header(first, columns)
    text = read_text(path)
    rows = _csv_rows(text, delimiter, len(names)) or [*_lines(path, text, delimiter, names, columns)]
    image = _first(columns.image, names)
    table = []
    for number, fields in rows[is_header:]:
        row = dict(zip(names, fields, strict=True))
        where = f'{path}, line {number}'
        if not is_header and not row.get('number', '0').isdecimal():
            problem = 'has no number of its caption, but line 1 has one'
            raise UserError(f'{where} {problem}: add a header such as image,caption')
        table.append((where, row | {image: re.sub(r'#\d+$', '', row[image])}))
    return table


def _read_header(line: str, columns: Columns) -> tuple[str, list[str], bool]:
    """Returns the delimiter of a table by its first line, the names of its columns, and whether they are in the line.

    Raises:
      Unknown: If there is neither a header nor an image and a caption.
    """
    for delimiter in DELIMITERS:
        names = [_unquote(name) for name in line.split(delimiter)]
        names = [name if name in columns.image + columns.caption else name.lower() for name in names]
        if columns.known(names):
            return delimiter, names, True
        named = NAMED[delimiter].match(line)
        if named:
            numbered = re.match(rf'\s*\d+\s*{re.escape(delimiter)}', line[named.end() :])
            return delimiter, [columns.image[0], *(['number'] if numbered else []), columns.caption[0]], False
    raise Unknown("starts with '{}'".format(printable(line.replace('\t', r'\t'))[:80]))


def _csv_rows(text: str, delimiter: str, width: int) -> list[tuple[int, list[str]]]:
    """Returns the rows of CSV with their last lines; [] if the text has other rows, such as captions with commas."""
    reader = csv.reader(io.StringIO(text, newline=''), delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        rows = [(reader.line_num, [*map(str.strip, fields)]) for fields in reader]
    except csv.Error:
        return []
    rows = [(number, fields) for number, fields in rows if any(fields)]
    swallowed = re.compile('\n' + NAMED[delimiter].pattern, re.IGNORECASE)  # a row between two quotes
    if any(len(fields) != width or any(map(swallowed.search, fields)) for _, fields in rows):
        return []
    return rows


def _lines(
    path: Path, text: str, delimiter: str, names: list[str], columns: Columns
) -> Iterator[tuple[int, list[str]]]:
    """Yields the fields of each line, where the caption is the remainder after the other columns."""
    caption = _first(columns.caption, names)
    start = names.index(caption) if caption else len(names)
    for number, line in enumerate(split_lines(text), 1):
        if not line.strip():
            continue
        named = NAMED[delimiter].match(line) if names[0] in columns.image else None
        fields = [named[1], *line[named.end() :].split(delimiter)] if named else line.split(delimiter)
        joined = re.fullmatch(r'\s*(\d+)(?:\s\s+|\t)(.+)', fields[-1])
        if joined and len(fields) == start == len(names) - 1:
            fields[-1:] = joined.groups()  # a line of Flickr30k's results.csv lacks this delimiter
        stop = start + 1 + len(fields) - len(names)
        if caption and stop > start:
            fields[start:stop] = [delimiter.join(fields[start:stop])]
        if len(fields) != len(names):
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


def read_file(path: Path, columns: Columns) -> list[Listed]:
    """Reads the images that a file lists, with their captions.

    Raises:
      OSError, Unknown: If the file cannot be read, or has no captions.
      UserError: If a row is damaged.
    """
    return _read_json(path, columns) if path.suffix.lower() in JSON else columns.listed(_read_table(path, columns))
