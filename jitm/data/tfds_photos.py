"""COCO's photos and captions from a prepared TensorFlow data set, `coco_captions`, read without TensorFlow."""

import functools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from jitm.errors import UserError
from jitm.files import check_within, replacing
from jitm.outputs import OutputFolder

CAPTIONS = 'dataset_coco.json'
KIND = 'a set of photos'
BLOCK = 1000  # photos that are claimed at a time
FEATURES = {'image', 'image/filename', 'captions'}


def write(prepared: str | Path, root: str | Path) -> None:
    """Writes the photos of all splits as files, with their captions in Karpathy's format, for `photos.load`.

    Args:
      prepared: the folder of the version, such as `tfds/coco_captions/1.1.0`, prepared with
        `file_format='array_record'`.
      root: the output folder, new, empty or of these photos; photos of a split are in a folder with its name.

    Raises:
      UserError: if it is not this data set in array_record, the name of a photo leads out of the folder, or the folder
        has files of somebody else.
    """
    output, images = OutputFolder(Path(root), KIND), []
    output.check([CAPTIONS])
    for split, records in _read(prepared).items():
        images += _write_split(records, split, output)
    with output.replacing(CAPTIONS) as file:
        file.write((json.dumps({'dataset': 'coco', 'images': images}) + '\n').encode())


def _read(prepared: str | Path) -> dict[str, Any]:
    """Returns the records of each split, whose images are the bytes of their files."""
    try:
        builder = tfds.builder_from_directory(str(prepared))
        decoders = {'image': tfds.decode.SkipDecoding()}
        records = {split: builder.as_data_source(split=split, decoders=decoders) for split in builder.info.splits}
        known = set(builder.info.features)
    except Exception:  # TFDS raises many kinds of errors
        records, known = {}, set()
    if not known >= FEATURES:
        raise UserError(
            f'{prepared} is no prepared coco_captions: give the folder of its version, prepared with '
            "file_format='array_record'"
        )
    return records


def _write_split(records: Any, split: str, output: OutputFolder) -> Iterator[dict[str, Any]]:
    """Writes the photos of a split, and yields their entries of Karpathy's file."""
    for start in range(0, len(records), BLOCK):
        block = [records[n] for n in range(start, min(start + BLOCK, len(records)))]
        names = [record['image/filename'].decode() for record in block]
        for part in (split, *names):
            check_within(part, f"a record of '{split}'")
        output.claim(f'{split}/{name}' for name in names)
        yield from map(functools.partial(_write_photo, output.path, split), names, block)


def _write_photo(root: Path, split: str, name: str, record: Mapping[str, Any]) -> dict[str, Any]:
    """Writes a photo, and returns its entry of Karpathy's file."""
    with replacing(root / split / name) as file:
        file.write(record['image'])
    captions = [{'raw': text.decode()} for text in record['captions']['text']]
    return {'filepath': split, 'filename': name, 'split': split, 'sentences': captions}
