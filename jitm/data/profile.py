"""How long the captions of a batch are, so that models compute little of their padding."""

import itertools

import numpy as np

from jitm.types import Profile, Segment

QUANTILE = 0.999  # share of the batches of a device in which a bound holds
SEGMENT = 4  # tokens from one bound to the next
LEVELS = 16  # numbers of captions are rounded up to so many parts of all, since each compiles a loop
TOKENS = 16  # the number of all tokens is rounded up to a multiple


def make_profile(lengths: np.ndarray, rows: int) -> Profile | None:
    """Bounds the lengths of some random captions.

    The number of captions beyond a position and the number of all tokens are sums over the captions. Their quantiles,
    rounded up, hold for nearly all batches.

    Args:
      lengths: The numbers of tokens of the captions of the training split, int [T].
      rows: The number of captions that are encoded together.

    Returns:
      The profile; None if its segments would have no fewer places than these captions padded to their longest, on
      average.
    """
    longer = np.mean(lengths > np.arange(0, lengths.max(), SEGMENT)[:, None], axis=1)
    bounds = np.array([_quantile_of_sum(np.array([1 - share, share]), rows) for share in longer])
    bounds = np.minimum(rows, _round_up(bounds, _round_up(rows, LEVELS) // LEVELS))
    if bounds.sum() >= rows * np.sum(1 - (1 - longer) ** rows):
        return None
    segments = []
    stop = 0
    for bound, positions in itertools.groupby(bounds[bounds > 0]):
        start = stop
        stop += SEGMENT * len(list(positions))
        segments.append(Segment(start, stop, int(bound)))
    tokens = _quantile_of_sum(np.bincount(lengths) / len(lengths), rows)
    return Profile(tuple(segments), _round_up(tokens, TOKENS))


def _quantile_of_sum(shares: np.ndarray, count: int) -> int:
    """Returns the quantile of the sum of independent numbers 0, 1, ... with the same shares, by their convolution."""
    size = count * (len(shares) - 1) + 1
    sums = np.fft.irfft(np.fft.rfft(shares, size) ** count, size)
    return int(np.argmax(np.cumsum(sums) >= QUANTILE))


def _round_up(number: np.ndarray | int, multiple: int) -> np.ndarray | int:
    return -(-number // multiple) * multiple


def fits(profile: Profile, lengths: np.ndarray) -> bool:
    """Returns whether a profile holds for the captions of each device, whose lengths are int [devices, rows]."""
    if lengths.max() > profile.length or lengths.sum(axis=1).max() > profile.tokens:
        return False
    return all(np.sum(lengths > segment.start, axis=1).max() <= segment.count for segment in profile.segments)


def resize(profile: Profile, length: int) -> Profile:
    """Returns the profile of texts that are padded to a length, at most a segment below its end: it ends there."""
    *segments, last = profile.segments
    return profile._replace(segments=(*segments, last._replace(stop=length)))


def multiply(profile: Profile, views: int) -> Profile:
    """Returns the profile of several views of each text."""
    segments = tuple(segment._replace(count=views * segment.count) for segment in profile.segments)
    return Profile(segments, views * profile.tokens)
