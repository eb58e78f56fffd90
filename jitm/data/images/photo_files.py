"""Photos of a folder, some with captions in files of their names."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from jitm.data.images.caption_files import SUFFIXES, captions_in
from jitm.data.images.image_bytes import RAW
from jitm.data.images.listed import Listed
from jitm.errors import UserError
from jitm.files import ArchiveMember, describe_unread, parse_json, read_text, split_lines

FOREIGN = ('.heic', '.heif', '.hif', '.jxl', *RAW)  # photos that Pillow does not read without other packages
TEXTS = ('.txt', '.TXT', '.json', '.JSON')  # captions of the photo of the same name, the first ones first
UNREAD = {  # suffixes of data sets that are not read -> what to do
    **dict.fromkeys(('.parquet', '.arrow'), 'save its images as files, and the other columns by Dataset.to_csv'),
    '.zip': 'unzip it',
    **dict.fromkeys(('.gz', '.tgz'), 'gunzip it'),
    **dict.fromkeys(('.7z', '.bz2', '.rar', '.xz', '.zst'), 'unpack it'),
}


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


def beside(folder: Path, names: Iterable[str], find: Callable[[str], Path | ArchiveMember | None]) -> list[Listed]:
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


def with_texts(folder: Path) -> list[Listed]:
    """Lists the photos with captions of a folder, see `beside`."""
    try:
        names, _ = list_files(folder)
    except UserError:  # it has no photos
        return []
    return beside(folder, names, lambda name: folder / name if (folder / name).is_file() else None)


def content_of(folder: Path) -> list[Path]:
    """Returns the content of a folder, sorted, without hidden files; nothing if there is no such folder."""
    return sorted(path for path in folder.iterdir() if path.name[0] != '.') if folder.is_dir() else []
