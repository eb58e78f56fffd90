"""The photos of a split with their captions: which files of a folder have the captions of which split.

Captions are in files that list many photos, see `jitm.data.images.caption_files`, or in a file for each photo, see
`jitm.data.images.photo_files` and `jitm.data.images.shards`. The names of files and folders decide the split.
"""

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from jitm.data.images.caption_files import DEV, JSON, RESTVAL, SPLITS, SUFFIXES, Columns, Unknown, read_file
from jitm.data.images.listed import Listed
from jitm.data.images.photo_files import UNREAD, content_of, with_texts
from jitm.data.images.shards import Shards, open_shards
from jitm.errors import UserError, did_you_mean
from jitm.files import describe_unread, read_text, split_lines

TABLES = (*JSON, '.csv', '.token', '.tsv', '.txt')
OTHERS = re.compile(r'(instances|person_keypoints|image_info|stuff|panoptic)_|dataset\.txt')  # not captions


class Listing(NamedTuple):
    """The images of a split.

    Attributes:
      images: The images in their order; an image may be listed several times. None in `shards`.
      folders: The folders where the image files may be; the first that has the first file is preferred.
      shards: The archives with the images instead.
    """

    images: list[Listed]
    folders: list[Path]
    shards: Shards | None = None


@dataclasses.dataclass
class _Folder:
    """A folder of image files; `unknown` collects the files in it that have no captions."""

    root: Path
    columns: Columns
    unknown: list[str] = dataclasses.field(default_factory=list)

    def relative(self, name: str) -> str:
        """Returns the name of an image, where it is an absolute path below the folder relative to it."""
        if os.path.isabs(name):
            path = Path(os.path.normpath(name))
            for place in (os.path.abspath(self.root), os.path.realpath(self.root)):
                if path.is_relative_to(place):
                    return str(path.relative_to(place))
        return name

    def tables(self, folders: Iterable[Path], belongs: Callable[[str], bool] = bool) -> dict[Path, list[Listed]]:
        """Returns the images of each file of captions in some folders whose stem matches the split."""
        paths = [*itertools.chain.from_iterable(map(content_of, folders))]
        photos = {path.with_suffix('') for path in paths if path.suffix.lower() in SUFFIXES}  # captions are beside them
        tables = {}
        for path in paths:
            is_table = path.suffix.lower() in TABLES and path.with_suffix('') not in photos
            if not is_table or OTHERS.match(path.name) or not belongs(path.stem):
                continue
            try:
                listed = read_file(path, self.columns)
                tables[path] = [image._replace(name=self.relative(image.name)) for image in listed]
            except OSError as error:
                raise UserError(f'{path} cannot be read ({error.strerror}): make it readable') from None
            except Unknown as problem:
                self.unknown.append(f'{path.relative_to(self.root)} {problem}')
        return {path: tables[path] for path in tables if '.lemma.' not in path.name} or tables  # Flickr8k has both

    def find(self, names: Sequence[str]) -> Listing | None:
        """Returns the images of a split, by the first of its names or else by the others; None if there are none."""
        root = self.root
        places = [root, root / 'annotations']
        groups = names[:1], names[1:]
        for group in groups:
            tables = self.tables(root / name for name in group)
            path = _one(root, tables)
            if path:
                return Listing(tables[path], [path.parent, root])
        general = self.tables(places, lambda stem: not _mentions({*SPLITS, *names}, stem))
        path = _one(root, filter(lambda path: _is_divided(general[path]), general))
        if path:
            return Listing(general[path], _folders(root))
        for group in groups:
            belongs = functools.partial(_mentions, group)
            tables = self.tables(places, belongs)
            path = _one(root, tables)
            if path:
                return Listing(tables[path], _folders(root, path.stem.removeprefix('captions_')))
            listings = [*(in_folder(root / name) for name in sorted(group)), in_shards(root, belongs)]
            if any(listings):
                return next(filter(None, listings))
        path = _one(root, general)
        return Listing(_in_list(path, general[path], self, names), _folders(root)) if path else None

    def find_all(self) -> Listing | None:
        """Returns the images of a data set without splits; None if there are none."""
        tables = self.tables([self.root, self.root / 'annotations'])
        for path in filter(lambda path: _is_divided(tables[path]), tables):
            raise UserError(f'{path} names the splits of its images: leave out config key data.held_out')
        path = _one(self.root, tables)
        return Listing(tables[path], _folders(self.root)) if path else in_folder(self.root)


def in_shards(folder: Path, belongs: Callable[[str], bool] = bool) -> Listing | None:
    """Lists the photos of the shards in a folder whose stem matches the split; None without such shards."""
    paths = [path for path in content_of(folder) if path.suffix.lower() == '.tar' and belongs(path.stem)]
    return Listing([], [folder], open_shards(folder, paths)) if paths else None


def in_folder(folder: Path) -> Listing | None:
    """Lists the photos of the shards in a folder, or else of files with captions; None without them."""
    shards = in_shards(folder)
    if shards:
        return shards
    listed = with_texts(folder)
    return Listing(listed, [folder]) if listed else None


def _in_list(path: Path, images: list[Listed], folder: _Folder, names: Sequence[str]) -> list[Listed]:
    """Returns the images in a folder of the split, or that `trainImages.txt` or `train.txt` lists."""
    inside = [image for image in images if image.name.partition('/')[0] in names]
    if inside:
        return inside
    root = folder.root
    named = re.compile(rf'(?:.*(?:{"|".join(names)})Images|(?:{"|".join(names)})(?:_images)?)\.txt')
    lists = [image for image in content_of(root) + content_of(root / 'annotations') if named.fullmatch(image.name)]
    if len(lists) != 1:
        raise UserError(
            f"{path} names no splits, and {root} has {len(lists)} files that list the images of '{names[0]}': move it "
            f'with the photos to {root}/{names[0]}, write their names to {names[0]}.txt, one per line, or sample the '
            'splits by config key data.held_out'
        )
    lines = map(str.strip, split_lines(read_text(lists[0])))
    listed_names = dict.fromkeys(folder.relative(line) for line in lines if line)
    listed = {image.name for image in images}
    absent = next((name for name in listed_names if name not in listed), None)
    if absent:
        raise UserError(f"{path} has no caption of {absent}, an image of the split '{names[0]}': add one")
    return [image for image in images if image.name in listed_names]


def _mentions(names: Collection[str], stem: str) -> bool:
    """Returns whether the stem of a file is one of some names, or has one as a word."""
    return not {stem, *re.findall('[a-z]+', stem.lower())}.isdisjoint(names)


def _is_divided(images: Iterable[Listed]) -> bool:
    """Returns whether a file states the splits of its images."""
    return any(image.split for image in images)


def _one(root: Path, paths: Iterable[Path]) -> Path | None:
    """Returns the only path, or None if there are none."""
    first, *more = [*paths] or [None]
    if more:
        names = ' and '.join(str(path.relative_to(root)) for path in (first, *more))
        raise UserError(f'{root} has {names}: leave one of them in the folder')
    return first


def _folders(root: Path, *names: str) -> list[Path]:
    """Returns the folders in which a data set keeps its images: named ones, itself, and its direct subfolders."""
    inner = sorted(path for path in root.iterdir() if path.is_dir())
    return [*(root / name for name in names), root, *inner, *(root / 'images' / name for name in names)]


def read(root: Path, split: str, restval: bool, columns: Columns, undivided: bool) -> Listing:
    """Finds the captions of a folder and reads one split.

    Args:
      root: The folder.
      split: The name of the split, such as 'train'; the names in `DEV` are the same.
      restval: Whether 'train' includes images of the split `restval`.
      columns: The names of columns and keys.
      undivided: Whether all images of a data set without splits are read instead.

    Raises:
      UserError: If there are no captions of a known format, a file is damaged, or an image is outside of the folder
        or has a name that cannot be shown.
    """
    if not root.is_dir():
        raise UserError(f'{root} is not a folder: give the path of a folder with image files and captions')
    names = (split, *(name for name in DEV if name != split)) if split in DEV else (split,)
    folder = _Folder(root, columns)
    listing = folder.find_all() if undivided else folder.find(names)
    if listing is None:
        image, caption = (' or '.join(synonyms) for synonyms in columns)
        unread = f': {"; ".join(folder.unknown[:3])}' if folder.unknown else ''
        unread += describe_unread(root.rglob('*'), UNREAD)
        raise UserError(
            f"{root} has no captions of the split '{split}'{unread}; name the column or key of images {image}, and "
            f'that of captions {caption}, or set config keys data.image_column and data.caption_column; without '
            'splits, set data.held_out'
        )
    divided = {image.split for image in listing.images} - {''}
    if divided:
        split_names = {*names, *((RESTVAL,) if restval and split == 'train' else ())}
        if split_names.isdisjoint(divided):
            path = listing.images[0].where.partition(',')[0]
            raise UserError(f"{path} has no images of the split '{split}'{did_you_mean(split, divided)}")
        listing = listing._replace(images=[image for image in listing.images if image.split in split_names])
    for image in listing.images:
        image.check_name()
    return listing
