"""Photos with captions: a folder of image files, which are decoded when a batch needs them."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tqdm

from jitm.data import caption_files, precomp
from jitm.data.photo_files import list_files
from jitm.data.pixels import Photos, in_threads
from jitm.data.splits import Split
from jitm.data.transforms import Transform, check_image
from jitm.errors import UserError, printable, require
from jitm.files import cache_home, check_within, replacing
from jitm.outputs import OutputFolder
from jitm.types import Count, HeldOut, Index, Share

KIND = 'a set of photos'
METADATA = 'metadata.jsonl'


def load(
    split: str,
    *,
    root: str,
    image_size: Count = 224,
    short_side: Index = 256,
    interpolation: str = 'bilinear',
    crop: str = 'random',
    min_area: Share = 0.08,
    flip: bool = True,
    restval: bool = True,
    max_captions: Count | None = None,
    dev_images: Count | None = 1000,
    held_out: HeldOut | None = None,
    held_out_seed: Index = 0,
    image_column: str = '',
    caption_column: str = '',
) -> Split:
    """Opens one split of a folder of image files with captions, and checks all of it.

    Args:
      split: The name of the split, `train`, `dev` or `test`; `val`, `valid` and `validation` are the same as `dev`.
      root: The folder; for the formats of captions see `jitm.data.caption_files`.
      image_size: H and W of the pixels.
      short_side, interpolation, crop, min_area, flip: See `jitm.data.transforms.Transform`.
      restval: Whether `train` includes COCO's `restval` in Karpathy's format ("RC+rV" of VSE++).
      max_captions: The number of captions to keep of each image, the first ones; None for all.
      dev_images: The number of images to keep of the split `dev`, the first 1,000 in published results; None for all.
      held_out, held_out_seed: Of a data set without splits the share of the images in `dev` and in `test`, and a seed,
        see `jitm.data.caption_files.sample_split`; None for the splits of the folder.
      image_column, caption_column: The columns or keys of the captions file, if they have other names than the usual.

    Returns:
      A split with `pixels` and without features.

    Raises:
      UserError: If captions or image files are missing or damaged, or an image lies outside of the folder.
      ArgumentError: If the shorter side is less than the size of the pixels, or an option is unknown.
    """
    transform = Transform(image_size, short_side, interpolation, crop=crop, min_area=min_area, flip=flip)
    given = {'image': image_column, 'caption': caption_column}
    columns = caption_files.Columns(**{key: (name,) for key, name in given.items() if name})
    listing = caption_files.read(Path(root), split, restval, columns, held_out is not None)
    captions = caption_files.merge(listing.images)
    if not captions:
        raise UserError(f"{root} has no images of the split '{split}': add some")
    if held_out is not None:
        captions = caption_files.sample_split(captions, split, held_out, held_out_seed)
    kept = list(captions)[: dev_images if split in caption_files.DEV else None]
    texts = {name: captions[name][:max_captions] for name in kept}
    files = [listing.members[name] for name in kept] if listing.members else _find_files(listing, kept)
    content_hash = check_files(files)
    counts = [len(image_captions) for image_captions in texts.values()]
    return Split(
        name=f'{os.path.basename(os.path.abspath(root))}/{split}',
        regions=None,
        counts=None,
        captions=tuple(caption for image_captions in texts.values() for caption in image_captions),
        image_of_text=np.repeat(np.arange(len(kept), dtype=np.int32), counts),
        image_ids=tuple(kept),
        pixels=Photos(files, transform, content_hash),
        dataset=precomp.read_dataset(root),
    )


def load_folder(folder: Path, transform: Transform) -> Split:
    """Opens a folder of photos without captions, and checks all of it.

    Args:
      folder: The folder, see `list_files`; its name is that of the split, and the paths within it those of the images.
      transform: The way in which photos become pixels.

    Returns:
      A split with `pixels` and without captions.

    Raises:
      UserError: If there are no photos, one of them cannot be read, or has a name that cannot be written as a line.
    """
    names, problems = list_files(folder)
    for name, problem in problems.items():
        raise UserError(f'{folder / name} {problem}')
    for name in names:
        if name != printable(name.strip()):
            raise UserError(
                f'{folder} has a photo with the name {name!r}, which is not a line of plain text: rename it'
            )
    files = [str(folder / name) for name in names]
    pixels = Photos(files, transform, check_files(files))
    return Split(
        name=folder.resolve().name,
        regions=None,
        counts=None,
        captions=(),
        image_of_text=np.zeros(0, np.int32),
        image_ids=tuple(names),
        pixels=pixels,
    )


def write(split: Split, root: str | Path) -> None:
    """Writes the pixels and captions of a split, such as one of `scenes`, as PNG files with `metadata.jsonl`.

    Args:
      split: A split with pixels; its name ends in that of the split, such as `scenes/dev`.
      root: The folder; the files are in a folder in it with the name of the split, which is new, empty, or was written
        before.

    Raises:
      UserError: If that folder has files of somebody else, or the name of an image leads out of it.
    """
    output = OutputFolder(Path(root) / split.name.rpartition('/')[2], KIND)
    for name in split.image_ids:
        check_within(name, split.name)
    files = [f'{name}.png' for name in split.image_ids]
    pillow = require('PIL.Image', extra='photos')
    output.claim([*files, METADATA])
    texts, starts = split.texts_of_image
    rows = []
    for image, name in enumerate(files):
        with replacing(output.path / name) as file:
            pillow.fromarray(split.pixels[image]).save(file, 'PNG')
        captions = [split.captions[text] for text in texts[starts[image] : starts[image + 1]]]
        rows.append(json.dumps({'file_name': name, 'captions': captions}) + '\n')
    with output.replacing(METADATA) as file:
        file.write(''.join(rows).encode())
    output.remove({*output.names} - {*files, METADATA})


def _find_files(listing: caption_files.Listing, names: Sequence[str]) -> list[str]:
    """Returns the path of each image file.

    They are in the first folder that has the first of them. Files that it lacks are searched in the other folders,
    except in those with files of the same names, such as smaller copies or another split.
    """
    main = next((folder for folder in listing.folders if os.path.exists(os.path.join(folder, names[0]))), None)
    if main is None:
        where = next(image.where for image in listing.images if image.name == names[0])
        raise UserError(f'{where} names {names[0]}, which is not in {listing.folders[0]}: add the file')
    found: dict[str, str] = {}
    for folder in (main, *listing.folders):
        if len(found) == len(names):
            break
        paths = {name: path for name in names if os.path.exists(path := os.path.join(folder, name))}
        if found.keys().isdisjoint(paths):
            found |= paths
    return [found.get(name, os.path.join(main, name)) for name in names]


def check_files(files: Sequence[str]) -> str:
    """Decodes every image file once, on a terminal with a progress bar.

    Files that have been checked before, and whose sizes and times have not changed, are not read again.

    Returns:
      SHA-256 of the bytes of all files, as hex.

    Raises:
      UserError: If a file is missing, or no image.
    """

    def check() -> str:
        with tqdm.tqdm(
            desc='checking', total=len(files), unit=' photos', disable=None, dynamic_ncols=True, leave=False
        ) as bar:
            hashes = in_threads(lambda n: (check_image(files[n]), bar.update())[0], len(files))
        return hashlib.sha256(''.join(hashes).encode()).hexdigest()

    return remember(files, check)


def remember(files: Sequence[str], check: Callable[[], str], what: str = '') -> str:
    """Returns the result of a check of files, which is kept until their sizes or times change.

    Args:
      files: The paths of the files.
      check: A function that reads the files and returns a text.
      what: A name of what is checked, for several checks of the same files.

    Raises:
      UserError: If a file is missing.
    """
    digest = hashlib.sha256(what.encode())
    for path in files:
        try:
            stat = os.stat(path)
        except (OSError, ValueError) as error:  # a ValueError if no file can have that name
            reason = getattr(error, 'strerror', None) or error
            raise UserError(f'{path} cannot be read ({reason}): add the file, or make it readable') from None
        digest.update(
            f'{os.path.abspath(str(path))} {stat.st_size} {stat.st_mtime_ns}\n'.encode(errors='surrogateescape')
        )
    checked = cache_home() / 'checked_photos' / digest.hexdigest()
    with contextlib.suppress(OSError):
        if result := checked.read_text():
            return result
    result = check()
    with contextlib.suppress(OSError, UserError):  # without a cache they are checked again
        checked.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(checked) as file:
            file.write(result.encode())
    return result
