"""Photos of folders and tar archives, some with captions in files of their names, as img2dataset writes them."""

import functools
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from jitm.data.images.caption_files import SUFFIXES, Listed, captions_in
from jitm.data.images.image_bytes import RAW
from jitm.data.images.pixels import remember
from jitm.errors import UserError, printable
from jitm.files import ArchiveMember, describe_unread, open_file, parse_json, read_text, split_lines

FOREIGN = ('.heic', '.heif', '.hif', '.jxl', *RAW)  # photos that Pillow does not read without other packages
TEXTS = ('.txt', '.TXT', '.json', '.JSON')  # captions of the photo of the same name, the first ones first
UNREAD = {  # suffixes of data sets that are not read -> what to do
    **dict.fromkeys(('.parquet', '.arrow'), 'save its images as files, and the other columns by Dataset.to_csv'),
    '.zip': 'unzip it',
    **dict.fromkeys(('.gz', '.tgz'), 'gunzip it'),
    **dict.fromkeys(('.7z', '.bz2', '.rar', '.xz', '.zst'), 'unpack it'),
}


class Listing(NamedTuple):
    """The images of a split.

    Attributes:
      images: The images in their order; an image may be listed several times.
      folders: The folders where the image files may be; the first that has the first file is preferred.
      members: Name -> file, of images in tar archives.
    """

    images: list[Listed]
    folders: list[Path]
    members: Mapping[str, ArchiveMember] = {}


def list_files(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Lists the image files of a folder and of the folders in it, without hidden ones.

    Links are followed, but the photos of a folder that a link leads to as well are listed once.

    Returns:
      The names, relative to the folder, and name -> reason, of those that cannot be read: folders without permission.

    Raises:
      UserError: If there are none, or the folder cannot be read.
    """
    names = []
    seen = set()
    errors = []
    tops = [str(folder)]  # and the linked folders, after all others
    for top in tops:
        for parent, folders, files in os.walk(top, onerror=errors.append):
            real = os.path.realpath(parent)
            if real in seen:
                folders.clear()
                continue
            seen.add(real)
            folders[:] = sorted(name for name in folders if not name.startswith('.'))
            tops += filter(os.path.islink, (os.path.join(parent, name) for name in folders))
            names += (os.path.relpath(os.path.join(parent, name), folder) for name in filter(_is_photo, files))
    problems = {
        os.path.relpath(error.filename, folder): f'cannot be read ({error.strerror}): make it readable'
        for error in errors
    }
    if os.curdir in problems:
        raise UserError(f'{folder} {problems[os.curdir]}')
    names = sorted([*names, *problems])
    if not names:
        unread = describe_unread(folder.rglob('*'), UNREAD)
        raise UserError(f'{folder} has no image files ({", ".join(SUFFIXES)}){unread}; give a folder with photos')
    return names, problems


def _is_photo(name: str) -> bool:
    """Returns whether a file is a photo by its name."""
    return name.lower().endswith((*SUFFIXES, *FOREIGN)) and not os.path.basename(name).startswith('.')


def _beside(folder: Path, names: Iterable[str], find: Callable[[str], Path | ArchiveMember | None]) -> list[Listed]:
    """Lists the photos that have captions in `.txt` (one per line) or `.json` files of their names.

    Args:
      folder: A folder, or a tar archive.
      names: The names of its files.
      find: A function from a name to the file in the folder; None if there is none.

    Returns:
      The photos, those without such a file without captions; [] if no photo has one.

    Raises:
      UserError: If two photos share a file, or one is damaged.
    """
    listed = []
    photos = {}
    for name in filter(_is_photo, names):
        stem = os.path.splitext(name)[0]
        text = next(filter(None, (find(stem + suffix) for suffix in TEXTS)), None)
        if text is None:
            listed.append(Listed(name, [], f'{folder}/{name}'))
            continue
        if photos.setdefault(stem, name) != name:
            raise UserError(f'{folder} has {photos[stem]} and {name} for {text}: rename one of them')
        captions = split_lines(read_text(text))
        if str(text).lower().endswith('.json'):
            try:
                captions = captions_in({**parse_json(read_text(text))}, str(text))
            except (ValueError, TypeError):
                raise UserError(f'{text} is not a JSON object: write it again') from None
        listed.append(Listed(name, captions, str(text)))
    return listed if photos else []


def _with_texts(folder: Path) -> list[Listed]:
    """Lists the photos with captions of a folder, see `_beside`."""
    try:
        names, _ = list_files(folder)
    except UserError:  # it has no photos
        return []
    return _beside(folder, names, lambda name: folder / name if (folder / name).is_file() else None)


def _read_archive(path: Path) -> str:
    """Reads the captions of a shard of webdataset, see `_beside`.

    Returns:
      JSON of the names of its first files, and of each photo the arguments of `Listed`, but for the path of the shard,
      and of `ArchiveMember`.

    Raises:
      UserError: If the file is not an uncompressed tar archive, has a name twice, or damaged captions.
    """
    members: dict[str, ArchiveMember] = {}
    try:
        with open_file(path) as file, tarfile.open(fileobj=file, mode='r:') as archive:
            for entry in filter(tarfile.TarInfo.isfile, archive):
                name = os.path.normpath(entry.name)
                if name in members:
                    raise UserError(f'{path} has two files {name}: rename one of them')
                members[name] = ArchiveMember(str(path), entry.name, entry.offset_data, entry.size)
    except (OSError, tarfile.TarError) as error:
        raise UserError(f'{path} is not a whole, uncompressed tar archive ({error}): write it again') from None
    photos = []
    for name, captions, where, _ in _beside(path, members, members.get):
        member = members[name]
        photos.append([name, captions, where.removeprefix(str(path)), member.name, member.start, member.size])
    return json.dumps([[*members][:3], photos])


def in_shards(folder: Path, belongs: Callable[[str], bool] = bool) -> Listing | None:
    """Lists the photos of the shards in a folder whose stem matches the split; None without such shards.

    A shard is read once, see `remember`.
    """
    shards = [path for path in content_of(folder) if path.suffix.lower() == '.tar' and belongs(path.stem)]
    if not shards:
        return None
    images = []
    members: dict[str, ArchiveMember] = {}
    names: list[str] = []
    for path in shards:
        first, photos = json.loads(remember([str(path)], functools.partial(_read_archive, path), 'captions'))
        names += [f'{path.name}/{name}' for name in first]
        for name, captions, where, *member in photos:
            images.append(Listed(f'{path.name}/{name}', captions, f'{path}{where}'))
            members[images[-1].name] = ArchiveMember(str(path), *member)
    if names and not images:
        raise UserError(
            f'{folder} has {printable(", ".join(names[:3]))}, but photos are read with captions in .txt or '
            '.json files of the same names, such as a.jpg and a.txt: write the shards again'
        )
    return Listing(images, [folder], members)


def in_folder(folder: Path) -> Listing | None:
    """Lists the photos of the shards in a folder, or else of files with captions; None without them."""
    shards = in_shards(folder)
    if shards:
        return shards
    listed = _with_texts(folder)
    return Listing(listed, [folder]) if listed else None


def content_of(folder: Path) -> list[Path]:
    """Returns the content of a folder, sorted, without hidden files; nothing if there is no such folder."""
    return sorted(path for path in folder.iterdir() if path.name[0] != '.') if folder.is_dir() else []
