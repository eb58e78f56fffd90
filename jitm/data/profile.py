"""How many captions of a batch are how long, so that a recurrent encoder reads only the long ones to their end."""

import itertools

import numpy as np
from scipy import special

from jitm.types import Profile

QUANTILE = 0.999  # share of the batches in which a bound holds
LEVELS = 16  # numbers of captions are rounded up to so many parts of all, since each compiles a scan


def make_profile(lengths: np.ndarray, rows: int, multiple: int) -> Profile | None:
    """Bounds how many of some random captions are how long.

    The number of captions beyond a position is binomial. Its quantile, rounded up, holds for nearly all batches.

    Args:
      lengths: The numbers of tokens of the captions of the training split, int [T].
      rows: The number of captions that are encoded together.
      multiple: The number of tokens from one bound to the next.

    Returns:
      The profile; None if it would have no fewer tokens than these captions padded to their longest, on average.
    """
    longer = np.mean(lengths > np.arange(0, lengths.max(), multiple)[:, None], axis=1)
    bounds = np.argmax(special.bdtr(np.arange(rows + 1), rows, longer[:, None]) >= QUANTILE, axis=1)
    step = -(-rows // LEVELS)
    bounds = np.minimum(rows, -(-bounds // step) * step)
    if bounds.sum() >= rows * np.sum(1 - (1 - longer) ** rows):
        return None
    return tuple((multiple * len(list(group)), int(bound)) for bound, group in itertools.groupby(bounds) if bound)


def fits(profile: Profile, lengths: np.ndarray) -> bool:
    """Returns whether a profile holds for the captions of each device, whose lengths are int [devices, rows]."""
    tokens, rows = zip(*profile, strict=True)
    longer = np.sum(lengths[:, None] > np.cumsum(tokens)[:, None], axis=2)
    return bool(np.all(longer <= [*rows[1:], 0]))


def cut(profile: Profile, length: int) -> Profile:
    """Returns the profile of texts that are padded to a length: it is cut there, or its last segment extended."""
    tokens, rows = zip(*profile, strict=True)
    ends = [min(end, length) for end in itertools.accumulate(tokens)]
    sizes = np.diff([0, *ends[:-1], length])
    return tuple((int(size), bound) for size, bound in zip(sizes, rows, strict=True) if size)
