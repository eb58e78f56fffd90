"""Image files in folders and tar archives, with captions in files of the same names as img2dataset writes them."""

import ast
import contextlib
import os
import re
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jitm.data.transforms import RAW
from jitm.errors import UserError
from jitm.files import Member, open_file, parse_json, read_text, split_lines

SUFFIXES = ('.avif', '.bmp', '.gif', '.jfif', '.jp2', '.jpeg', '.jpg', '.png', '.tif', '.tiff', '.webp')
FOREIGN = ('.heic', '.heif', '.hif', '.jxl', *RAW)  # photos that Pillow does not read without other packages
PIECE = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""  # a text in Python
CAPTION = ('captions', 'caption', 'text', 'comment', 'title', 'raw')  # keys or columns of captions


class Listed(NamedTuple):
    """An image as a file lists it.

    Attributes:
      name: The path of the image file, relative to one of the folders of a `Listing`.
      captions: Its captions, not checked.
      where: The file and the line or entry, for messages.
      split: The name of its split; '' if the file does not say.
    """

    name: str
    captions: list[str]
    where: str
    split: str = ''


def list_files(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Lists the image files of a folder and of the folders in it, without hidden ones.

    Links are followed, but the photos of a folder that a link leads to as well are listed once.

    Returns:
      The names, relative to the folder, and name -> reason, of those that cannot be read: folders without permission.

    Raises:
      UserError: If there are none, or the folder cannot be read.
    """
    names, problems, seen = [], {}, set()

    def leave_out(error: OSError) -> None:
        problems[os.path.relpath(error.filename, folder)] = f'cannot be read ({error.strerror}): make it readable'

    tops = [str(folder)]  # and the linked folders, after all others
    for top in tops:
        for parent, folders, files in os.walk(top, onerror=leave_out):
            if (real := os.path.realpath(parent)) in seen:
                folders.clear()
                continue
            seen.add(real)
            folders[:] = sorted(name for name in folders if not name.startswith('.'))
            tops += filter(os.path.islink, (os.path.join(parent, name) for name in folders))
            names += (os.path.relpath(os.path.join(parent, name), folder) for name in filter(is_photo, files))
    if os.curdir in problems:
        raise UserError(f'{folder} {problems[os.curdir]}')
    if not (names := sorted([*names, *problems])):
        raise UserError(f'{folder} has no image files ({", ".join(SUFFIXES)}); give a folder with photos')
    return names, problems


def is_photo(name: str) -> bool:
    """Returns whether the name of a file is that of a photo."""
    return name.lower().endswith((*SUFFIXES, *FOREIGN)) and not os.path.basename(name).startswith('.')


def captions_in(row: dict[str, Any], keys: Sequence[str], where: str) -> list[str]:
    """Returns the captions in an object or a row of a table: a text, a list of texts, or one as JSON or Python.

    Raises:
      UserError: If it has none of the keys, or something else there.
    """
    captions = next((row[key] for key in keys if key in row), None)
    if isinstance(captions, str) and (text := captions.strip())[:1] + text[-1:] in ('[]', '()'):
        for parse in (parse_json, ast.literal_eval):
            with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                parsed = parse(text)
                if isinstance(parsed, list | tuple) and all(isinstance(one, str) for one in parsed):
                    if parse is ast.literal_eval and text.count(',') < len(re.findall(PIECE, text)) - 1:
                        raise UserError(f'{where} has a list of captions without commas between them: write it as JSON')
                    return [*parsed]
    captions = [captions] if isinstance(captions, str) else captions
    if not isinstance(captions, list) or not all(isinstance(one, str) for one in captions):
        raise UserError(f'{where} has no captions: give a list of them as captions, or one as caption')
    return captions


def beside(folder: Path, members: Mapping[str, Member] | None = None) -> list[Listed]:
    """Lists the photos that have captions in `.txt` (one per line) or `.json` files of their names.

    Args:
      folder: A folder, or a tar archive.
      members: Name -> file in the archive; None for a folder.

    Returns:
      The photos, those without such a file without captions; [] if no photo has one.

    Raises:
      UserError: If two photos share a file, or one is damaged.
    """
    listed, photos, names = [], {}, members or ()
    if members is None:
        with contextlib.suppress(UserError):  # it has no photos
            names = list_files(folder)[0]
    for name in filter(is_photo, names):
        stem, captions = os.path.splitext(name)[0], []
        texts = [members.get(text) if members else folder / text for text in (f'{stem}.txt', f'{stem}.json')]
        for text in [text for text in texts if text and (members or text.is_file())][:1]:
            if photos.setdefault(stem, name) != name:
                raise UserError(f'{folder} has {photos[stem]} and {name} for {text}: rename one of them')
            content = read_text(text)
            captions = [line for line in split_lines(content) if line.strip()]
            if text == texts[1]:
                try:
                    captions = captions_in({**parse_json(content)}, CAPTION, str(text))
                except (ValueError, TypeError):
                    raise UserError(f'{text} is not a JSON object: write it again') from None
        listed.append(Listed(name, captions, f'{folder}/{name}'))
    return listed if photos else []


def beside_in_tar(path: Path) -> tuple[list[Listed], dict[str, Member]]:
    """Lists the photos with captions of a shard of webdataset, see `beside`, and name -> file of all its files.

    Raises:
      UserError: If the file is not an uncompressed tar archive, has a name twice, or damaged captions.
    """
    members: dict[str, Member] = {}
    try:
        with open_file(path) as file, tarfile.open(fileobj=file, mode='r:') as archive:
            for one in filter(tarfile.TarInfo.isfile, archive):
                if (name := os.path.normpath(one.name)) in members:
                    raise UserError(f'{path} has two files {name}: rename one of them')
                members[name] = Member(str(path), name, one.offset_data, one.size)
    except (OSError, tarfile.TarError) as error:
        raise UserError(f'{path} is not a whole, uncompressed tar archive ({error}): write it again') from None
    listed = [one._replace(name=f'{path.name}/{one.name}') for one in beside(path, members)]
    return listed, {f'{path.name}/{name}': member for name, member in members.items()}
