"""Augmentation that drops regions and changes words: pure functions of an example's random generator."""

import dataclasses

import numpy as np

from jitm.types import Count, Images, Rate


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """Augmentation of training examples (VSE-infinity's size augmentation, ESA's self-expanding).

    Attributes:
      drop_regions: The probability that a region is dropped; 0.2 as published.
      change_words: The probability that a word is changed: half of these are masked, a tenth replaced by a random word,
        the others dropped; 0.2 as published. `<mask>` is then added to the vocabulary.
      keep_special_tokens: Whether the first and the last token are kept; the published GRU encoders change `<start>`
        and `<end>`.
      num_views: The number of independently augmented views of each pair in a batch; 2 in ESA.
    """

    drop_regions: Rate
    change_words: Rate
    keep_special_tokens: bool
    num_views: Count

    @property
    def changes(self) -> bool:
        """Whether examples are changed."""
        return self.drop_regions > 0 or self.change_words > 0 or self.num_views > 1


def example_generator(seed: int, step: int, text: int, view: int) -> np.random.Generator:
    """Returns the random generator of one view of a text and its image in the batch of a step."""
    return np.random.default_rng([seed, step, text, view])


def keep_regions(count: int, regions: int, rate: float, rng: np.random.Generator) -> np.ndarray:
    """Samples the regions to keep.

    Args:
      count: The number of valid regions.
      regions: The number R of regions.
      rate: The probability that a region is dropped.
      rng: The generator of the example.

    Returns:
      bool [R], False beyond `count`; the first region is kept if all others are dropped.
    """
    keep = (rng.random(regions) >= rate) & (np.arange(regions) < count)
    keep[0] |= not keep.any()
    return keep


def drop_regions(images: Images, keep: np.ndarray) -> Images:
    """Drops regions.

    Args:
      images: The regions [I, R, D].
      keep: bool [I, E, R], the regions to keep in each of E views of an image.

    Returns:
      For one view, images with the kept regions first and zeros after them; for several views the same images with
      `keep`: The views share their encoded regions and differ in the pooling, as in ESA.
    """
    if keep.shape[1] > 1:
        return images.replace(kept=keep)
    keep = keep[:, 0]
    counts = keep.sum(axis=1).astype(np.int32)

    def compact(x: np.ndarray) -> np.ndarray:
        moved = np.zeros_like(x)
        moved[np.arange(keep.shape[1]) < counts[:, None]] = x[keep]
        return moved

    locations = None if images.locations is None else compact(images.locations)
    return images.replace(regions=compact(images.regions), counts=counts, locations=locations)


def change_words(
    ids: np.ndarray, continues: np.ndarray, mask: int, rate: float, keep_special_tokens: bool, rng: np.random.Generator
) -> np.ndarray:
    """Masks, replaces or drops words; all pieces of a word are treated the same way (VSE-infinity, released).

    Args:
      ids: int32 [L].
      continues: bool [V], whether an id continues the previous word.
      mask: The id of the mask.
      rate: The probability that a word is changed.
      keep_special_tokens: Whether the first and the last token are kept.
      rng: The generator of the example.

    Returns:
      int32 [L'], 1 <= L' <= L; the first token is kept if all others are dropped.
    """
    word = np.cumsum(~continues[ids]) - 1
    draws = rng.random(word[-1] + 1)[word]
    replacements = rng.integers(len(continues), size=len(ids), dtype=np.int32)
    if keep_special_tokens:
        draws[[0, -1]] = 1
    replaced = np.select([draws < 0.5 * rate, draws < 0.6 * rate], [mask, replacements], ids).astype(np.int32)
    left = replaced[(draws < 0.6 * rate) | (draws >= rate)]
    return left if len(left) else ids[:1]
