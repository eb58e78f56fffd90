"""The captions of a folder of image files, in the formats that such folders have.

Each format is a function `(root, names of the split) -> listed images, or None if the folder is not of this format`.
"""

import csv
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from jitm.errors import UserError, did_you_mean, printable
from jitm.files import check_within, open_file, parse_json

DEV = ('dev', 'val', 'validation', 'valid')  # names of the same split
ID = (int, float, str)  # types of COCO's ids
RESTVAL = 'restval'  # of COCO: images of its validation set that most published systems train on
CAPTION_KEYS = ('captions', 'caption', 'text')
KAGGLE_LINES = (  # of captions.txt: the name in quotes; a name with commas; any other name
    re.compile(r'\s*(?P<name>"(?:[^"]|"")*")\s*,(?P<caption>.*)'),
    re.compile(r'(?P<name>.*?\.(?:jpe?g|png|gif|bmp|webp|tiff?)(?:#\d+)?)\s*,(?P<caption>.*)', re.IGNORECASE),
    re.compile(r'(?P<name>[^,]*),(?P<caption>.*)'),
)

Names = tuple[str, ...]  # of a split: as it was asked for, then other names of it


class Listed(NamedTuple):
    """An image as a file lists it.

    Attributes:
      name: The path of the image file, relative to one of `folders`.
      captions: Its captions, not checked.
      where: The file and the line or entry, for messages.
    """

    name: str
    captions: list[str]
    where: str


class Listing(NamedTuple):
    """The images of a split.

    Attributes:
      images: The images in their order; an image may be listed several times.
      folders: The folders where the image files may be; the first that has the first file is preferred.
    """

    images: list[Listed]
    folders: list[Path]


def _read_text(path: Path) -> str:
    try:
        with open_file(path) as file:
            return file.read().decode('utf-8-sig')  # a byte order mark would become part of the first name
    except OSError as error:
        raise UserError(f'{path} cannot be read ({error.strerror}): make it readable') from None
    except UnicodeDecodeError as error:
        raise UserError(f'{path} is not UTF-8 at byte {error.start}: convert the file to UTF-8') from None


def _parse(path: Path, text: str, where: str = '') -> Any:
    try:
        return parse_json(text)
    except ValueError:
        raise UserError(f'{path}{where} is not valid JSON: write it again') from None


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yields where each line is that is not blank, and the line."""
    for number, line in enumerate(_read_text(path).split('\n'), 1):
        if line.strip():
            yield f'{path}, line {number}', line.rstrip('\r')


def _entries(path: Path, tree: Any, key: str) -> list[tuple[str, dict]]:
    """Returns where each object of a list in a JSON object is, and the object."""
    items = tree.get(key) if isinstance(tree, dict) else None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise UserError(f"{path} has no list '{key}' of objects: it must be a file of the format that its name says")
    return [(f'{path}, {key}[{number}]', item) for number, item in enumerate(items)]


def _get(item: dict, key: str, kinds: type | tuple[type, ...], where: str) -> Any:
    if not isinstance(item.get(key), kinds):
        raise UserError(f"{where} has no valid '{key}': add it")
    return item[key]


def metadata(root: Path, names: Names) -> Listing | None:
    """Hugging Face's imagefolder: `{split}/metadata.jsonl` or `.csv`, with file_name and captions, caption or text."""
    asked, *others = ([*(root / name).glob('metadata.jsonl'), *(root / name).glob('metadata.csv')] for name in names)
    path = _one(root, asked or itertools.chain(*others))
    if path is None:
        return None
    rows = _json_rows(path) if path.suffix == '.jsonl' else _csv_rows(path)
    return Listing([_listed(row, where) for where, row in rows], [path.parent])


def _json_rows(path: Path) -> Iterator[tuple[str, dict]]:
    for where, line in _lines(path):
        row = _parse(path, line, where.removeprefix(str(path)))
        if not isinstance(row, dict):
            raise UserError(f'{where} is not a JSON object: give file_name and captions')
        yield where, row


def _csv_rows(path: Path) -> Iterator[tuple[str, dict]]:
    reader = csv.DictReader(io.StringIO(_read_text(path), newline=''), strict=True)
    try:
        for row in reader:
            where = f'{path}, line {reader.line_num}'
            if None in row:
                raise UserError(f'{where} has more fields than the header: put quotes around a caption with a comma')
            numbered = sorted((key for key in row if re.fullmatch(r'caption_\d+', key)), key=lambda key: int(key[8:]))
            captions = [row.pop(key) for key in numbered]
            yield where, row | ({'captions': [one for one in captions if one]} if numbered else {})
    except csv.Error as error:
        raise UserError(f'{path}, line {reader.line_num} is not valid CSV ({error}): write it again') from None


def _listed(row: dict, where: str) -> Listed:
    name = _get(row, 'file_name', str, where)
    key = next((key for key in CAPTION_KEYS if key in row), None)
    captions = row.get(key)
    if isinstance(captions, str):
        captions = [captions]
    if not isinstance(captions, list) or not all(isinstance(one, str) for one in captions):
        raise UserError(f'{where} has no captions: give a list of them as captions, or one as text')
    return Listed(name, captions, where)


def karpathy(root: Path, names: Names) -> Listing | None:
    """Karpathy's `dataset_*.json`: Flickr8k, Flickr30k and COCO; the split `restval` is part of train for COCO."""
    path = _one(root, _find(root, 'dataset*.json'))
    if path is None:
        return None
    listed, known = [], set()
    for where, image in _entries(path, _parse(path, _read_text(path)), 'images'):
        known.add(_get(image, 'split', str, where))
        if image['split'] in names:
            written = _get(image, 'sentences', list, where)
            captions = [_get(one if isinstance(one, dict) else {}, 'raw', str, where) for one in written]
            listed.append(Listed(_karpathy_name(image, where), captions, where))
    if not listed:
        raise UserError(f"{path} has no images of the split '{names[0]}'{did_you_mean(names[0], known)}")
    return Listing(listed, _folders(root))


def _karpathy_name(image: dict, where: str) -> str:
    folder = image.get('filepath', '')
    return str(Path(folder if isinstance(folder, str) else '') / _get(image, 'filename', str, where))


def coco(root: Path, names: Names) -> Listing | None:
    """COCO's `captions_{split}*.json`, such as `captions_train2017.json`, with the images in `train2017`."""
    path = _one(root, {path: None for name in names for path in _find(root, f'captions_{name}*.json')})
    if path is None:
        return None
    tree = _parse(path, _read_text(path))
    listed: dict[int | float | str, Listed] = {}
    for where, item in _entries(path, tree, 'images'):
        name, number = _get(item, 'file_name', str, where), _get(item, 'id', ID, where)
        if listed.setdefault(number, Listed(name, [], where)).name != name:
            raise UserError(f'{where} has the id {number} of another image: give each image an id of its own')
    for where, item in _entries(path, tree, 'annotations'):
        image = _get(item, 'image_id', ID, where)
        if image not in listed:
            raise UserError(f'{where} has the image_id {image}, which is not an id of its images: add the image')
        listed[image].captions.append(_get(item, 'caption', str, where))
    return Listing(list(listed.values()), _folders(root, path.stem.removeprefix('captions_')))


def flickr(root: Path, names: Names) -> Listing | None:
    """Flickr's `captions.txt` (image,caption) or `*.token` files, with the images of a split in `*{split}*.txt`."""
    kaggle = _one(root, _find(root, 'captions.txt'))
    path = kaggle or _token_file(root)
    if path is None:
        return None
    wanted = _split_list(root, names)
    parse = _kaggle_line if kaggle else _token_line
    rows = []
    for where, line in _lines(path):
        name, caption = parse(line, where)
        rows.append(Listed(re.sub(r'#\d+$', '', name), [_unquote(caption)], where))
    listed = [row for row in rows if row.name in wanted]
    if missing := wanted.keys() - {one.name for one in listed}:
        first = min(missing, key=wanted.get)
        raise UserError(f"{path} has no caption of {first}, an image of the split '{names[0]}': add one")
    return Listing(listed, _folders(root))


def _token_file(root: Path) -> Path | None:
    """Returns the `*.token` file; Flickr8k has another one with lemmatized captions."""
    paths = [*_find(root, '*.token'), *_find(root, '*.token.txt')]
    return _one(root, [path for path in paths if '.lemma.' not in path.name] or paths)


def _token_line(line: str, where: str) -> tuple[str, str]:
    name, tab, caption = line.partition('\t')
    if not tab:
        raise UserError(f'{where} has no tab after the name of the image')
    return name.strip(), caption


def _kaggle_line(line: str, where: str) -> tuple[str, str]:
    found = next((match for pattern in KAGGLE_LINES if (match := pattern.fullmatch(line))), None)
    if not found:
        raise UserError(f'{where} has no comma after the name of the image')
    return _unquote(found['name']), found['caption']


def _unquote(field: str) -> str:
    """Removes blanks around a field and the quotes of CSV; Kaggle's file has them around captions with commas only."""
    field = field.strip()
    quoted = len(field) > 1 and field[0] == field[-1] == '"'
    return field[1:-1].replace('""', '"') if quoted else field


def _split_list(root: Path, names: Names) -> dict[str, int]:
    """Returns the images of a split and their positions, as `trainImages.txt` or `train.txt` lists them."""
    paths = [
        path
        for name in names
        for path in (
            *_find(root, f'*{name}Images.txt'),
            *_find(root, f'{name}_images.txt'),
            *_find(root, f'{name}.txt'),
        )
    ]
    if len(paths) != 1:
        raise UserError(
            f"{root} has {len(paths)} files that list the images of the split '{names[0]}': write their names to "
            f'{names[0]}.txt, one per line'
        )
    return {line.strip(): number for number, (_, line) in enumerate(_lines(paths[0]))}


def _find(root: Path, pattern: str) -> list[Path]:
    return sorted([*root.glob(pattern), *root.glob(f'annotations/{pattern}')])


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


FORMATS: dict[str, Callable[[Path, Names], Listing | None]] = {
    '{split}/metadata.jsonl or metadata.csv': metadata,
    'dataset_*.json': karpathy,
    'captions_{split}*.json': coco,
    'captions.txt or *.token': flickr,
}


def read(root: Path, split: str, restval: bool = False) -> Listing:
    """Finds the file of the captions of a folder and reads one split.

    Args:
      root: The folder.
      split: The name of the split, such as 'train'; the names in `DEV` are the same.
      restval: Whether 'train' includes COCO's `restval` in Karpathy's format.

    Raises:
      UserError: If there is none of a known format, it is damaged, or an image lies outside of the folder or has a name
        that cannot be shown.
    """
    if not root.is_dir():
        raise UserError(f'{root} is not a folder: give the path of a folder with image files and captions')
    names = (split, *(name for name in DEV if name != split)) if split in DEV else (split,)
    for read_format in FORMATS.values():
        more = (RESTVAL,) if read_format is karpathy and split == 'train' and restval else ()
        if (listing := read_format(root, (*names, *more))) is not None:
            for image in listing.images:
                check_within(image.name, image.where)
                if printable(image.name) != image.name:
                    reason = 'has control characters or is not UTF-8'
                    raise UserError(f'{image.where} names {image.name!r}, which {reason}: rename the file')
            return listing
    formats = '; '.join(name.replace('{split}', split) for name in FORMATS)
    raise UserError(f"{root} has no captions of the split '{split}': add one of {formats}")


def merge(images: Iterable[Listed]) -> dict[str, list[str]]:
    """Returns name -> captions, without blanks around and within them, of images that may be listed several times.

    Raises:
      UserError: If a caption is blank, an image has none, or there are no images.
    """
    merged: dict[str, list[str]] = {}
    for name, captions, where in images:
        captions = [' '.join(caption.split()) for caption in captions]
        if '' in captions:
            raise UserError(f'{where} has a blank caption: write the caption, or remove it')
        if not captions:
            raise UserError(f'{where} has no captions: add one, or remove the image')
        merged.setdefault(name, []).extend(captions)
    return merged
