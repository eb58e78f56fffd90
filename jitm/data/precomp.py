"""Region features and captions in the field's `*_precomp` folders.

A folder holds, per split, `{split}_ims.npy` and `{split}_caps.txt`, and optionally `{split}_ids.txt`, `_counts.npy`
(the number of valid regions of each image), `_image_of_text.npy` (the image of each caption), `_boxes.npy` and
`_tags.jsonl`; `boxes.npy` holds the boxes if they are the same for every image. The optional `dataset.txt` holds the
name of the data set. Features stay on disk and are memory-mapped. Three differences between published folders are
removed: some store each image once per caption, the dev splits of Flickr30K and COCO have more than the 1,000 images of
published results, and CC152K has `{split}_caps.tsv`, an image id, a tab and a caption per line, instead of
`{split}_caps.txt`.
"""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from jitm.data.arrays import BOXES, Rows, are_boxes, check_finite, open_npy, read_integers
from jitm.data.correspondence import find_images, name_images
from jitm.data.splits import Split
from jitm.data.text import token_vectors as token_vectors_lib
from jitm.errors import UserError
from jitm.files import describe_unread, parse_json, read_bytes, read_text, split_lines
from jitm.types import Count, NotNegative

FEATURES = '_ims.npy'
MANIFEST = 'encoded.json'  # which networks encoded the splits, see `jitm.encoders.networks`
_PIXELS = 'image_size', 'short_side', 'interpolation'
ENCODED_BY = 'network', 'parameters', 'crops', 'dtype', 'precision', *_PIXELS, 'origin'  # keys of a split in it
SHARED = 'boxes.npy', 'dataset.txt', token_vectors_lib.VOCABULARY  # by all splits of a folder
_CAPTIONS = '_caps.txt', '_caps.tsv'  # the second is read where the first is missing
TEXTS = token_vectors_lib.VECTORS, token_vectors_lib.LENGTHS
_REMEDY = (
    'write its features by numpy.save as one array [images, regions, features], padded with zeros, and the numbers of '
    "regions as the split's _counts.npy"
)
_UNREAD = dict.fromkeys(('.h5', '.hdf5', '.lmdb', '.npz', '.pkl', '.pt', '.tsv'), _REMEDY)
_OTHERS = *_CAPTIONS, '_ids.txt', '_counts.npy', '_image_of_text.npy', '_boxes.npy', '_tags.jsonl', *TEXTS


def splits(root: str) -> tuple[str, ...]:
    """Returns the names of the splits of a folder, sorted.

    Args:
      root: A `*_precomp` folder.

    Returns:
      The part before `_ims.npy` of every such file.

    Raises:
      UserError: If `root` is not a folder.
    """
    if not os.path.isdir(root):
        raise UserError(f'{root} is not a folder: give the path of a *_precomp folder')
    return tuple(sorted(name.removesuffix(FEATURES) for name in os.listdir(root) if name.endswith(FEATURES)))


def files_of(split: str) -> list[str]:
    """Returns the names of all files of a split; most are optional."""
    return [f'{split}{suffix}' for suffix in (FEATURES, *_OTHERS)]


def load(
    split: str,
    *,
    root: str,
    dev_images: Count | None = 1000,
    min_tag_score: NotNegative = 0.0,
    token_vectors: bool = False,
) -> Split:
    """Opens one split of a precomp folder, SCAN's data format, and checks all of it.

    Args:
      split: The name of the split: `train`, `dev`, `test`, `testall` or another one of the folder.
      root: The folder, such as `data/f30k_precomp`.
      dev_images: The number of images to keep of the split `dev`, the first 1,000 in published results; None for all.
      min_tag_score: Object tags of a lower score are left out; an image where this leaves none keeps its first one.
      token_vectors: Whether the vectors of the captions' tokens are opened, see `jitm.data.text.token_vectors`.

    Returns:
      The split; `regions` [I, R, D] are rows of the memory-mapped file, each image once.

    Raises:
      UserError: If a file is missing, damaged or inconsistent with the others.
    """
    names = splits(root)
    stem = os.path.join(root, split)
    path = stem + FEATURES
    paths = [stem + suffix for suffix in _CAPTIONS]
    captions_path = next(filter(os.path.exists, paths), paths[0])
    unread = '' if split in names else _describe_unread(root)
    if split not in names and not os.path.exists(captions_path):
        hint = (
            f'its splits are {", ".join(names)}; jitm encode --split adds one'
            if names
            else f'it holds no *{FEATURES} file: jitm encode writes those of photos'
        )
        raise UserError(f"{root} has no split '{split}': {hint}{unread}")
    if unread:
        raise UserError(f'{path} is missing{unread}')
    # Features and captions, each image once.
    captions, ids = _read_captions(captions_path)
    ids_path = captions_path
    if os.path.exists(f'{stem}_ids.txt'):
        ids_path = f'{stem}_ids.txt'
        ids = read_lines(ids_path)
    if len(ids) == len(captions):
        ids = tuple(re.sub(r'#\d+$', '', name) for name in ids)  # the number of the caption in Flickr's names
    stored = _open_features(path)
    check_finite(stored, path)
    num_rows, regions, _ = stored.shape
    image_of_text, rows = find_images(stored, len(captions), ids, ids_path, stem)
    images = len(rows)
    repeats = num_rows // images
    is_regular = np.array_equal(rows, np.arange(images) * repeats)
    # Other known properties of the images.
    counts = np.full(num_rows, regions, np.int32)
    if os.path.exists(f'{stem}_counts.npy'):
        content = 'the number of valid regions of each image'
        counts = read_integers(f'{stem}_counts.npy', [(num_rows,)], (1, regions), content)
    tags = _read_tags(f'{stem}_tags.jsonl', num_rows, min_tag_score)
    boxes = _read_boxes(root, split, num_rows, regions)
    encoded_by = read_encoded_by(root, split)
    texts = (encoded_by or {}).get(token_vectors_lib.ENTRY)
    stored_split = Split(
        name=f'{os.path.basename(os.path.abspath(root))}/{split}',
        regions=stored[::repeats] if is_regular else Rows(stored, rows),
        counts=counts[rows],
        captions=captions,
        image_of_text=image_of_text,
        image_ids=name_images(ids, image_of_text, images, ids_path),
        boxes=None if boxes is None else boxes[rows],
        dataset=read_dataset(root),
        tags=None if tags is None else tuple(tags[row] for row in rows),
        encoded_by=encoded_by,
        token_vectors=token_vectors_lib.read(root, split, captions, texts) if token_vectors else None,
    )
    limit = dev_images if split == 'dev' else None
    return stored_split if limit is None or limit >= images else stored_split.take(np.arange(limit))


def _describe_unread(root: str) -> str:
    """Returns what to do with features in a folder that are in another format; '' without them."""
    return describe_unread((path for path in Path(root).rglob('*') if not path.name.endswith(_CAPTIONS)), _UNREAD)


def read_encoded_by(root: str, split: str) -> dict[str, Any] | None:
    """Returns the network that encoded a split; None if it is not known."""
    try:
        entry = parse_json(read_bytes(os.path.join(root, MANIFEST)))[split]
        encoder = {key: entry[key] for key in sorted(ENCODED_BY)}
        texts = entry.get(token_vectors_lib.ENTRY)
        if texts is not None:
            encoder[token_vectors_lib.ENTRY] = {key: texts[key] for key in token_vectors_lib.ENCODED_BY}
        return encoder
    except (OSError, ValueError, TypeError, KeyError):
        return None


def read_lines(path: str) -> tuple[str, ...]:
    """Reads the stripped lines of a UTF-8 file; raises a UserError if it cannot be read or has a blank line."""
    lines = tuple(line.strip() for line in split_lines(read_text(path).rstrip()))
    if not lines:
        raise UserError(f'{path} is empty: it needs one entry per line')
    if '' in lines:
        raise UserError(f'{path}, line {lines.index("") + 1} is blank: add the missing entry or remove the line')
    return lines


def _read_captions(path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Reads T captions, and for a `.tsv` file the id of the image of each; otherwise () as ids."""
    lines = read_lines(path)
    if path.endswith('.txt'):
        return lines, ()
    ids = []
    captions = []
    for number, line in enumerate(lines, 1):
        columns = [*map(str.strip, line.split('\t'))]
        if len(columns) != 2 or '' in columns:
            problem = 'is not an image id, a tab and a caption: write these two, without other columns'
            raise UserError(f'{path}, line {number} {problem}')
        ids.append(columns[0])
        captions.append(columns[1])
    return tuple(captions), tuple(ids)


def _open_features(path: str) -> np.ndarray:
    features = open_npy(path)
    if features.ndim == 2:  # one global vector per image is one region
        features = features[:, None]
    if features.ndim != 3:
        raise UserError(
            f'{path} has shape {features.shape}: it must be (images, regions, features) or (images, features)'
        )
    return features


def read_dataset(root: str) -> str:
    """Returns the name of the data set in `dataset.txt` of a folder; '' without this file."""
    path = os.path.join(root, 'dataset.txt')
    if not os.path.exists(path):
        return ''
    names = read_lines(path)
    if len(names) > 1:
        raise UserError(f'{path} has {len(names)} lines: it must hold one name, such as f30k')
    return names[0]


def _read_boxes(root: str, split: str, rows: int, regions: int) -> np.ndarray | None:
    """Returns float32 [rows, R, 4], or None if the folder has no boxes."""
    path = os.path.join(root, f'{split}_boxes.npy')
    shape = (rows, regions, 4)
    if not os.path.exists(path):
        path = os.path.join(root, 'boxes.npy')
        shape = shape[1:]
    if not os.path.exists(path):
        return None
    boxes = open_npy(path)
    if boxes.shape != shape:
        raise UserError(f'{path} has shape {boxes.shape}, but these features need boxes of shape {shape}')
    if not are_boxes(boxes):
        raise UserError(f'{path}: boxes must be {BOXES}; write the file again')
    return np.broadcast_to(boxes.astype(np.float32, copy=False), (rows, regions, 4))


def _read_tags(path: str, rows: int, min_score: float) -> tuple[str, ...] | None:
    """Returns the object tags of each row, separated by blanks, or None if there is no such file."""
    if not os.path.exists(path):
        return None
    lines = read_lines(path)
    if len(lines) != rows:
        raise UserError(f'{path} has {len(lines)} lines: it needs one per row of the features ({rows})')
    tags = []
    for number, line in enumerate(lines, 1):
        try:
            scored = [(str(name), float(score)) for name, score in parse_json(line)]
        except (ValueError, TypeError) as error:
            raise UserError(
                f'{path}, line {number} is not a list of tags with their scores, [["dog", 0.9], ...]: write it again'
            ) from error
        chosen = [name for name, score in scored if score >= min_score] or [name for name, _ in scored[:1]]
        tags.append(' '.join(chosen))
    return tuple(tags)
