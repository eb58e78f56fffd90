"""Photos with captions: a folder of image files, which are decoded when a batch needs them."""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from jitm.data import precomp
from jitm.data.images.caption_files import DEV, Columns
from jitm.data.images.listed import Listed
from jitm.data.images.photo_files import UNREAD, list_files
from jitm.data.images.photo_folders import Listing, read
from jitm.data.images.pixels import Photos, check_files, in_threads
from jitm.data.images.shards import Members, Pairs
from jitm.data.images.transforms import Photo, Transform, check_image
from jitm.data.splits import Split, join_captions
from jitm.errors import UserError, printable, require
from jitm.files import check_within, describe_unread, hash_lists, replacing
from jitm.files.outputs import OutputFolder
from jitm.types import Count, HeldOut, Index, Share

KIND = 'a set of photos'
METADATA = 'metadata.jsonl'
BROKEN = ('check', 'stop', 'skip')


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
    broken: Literal[*BROKEN] = 'check',
) -> Split:
    """Opens one split of a folder of image files with captions, and checks all of it.

    Args:
      split: The name of the split, `train`, `dev` or `test`; `val`, `valid` and `validation` are the same as `dev`.
      root: The folder; for the formats of captions see `jitm.data.images.photo_folders`.
      image_size: H and W of the pixels.
      short_side, interpolation, crop, min_area, flip: See `jitm.data.images.transforms.Transform`.
      restval: Whether `train` includes COCO's `restval` in Karpathy's format ("RC+rV" of VSE++).
      max_captions: The number of captions to keep of each image, the first ones; None for all.
      dev_images: The number of images to keep of the split `dev`, the first 1,000 in published results; None for all.
      held_out, held_out_seed: The share of the images in `dev` and in `test` of a data set without splits, and a seed,
        see `_sample_split`; None for the splits of the folder.
      image_column, caption_column: The columns or keys of the captions file, if they have other names than the usual.
      broken: What happens to photos that cannot be decoded. With 'check' all photos are decoded once, and a broken one
        is an error. The others decode photos of `train` in batches only, where a broken one stops the run ('stop') or
        is replaced by another pair and counted ('skip'); 'skip' leaves broken photos of other splits out.

    Returns:
      A split with `pixels` and without features.

    Raises:
      UserError: If captions or image files are missing or damaged, or an image is outside of the folder.
      ArgumentError: If the shorter side is less than the size of the pixels, or an option is unknown.
    """
    transform = Transform(image_size, short_side, interpolation, crop=crop, min_area=min_area, flip=flip)
    column_flags = {'image': image_column, 'caption': caption_column}
    columns = Columns(**{key: (name,) for key, name in column_flags.items() if name})
    listing = read(Path(root), split, restval, columns, held_out is not None)
    lazy = split == 'train' and broken != 'check'
    if lazy and listing.shards and held_out is None:
        pairs = listing.shards.pairs(max_captions)
    else:
        captions = _merge([*listing.shards.listed()] if listing.shards else listing.images)
        if not captions:
            raise UserError(f"{root} has no images of the split '{split}': add some")
        if held_out is not None:
            captions = _sample_split(captions, split, held_out, held_out_seed)
        names = list(captions)[: dev_images if split in DEV else None]
        files = _find_files(listing, names, Path(root))
        if broken == 'skip' and not lazy:
            names, files = _whole(names, files)
        pairs = Pairs(tuple(names), files, *join_captions([captions[name][:max_captions] for name in names]))
    content_hash = hash_lists([pairs.names, _sizes(pairs.files)]) if lazy else check_files(pairs.files)
    return Split(
        name=f'{os.path.basename(os.path.abspath(root))}/{split}',
        captions=pairs.captions,
        image_of_text=pairs.image_of_text,
        image_ids=pairs.names,
        dataset=precomp.read_dataset(root),
        pixels=Photos(pairs.files, transform, content_hash, broken if lazy else 'check'),
    )


def load_folder(folder: Path, transform: Transform) -> Split:
    """Opens a folder of photos without captions, and checks all of it.

    Args:
      folder: The folder, see `list_files`; its name becomes the split's name, and the paths in it the images' names.
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
    return Split(
        name=folder.resolve().name,
        image_ids=tuple(names),
        pixels=Photos(files, transform, check_files(files)),
    )


def write(split: Split, root: str | Path) -> None:
    """Writes the pixels and captions of a split, such as one of `scenes`, as PNG files with `metadata.jsonl`.

    Args:
      split: A split with pixels; its name ends in `train`, `dev` or `test`, such as `scenes/dev`.
      root: The folder; the files are in a folder in it with the name of the split, which is new, empty, or was written
        before.

    Raises:
      UserError: If that folder has files that jitm did not write, or the name of an image leads out of it.
    """
    output = OutputFolder(Path(root) / split.name.rpartition('/')[2], KIND)
    for name in split.image_ids:
        check_within(name, split.name)
    files = [f'{name}.png' for name in split.image_ids]
    pillow = require('PIL.Image', extra='photos')
    output.claim([*files, METADATA])
    rows = []
    for image, name in enumerate(files):
        with replacing(output.path / name) as file:
            pillow.fromarray(split.pixels[image]).save(file, 'PNG')
        rows.append(json.dumps({'file_name': name, 'captions': split.captions_of(image)}) + '\n')
    with output.replacing(METADATA) as file:
        file.write(''.join(rows).encode())
    output.remove({*output.names} - {*files, METADATA})


def _find_files(listing: Listing, names: Sequence[str], root: Path) -> list[Photo]:
    """Returns each image file of a data set in the folder `root`.

    They are in the first folder that has the first of them. Files that it lacks are searched in the other folders,
    except in those with files of the same names, such as smaller copies or another split.
    """
    if listing.shards:
        members = {image.name: image.file for image in listing.shards.listed()}
        return [members[name] for name in names]
    main = next((folder for folder in listing.folders if os.path.exists(os.path.join(folder, names[0]))), None)
    if main is None:
        where = next(image.where for image in listing.images if image.name == names[0])
        unread = describe_unread(root.rglob('*'), UNREAD)
        raise UserError(f'{where} names {names[0]}, which is not in {listing.folders[0]}: add the file{unread}')
    path_of: dict[str, str] = {}
    for folder in (main, *listing.folders):
        if len(path_of) == len(names):
            break
        paths = {name: path for name in names if os.path.exists(path := os.path.join(folder, name))}
        if path_of.keys().isdisjoint(paths):
            path_of |= paths
    return [path_of.get(name, os.path.join(main, name)) for name in names]


def _sizes(files: Sequence[Photo]) -> Sequence[int | None] | np.ndarray:
    """Returns the bytes of each photo in an archive, None for single files."""
    return files.sizes if isinstance(files, Members) else [getattr(file, 'size', None) for file in files]


def _whole(names: Sequence[str], files: Sequence[Photo]) -> tuple[list[str], list[Photo]]:
    """Returns the names and files of the photos that can be decoded, all if none can, and logs the number of others."""

    def is_whole(n: int) -> bool:
        with contextlib.suppress(UserError):
            return bool(check_image(files[n]))
        return False

    rows = [n for n, whole in enumerate(in_threads(is_whole, len(files))) if whole] or range(len(files))
    if len(rows) < len(files):
        logging.warning('%d of %d photos are broken and are left out', len(files) - len(rows), len(files))
    return [names[row] for row in rows], [files[row] for row in rows]


def _merge(images: Sequence[Listed]) -> dict[str, list[str]]:
    """Returns name -> captions, without blanks around and within them, of images that may be listed several times.

    Captions that are null or blank are left out. Images without captions are left out, too, and their number is logged.

    Raises:
      UserError: If a caption is no text, or no image has captions.
    """
    merged: dict[str, list[str]] = {}
    for image in images:
        merged.setdefault(image.name, []).extend(image.texts())
    with_captions = {name: captions for name, captions in merged.items() if captions}
    if merged and not with_captions:
        where = images[0].where
        raise UserError(
            f'{where} has no captions, nor has any other image: write them, or name their column or key by '
            'data.caption_column'
        )
    left_out = len(merged) - len(with_captions)
    if left_out:
        logging.warning('%d of %d images have no captions and are left out', left_out, len(merged))
    return with_captions


def _sample_split(captions: dict[str, list[str]], split: str, held_out: float, seed: int) -> dict[str, list[str]]:
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
    parts = {'train': order[2 * count :], 'dev': order[count : 2 * count], 'test': order[:count]}
    if split not in DEV:
        counts = ', '.join(f'{len(part)} in {name}' for name, part in parts.items())
        logging.getLogger(__name__).info('data.held_out=%s samples images: %s', held_out, counts)
    part = {*parts.get('dev' if split in DEV else split, ())}
    if not part:
        raise UserError(f"data.held_out={held_out} leaves none of {len(order)} images for the split '{split}'")
    return {name: captions[name] for name in captions if name in part}
