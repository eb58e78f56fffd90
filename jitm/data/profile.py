"""How many captions of a batch are how long, so that models read only the long ones to their end."""

import itertools

import numpy as np
from scipy import special

from jitm.types import Profile

QUANTILE = 0.999  # share of the batches of a device in which a bound holds
SEGMENT = 4  # tokens from one bound to the next
LEVELS = 16  # numbers of captions are rounded up to so many parts of all, since each compiles a loop


def make_profile(lengths: np.ndarray, rows: int) -> Profile | None:
    """Bounds how many of some random captions are how long.

    The number of captions beyond a position is binomial. Its quantile, rounded up, holds for nearly all batches.

    Args:
      lengths: The numbers of tokens of the captions of the training split, int [T].
      rows: The number of captions that are encoded together.

    Returns:
      The profile; None if it would have no fewer tokens than these captions padded to their longest, on average.
    """
    longer = np.mean(lengths > np.arange(0, lengths.max(), SEGMENT)[:, None], axis=1)
    bounds = np.argmax(special.bdtr(np.arange(rows + 1), rows, longer[:, None]) >= QUANTILE, axis=1)
    step = -(-rows // LEVELS)
    bounds = np.minimum(rows, -(-bounds // step) * step)
    if bounds.sum() >= rows * np.sum(1 - (1 - longer) ** rows):
        return None
    return tuple((SEGMENT * len(list(group)), int(bound)) for bound, group in itertools.groupby(bounds) if bound)


def fits(profile: Profile, lengths: np.ndarray) -> bool:
    """Returns whether a profile holds for the captions of each device, whose lengths are int [devices, rows]."""
    tokens, rows = zip(*profile, strict=True)
    longer = np.sum(lengths[:, None] > np.cumsum(tokens)[:, None], axis=2)
    return bool(np.all(longer <= [*rows[1:], 0]))


def resize(profile: Profile, length: int) -> Profile:
    """Returns the profile of texts that are padded to a length, at most a segment below its end: it ends there."""
    *first, (tokens, rows) = profile
    return *first, (tokens + length - end(profile), rows)


def end(profile: Profile) -> int:
    """Returns the length that no text with the profile exceeds."""
    return sum(tokens for tokens, _ in profile)
