"""What a model reads of a split: tokens, padded texts and images."""

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from jitm.data.splits import Split
from jitm.data.text import Tokens, join
from jitm.data.vocabularies import Tokenizer
from jitm.errors import UserError
from jitm.types import Images, TextFormat, Texts

LENGTH_MULTIPLE = 4  # texts are padded to such lengths where they are scored


def tokenize_split(captions: tuple[str, ...], vocabulary: Tokenizer, tags: Sequence[str] | None = None) -> Tokens:
    """Encodes the captions of a split, and the object tags of its images if it has any."""
    tag_tokens = None if tags is None else tokenize_tags(tags, vocabulary)
    return dataclasses.replace(join([vocabulary.encode(caption) for caption in captions]), tags=tag_tokens)


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
      Texts with ids [N, L] and lengths [N].
    """
    lengths = tokens.lengths[index]
    ids = np.zeros((len(index), length), np.int32)
    ids[np.arange(length) < lengths[:, None]] = np.concatenate(
        [tokens.ids[tokens.starts[t] : tokens.starts[t + 1]] for t in index]
    )
    return Texts(ids, lengths)


def bucket(length: int, multiple: int, maximum: int | None = None) -> int:
    """Returns the padded length: the next multiple, so that few lengths are compiled, but at most the maximum."""
    padded = -(-int(length) // multiple) * multiple
    return padded if maximum is None else min(padded, maximum)


def check_images(split: Split, reads: Collection[str]) -> None:
    """Raises a UserError if a split lacks what a model reads of its images, see `Matcher.reads`."""
    if 'regions' in reads and split.regions is None:
        raise UserError(
            f'{split.name} has pixels and no region features, but the model reads regions: take a model of pixels, or '
            'give features of these images as data.root'
        )
    if 'pixels' in reads and split.pixels is None:
        raise UserError(
            f'{split.name} has no pixels, but the model reads them: give the image files themselves, or take a model '
            'of region features'
        )
    if 'locations' in reads and split.boxes is None:
        raise UserError(
            f'{split.name} has no boxes, but the model reads the locations of regions: add '
            f'{split.name.rpartition("/")[2]}_boxes.npy or boxes.npy to its folder'
        )
    if 'tags' in reads and split.tags is None:
        raise UserError(
            f'{split.name} has no object tags, but the model reads them: add '
            f'{split.name.rpartition("/")[2]}_tags.jsonl to its folder'
        )


def take_images(
    split: Split, index: np.ndarray, reads: Collection[str] = ('regions',), tags: Tokens | None = None
) -> Images:
    """Reads some images into memory: the fields of `Images` that a model reads.

    Args:
      split: The split with the I images.
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
        images = images.replace(locations=split.locations(index))
    if 'pixels' in reads:
        images = images.replace(pixels=np.asarray(split.pixels[index]))
    if 'tags' in reads:
        length = bucket(max(1, tags.lengths.max()), LENGTH_MULTIPLE)
        images = images.replace(tags=pad_texts(tags, index, length))
    return images
