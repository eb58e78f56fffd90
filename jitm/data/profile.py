"""How many captions of a batch are how long, so that models read only the long ones to their end."""

import itertools

import numpy as np
from scipy import special

from jitm.types import Profile, Segment

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
    profile = []
    stop = 0
    for bound, positions in itertools.groupby(bounds[bounds > 0]):
        start = stop
        stop += SEGMENT * len(list(positions))
        profile.append(Segment(start, stop, int(bound)))
    return tuple(profile)


def fits(profile: Profile, lengths: np.ndarray) -> bool:
    """Returns whether a profile holds for the captions of each device, whose lengths are int [devices, rows]."""
    if lengths.max() > profile[-1].stop:
        return False
    return all(np.sum(lengths > segment.start, axis=1).max() <= segment.count for segment in profile)


def resize(profile: Profile, length: int) -> Profile:
    """Returns the profile of texts that are padded to a length, at most a segment below its end: it ends there."""
    return *profile[:-1], profile[-1]._replace(stop=length)
