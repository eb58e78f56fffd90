"""The image of each caption of a `*_precomp` folder: from a file of numbers, ids, or equal rows of features."""

import os
from collections.abc import Hashable, Iterable, Sequence

import numpy as np

from jitm.data.arrays import check_captioned, first_equal, read_integers
from jitm.errors import UserError

NUMBERS = '_image_of_text.npy'


def read_image_of_text(path: str, images: int, texts: int, fewer: bool = False) -> np.ndarray | None:
    """Reads the image of each of T captions of I images, or of fewer, int32 [T]; None without the file."""
    if not os.path.exists(path):
        return None
    image_of_text = read_integers(path, [(texts,)], (0, images - 1), 'the image of each caption')
    check_captioned(image_of_text, image_of_text.max() if fewer else images, path)
    return image_of_text


def name_texts(ids: Sequence[str], texts: int) -> bool:
    """Returns whether ids name the image of each caption; different numbers may identify the captions."""
    return len(ids) == texts and not (len({*ids}) == texts and all(map(str.isdecimal, ids)))


def find_images(
    stored: np.ndarray, texts: int, ids: Sequence[str], ids_path: str, stem: str
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the image of each caption, and a row of the features of each image.

    Args:
      stored: The features, with a row for each image or for each caption.
      texts: The number T of captions.
      ids: The ids of the images or of the captions; empty without ids.
      ids_path: The file of the ids.
      stem: The path of the files of the split, without their suffixes.

    Returns:
      int32 [T], int [I].

    Raises:
      UserError: If the rows, the ids and the file of numbers contradict each other, or do not tell the images.
    """
    path = f'{stem}_ims.npy'
    count = len(stored)
    names = _number(ids) if name_texts(ids, texts) else None
    image_of_text = read_image_of_text(stem + NUMBERS, count, texts, fewer=count == texts)
    evidence = path if image_of_text is None else stem + NUMBERS
    rows = np.arange(count)
    if count == texts:
        image_of_text, rows = _find_rows(stored, image_of_text, names, bool(ids), stem)
    elif image_of_text is None and names is not None:
        image_of_text = np.cumsum([0, *(names[1:] != names[:-1])], dtype=np.int32)
        named = image_of_text[-1] + 1
        if named != count:
            problem = f'their ids name {named} images one after another: put the captions of an image together'
            raise UserError(f'{path} has {count} images for {texts} captions, but {problem}')
    elif image_of_text is None:
        if texts % count:
            remedy = f'give every image the same number of captions, one per line, or add {stem}{NUMBERS}'
            raise UserError(f'{path} has {count} images for {texts} captions: {remedy}')
        image_of_text = np.repeat(np.arange(count, dtype=np.int32), texts // count)
    if names is not None:
        _check_names(names, image_of_text, ids, ids_path, evidence)
    return image_of_text, rows


def _number(keys: Iterable[Hashable]) -> np.ndarray:
    """Numbers different keys in the order of their first occurrence: int32, the number of each key."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int32)


def _find_rows(
    stored: np.ndarray, image_of_text: np.ndarray | None, names: np.ndarray | None, has_ids: bool, stem: str
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the image of each of T captions with rows [T, R, D], and a row of each image: int32 [T], int [I].

    Equal neighbours are one image, unless a file states the images.
    """
    path = f'{stem}_ims.npy'
    texts = len(stored)
    equal = first_equal(stored)
    runs = np.cumsum([False, *(equal[1:] != equal[:-1])], dtype=np.int32)
    tolerated = max(1, texts // 10) if has_ids or image_of_text is not None else 0  # equal images
    if image_of_text is None:
        image_of_text = runs
        if names is not None:
            starts = np.unique(runs, return_index=True)[1]
            image_of_text = _number(zip(equal, names[starts][runs], strict=True))
    elif names is not None:
        tolerated = texts
    rows = np.unique(image_of_text, return_index=True)[1]
    if len(rows) == texts:  # each row is an image
        rows = np.arange(texts)
    else:
        first = rows[image_of_text]
        for row in np.flatnonzero(equal != equal[first])[:1]:
            problem = f'differ, but {stem}{NUMBERS} gives them image {image_of_text[row]}'
            raise UserError(f'{path}, rows {first[row]} and {row} {problem}: correct one of the files')
    repeated = np.setdiff1d(np.arange(len(rows)), np.unique(equal[rows], return_index=True)[1])
    if len(repeated) > tolerated:
        row = rows[repeated[0]]
        remedy = f'name the image of each caption in {stem}_ids.txt, or give its number in {stem}{NUMBERS}'
        raise UserError(f'{path}, rows {equal[row]} and {row} are equal, but would be different images: {remedy}')
    return image_of_text, rows


def _check_names(
    names: np.ndarray, image_of_text: np.ndarray, ids: Sequence[str], ids_path: str, evidence: str
) -> None:
    """Raises a UserError unless the ids of T captions, numbered as int [T], name their images."""
    of_image, of_name = (np.unique(x, return_index=True)[1][x] for x in (image_of_text, names))
    for text in np.flatnonzero(of_image != of_name)[:1]:  # the first caption of its image, and with its name
        same_name = ids[of_image[text]] == ids[text]
        row = of_name[text] if same_name else of_image[text]
        relation = 'different images' if same_name else 'one image'
        raise UserError(
            f"{ids_path}, lines {row + 1} and {text + 1} are '{ids[row]}' and '{ids[text]}', but these captions have "
            f'{relation} in {evidence}: correct one of the files'
        )


def name_images(ids: Sequence[str], image_of_text: np.ndarray, images: int, path: str) -> tuple[str, ...]:
    """Returns the ids of I images, from a file with one per image or per caption; numbers without ids."""
    texts = len(image_of_text)
    if not ids:
        return tuple(map(str, range(images)))
    if len(ids) not in (images, texts):
        raise UserError(f'{path} has {len(ids)} ids: it needs one per image ({images}) or one per caption ({texts})')
    if len(ids) < texts:
        return tuple(ids)
    return tuple(ids[text] for text in np.unique(image_of_text, return_index=True)[1])
