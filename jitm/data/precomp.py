"""Region features and captions in the field's `*_precomp` folders.

A folder holds, per split, `{split}_ims.npy` and `{split}_caps.txt`, and optionally `{split}_ids.txt`, `_counts.npy`
(the number of valid regions of each image), `_image_of_text.npy` (the image of each caption), `_boxes.npy` and
`_tags.jsonl`; `boxes.npy` holds the boxes if they are the same for every image. The optional `dataset.txt` holds the
name of the data set. Features stay on disk and are memory-mapped. Two differences between published folders are
removed: some store each image once per caption, and the dev splits of Flickr30K and COCO have more than the 1,000
images of published results.
"""

import itertools
import math
import os
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import numpy as np

from jitm.data.splits import BOXES, Split, are_boxes
from jitm.errors import UserError
from jitm.files import open_file, parse_json
from jitm.types import Count, NotNegative

_CHUNK_BYTES = 64 * 2**20
_FEATURES = '_ims.npy'
MANIFEST = 'encoded.json'  # which networks encoded the splits, see `jitm.inference.networks`
ENCODED_BY = {'network', 'parameters', 'crops', 'dtype', 'image_size', 'short_side', 'interpolation', 'origin'}
SHARED = 'boxes.npy', 'dataset.txt'  # by all splits of a folder
_OTHERS = '_caps.txt', '_ids.txt', '_counts.npy', '_image_of_text.npy', '_boxes.npy', '_tags.jsonl'
FLOATS = (np.float16, np.float32)
INTEGERS = (np.int32, np.int64, np.uint8, np.int16)


def splits(root: str) -> tuple[str, ...]:
    """Returns the names of the splits of a folder, sorted.

    Args:
      root: a `*_precomp` folder.

    Returns:
      The part before `_ims.npy` of every such file.

    Raises:
      UserError: if `root` is not a folder.
    """
    if not os.path.isdir(root):
        raise UserError(f'{root} is not a folder: give the path of a *_precomp folder')
    return tuple(sorted(name.removesuffix(_FEATURES) for name in os.listdir(root) if name.endswith(_FEATURES)))


def files_of(split: str) -> list[str]:
    """Returns the names of all files of a split, most of which are optional."""
    return [f'{split}{suffix}' for suffix in (_FEATURES, *_OTHERS)]


def load(split: str, *, root: str, dev_images: Count | None = 1000, min_tag_score: NotNegative = 0.0) -> Split:
    """Opens one split of a precomp folder, SCAN's data format, and checks all of it.

    Args:
      split: `train`, `dev`, `test`, `testall` or another split of the folder.
      root: the folder, such as `data/f30k_precomp`.
      dev_images: number of images to keep of the split `dev`, the first 1,000 in published results; None for all.
      min_tag_score: object tags of a lower score are left out; an image where this leaves none keeps its first one.

    Returns:
      The split; `regions` [I, R, D] is a view of the memory-mapped file with each image once.

    Raises:
      UserError: if a file is missing, damaged or inconsistent with the others.
    """
    known = splits(root)
    path = os.path.join(root, split + _FEATURES)
    captions_path = os.path.join(root, f'{split}_caps.txt')
    if split not in known and not os.path.exists(captions_path):
        hint = f'its splits are {", ".join(known)}' if known else f'it holds no *{_FEATURES} file'
        raise UserError(f"{root} has no split '{split}': {hint}")

    captions = read_lines(captions_path)
    stored = _open_features(path)
    image_of_text = read_image_of_text(os.path.join(root, f'{split}_image_of_text.npy'), len(stored), len(captions))
    repeats = _count_repeats(stored) if image_of_text is None and len(stored) == len(captions) else 1
    regions = stored[::repeats]
    _check_finite(regions, path, repeats)
    images, texts = len(regions), len(captions)
    if image_of_text is None:
        image_of_text = _same_number_each(images, texts, captions_path, path)
    counts = _read_counts(os.path.join(root, f'{split}_counts.npy'), *stored.shape[:2])
    image_ids = _read_ids(os.path.join(root, f'{split}_ids.txt'), images, image_of_text)
    tags = _read_tags(os.path.join(root, f'{split}_tags.jsonl'), len(stored), min_tag_score)
    boxes = _read_boxes(root, split, len(stored), regions.shape[1], repeats)
    dataset = read_dataset(root)

    kept = images if split != 'dev' or dev_images is None else min(images, dev_images)
    if kept < 1:
        raise UserError(
            f'{path} cannot be cut to {dev_images} images: set dev_images to at least 1, or to None for all'
        )
    texts_kept = np.flatnonzero(image_of_text < kept)
    return Split(
        name=f'{os.path.basename(os.path.abspath(root))}/{split}',
        regions=regions[:kept],
        counts=counts[::repeats][:kept],
        captions=tuple(captions[text] for text in texts_kept),
        image_of_text=image_of_text[texts_kept],
        image_ids=image_ids[:kept],
        boxes=None if boxes is None else boxes[:kept],
        dataset=dataset,
        tags=None if tags is None else tags[::repeats][:kept],
        encoded_by=_read_encoded_by(root, split),
    )


def _read_encoded_by(root: str, split: str) -> dict[str, Any] | None:
    """Returns what encoded a split; None if that is not known."""
    try:
        with open_file(os.path.join(root, MANIFEST)) as file:
            entry = parse_json(file.read())[split]
        return {key: entry[key] for key in sorted(ENCODED_BY)}
    except (OSError, ValueError, TypeError, KeyError):
        return None


def read_lines(path: str) -> tuple[str, ...]:
    """Reads the stripped lines of a UTF-8 file; raises a UserError if it cannot be read or has a blank line."""
    try:
        with open_file(path) as file:
            data = file.read()
    except OSError as error:
        raise UserError(f'{path} cannot be read ({error.strerror}): add the file, or make it readable') from error
    try:
        text = data.decode('utf-8-sig')  # a byte order mark would become part of the first word
    except UnicodeDecodeError as error:
        line = data.count(b'\n', 0, error.start) + 1
        raise UserError(f'{path}, line {line} is not UTF-8: convert the file to UTF-8') from error
    # Not splitlines, which also splits at characters such as U+2028, which occur in captions.
    lines = tuple(line.strip() for line in text.rstrip().split('\n'))
    if lines == ('',):
        raise UserError(f'{path} is empty: it needs one entry per line')
    if '' in lines:
        raise UserError(f'{path}, line {lines.index("") + 1} is blank: add the missing entry or remove the line')
    return lines


def _same_number_each(images: int, texts: int, captions_path: str, path: str) -> np.ndarray:
    """Returns the image of each text, int32 [T], if every image has the same number of captions."""
    if texts % images:
        raise UserError(
            f'{captions_path} has {texts} captions for the {images} images of {os.path.basename(path)}: give every '
            f'image the same number of captions, one per line, or add {path.removesuffix(_FEATURES)}_image_of_text.npy'
        )
    return np.repeat(np.arange(images, dtype=np.int32), texts // images)


def _read_integers(path: str, size: int, low: int, high: int, what: str) -> np.ndarray | None:
    """Reads integers in [low, high], int32 [size]; None without the file."""
    if not os.path.exists(path):
        return None
    array = open_npy(path, INTEGERS)
    if array.shape != (size,):
        raise UserError(f'{path} has shape {array.shape}: it needs {what}, shape ({size},)')
    if array.min() < low or array.max() > high:
        raise UserError(f'{path} has numbers from {array.min()} to {array.max()}: it needs {what}, {low} to {high}')
    return array.astype(np.int32)


def _read_counts(path: str, images: int, regions: int) -> np.ndarray:
    counts = _read_integers(path, images, 1, regions, 'the number of valid regions of each image')
    return np.full(images, regions, np.int32) if counts is None else counts


def read_image_of_text(path: str, images: int, texts: int) -> np.ndarray | None:
    """Reads the image of each of T captions of I images, int32 [T]; None without the file."""
    image_of_text = _read_integers(path, texts, 0, images - 1, 'the image of each caption')
    if image_of_text is not None and len(missing := np.setdiff1d(np.arange(images), image_of_text)):
        raise UserError(f'{path} gives image {missing[0]} no caption: every image needs one')
    return image_of_text


def open_npy(path: str, dtypes: tuple[type[np.generic], ...] = FLOATS) -> np.memmap:
    """Memory-maps an array of one of some dtypes; only the header is parsed, and nothing is unpickled."""
    try:
        with open_file(path) as file:
            shape, dtype = _read_header(file)
            missing = math.prod(shape) * dtype.itemsize - (os.path.getsize(path) - file.tell())
    except OSError as error:
        raise UserError(f'{path} cannot be read ({error.strerror}): add the file, or make it readable') from error
    except Exception as error:  # numpy raises many kinds of errors for damaged headers
        raise UserError(f'{path} is no .npy file or its header is damaged: write it with numpy.save') from error
    if dtype not in dtypes:
        raise UserError(f'{path} has dtype {dtype}: convert it to {" or ".join(kind.__name__ for kind in dtypes[:2])}')
    if min(shape, default=1) < 1:
        raise UserError(f'{path} has shape {shape}, which is empty: write it again')
    if missing > 0:
        raise UserError(f'{path} is cut off, {missing} bytes are missing for its shape {shape}: copy it again')
    return np.load(path, mmap_mode='r', allow_pickle=False)


def _read_header(file) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return shape, dtype


def _open_features(path: str) -> np.ndarray:
    features = open_npy(path)
    if features.ndim == 2:  # one global vector per image is one region
        features = features[:, None]
    if features.ndim != 3:
        raise UserError(
            f'{path} has shape {features.shape}: it must be (images, regions, features) or (images, features)'
        )
    return features


def _chunks(array: np.ndarray) -> Iterator[int]:
    """Yields the first row of each chunk of about 64 MB, and finally the number of rows."""
    rows = max(1, _CHUNK_BYTES // array[0].nbytes)
    yield from range(0, len(array), rows)
    yield len(array)


def _count_repeats(array: np.ndarray) -> int:
    """Returns the number of consecutive copies of each row, 1 if rows are not repeated.

    This is the greatest common divisor of all indices at which a row differs from the previous one. Neighboring images
    that happen to be equal do not change it.
    """
    repeats = len(array)
    bits = array.view(f'u{array.itemsize}')  # compares NaN as equal
    bounds = list(_chunks(array[:-1])) if len(array) > 1 else []
    for start, stop in itertools.pairwise(bounds):
        differs = (bits[start:stop] != bits[start + 1 : stop + 1]).any(axis=(1, 2))
        repeats = math.gcd(repeats, *(start + 1 + np.flatnonzero(differs)).tolist())
        if repeats == 1:
            break
    return repeats


def _check_finite(regions: np.ndarray, path: str, repeats: int) -> None:
    bounds = list(_chunks(regions))
    with futures.ThreadPoolExecutor(2) as pool:
        finite = list(pool.map(lambda start, stop: _is_finite(regions[start:stop]), bounds, bounds[1:]))
    if all(finite):
        return
    start = bounds[finite.index(False)]
    row = next(row for row in range(start, len(regions)) if not _is_finite(regions[row])) * repeats
    raise UserError(f'{path}, row {row} has NaN or infinite features: extract the features of this image again')


def _is_finite(array: np.ndarray) -> bool:
    """Returns whether all numbers are finite; for float16 several times faster than numpy.isfinite.

    The exponent bits of NaN and infinity are all ones. As integers they are therefore the largest numbers, signed ones
    if positive, unsigned ones if negative.
    """
    signed, unsigned = (array.view(f'{kind}{array.itemsize}') for kind in 'iu')
    infinities = np.array([np.inf, -np.inf], array.dtype)
    positive, negative = infinities.view(signed.dtype)[0], infinities.view(unsigned.dtype)[1]
    return bool(signed.max() < positive and unsigned.max() < negative)


def _read_ids(path: str, images: int, image_of_text: np.ndarray) -> tuple[str, ...]:
    if not os.path.exists(path):
        return tuple(str(image) for image in range(images))
    ids, texts = read_lines(path), len(image_of_text)
    if len(ids) not in (images, texts):
        raise UserError(f'{path} has {len(ids)} ids: it needs one per image ({images}) or one per caption ({texts})')
    if len(ids) == images:
        return ids
    return tuple(ids[text] for text in np.unique(image_of_text, return_index=True)[1])


def read_dataset(root: str) -> str:
    """Returns the name of the data set in `dataset.txt` of a folder; '' without this file."""
    path = os.path.join(root, 'dataset.txt')
    if not os.path.exists(path):
        return ''
    names = read_lines(path)
    if len(names) > 1:
        raise UserError(f'{path} has {len(names)} lines: it must hold one name, such as f30k')
    return names[0]


def _read_boxes(root: str, split: str, rows: int, regions: int, repeats: int) -> np.ndarray | None:
    """Returns float32 [I, R, 4], or None if the folder has no boxes."""
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
        raise UserError(f'{path} has other numbers than {BOXES}: write them anew')
    return np.broadcast_to(boxes.astype(np.float32, copy=False), (rows, regions, 4))[::repeats]


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
                f'{path}, line {number} is not a list of tags with their scores, [["dog", 0.9], ...]: write it anew'
            ) from error
        kept = [name for name, score in scored if score >= min_score] or [name for name, _ in scored[:1]]
        tags.append(' '.join(kept))
    return tuple(tags)
