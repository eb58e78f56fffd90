"""Writes a folder in which no image that selects an epoch is reported, with fewer cells of each image.

    python -m experiments held_out --data_root data/f8k_precomp --pool 2 --out data/f8k_nine_precomp
    python -m experiments held_out --data_root data/f8k_precomp --scale 20 --out data/f8k_scaled_precomp
    python -m experiments held_out --data_root data/f8k_lite --pool 7 --scale 20 --token_vectors \\
      --out data/f8k_lite_tokens

500 images of train, drawn once, become dev; dev becomes test. `--pool 2` averages squares of 2 x 2 cells, so that
36 cells become nine regions, and cross-attention takes a quarter of the time. `--scale 20` gives features of a standard
deviation of 0.05 that of published ones, about 1. `--token_vectors` also writes the vectors of the captions' tokens.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from einops import reduce

from benchmarks.results import Row
from jitm.data import precomp
from jitm.data.precomp_writer import PrecompWriter
from jitm.data.splits import Split
from jitm.data.text.token_vectors import ENTRY, LENGTHS, VECTORS, VOCABULARY, TokenVectors
from jitm.data.text.vocabularies import describe_vocabulary
from jitm.files import hash_json
from jitm.files.outputs import OutputFolder

HELD_OUT = 500


def pooled(cells: np.ndarray, side: int) -> np.ndarray:
    """Averages squares of cells, `[images, cells, features]`, of a square grid.

    Args:
      cells: Row by row.
      side: The number of cells of a side of a square; divides the number of cells of a side of the grid.
    """
    grid = round(cells.shape[1] ** 0.5)
    return reduce(cells, 'n (h a w b) f -> n (h w) f', 'mean', h=grid // side, w=grid // side, a=side, b=side)


def write(split: Split, side: int, scale: float, writer: PrecompWriter) -> None:
    """Writes the features, averaged and scaled, and the captions of a split."""
    regions = np.asarray(split.regions[:])
    features = scale * pooled(regions.astype(np.float32), side)
    with writer.features(split.num_images) as append:
        append(features.astype(regions.dtype))
    writer.write_lines('_caps.txt', split.captions)
    writer.write_lines('_ids.txt', split.image_ids)
    writer.write_array('_image_of_text.npy', split.image_of_text)


def write_vectors(vectors: TokenVectors, writer: PrecompWriter) -> None:
    """Writes the vectors of the tokens of a split."""
    writer.write_array(LENGTHS, vectors.lengths)
    with writer.features(len(vectors.values), VECTORS) as append:
        append(np.asarray(vectors.values[:]))


def manifest_entry(split: Split, side: int, scale: float) -> dict[str, Any]:
    """Returns the encoders of a split; changed features have no network that `jitm search` could encode photos with."""
    entry = split.encoded_by
    texts = {**entry[ENTRY], 'captions': hash_json(list(split.captions))}
    return {**entry, 'network': {'of': entry['network'], 'pooled': side, 'scaled': scale}, ENTRY: texts}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags."""
    parser.add_argument('--data_root', required=True, help='a *_precomp folder with train and dev')
    parser.add_argument('--pool', type=int, default=1, help='the side of the squares of cells that are averaged')
    parser.add_argument('--scale', type=float, default=1.0, help='a factor of every feature')
    parser.add_argument('--token_vectors', action='store_true', help="the vectors of the captions' tokens too")
    parser.add_argument('--out', type=Path, required=True, help='the folder to write')


def run(args: argparse.Namespace) -> Iterator[Row]:
    """Writes the splits, and yields their numbers of images.

    Raises:
      UserError: If the folder cannot be read or written.
    """
    train, dev = (
        precomp.load(split, root=args.data_root, token_vectors=args.token_vectors) for split in ('train', 'dev')
    )
    order = np.random.default_rng(0).permutation(train.num_images)
    splits = {
        'train': train.take(np.sort(order[HELD_OUT:])),
        'dev': train.take(np.sort(order[:HELD_OUT])),
        'test': dev,
    }
    output = OutputFolder(args.out, 'features of held-out splits')
    if args.token_vectors:
        manifest = {name: manifest_entry(split, args.pool, args.scale) for name, split in splits.items()}
        output.write(precomp.MANIFEST, json.dumps(manifest, indent=2) + '\n')
        output.write(VOCABULARY, json.dumps(describe_vocabulary(dev.token_vectors.vocabulary)) + '\n')
    for name, split in splits.items():
        writer = PrecompWriter(output, name)
        write(split, args.pool, args.scale, writer)
        if args.token_vectors:
            write_vectors(split.token_vectors, writer)
        yield {'split': name, 'images': split.num_images, 'captions': split.num_texts}
