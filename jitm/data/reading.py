"""What a model reads of a split: tokens, padded texts and images."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from jitm.data.arrays import Rows
from jitm.data.splits import Split, locations
from jitm.data.text import Tokens, join
from jitm.data.token_vectors import ENTRY
from jitm.data.vocabularies import Tokenizer
from jitm.errors import UserError
from jitm.types import Images, TextFormat, Texts

LENGTH_MULTIPLE = 4  # texts are padded to such lengths where they are scored


def tokenize_split(captions: tuple[str, ...], vocabulary: Tokenizer, tags: Sequence[str] | None = None) -> Tokens:
    """Encodes the captions of a split, and the object tags of its images if it has any."""
    tag_tokens = None if tags is None else tokenize_tags(tags, vocabulary)
    return dataclasses.replace(join([vocabulary.encode(caption) for caption in captions]), tags=tag_tokens)


def add_vectors(tokens: Tokens, split: Split) -> Tokens:
    """Returns the tokens of a split with their vectors by a frozen encoder.

    Raises:
      UserError: If the split has no vectors, or those of other tokens.
    """
    if (vectors := split.token_vectors) is None:
        raise UserError(f'{split.name} has no vectors of tokens: write them with jitm encode --texts')
    if not np.array_equal(tokens.lengths, vectors.lengths):
        raise UserError(f'{split.name} has vectors of other tokens: write them again with jitm encode --texts')
    return dataclasses.replace(tokens, vectors=vectors.values)


def check_encoders(
    known: Mapping[str, Any] | None, other: Mapping[str, Any] | None, name: str, trained_on: object
) -> None:
    """Raises a UserError unless two splits have vectors of tokens by one encoder, see `Split.encoded_by`.

    Args:
      known: What encoded the training split.
      other: What encoded the other split.
      name: The name of the other split.
      trained_on: The name of the training split, or the run directory, for the message.
    """
    of = [(encoded_by or {}).get(ENTRY, {}) for encoded_by in (known, other)]
    if any(of[0].get(key) != of[1].get(key) for key in ('network', 'parameters', 'vocabulary')):
        raise UserError(
            f'{name} has vectors of tokens by another text encoder than {trained_on}: write them with jitm encode '
            '--texts from the same run'
        )


def tokenize_tags(tags: Sequence[str], vocabulary: Tokenizer) -> Tokens:
    """Encodes the object tags of images, see `Images.tags`; an image without tags has no ids."""
    return join([vocabulary.encode(words)[1:] if words else np.zeros(0, np.int32) for words in tags])


def check_lengths(split: Split, tokens: Tokens, text_format: TextFormat) -> None:
    """Raises a UserError if a caption of a split is longer than the maximum of a model."""
    kind, maximum = text_format.kind or 'words', text_format.max_length
    longest = tokens.lengths.argmax()
    if maximum is not None and tokens.lengths[longest] > maximum:
        raise UserError(
            f'{split.name}, text {longest} has {tokens.lengths[longest]} {kind} with special tokens, but the model '
            f'reads at most {maximum}: shorten this caption'
        )


def pad_texts(tokens: Tokens, index: np.ndarray, length: int) -> Texts:
    """Returns some texts of a split, padded with 0.

    Args:
      tokens: The captions of the split.
      index: The rows of the texts, int [N].
      length: The length L, at least their maximum length.

    Returns:
      Texts with ids [N, L] and lengths [N], and vectors [N, L, F] if the tokens have them.
    """
    lengths = tokens.lengths[index]
    valid = np.arange(length) < lengths[:, None]
    rows = np.concatenate([np.arange(tokens.starts[t], tokens.starts[t + 1]) for t in index])

    def padded(values: np.ndarray | Rows) -> np.ndarray:
        array = np.zeros((*valid.shape, *values.shape[1:]), values.dtype)
        array[valid] = values[rows]
        return array

    return Texts(padded(tokens.ids), lengths, None if tokens.vectors is None else padded(tokens.vectors))


def bucket(length: int, multiple: int, maximum: int | None = None) -> int:
    """Returns the padded length: the next multiple, so that few lengths are compiled, but at most the maximum."""
    padded = -(-int(length) // multiple) * multiple
    return padded if maximum is None else min(padded, maximum)


_LACKS = {  # what a model reads -> the field of a split, and what a split without it lacks
    'regions': (
        'regions',
        'has pixels and no region features, but the model reads regions: take a model of pixels, or give features of '
        'these images as data.root',
    ),
    'pixels': (
        'pixels',
        'has no pixels, but the model reads them: give the image files themselves, or take a model of region features',
    ),
    'locations': (
        'boxes',
        'has no boxes, but the model reads the locations of regions: add {}_boxes.npy or boxes.npy to its folder',
    ),
    'tags': ('tags', 'has no object tags, but the model reads them: add {}_tags.jsonl to its folder'),
}


def check_images(split: Split, reads: Collection[str]) -> None:
    """Raises a UserError if a split lacks what a model reads of its images, see `Matcher.reads`."""
    for what, (field, problem) in _LACKS.items():
        if what in reads and getattr(split, field) is None:
            raise UserError(f'{split.name} {problem.format(split.name.rpartition("/")[2])}')


def take_images(
    split: Split, index: np.ndarray, reads: Collection[str] = ('regions',), tags: Tokens | None = None
) -> Images:
    """Reads some images into memory: the fields of `Images` that a model reads.

    Args:
      split: The split with the I images, or another holder of its `regions`, `counts`, `boxes` or `pixels`.
      index: The rows of the images, int [N].
      reads: See `Matcher.reads`.
      tags: `Tokens.tags` of the split, for models that read them; they are padded to the longest of the split.

    Returns:
      N images.
    """
    images = Images()
    if 'regions' in reads:
        images = images.replace(regions=np.asarray(split.regions[index]), counts=split.counts[index])
    if 'locations' in reads:
        images = images.replace(locations=locations(split.boxes[index]))
    if 'pixels' in reads:
        images = images.replace(pixels=np.asarray(split.pixels[index]))
    if 'tags' in reads:
        length = bucket(max(1, tags.lengths.max()), LENGTH_MULTIPLE)
        images = images.replace(tags=pad_texts(tags, index, length))
    return images
