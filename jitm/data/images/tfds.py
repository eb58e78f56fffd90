"""Images and captions of prepared TensorFlow data sets, read and written without TensorFlow.

Each record is an image with its `captions`, and has either the file `image`, as in `coco_captions`, or the features
`regions` [R, D], as `write` writes them. The format of the files must be array_record, which has random access.
"""

import dataclasses
import hashlib
import itertools
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets

from jitm.data import precomp
from jitm.data.images.caption_files import DEV, RESTVAL
from jitm.data.images.pixels import Photos, in_threads, remember
from jitm.data.images.transforms import Transform, decode
from jitm.data.splits import Split, join_captions
from jitm.errors import UserError
from jitm.files.outputs import OutputFolder
from jitm.types import Count, Index, Share

KIND = 'a TensorFlow data set'
DATASETS = {'coco_captions': 'coco'}  # names by which published results are known


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
) -> Split:
    """Opens one split of a prepared data set, and checks all of it.

    Args:
      split: The name of a split, such as `train`; `dev`, `val`, `valid` and `validation` are the same.
      root: The folder of the version, such as `data/tfds/coco_captions/1.1.0`.
      image_size: The height and width of the pixels; like the next five, only for records with image files.
      short_side, interpolation, crop, min_area, flip: See `jitm.data.images.transforms.Transform`.
      restval: Whether `train` includes the split `restval`, if there is one ("RC+rV" of VSE++).
      max_captions: The number of captions to keep of each image, the first ones; None for all.
      dev_images: The number of images to keep of the split `dev`, the first ones; None for all.

    Returns:
      A split with either `regions`, which are read from the files when they are indexed, or `pixels`.

    Raises:
      UserError: If the folder is not such a data set, or a record is damaged.
      ValueError: If `short_side` is below `image_size`, or `crop` or `interpolation` is unknown.
    """
    transform = Transform(image_size, short_side, interpolation, crop=crop, min_area=min_area, flip=flip)
    builder = _open(root)
    info = builder.info
    part = next((name for name in (split, *(DEV if split in DEV else ())) if name in info.splits), None)
    if part is None:
        raise UserError(f"{root} has no split '{split}': its splits are {', '.join(info.splits)}")
    count = info.splits[part].num_examples
    if split in DEV and dev_images is not None:
        count = min(count, dev_images)
    slices = {part: f'{part}[:{count}]'}
    if split == 'train' and restval and RESTVAL in info.splits:
        slices[RESTVAL] = RESTVAL
    # The images of records are the bytes of their files.
    decoders = {'image': tensorflow_datasets.decode.SkipDecoding()} if 'image' in info.features else None
    records = builder.as_data_source(split='+'.join(slices.values()), decoders=decoders)
    count = len(records)
    where = f'{root}, record {{}} of {split}'
    if 'regions' in info.features:
        read = in_threads(lambda n: _read_features(records[n], where.format(n)), count)
        images, counts, boxes, tags = zip(*read, strict=True)
        stored = info.features['regions']
        content = {
            'regions': RecordColumn(records, 'regions', (count, *stored.shape), np.dtype(stored.np_dtype)),
            'counts': np.array(counts, np.int32),
            'boxes': None if boxes[0] is None else np.stack(boxes),
            'tags': None if tags[0] is None else tuple(text.decode() for text in tags),
            'encoded_by': precomp.read_encoded_by(root, part),
        }
    else:
        files = itertools.chain.from_iterable(info.splits[name].filepaths for name in slices)
        checked = json.loads(remember([*map(str, files)], lambda: _check_photos(records, where), f'{count} records'))
        images = checked['images']
        content = {'pixels': Photos(RecordColumn(records, 'image'), transform, checked['hash'])}
    captions, image_of_text = join_captions([texts[:max_captions] for _, texts in images])
    return Split(
        name=f'{info.name}/{split}',
        captions=captions,
        image_of_text=image_of_text,
        image_ids=tuple(name for name, _ in images),
        dataset=DATASETS.get(info.name, info.config_name or info.name),
        **content,
    )


def _open(root: str) -> Any:
    """Returns the builder of a prepared data set; raises a UserError unless it has images with captions."""
    try:
        builder = tensorflow_datasets.builder_from_directory(root)
        features = builder.info.features
        photos = 'image' in features and isinstance(features['image'], tensorflow_datasets.features.Image)
        is_readable = 'captions' in features and (photos or 'regions' in features)
        is_readable = is_readable and builder.info.file_format.value == 'array_record'
    except Exception:  # TFDS raises many kinds of errors
        is_readable = False
    if not is_readable:
        raise UserError(
            f'{root} is not a prepared data set of images with captions: give the folder of a version, prepared with '
            "file_format='array_record'"
        )
    return builder


@dataclasses.dataclass(frozen=True, repr=False)
class RecordColumn:
    """A field of all records, such as features; it reads only the indexed records.

    Attributes:
      records: The I records.
      name: The name of the field.
      shape: I, and the shape of the field in a record, such as R, D; not needed for files.
      dtype: The type of features; None for files.
    """

    records: Sequence[dict[str, Any]]
    name: str
    shape: tuple[int, ...] = ()
    dtype: np.dtype | None = None

    def __len__(self) -> int:
        """Returns I."""
        return len(self.records)

    def __getitem__(self, index: Any) -> Any:
        """Reads a value, such as [R, D], for a number, otherwise an array, such as [N, R, D]."""
        rows = np.arange(len(self))[index]
        if not rows.ndim:
            return self.records[int(rows)][self.name]
        return np.stack(in_threads(lambda n: self.records[int(rows[n])][self.name], len(rows)))


def _captions(record: dict[str, Any], where: str) -> list[str]:
    texts = record['captions']
    texts = (text.decode().strip() for text in (texts['text'] if isinstance(texts, dict) else texts))
    captions = [text for text in texts if text]
    if not captions:
        raise UserError(f'{where} has no caption: prepare the data set without it')
    return captions


def _read_features(record: dict[str, Any], where: str) -> tuple[Any, ...]:
    """Returns the name and the captions of an image, the count of its regions, and any boxes and tags."""
    if not np.isfinite(record['regions']).all():
        raise UserError(f'{where} has NaN or infinite features: prepare the data set again')
    image = record['image_id'].decode(), _captions(record, where)
    return image, int(record.get('count', len(record['regions']))), record.get('boxes'), record.get('tags')


def _check_photos(records: Sequence[dict[str, Any]], where: str) -> str:
    """Decodes every image once; returns as JSON a hash of the files, and the names and captions of the images."""

    def check(n: int) -> tuple[str, str, list[str]]:
        record = records[n]
        decode(record['image'], lambda image: None, where.format(n), smallest=1)
        name = record['image/filename'].decode() if 'image/filename' in record else str(n)
        return hashlib.sha256(record['image']).hexdigest(), name, _captions(record, where.format(n))

    checked = in_threads(check, len(records))
    content = hashlib.sha256(''.join(digest for digest, *_ in checked).encode()).hexdigest()
    return json.dumps({'hash': content, 'images': [fields for _, *fields in checked]})


def write(root: str, folder: Path) -> Path:
    """Writes all splits of a `*_precomp` folder as a data set; dev splits are complete, vectors of tokens are left out.

    Args:
      root: The `*_precomp` folder.
      folder: The output folder, new or empty.

    Returns:
      The folder of the version, for `load`.

    Raises:
      UserError: If the data cannot be read, or differ between the splits in size, or the output folder is not empty.
    """
    splits = {name: precomp.load(name, root=root, dev_images=None) for name in precomp.splits(root)}
    kinds = {(s.regions.shape[1:], s.regions.dtype, s.boxes is None, s.tags is None) for s in splits.values()}
    if len(kinds) != 1:
        raise UserError(
            f'{root} has no splits, or splits whose features differ in size, or only some of which have boxes or tags: '
            'write one folder for each'
        )
    first = next(iter(splits.values()))
    name = first.dataset or os.path.basename(os.path.abspath(root)).removesuffix('_precomp')
    builder = JitmPrecomp(
        name='jitm_precomp',
        config=name,
        version='1.1.0',
        description='Images as region features, with their captions.',
        features=_features(first),
        split_datasets={split: _records(splits[split]) for split in splits},
        data_dir=str(folder),
        file_format='array_record',
        disable_shuffling=True,
    )
    version = Path(builder.data_dir)
    output = OutputFolder(folder, KIND)
    if version.exists():
        raise UserError(f'{version} exists already: choose a new folder')
    output.claim([str(version.relative_to(folder) / 'dataset_info.json')])
    tensorflow_datasets.display_progress_bar(sys.stderr.isatty())
    with tempfile.TemporaryDirectory() as unused:
        builder.download_and_prepare(download_dir=unused)
    manifest = os.path.join(root, precomp.MANIFEST)
    if os.path.exists(manifest):
        with output.replacing(str(version.relative_to(folder) / precomp.MANIFEST)) as file:
            file.write(Path(manifest).read_bytes())
    for name in splits:
        vectors = os.path.join(root, name + precomp.TEXTS[0])
        if os.path.exists(vectors):
            logging.warning('%s is left out: a TensorFlow data set has no vectors of tokens', vectors)
    return version


class JitmPrecomp(tensorflow_datasets.dataset_builders.AdhocBuilder):
    """One record per image: `image_id`, `regions` [R, D], their `count`, `captions`, and any `boxes` and `tags`."""

    # Nothing is downloaded. To look for checksums, TFDS 4.9.10 imports a package that is not among its dependencies.
    url_infos = None

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator]:
        return self._split_datasets  # without TensorFlow, whose data sets AdhocBuilder looks for


def _features(split: Split) -> tensorflow_datasets.features.FeaturesDict:
    """Returns the features of the records of a split."""
    tensor = tensorflow_datasets.features.Tensor
    text = tensorflow_datasets.features.Text
    features = {
        'image_id': text(),
        'regions': tensor(shape=split.regions.shape[1:], dtype=split.regions.dtype, encoding='bytes'),
        'count': np.int32,
        'captions': tensorflow_datasets.features.Sequence(text()),
    }
    if split.boxes is not None:
        features['boxes'] = tensor(shape=split.boxes.shape[1:], dtype=np.float32)
    if split.tags is not None:
        features['tags'] = text()
    return tensorflow_datasets.features.FeaturesDict(features)


def _records(split: Split) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the number and the record of each image of a split."""
    columns = {
        'image_id': split.image_ids,
        'regions': split.regions,
        'count': split.counts,
        'boxes': split.boxes,
        'tags': split.tags,
    }
    columns = {name: values for name, values in columns.items() if values is not None}
    for image in range(split.num_images):
        record = {name: values[image] for name, values in columns.items()}
        yield image, record | {'captions': split.captions_of(image)}
