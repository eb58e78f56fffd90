"""The captions of a folder of image files, in the formats that such folders have.

The content of a file decides its format: the columns that its first line names and what separates them, or the keys of
its objects. The names of files and folders only tell the split.
"""

import csv
import hashlib
import io
import itertools
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jitm.data.photo_files import CAPTION, SUFFIXES, Listed, beside, beside_in_tar, captions_in
from jitm.errors import UserError, did_you_mean, printable
from jitm.files import Member, check_within, open_file, parse_json, read_text, split_lines

DEV = ('dev', 'val', 'validation', 'valid')  # names of the same split
RESTVAL = 'restval'  # of COCO: images of its validation set that most published systems train on
SPLITS = {*DEV, 'train', 'test', RESTVAL}
TABLES = ('.csv', '.json', '.jsonl', '.token', '.tsv', '.txt')
OTHERS = re.compile(r'(instances|person_keypoints|image_info|stuff|panoptic)_|dataset\.txt')  # are no captions
ID = (int, float, str)  # types of COCO's ids
DELIMITERS = '\t|;,'
NAME = rf'\s*("(?:[^"]|"")*"|.*?(?:{"|".join(map(re.escape, SUFFIXES))})(?:#\d+)?)\s*'  # of an image, at the start
NUMBERED = re.compile(r'caption_(\d+)')

Row = tuple[str, dict[str, Any]]  # the file and line or entry, for messages, and the columns or keys


class Columns(NamedTuple):
    """The names that the columns or keys of images and captions may have, the first ones first."""

    image: tuple[str, ...] = ('file_name', 'filename', 'image', 'image_name', 'image_path', 'filepath')
    caption: tuple[str, ...] = CAPTION

    def known(self, names: Sequence[str]) -> bool:
        """Returns whether some names have one of an image and one of captions."""
        caption = any(name in self.caption or NUMBERED.fullmatch(name) for name in names)
        return caption and any(name in self.image for name in names)

    def listed(self, row: dict[str, Any], where: str) -> Listed:
        """Returns the image of a row."""
        numbered = sorted(filter(NUMBERED.fullmatch, row), key=lambda name: int(NUMBERED.fullmatch(name)[1]))
        if numbered and (other := next((name for name in self.caption[:2] if name in row), None)):
            raise UserError(f"{where} has '{other}' and '{numbered[0]}': leave one of these columns or keys")
        captions = [row[name] for name in numbered if row[name]] if numbered else captions_in(row, self.caption, where)
        name = next((name for name in self.image if name in row), self.image[0])
        split = str(row.get('split') or '').strip()
        return Listed(_get(row, name, str, where), captions, where, split.lower() if split.lower() in SPLITS else split)


class Listing(NamedTuple):
    """The images of a split.

    Attributes:
      images: The images in their order; an image may be listed several times.
      folders: The folders where the image files may be; the first that has the first file is preferred.
      members: Name -> file, of images in tar archives.
    """

    images: list[Listed]
    folders: list[Path]
    members: Mapping[str, Member] = {}


class Unknown(Exception):
    """A file has no captions; the message says what it has."""


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
    folder, split = image.get('filepath'), _get(image, 'split', str, where)
    written = _get(image, 'sentences', list, where)
    captions = [_get(one if isinstance(one, dict) else {}, 'raw', str, where) for one in written]
    name = Path(folder if isinstance(folder, str) else '') / _get(image, 'filename', str, where)
    return {columns.image[0]: str(name), columns.caption[0]: captions, 'split': split}


def _coco(path: Path, tree: dict, columns: Columns) -> list[Row]:
    rows: dict[int | float | str, Row] = {}
    for where, item in _entries(path, tree.get('images'), 'images'):
        name, number = _get(item, 'file_name', str, where), _get(item, 'id', ID, where)
        row = where, {columns.image[0]: name, columns.caption[0]: []}
        if rows.setdefault(number, row)[1][columns.image[0]] != name:
            raise UserError(f'{where} has the id {number} of another image: give each image an id of its own')
    for where, item in _entries(path, tree['annotations'], 'annotations'):
        image = _get(item, 'image_id', ID, where)
        if image not in rows:
            raise UserError(f'{where} has the image_id {image}, which is not an id of its images: add the image')
        rows[image][1][columns.caption[0]].append(_get(item, 'caption', str, where))
    return [*rows.values()]


def _read_json_lines(path: Path, columns: Columns) -> list[Row]:
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


def _name_before(delimiter: str, start: str = '') -> re.Pattern:
    return re.compile(f'{start}{NAME}{re.escape(delimiter)}', re.IGNORECASE)


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
        if header := columns.known(names):
            break
        named = _name_before(delimiter).match(first)
        if named:
            numbered = re.match(rf'\s*\d+\s*{re.escape(delimiter)}', first[named.end() :])
            names = [columns.image[0], *(['number'] if numbered else []), columns.caption[0]]
            break
    else:
        raise Unknown("starts with '{}'".format(printable(first.replace('\t', r'\t'))[:80]))
    text = read_text(path)
    rows = _csv_rows(text, delimiter, len(names)) or [*_lines(path, text, delimiter, names, columns)]
    rows = [(f'{path}, line {number}', dict(zip(names, fields, strict=True))) for number, fields in rows[header:]]
    if wrong := next((where for where, row in rows if not header and not row.get('number', '0').isdecimal()), None):
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
    swallowed = _name_before(delimiter, '\n')  # a row between two quotes
    valid = all(len(fields) == width and not any(map(swallowed.search, fields)) for _, fields in rows)
    return rows if valid else None


def _lines(
    path: Path, text: str, delimiter: str, names: list[str], columns: Columns
) -> Iterator[tuple[int, list[str]]]:
    """Yields the fields of each line, where the caption is what the other columns leave."""
    caption = next((names.index(name) for name in columns.caption if name in names), None)
    for number, line in enumerate(split_lines(text), 1):
        if not line.strip():
            continue
        named = _name_before(delimiter).match(line) if names[0] in columns.image else None
        fields = [named[1], *line[named.end() :].split(delimiter)] if named else line.split(delimiter)
        further = len(fields) - len(names)
        joined = re.fullmatch(r'\s*(\d+)(?:\s\s+|\t)(.+)', fields[-1])
        if joined and further == -1 and caption == len(names) - 1:
            fields[-1:], further = joined.groups(), 0  # a line of Flickr30k's results.csv lacks this delimiter
        if further > 0 and caption is not None:
            fields[caption : caption + further + 1] = [delimiter.join(fields[caption : caption + further + 1])]
        elif further:
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


READERS = {'.json': _read_json, '.jsonl': _read_json_lines}  # and _read_table for all others


class _Folder:
    """A folder of image files; `unknown` collects the files in it that have no captions."""

    def __init__(self, root: Path, columns: Columns):
        self.root, self.unknown, self._columns = root, [], columns

    def tables(self, folders: Iterable[Path], belongs: Callable[[str], bool] = bool) -> dict[Path, list[Listed]]:
        """Returns the images of each file of captions in some folders whose stem belongs to what is asked for."""
        paths = [folder / name for folder in folders for name in _names(folder)]
        photos = {path.with_suffix('') for path in paths if path.suffix.lower() in SUFFIXES}  # captions are beside them
        found = {}
        for path in paths:
            suffix = path.suffix.lower()
            if suffix not in TABLES or path.with_suffix('') in photos or OTHERS.match(path.name):
                continue
            try:
                if belongs(path.stem):
                    rows = READERS.get(suffix, _read_table)(path, self._columns)
                    if rows and not self._columns.known([*rows[0][1]]):
                        raise Unknown(f'has the keys {printable(", ".join(rows[0][1]))[:80]}')
                    found[path] = [self._columns.listed(row, where) for where, row in rows]
            except OSError as error:
                raise UserError(f'{path} cannot be read ({error.strerror}): make it readable') from None
            except Unknown as problem:
                self.unknown.append(f'{path.relative_to(self.root)} {problem}')
        return {path: found[path] for path in found if '.lemma.' not in path.name} or found  # of Flickr8k

    def photos(self, folder: Path, belongs: Callable[[str], bool] | None = None) -> Listing | None:
        """Returns the photos of shards whose stem belongs to what is asked for, or else of files with captions."""
        shards = [folder / name for name in _names(folder) if name.endswith('.tar')]
        if shards := [path for path in shards if belongs is None or belongs(path.stem)]:
            listed, members = zip(*map(beside_in_tar, shards), strict=True)
            if not any(listed) and (found := [*itertools.chain(*members)]):
                raise UserError(
                    f'{folder} has {printable(", ".join(found[:3]))}, but photos are read with captions in .txt or '
                    '.json files of the same names, such as a.jpg and a.txt: write the shards again'
                )
            return Listing([*itertools.chain(*listed)], [folder], {name: of[name] for of in members for name in of})
        listed = [] if belongs else beside(folder)
        return Listing(listed, [folder]) if listed else None

    def find(self, names: Sequence[str], whole: bool) -> Listing | None:
        """Returns the images of a split, by the first of its names or else by the others, or of the whole data set."""
        root, places = self.root, [self.root, self.root / 'annotations']
        groups = [] if whole else [group for group in (names[:1], names[1:]) if group]
        for group in groups:
            if path := _one(root, tables := self.tables(root / name for name in group)):
                return Listing(tables[path], [path.parent])
        general = self.tables(places, bool if whole else lambda stem: _words(stem).isdisjoint({*SPLITS, *names}))
        if path := _one(root, [path for path, listed in general.items() if any(one.split for one in listed)]):
            if whole:
                raise UserError(f'{path} names the splits of its images: leave out config key data.held_out')
            return Listing(general[path], _folders(root))
        for group in map(set, groups):
            tables = self.tables(places, lambda stem, group=group: bool(_words(stem) & group))
            if path := _one(root, tables):
                return Listing(tables[path], _folders(root, path.stem.removeprefix('captions_')))
            shards = [self.photos(root, lambda stem, group=group: bool(_words(stem) & group))]
            if found := [*filter(None, [self.photos(root / name) for name in sorted(group)] + shards)]:
                return found[0]
        if not (path := _one(root, general)):
            return self.photos(root) if whole else None
        images = general[path] if whole else _in_list(path, general[path], root, names)
        return Listing(images, _folders(root))


def _in_list(path: Path, images: list[Listed], root: Path, names: Sequence[str]) -> list[Listed]:
    """Returns the images in a folder of the split, or that `trainImages.txt` or `train.txt` lists."""
    if inside := [one for one in images if one.name.partition('/')[0] in names]:
        return inside
    named = re.compile(rf'(?:.*(?:{"|".join(names)})Images|(?:{"|".join(names)})(?:_images)?)\.txt')
    places = [folder / name for folder in (root, root / 'annotations') for name in _names(folder)]
    lists = [one for one in places if named.fullmatch(one.name)]
    if len(lists) != 1:
        raise UserError(
            f"{root} has {len(lists)} files that list the images of the split '{names[0]}': write their names to "
            f'{names[0]}.txt, one per line, or sample the splits by config key data.held_out'
        )
    wanted = dict.fromkeys(line.strip() for line in split_lines(read_text(lists[0])) if line.strip())
    listed = {one.name for one in images}
    if missing := next((name for name in wanted if name not in listed), None):
        raise UserError(f"{path} has no caption of {missing}, an image of the split '{names[0]}': add one")
    return [one for one in images if one.name in wanted]


def _names(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith('.')) if folder.is_dir() else []


def _words(stem: str) -> set[str]:
    return {stem, *re.findall('[a-z]+', stem.lower())}


def _one(root: Path, paths: Iterable[Path]) -> Path | None:
    """Returns the only path, or None if there are none."""
    first, *others = [*paths] or [None]
    if others:
        names = ' and '.join(str(path.relative_to(root)) for path in (first, *others))
        raise UserError(f'{root} has {names}: leave one of them in the folder')
    return first


def _folders(root: Path, *names: str) -> list[Path]:
    """Returns the folders in which a data set keeps its images: named ones, itself, and its direct subfolders."""
    inner = sorted(path for path in root.iterdir() if path.is_dir())
    return [*(root / name for name in names), root, *inner, *(root / 'images' / name for name in names)]


def read(root: Path, split: str, restval: bool, columns: Columns, whole: bool) -> Listing:
    """Finds the captions of a folder and reads one split.

    Args:
      root: The folder.
      split: The name of the split, such as 'train'; the names in `DEV` are the same.
      restval: Whether 'train' includes images of the split `restval`.
      columns: The names of columns and keys.
      whole: Whether all images of a data set without splits are read instead.

    Raises:
      UserError: If there are no captions of a known format, a file is damaged, or an image lies outside of the folder
        or has a name that cannot be shown.
    """
    if not root.is_dir():
        raise UserError(f'{root} is not a folder: give the path of a folder with image files and captions')
    names = (split, *(name for name in DEV if name != split)) if split in DEV else (split,)
    folder = _Folder(root, columns)
    if (listing := folder.find(names, whole)) is None:
        image, caption = (' or '.join(known) for known in columns)
        found = f': {"; ".join(folder.unknown[:3])}' if folder.unknown else ''
        raise UserError(
            f"{root} has no captions of the split '{split}'{found}; name the column or key of images {image}, and that "
            f'of captions {caption}, or set config keys data.image_column and data.caption_column; without splits, set '
            'data.held_out'
        )
    if divided := {image.split for image in listing.images} - {''}:
        wanted = {*names, *((RESTVAL,) if restval and split == 'train' else ())}
        if wanted.isdisjoint(divided):
            path = listing.images[0].where.partition(',')[0]
            raise UserError(f"{path} has no images of the split '{split}'{did_you_mean(split, divided)}")
        listing = listing._replace(images=[image for image in listing.images if image.split in wanted])
    for image in listing.images:
        check_within(image.name, image.where)
        if printable(image.name) != image.name:
            reason = 'has control characters or is not UTF-8'
            raise UserError(f'{image.where} names {image.name!r}, which {reason}: rename the file')
    return listing


def merge(images: Iterable[Listed]) -> dict[str, list[str]]:
    """Returns name -> captions, without blanks around and within them, of images that may be listed several times.

    Images without captions are left out, and their number is logged.

    Raises:
      UserError: If a caption is blank.
    """
    merged: dict[str, list[str]] = {}
    for name, captions, where, _ in images:
        captions = [' '.join(caption.split()) for caption in captions]
        if '' in captions:
            raise UserError(f'{where} has a blank caption: write the caption, or remove it')
        merged.setdefault(name, []).extend(captions)
    kept = {name: captions for name, captions in merged.items() if captions}
    if left_out := len(merged) - len(kept):
        logging.warning('%d of %d images have no captions and are left out', left_out, len(merged))
    return kept


def sample_split(captions: dict[str, list[str]], split: str, held_out: float, seed: int) -> dict[str, list[str]]:
    """Samples a split of a data set without splits; the order of the images is kept.

    Args:
      captions: Name -> captions of all images.
      split: 'train', 'test', or a name in `DEV`.
      held_out: The share of the images in 'test', and the same in 'dev'; 'train' has the others.
      seed: The seed; the sample depends on it and on the names only.

    Raises:
      UserError: If there is no such split, or it would be empty.
    """
    order = sorted(captions, key=lambda name: hashlib.sha256(f'{seed}/{name}'.encode()).digest())
    count = max(1, round(held_out * len(order)))
    parts = {'test': order[:count], 'dev': order[count : 2 * count], 'train': order[2 * count :]}
    if not (part := {*parts.get('dev' if split in DEV else split, ())}):
        raise UserError(f"data.held_out={held_out} leaves none of {len(order)} images for the split '{split}'")
    return {name: captions[name] for name in captions if name in part}
