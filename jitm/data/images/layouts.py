"""Published data sets whose captions and names of images are in separate files, or whose captions have languages.

| data set | files |
|---|---|
| Urban1k | `image/N.jpg`, and `caption/N.txt`, whose first line is the caption |
| Crossmodal-3600 (XM3600) | a `.jsonl` file whose objects have `image/key`, and captions by language |
| Multi30K, XTD10 | the names of the images, and a caption of each on the same line of a file by language, see `LINES` |
"""

import collections
import gzip
import re
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path

from jitm.data.images.caption_files import SUFFIXES, Columns, Listed, captions_in, read_json_lines
from jitm.errors import UserError, did_you_mean
from jitm.files import open_file, parse_json, read_bytes, split_lines

LINES = (  # the list of images, and the captions; `?` is a number of the captions of an image
    ('image_splits/{split}_images.txt', 'raw/{split}.?.{language}.gz'),  # Multi30K, task 2
    ('image_splits/{split}.txt', 'raw/{split}.{language}.gz'),  # Multi30K, task 1
    ('*/{split}_image_names.txt', '*/{split}_1kcaptions_{language}.txt'),  # XTD10
)
TEST = ('test', 'test_2016_flickr', 'test_2016')  # names of the usual test images
KEY = 'image/key'


def read(root: Path, names: Sequence[str], language: str) -> list[Listed] | None:
    """Reads a split of a data set of these layouts.

    Args:
      root: The folder.
      names: The names of the split, the first one preferred; data sets for testing have 'test' only.
      language: The language of the captions, as its files name it.

    Returns:
      The images, those of data sets for testing whatever the split; None if it is none of these data sets.

    Raises:
      UserError: If there is no such split or language, or the files do not fit together.
    """
    if (listed := _read_lines(root, names, language) or _read_languages(root, language)) is not None:
        return listed
    if language:
        raise UserError(f"config key 'data.language' is '{language}', but {root} has them in one: leave it out")
    return _read_pairs(root)


def _read_pairs(root: Path) -> list[Listed] | None:
    photos = {path.stem: path.name for path in (root / 'image').glob('*') if path.suffix.lower() in SUFFIXES}
    texts = {path.stem: path for path in (root / 'caption').glob('*.txt')}
    if not photos or not texts:
        return None
    if odd := min(photos.keys() ^ texts.keys(), default=None):
        raise UserError(f"{root} has no {'caption' if odd in photos else 'image'} with the name '{odd}': add it")
    return [
        Listed(f'image/{photos[stem]}', _text_lines(text)[:1], str(text), 'test')
        for stem, text in sorted(texts.items())
    ]


def _read_languages(root: Path, language: str) -> list[Listed] | None:
    rows = [row for path in sorted(root.glob('*.jsonl')) if _has_key(path) for row in read_json_lines(path, Columns())]
    if not rows:
        return None
    known = {key for _, row in rows for key, value in row.items() if isinstance(value, dict)}
    _check_language(language, known, root)
    return [
        Listed(f'{row.get(KEY)}.jpg', captions_in(row[language], where) if language in row else [], where, 'test')
        for where, row in rows
    ]


def _has_key(path: Path) -> bool:
    """Returns whether the first line of a file is an object with `KEY`."""
    with open_file(path) as file:
        try:
            return KEY in parse_json(file.readline())
        except (ValueError, TypeError):
            return False


def _read_lines(root: Path, names: Sequence[str], language: str) -> list[Listed] | None:
    for images, captions in LINES:
        if not (lists := _by_field(root, images)):
            continue
        split = next((name for name in (*names, *(TEST if 'test' in names else ())) if name in lists), None)
        if split is None:
            raise UserError(f"{root} has no images of the split '{names[0]}'{did_you_mean(names[0], lists)}")
        files = _by_field(root, captions.replace('{split}', split))
        _check_language(language, files, root)
        pictures = _text_lines(lists[split][0])
        listed = []
        for file in files[language]:
            if len(texts := _text_lines(file)) != len(pictures):
                count = f'{len(texts)} captions, but {lists[split][0]} has {len(pictures)} images'
                raise UserError(f'{file} has {count}: download both again')
            for number, (picture, text) in enumerate(zip(pictures, texts, strict=True), 1):
                name = re.sub(r'#\d+$', '', picture.strip())  # the number of a caption of COCO
                listed.append(Listed(name, [text], f'{file}, line {number}', names[0]))
        return listed
    return None


def _by_field(root: Path, pattern: str) -> dict[str, list[Path]]:
    """Returns the files of a pattern by the text in the place of its field."""
    before, after = re.split(r'\{\w+\}', Path(pattern).name)
    found = collections.defaultdict(list)
    for path in sorted(root.glob(re.sub(r'\{\w+\}', '*', pattern))):
        found[path.name[len(before) : len(path.name) - len(after)]].append(path)
    return found


def _check_language(language: str, known: Collection[str], root: Path) -> None:
    if language not in known:
        languages = ', '.join(sorted(known))
        raise UserError(f"config key 'data.language' is '{language}', but {root} has captions in {languages}: give one")


def _text_lines(path: Path) -> list[str]:
    """Reads the lines of a file of UTF-8, which may be compressed."""
    try:
        content = read_bytes(path)
        return split_lines((gzip.decompress(content) if path.suffix == '.gz' else content).decode('utf-8-sig'))
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UserError(f'{path} cannot be read as lines of UTF-8 ({error}): download it again') from error
