"""Features of a model's image network, and vectors of tokens, in the layout that `jitm.data.precomp` reads."""

import dataclasses
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jitm.config import build as config_lib
from jitm.data.arrays import grid_boxes
from jitm.data.images.pixels import Photos
from jitm.data.precomp import FEATURES, MANIFEST, SHARED, files_of
from jitm.data.precomp_writer import PrecompWriter
from jitm.data.splits import Split, check_images, check_lengths
from jitm.data.text.token_vectors import ENTRY, LENGTHS, VECTORS, VOCABULARY
from jitm.data.text.vocabularies import describe_vocabulary, tokenize_split
from jitm.encoders.networks import CROPS, FeatureNetwork, features_of
from jitm.encoders.text_network import TextNetwork
from jitm.errors import UserError
from jitm.files import hash_json, locked, parse_json
from jitm.files.outputs import Job, OutputFolder
from jitm.inference.engine import batches
from jitm.runs.progress import ignore

KIND = 'a set of encoded features'
BUSY = 'another process encodes photos to {}; wait for it, or choose another folder'
REMEDIES = {'float16': 'use --dtype float32', 'float32': 'check the weights of the network'}  # for infinity
TEXTS_PER_BLOCK = 1024  # encoded before they are written
OF_SPLIT = ('data', 'captions')  # the entries of the manifest in which the splits of a folder differ


def check(network: FeatureNetwork, split: Split) -> list[str]:
    """Checks that a network can encode the images of a split.

    Args:
      network: The network.
      split: The images.

    Returns:
      A warning if the ten crops of a square photo are only the image and its mirror image.

    Raises:
      UserError: If it cannot.
    """
    check_images(split, network.model.reads)
    if network.crops not in CROPS:
        raise UserError(f'crops is {network.crops}: use 1 or 10')
    if network.crops == 1:
        return []
    if not isinstance(split.pixels, Photos):
        raise UserError(f'{split.name} has no files to cut ten crops from: use --crops 1')
    pixels = jax.ShapeDtypeStruct((1, 1, *split.pixels.shape[1:]), np.uint8)
    features = jax.eval_shape(functools.partial(features_of, network.model), pixels, network.variables)
    regions = features.shape[1]
    if regions > 1:
        raise UserError(f'ten crops need one vector per image, but the network returns {regions} cells: use --crops 1')
    if split.pixels.transform.short_side > split.pixels.transform.image_size:
        return []
    return [
        f'the {network.crops} crops of a square photo are only the image and its mirror image, since config keys '
        f"'data.short_side' and 'data.image_size' are both {split.pixels.transform.image_size}: give a larger "
        '--config.data.short_side, or use --crops 1'
    ]


def encode(network: FeatureNetwork, split: Split, calls: int = 0) -> Iterator[np.ndarray]:
    """Yields the features of the images of a split, [n, R, F], some at a time; see `FeatureNetwork.encode`.

    Args:
      network: The network.
      split: The images.
      calls: The number of calls that are left out, of `images_per_call` images each.
    """
    pixels = split.pixels
    parts = batches(np.arange(calls * network.images_per_call, split.num_images), network.images_per_call)
    return network.encode(pixels.crops(rows) if network.crops > 1 else pixels[rows][:, None] for rows in parts)


def encode_split(network: FeatureNetwork, split: Split) -> Split:
    """Returns a split with the features of its photos, and the boxes of a grid, as `write` writes them."""
    regions = np.concatenate([*encode(network, split)])
    counts = np.full(len(regions), regions.shape[1], np.int32)
    boxes = grid_boxes(regions.shape[1])
    boxes = None if boxes is None else np.broadcast_to(boxes, (len(regions), *boxes.shape))
    return dataclasses.replace(split, regions=regions, counts=counts, boxes=boxes)


def _describe(network: FeatureNetwork, split: Split) -> dict[str, Any]:
    """Returns all inputs of a split's features, as JSON."""
    transform = getattr(split.pixels, 'transform', None)  # an array of pixels has none
    resizing = {key: getattr(transform, key, None) for key in ('short_side', 'interpolation')}
    pixels = {'image_size': list(split.pixels.shape[1:3]), **resizing}
    return {**network.identity, **pixels, 'data': split.identity}


def output_folder(folder: Path, split_names: Iterable[str]) -> OutputFolder:
    """Returns the folder to which splits are written.

    Args:
      folder: The folder: new, empty, or with encoded features.
      split_names: The names of the splits in the names of the files.

    Raises:
      UserError: If it has files that jitm did not write, or one that would be read with the features.
    """
    output = OutputFolder(folder, KIND)
    output.check([MANIFEST, *SHARED, *itertools.chain.from_iterable(map(files_of, split_names))])
    return output


def write(
    network: FeatureNetwork,
    split: Split,
    split_name: str,
    folder: Path,
    report: Callable[[int], Any] = ignore,
) -> bool:
    """Writes the features, the names and any captions of a split, unless they have been written before.

    All splits of a folder have the features of one network. Remains of other networks are removed.

    Args:
      network: The network, which can encode the split, see `check`.
      split: The images; the texts are written sorted by image.
      split_name: The name of the split in the names of the files.
      folder: The output, see `output_folder`; `encoded.json` in it records the inputs of its features.
      report: Called with the number of images, each time that some have been encoded.

    Returns:
      Whether they were written.

    Raises:
      UserError: If the features are not finite, the folder has other features, of this split or of another, or other
        files, or another process writes to it.
    """
    output = output_folder(folder, [split_name])
    with locked(folder, BUSY.format(folder)):
        description = _describe(network, split)
        manifest = _read_manifest(folder)
        present = _check_folder(folder, FEATURES, manifest, split_name, description)
        job = output.begin({**description, 'images_per_call': network.images_per_call})
        if split_name in present:
            output.end_jobs()
            return False
        stale = files_of(split_name)
        if not present:  # other features were removed, or never completed
            manifest.clear()
            stale = {*output.names}.difference(job.names)
        output.remove(stale)
        manifest[split_name] = {**description, 'origin': network.origin, **_folder_of(split)}
        _write_manifest(output, manifest)
        writer = PrecompWriter(output, split_name)
        writer.write_lines('_ids.txt', split.image_ids)
        if split.captions:
            texts, _ = split.texts_of_image
            writer.write_lines('_caps.txt', [split.captions[text] for text in texts])
            writer.write_array('_image_of_text.npy', split.image_of_text[texts])
        if split.dataset:
            writer.write_lines('dataset.txt', [split.dataset])
        _write_features(network, split, writer, job, report)  # the last file: with it the split is complete
        output.end_jobs()
    return True


def _folder_of(split: Split) -> dict[str, str]:
    """Returns the folder in which the ids of a split are the names of its photos, as `photos`, if there is one."""
    folder = str(getattr(split.pixels, 'files', [''])[0]).removesuffix(split.image_ids[0])
    if not all(os.path.isfile(os.path.join(folder, name)) for name in split.image_ids):
        return {}
    return {'photos': os.path.abspath(folder)}


def _write_features(
    network: FeatureNetwork, split: Split, writer: PrecompWriter, job: Job, report: Callable[[int], Any]
) -> None:
    """Writes the features of a split, a single region as a vector, and the boxes of a grid."""
    with writer.features(split.num_images) as append:
        for features in _resumed(job, functools.partial(_finite_features, network, split)):
            regions = features.shape[1]
            append(features[:, 0] if regions == 1 else features)
            report(len(features))
        boxes = grid_boxes(regions)
        if boxes is not None:
            writer.write_array('boxes.npy', boxes)


def _finite_features(network: FeatureNetwork, split: Split, calls: int) -> Iterator[np.ndarray]:
    """Yields features as `encode`; raises a UserError that names an image whose features are not finite."""
    row = calls * network.images_per_call
    for features in encode(network, split, calls):
        finite = np.isfinite(features).all(axis=(1, 2))
        if not finite.all():
            name = f'{split.image_ids[row + int(np.argmin(finite))]} of {split.name}'
            raise UserError(f'{name} has features that are not finite in {network.dtype}: {REMEDIES[network.dtype]}')
        yield features
        row += len(features)


def _resumed(job: Job, compute: Callable[[int], Iterator[np.ndarray]]) -> Iterator[np.ndarray]:
    """Yields arrays: those that a killed process has saved, then the others, each after it is saved.

    Args:
      job: The job whose parts they are.
      compute: A function from the number of saved arrays to the others.
    """
    count = 0
    for part in job.parts():
        yield part['array']
        count += 1
    for number, array in enumerate(compute(count), count):
        job.save(number, array=array)
        yield array


def _check_folder(
    folder: Path,
    suffix: str,
    manifest: Mapping[str, Any],
    split_name: str,
    description: Mapping[str, Any],
) -> list[str]:
    """Returns the splits that have files with a suffix in a folder.

    Raises:
      UserError: If the entry of one of them in the manifest has other values than required.
    """
    present = sorted(path.name.removesuffix(suffix) for path in folder.glob(f'*{suffix}'))
    for name in present:
        path = folder / f'{name}{suffix}'
        expected = {key: value for key, value in description.items() if name == split_name or key not in OF_SPLIT}
        expected = config_lib.flatten(expected)
        if name not in manifest:
            raise UserError(f'{path} was not written by jitm encode: choose another folder, or move the file')
        recorded = config_lib.flatten(manifest[name])
        differing = [key for key, value in expected.items() if key not in recorded or recorded[key] != value]
        if differing:
            raise UserError(
                f'{path} has other features than these ({", ".join(differing)}): choose another folder, or remove the '
                'file'
            )
    return present


def write_texts(
    network: TextNetwork,
    split: Split,
    split_name: str,
    folder: Path,
    report: Callable[[int], Any] = ignore,
) -> bool:
    """Writes the vectors of the captions' tokens of a split beside its features, unless they have been written before.

    Args:
      network: The text encoder.
      split: The images and captions, whose features `write` has written.
      split_name: The name of the split in the names of the files.
      folder: The output of `write`.
      report: Called with the number of captions, each time that some have been encoded.

    Returns:
      Whether they were written.

    Raises:
      UserError: If the vectors are not finite, the folder has other vectors, of this split or of another, or another
        process writes to it.
    """
    with locked(folder, BUSY.format(folder)):
        order, _ = split.texts_of_image
        captions = [split.captions[text] for text in order]
        manifest = _read_manifest(folder)
        description = {**network.identity, 'captions': hash_json(captions)}
        encoders = {name: entry[ENTRY] for name, entry in manifest.items() if ENTRY in entry}
        present = _check_folder(folder, VECTORS, encoders, split_name, description)
        output = OutputFolder(folder, KIND)
        job = output.begin({**description, 'texts_per_block': TEXTS_PER_BLOCK})
        if split_name in present:
            output.end_jobs()
            return False
        manifest[split_name][ENTRY] = {**description, 'origin': network.origin}
        _write_manifest(output, manifest)
        tokens = tokenize_split(tuple(captions), network.vocabulary)
        writer = PrecompWriter(output, split_name)
        check_lengths(split, tokens, network.encoder.text_format)
        writer.write_lines(VOCABULARY, [json.dumps(describe_vocabulary(network.vocabulary))])
        writer.write_array(LENGTHS, tokens.lengths)
        blocks = list(batches(np.arange(len(captions)), TEXTS_PER_BLOCK))

        def encode_blocks(first: int) -> Iterator[np.ndarray]:
            for rows in blocks[first:]:
                vectors = network.encode(tokens, rows)
                if not np.isfinite(vectors).all():
                    problem = f'that are not finite in {network.dtype}: {REMEDIES[network.dtype]}'
                    raise UserError(f'captions of {split.name} have vectors {problem}')
                yield vectors

        with writer.features(int(tokens.lengths.sum()), VECTORS) as append:  # the last file
            for rows, vectors in zip(blocks, _resumed(job, encode_blocks), strict=True):
                append(vectors)
                report(len(rows))
        output.end_jobs()
    return True


def _write_manifest(output: OutputFolder, manifest: Mapping[str, Any]) -> None:
    output.write(MANIFEST, json.dumps(manifest, indent=2) + '\n')


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = parse_json(path.read_text()) if path.exists() else {}
    except (OSError, ValueError):
        manifest = None
    if not isinstance(manifest, dict) or not all(isinstance(entry, dict) for entry in manifest.values()):
        raise UserError(f'{path} is damaged: remove it with the features beside it, or choose another folder')
    return manifest
