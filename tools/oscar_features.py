"""Writes the released features of OSCAR and VinVL, one split of a folder, as files that precomp.load reads.

    python -m tools.oscar_features coco_ir --split train --out data/coco_oscar

A line of `features.tsv` is an image id, the number of regions and their numbers in base64, float32 [R, D + 6], the last
six being the box. A line of `predictions.tsv` is an image id and its objects with `class` and `conf`, in the order of
the regions. `{split}_captions.pt` maps image ids to captions; the first five are written, as in the released code.
"""

import argparse
import base64
import json
import sys
from pathlib import Path

import numpy as np

from jitm.data.precomp_writer import PrecompWriter
from jitm.errors import UserError
from jitm.files import split_lines
from jitm.files.outputs import OutputFolder
from jitm.importers import torch_files
from jitm.models.oscar import BOX_NUMBERS

KIND = 'a set of converted features'
MAX_CAPTIONS = 5  # for each image


def read_captions(path: Path) -> dict[str, list[str]]:
    """Returns image id -> captions; some files have them as JSON."""
    content = {str(name): texts for name, texts in torch_files.load(path).items()}
    return {name: json.loads(texts) if isinstance(texts, str) else [*texts] for name, texts in content.items()}


def read_tags(path: Path) -> dict[str, list[tuple[str, float]]]:
    """Returns image id -> object tags with their scores."""
    tags = {}
    for line in split_lines(path.read_text('utf-8')):
        name, content = line.split('\t')
        objects = json.loads(content)
        objects = objects['objects'] if isinstance(objects, dict) else objects
        tags[name] = [(tag['class'], float(tag['conf'])) for tag in objects]
    return tags


def index_features(path: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Returns image id -> the position of its line, and -> the number of its regions."""
    positions, counts, position = {}, {}, 0
    with path.open('rb') as file:
        for line in file:
            name, count, _ = line.split(b'\t')
            positions[name.decode()] = position
            counts[name.decode()] = int(count)
            position += len(line)
    return positions, counts


def write(released: Path, split: str, folder: Path, keys: Path | None = None) -> None:
    """Writes a split, or of it the images whose ids are the lines of the file `keys`."""
    captions = read_captions(released / f'{split}_captions.pt')
    tags = read_tags(released / 'predictions.tsv')
    positions, counts = index_features(released / 'features.tsv')
    names = split_lines(keys.read_text('utf-8')) if keys else [*captions]
    absent = [name for name in names if name not in captions or name not in tags or name not in positions]
    if absent:
        raise UserError(f'{released} lacks captions, tags or features of {len(absent)} images, such as {absent[0]}')
    longest = max(counts[name] for name in names)
    writer = PrecompWriter(OutputFolder(folder, KIND), split)
    boxes = []
    with (released / 'features.tsv').open('rb') as file, writer.features(len(names)) as append:
        for name in names:
            file.seek(positions[name])
            numbers = np.frombuffer(base64.b64decode(file.readline().split(b'\t')[2]), '<f4').reshape(counts[name], -1)
            padded = np.pad(numbers, [(0, longest - len(numbers)), (0, 0)])
            append(padded[None, :, :-BOX_NUMBERS])
            boxes.append(padded[:, -BOX_NUMBERS:][:, :4])
    texts = [[' '.join(text.split()) for text in captions[name][:MAX_CAPTIONS]] for name in names]
    writer.write_array('_boxes.npy', np.array(boxes))
    writer.write_array('_counts.npy', np.array([counts[name] for name in names]))
    writer.write_array('_image_of_text.npy', np.repeat(np.arange(len(names)), [*map(len, texts)]))
    writer.write_lines('_caps.txt', [caption for image in texts for caption in image])
    writer.write_lines('_ids.txt', names)
    writer.write_lines('_tags.jsonl', [json.dumps(tags[name]) for name in names])


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('released', type=Path, help='The folder with the three files.')
    parser.add_argument('--split', default='train', help='The name of the split.')
    parser.add_argument('--out', type=Path, required=True, help='The output folder.')
    parser.add_argument('--keys', type=Path, help='A file with the ids of the images to write, one on a line.')
    arguments = parser.parse_args()
    try:
        write(arguments.released, arguments.split, arguments.out, arguments.keys)
    except (UserError, OSError) as error:
        sys.exit(str(error))
