"""Noisy correspondence: training captions paired with other images (Huang et al., 2021).

Published noise is an array with the image of each pair. In one kind the captions are moved one by one (NCR), in the
other all captions of an image together (DECL, RCL), which is harder, since the wrong pairs agree with each other.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from jitm.data.arrays import check_captioned, read_integers
from jitm.data.splits import Split
from jitm.errors import ArgumentError
from jitm.files import replacing
from jitm.types import Index, Share

MOVED = ('captions', 'images')  # one by one, or all captions of an image together


def mix(split: Split, *, noise_rate: Share, noise_seed: Index = 0, noise_of: Literal[*MOVED] = 'captions') -> Split:
    """Moves a share of the captions to other images, by the published recipe.

    With the seeds 96 (rates 0.2, 0.4, 0.6) and 34 (0.5), `captions` reproduces the published files of Flickr30K.

    Args:
      split: The training split.
      noise_rate: The share of the captions, or of the images, that are shuffled.
      noise_seed: The seed of the shuffle.
      noise_of: Whether 'captions' are moved one by one, or all captions of 'images' together.

    Returns:
      The split; every image has as many captions as before if their number is the same for all.
    """
    rng = np.random.RandomState(noise_seed)  # the legacy generator, as published
    if noise_of == 'captions':
        return _mixed(split, _shuffle_some(split.image_of_text.astype(np.int64), noise_rate, rng))
    return _mixed(split, _shuffle_some(np.arange(split.num_images), noise_rate, rng)[split.image_of_text])


def read(split: Split, *, noise_file: str) -> Split:
    """Moves captions according to a published file.

    Args:
      split: The training split.
      noise_file: The path of an integer `.npy` file with an image for each caption [T] (NCR, BiCro), or for each image
        [I], whose captions it gets (DECL, RCL).

    Raises:
      UserError: If it cannot be read, or belongs to other data.
    """
    shapes = [(split.num_texts,), (split.num_images,)]
    content = f'the image of each caption of {split.name}, or of all captions of each image'
    images = read_integers(noise_file, shapes, (0, split.num_images - 1), content)
    if len(images) != split.num_texts:
        images = images[split.image_of_text]
    check_captioned(images, split.num_images, noise_file)
    return _mixed(split, images)


def drop(split: Split, *, noise_dropped: bool) -> Split:
    """Drops the mixed pairs, which training cannot know: an upper bound for methods that select clean pairs.

    Args:
      split: A mixed training split.
      noise_dropped: Whether they are dropped.

    Raises:
      ArgumentError: If the split has no noise.
    """
    if not noise_dropped:
        return split
    if split.clean is None:
        raise ArgumentError('noise_dropped', 'is True without noise: set data.noise_rate or data.noise_file')
    return split.take_texts(np.flatnonzero(split.clean))


def write(split: Split, folder: Path) -> None:
    """Writes `noise.npy`, the image of each caption as noise moved it; nothing for a split without noise."""
    if split.clean is not None:
        with replacing(folder / 'noise.npy') as file:
            np.save(file, split.image_of_text.astype(np.int64))


def describe(split: Split) -> str:
    """Describes the noise of a mixed split: its kind, and the shares of images and of pairs that it affects."""
    original = split.original_image_of_text
    wrong = ~split.clean
    if not wrong.any():
        return f'{split.name} has noise, but no mixed pair is left: its {split.num_texts} pairs are clean'
    moves_together = len(np.unique(np.stack([original, split.image_of_text]), axis=1).T) == len(np.unique(original))
    how = 'all captions of an image together' if moves_together else 'captions one by one'
    images = np.bincount(original[wrong], minlength=split.num_images) > 0
    return (
        f'{split.name} has noise that moved {how}: {100 * wrong.mean():.2f} % of the pairs are wrong, and '
        f'{100 * images.mean():.2f} % of the images have lost a caption'
    )


def name(data: Mapping[str, Any]) -> str:
    """Returns the name of the noise of a config's `data`, as '20 % of captions mixed' is published; '' for none."""
    if 'noise_file' in data:
        return f'the noise of {data["noise_file"]}'
    return f'{100 * data["noise_rate"]:g} % of {data.get("noise_of", MOVED[0])} mixed' if 'noise_rate' in data else ''


def _shuffle_some(values: np.ndarray, rate: float, rng: np.random.RandomState) -> np.ndarray:
    """Shuffles a share of the values among themselves."""
    rows = np.arange(len(values))
    rng.shuffle(rows)
    rows = rows[: int(rate * len(values))]
    moved = values[rows]
    rng.shuffle(moved)
    values = values.copy()
    values[rows] = moved
    return values


def _mixed(split: Split, images: np.ndarray) -> Split:
    return dataclasses.replace(split, image_of_text=images.astype(np.int32), original_image_of_text=split.image_of_text)
