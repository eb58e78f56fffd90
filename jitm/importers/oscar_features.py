"""Writes the released features of OSCAR and VinVL as a folder that `jitm.data.precomp` reads."""

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jitm.data.precomp import files_of
from jitm.data.precomp_writer import PrecompWriter
from jitm.errors import UserError
from jitm.files import open_file, parse_json, read_text, split_lines
from jitm.files.outputs import OutputFolder
from jitm.importers import torch_files
from jitm.models.oscar import BOX_NUMBERS

FEATURES, TAGS = 'features.tsv', 'predictions.tsv'
KIND = 'a set of converted features'
MAX_CAPTIONS = 5  # for each image


def write(released: str | Path, split: str, root: str | Path, *, keys: str | Path | None = None) -> None:
    """Writes a split with its features, boxes, object tags, captions and image ids.

    The lines of `features.tsv` are an image id, the number of regions and their numbers in base64, float32 [R, D + 6],
    the last six being the box. The lines of `predictions.tsv` are an image id and its objects with `class` and `conf`,
    in the order of the regions. `{split}_captions.pt` maps image ids to captions; the first five are written, as
    released.

    Args:
      released: The folder with these three files.
      split: The name of the split, such as 'train'.
      root: The output folder, new, empty or with converted features.
      keys: The path of a file with the ids of the images to write, one on a line, such as `test_img_keys_1k.tsv`; None
        for all images of the split, in the order of their captions.

    Raises:
      UserError: If a file is missing or damaged, or lacks an image, or the output folder has other files.
    """
    released, output = Path(released), OutputFolder(Path(root), KIND)
    output.check(files_of(split))
    captions = _read_captions(released / f'{split}_captions.pt')
    names = list(captions) if keys is None else split_lines(read_text(keys))
    rows = _find_rows(released / FEATURES)
    tags = {name: text for name, _, text in (line.partition('\t') for line in split_lines(read_text(released / TAGS)))}
    for path, known in ((f'{split}_captions.pt', captions), (FEATURES, rows), (TAGS, tags)):
        if missing := [name for name in names if name not in known]:
            raise UserError(f'{released / path} lacks {len(missing)} of {len(names)} images, such as {missing[0]}')
    texts = [captions[name][:MAX_CAPTIONS] for name in names]
    tag_lines = [json.dumps(_read_tags(released, name, tags[name])) for name in names]
    writer = PrecompWriter(output, split)
    _write_features(released / FEATURES, [rows[name] for name in names], writer)
    writer.write_lines('_caps.txt', [' '.join(text.split()) for image in texts for text in image])
    writer.write_lines('_ids.txt', names)
    writer.write_lines('_tags.jsonl', tag_lines)
    writer.write_array('_image_of_text.npy', np.repeat(np.arange(len(texts)), [len(image) for image in texts]))
    writer.write_array('_counts.npy', np.array([rows[name][1] for name in names]))


def _read_captions(path: Path) -> dict[str, list[str]]:
    """Returns the captions of each image; some files have them as JSON."""
    content = torch_files.load(path)
    try:
        captions = {str(key): parse_json(x) if isinstance(x, str) else list(x) for key, x in content.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f'{path} must map image ids to lists of captions: download it again') from error
    if not captions or not all(captions.values()):
        raise UserError(f'{path} has an image without captions, or no image: download it again')
    return captions


def _find_rows(path: Path) -> dict[str, tuple[int, int]]:
    """Returns the position of the line of each image, and the number of its regions."""
    rows, offset = {}, 0
    try:
        with open_file(path) as file:
            for line in file:
                name, regions, _ = line.split(b'\t', 2)
                rows[name.decode()] = offset, int(regions)
                offset += len(line)
    except OSError as error:
        raise UserError(f'{path} cannot be read ({error.strerror}): add the file') from error
    except ValueError as error:
        raise UserError(f'{path}, line {len(rows) + 1} has no id, number and features: download it again') from error
    return rows


def _read_tags(released: Path, name: str, line: str) -> list[tuple[str, float]]:
    """Returns the object tags of an image with their scores."""
    try:
        content: Any = parse_json(line)
        objects: Sequence[Mapping] = content['objects'] if isinstance(content, dict) else content
        return [(str(found['class']), float(found['conf'])) for found in objects]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{released / TAGS} has no objects with 'class' and 'conf' for image {name}") from error


def _write_features(path: Path, rows: Sequence[tuple[int, int]], writer: PrecompWriter) -> None:
    """Writes the features and boxes, padded with zeros to the largest number of regions."""
    most, size, boxes = max(count for _, count in rows), None, []
    with open_file(path) as file, writer.features(len(rows)) as append:
        for offset, count in rows:
            file.seek(offset)
            regions, box = _read_regions(path, file.readline(), count)
            size = size or regions.shape[1]
            if regions.shape[1] != size:
                raise UserError(f'{path} has images with {regions.shape[1]} and {size} features: download it again')
            padding = [(0, most - count), (0, 0)]
            append(np.pad(regions, padding)[None])
            boxes.append(np.pad(box, padding))
        writer.write_array('_boxes.npy', np.array(boxes))


def _read_regions(path: Path, line: bytes, regions: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the features [R, D] and boxes [R, 4] of a line."""
    name, _, text = line.rstrip(b'\r\n').split(b'\t', 2)
    try:
        numbers = np.frombuffer(base64.b64decode(text, validate=True), '<f4')
        if regions < 1 or len(numbers) % regions or len(numbers) // regions <= BOX_NUMBERS:
            raise ValueError(f'{len(numbers)} numbers for {regions} regions')
    except ValueError as error:
        raise UserError(f'{path} has damaged features of image {name.decode()} ({error}): download it again') from error
    numbers = numbers.reshape(regions, -1)
    return numbers[:, :-BOX_NUMBERS], numbers[:, -BOX_NUMBERS:][:, :4]
