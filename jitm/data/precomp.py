"""Region features and captions in the field's `*_precomp` folders.

A folder holds, per split, `{split}_ims.npy` and `{split}_caps.txt`, and optionally `{split}_ids.txt`, `_counts.npy`
(the number of valid regions of each image), `_image_of_text.npy` (the image of each caption), `_boxes.npy` and
`_tags.jsonl`; `boxes.npy` holds the boxes if they are the same for every image. The optional `dataset.txt` holds the
name of the data set. Features stay on disk and are memory-mapped. Three differences between published folders are
removed: some store each image once per caption, the dev splits of Flickr30K and COCO have more than the 1,000 images of
published results, and CC152K has `{split}_caps.tsv`, an image id, a tab and a caption per line, instead of
`{split}_caps.txt`.
"""

import operator
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitm.data.arrays import INTEGERS, Rows, check_finite, first_equal, number_runs, open_npy
from jitm.data.splits import BOXES, Split, are_boxes
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
        hint = f'its splits are {", ".join(names)}' if names else f'it holds no *{FEATURES} file'
        raise UserError(f"{root} has no split '{split}': {hint}{unread}")
    if unread:
        raise UserError(f'{path} is missing{unread}')
    # Features and captions, each image once.
    captions, ids = _read_captions(captions_path)
    ids_path = f'{stem}_ids.txt'
    ids, ids_path = (read_lines(ids_path), ids_path) if os.path.exists(ids_path) else (ids, captions_path)
    if len(ids) == len(captions):
        ids = tuple(re.sub(r'#\d+$', '', name) for name in ids)  # the number of the caption in Flickr's names
    stored = _open_features(path)
    check_finite(stored, path)
    (num_rows, regions, _), evidence = stored.shape, f'{stem}_image_of_text.npy'
    image_of_text = read_image_of_text(evidence, num_rows, len(captions), num_rows == len(captions))
    evidence = path if image_of_text is None else evidence
    rows = np.arange(num_rows)  # a row of each image
    if num_rows == len(captions):
        image_of_text, rows = _find_images(stored, image_of_text, ids, path)
    elif image_of_text is None:
        image_of_text = _count_captions(num_rows, len(captions), ids, captions_path, path)
    images = len(rows)
    repeats = num_rows // len(rows)
    # Other known properties of the images.
    image_ids = _name_images(ids, image_of_text, images, ids_path, evidence)
    counts = _read_integers(f'{stem}_counts.npy', num_rows, 1, regions, 'the number of valid regions of each image')
    tags = _read_tags(f'{stem}_tags.jsonl', num_rows, min_tag_score)
    boxes = _read_boxes(root, split, num_rows, regions)
    encoded_by = read_encoded_by(root, split)
    texts = (encoded_by or {}).get(token_vectors_lib.ENTRY)
    stored_split = Split(
        name=f'{os.path.basename(os.path.abspath(root))}/{split}',
        regions=stored[::repeats] if np.array_equal(rows, np.arange(images) * repeats) else Rows(stored, rows),
        counts=np.full(images, regions, np.int32) if counts is None else counts[rows],
        captions=captions,
        image_of_text=image_of_text,
        image_ids=image_ids,
        boxes=None if boxes is None else boxes[rows],
        dataset=read_dataset(root),
        tags=None if tags is None else tuple(tags[row] for row in rows),
        encoded_by=encoded_by,
        token_vectors=token_vectors_lib.read(root, split, captions, texts) if token_vectors else None,
    )
    num_kept = images if split != 'dev' or dev_images is None else min(images, dev_images)
    return stored_split if num_kept == images else stored_split.take(np.arange(num_kept))


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
    rows = [tuple(column.strip() for column in line.split('\t')) for line in lines]
    for number, row in enumerate(rows, 1):
        if len(row) != 2 or '' in row:
            raise UserError(
                f'{path}, line {number} is not an image id, a tab and a caption: write these two, without other columns'
            )
    ids, captions = zip(*rows, strict=True)
    return captions, ids


def _find_images(
    stored: np.ndarray, stated_rows: np.ndarray | None, ids: Sequence, path: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the image of each of T captions with rows [T, R, D], and a row of each image: int32 [T], int [I]."""
    texts = len(stored)
    runs = number_runs(stored)
    stem = path.removesuffix(FEATURES)
    named = name_texts(ids, texts)
    numbered = stated_rows is not None
    tolerated = texts if named and numbered else max(1, texts // 10) if ids or numbered else 0  # equal images
    starts = np.unique(runs, return_index=True)[1]
    equal = first_equal(stored, starts)[runs]
    if stated_rows is None:
        names = [ids[row] for row in starts] if named else ids if len(ids) == len(starts) else starts
        numbers: dict[tuple, int] = {}
        images = [numbers.setdefault(key, len(numbers)) for key in zip(equal[starts], names, strict=True)]
        stated_rows = np.array(images, np.int32)[runs]
    rows = np.unique(stated_rows, return_index=True)[1]
    if len(rows) == texts:  # each row is an image
        rows = np.arange(texts)
    elif len(wrong := np.flatnonzero(equal != equal[rows[stated_rows]])):
        raise UserError(
            f'{path}, rows {rows[stated_rows[wrong[0]]]} and {wrong[0]} differ, but {stem}_image_of_text.npy gives '
            f'them image {stated_rows[wrong[0]]}: correct one of the files'
        )
    repeated = np.setdiff1d(np.arange(len(rows)), np.unique(equal[rows], return_index=True)[1])
    if len(repeated) > tolerated:
        row = rows[repeated[0]]
        raise UserError(
            f'{path}, rows {equal[row]} and {row} are equal, but would be different images: name the image of each '
            f'caption in {stem}_ids.txt, or give its number in {stem}_image_of_text.npy'
        )
    return stated_rows, rows


def _count_captions(images: int, texts: int, ids: Sequence[str], captions_path: str, path: str) -> np.ndarray:
    """Returns the image of each text, int32 [T]: runs of equal ids of the captions, or the same number for each."""
    if name_texts(ids, texts):
        image_of_text = np.cumsum([0, *map(operator.ne, ids, ids[1:])], dtype=np.int32)
        counted = image_of_text[-1] + 1
        if counted != images:
            raise UserError(
                f'{captions_path} has {texts} captions for the {images} images of {os.path.basename(path)}, but their '
                f'ids name {counted} images one after another: put the captions of an image together'
            )
        return image_of_text
    if texts % images:
        raise UserError(
            f'{captions_path} has {texts} captions for the {images} images of {os.path.basename(path)}: give every '
            f'image the same number of captions, one per line, or add {path.removesuffix(FEATURES)}_image_of_text.npy'
        )
    return np.repeat(np.arange(images, dtype=np.int32), texts // images)


def name_texts(ids: Sequence[str], texts: int) -> bool:
    """Returns whether ids name the image of each caption; different numbers may identify the captions."""
    return len(ids) == texts and not (len({*ids}) == texts and all(map(str.isdecimal, ids)))


def _read_integers(path: str, size: int, low: int, high: int, content: str) -> np.ndarray | None:
    """Reads integers in [low, high], int32 [size]; None without the file."""
    if not os.path.exists(path):
        return None
    array = open_npy(path, INTEGERS)
    if array.shape != (size,):
        raise UserError(f'{path} has shape {array.shape}: it needs {content}, shape ({size},)')
    if array.min() < low or array.max() > high:
        raise UserError(f'{path} has numbers from {array.min()} to {array.max()}: it needs {content}, {low} to {high}')
    return array.astype(np.int32)


def read_image_of_text(path: str, images: int, texts: int, fewer: bool = False) -> np.ndarray | None:
    """Reads the image of each of T captions of I images, or of fewer, int32 [T]; None without the file."""
    image_of_text = _read_integers(path, texts, 0, images - 1, 'the image of each caption')
    if image_of_text is None:
        return None
    absent = np.setdiff1d(np.arange(image_of_text.max() if fewer else images), image_of_text)
    if len(absent):
        raise UserError(f'{path} gives image {absent[0]} no caption: every image needs one')
    return image_of_text


def _open_features(path: str) -> np.ndarray:
    features = open_npy(path)
    if features.ndim == 2:  # one global vector per image is one region
        features = features[:, None]
    if features.ndim != 3:
        raise UserError(
            f'{path} has shape {features.shape}: it must be (images, regions, features) or (images, features)'
        )
    return features


def _name_images(
    ids: tuple[str, ...], image_of_text: np.ndarray, images: int, path: str, evidence: str
) -> tuple[str, ...]:
    """Returns the ids of I images, from a file with one per image or per caption, otherwise numbers."""
    texts = len(image_of_text)
    if not ids:
        return tuple(map(str, range(images)))
    if len(ids) not in (images, texts):
        raise UserError(f'{path} has {len(ids)} ids: it needs one per image ({images}) or one per caption ({texts})')
    if len(ids) == images < texts:
        return ids
    first = np.unique(image_of_text, return_index=True)[1]
    text_of_id: dict[str, int] = {}
    for text, name in enumerate(ids if name_texts(ids, texts) else ()):
        row = first[image_of_text[text]]
        relation = 'one image'
        if ids[row] == name:
            row = text_of_id.setdefault(name, text)
            relation = 'different images'
        if ids[row] != name or image_of_text[row] != image_of_text[text]:
            raise UserError(
                f"{path}, lines {row + 1} and {text + 1} are '{ids[row]}' and '{name}', but these captions have "
                f'{relation} in {evidence}: correct one of the files'
            )
    return tuple(ids[text] for text in first)


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
