"""Dropped regions and changed words: pure functions of an example's random generator."""

import dataclasses

import numpy as np

from jitm.errors import UserError, check_rate
from jitm.types import Images


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """What training changes about its examples (VSE-infinity's size augmentation, ESA's self-expanding).

    Attributes:
      drop_regions: probability that a region is left out; 0.2 as published.
      change_words: probability that a word is masked (half of these), another word (a tenth) or left out; 0.2 as
        published. `<mask>` is then one more word of the vocabulary.
      keep_special_tokens: leaves the first and the last token alone; the published GRU encoders change `<start>` and `<end>`.
      num_views: how often each pair stands in a batch, each time changed anew; 2 in ESA.
    """

    drop_regions: float
    change_words: float
    keep_special_tokens: bool
    num_views: int

    @property
    def changes(self) -> bool:
        """Whether anything is changed."""
        return self.drop_regions > 0 or self.change_words > 0 or self.num_views > 1

    def __post_init__(self):
        for key in ('drop_regions', 'change_words'):
            check_rate(getattr(self, key), f'augmentation.{key}')
        if self.num_views < 1:
            raise UserError(f"config key 'augmentation.num_views' is {self.num_views}; it must be at least 1")


def example_generator(seed: int, step: int, text: int, copy: int) -> np.random.Generator:
    """The random numbers of one copy of a text and its image in the batch of a step."""
    return np.random.default_rng([seed, step, text, copy])


def keep_regions(count: int, regions: int, rate: float, rng: np.random.Generator) -> np.ndarray:
    """Chooses the regions that stay.

    Args:
      count: how many are real.
      regions: R.
      rate: probability that one is dropped.
      rng: of the example.

    Returns:
      bool [R], False beyond `count`; the first one is kept if the others all go.
    """
    kept = (rng.random(regions) >= rate) & (np.arange(regions) < count)
    kept[0] |= not kept.any()
    return kept


def drop_regions(images: Images, kept: np.ndarray) -> Images:
    """Takes regions away.

    Args:
      images: regions [I, R, D].
      kept: bool [I, E, R], for each of E num_views of an image.

    Returns:
      For one copy images without these regions, the rest moved to the front and zeros behind; for several the images
      as they are with `kept`: num_views share their encoded regions and differ in the pooling, as in ESA.
    """
    if kept.shape[1] > 1:
        return images.replace(kept=kept)
    kept = kept[:, 0]
    counts = kept.sum(axis=1).astype(np.int32)

    def to_the_front(x: np.ndarray) -> np.ndarray:
        moved = np.zeros_like(x)
        moved[np.arange(kept.shape[1]) < counts[:, None]] = x[kept]
        return moved

    locations = None if images.locations is None else to_the_front(images.locations)
    return images.replace(regions=to_the_front(images.regions), counts=counts, locations=locations)


def change_words(
    ids: np.ndarray, continues: np.ndarray, mask: int, rate: float, keep_special_tokens: bool, rng: np.random.Generator
) -> np.ndarray:
    """Masks, replaces or removes words, all pieces of a word alike (VSE-infinity, released).

    Args:
      ids: int32 [L].
      continues: bool [V], whether a word piece goes on with the word before it.
      mask: id that hides a word.
      rate: probability that a word is changed.
      keep_special_tokens: leaves the first and the last alone.
      rng: of the example.

    Returns:
      int32 [L'], 1 <= L' <= L: the first token stays if all others go.
    """
    word = np.cumsum(~continues[ids]) - 1
    draws = rng.random(word[-1] + 1)[word]
    others = rng.integers(len(continues), size=len(ids), dtype=np.int32)
    if keep_special_tokens:
        draws[[0, -1]] = 1
    changed = np.select([draws < 0.5 * rate, draws < 0.6 * rate], [mask, others], ids).astype(np.int32)
    left = changed[(draws < 0.6 * rate) | (draws >= rate)]
    return left if len(left) else ids[:1]
