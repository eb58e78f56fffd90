"""Functions of texts in groups of similar length, whose shapes are static."""

import itertools
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from jitm.devices import policy
from jitm.devices.recompute import keeping_share
from jitm.types import Elements, Profile, Texts


def longest_first(texts: Elements) -> chex.Array:
    """Returns the index [T] of texts by length, the longest first."""
    return jnp.argsort(jnp.sum(texts.mask, axis=1), descending=True)


def by_length(function: Callable[[Elements], chex.ArrayTree], texts: Elements, axis: int = 0) -> chex.ArrayTree:
    """Applies a function to groups of texts, each cut to its bound in `Texts.profile`.

    On TPUs all texts are one group, since their compiler estimates a slower step of SCAN and NAAF for two.

    Args:
      function: A function of some texts, whose results have an axis of texts and none of words.
      texts: The texts. Without a profile, or with that of another number of texts, they are one group.
      axis: The axis of texts in the results.

    Returns:
      The results of all texts.
    """
    unpacked = texts.replace(profile=None)
    if texts.profile is None or len(texts.mask) % texts.profile[0][1] or not policy.cut_texts():
        return function(unpacked)
    order = longest_first(texts)
    segments = groups(texts.profile, len(texts.mask))
    parts = []
    words = sum((stop - start) * length for start, stop, length in segments)
    for start, stop, length in segments:
        rows = order[start:stop]
        with keeping_share((stop - start) * length / words):
            parts.append(function(jax.tree.map(lambda x, rows=rows: x[rows], unpacked).first(length)))
    back = jnp.argsort(order)
    return jax.tree.map(lambda *x: jnp.take(jnp.concatenate(x, axis), back, axis), *parts)


def at_own_length(function: Callable[[Elements], chex.ArrayTree], texts: Elements) -> chex.ArrayTree:
    """Applies a function to a few texts, cut at run time to the first bound of their profile that holds all words."""
    if texts.profile is None:
        return function(texts)
    ends = list(itertools.accumulate(tokens for tokens, _ in texts.profile))
    cut = [lambda end=end: function(texts.first(end)) for end in ends]
    return jax.lax.switch(jnp.searchsorted(jnp.asarray(ends), jnp.max(jnp.sum(texts.mask, axis=1))), cut)


def in_order(function: Callable[[Texts], chex.Array], texts: Texts) -> chex.Array:
    """Applies a function to texts that are sorted by their length, the longest first, as their profile counts them.

    Args:
      function: Maps T texts to an array of T rows. Without a profile, or with that of another number of texts, they are
        as given, and have none.
      texts: The texts.

    Returns:
      The rows, in the order of the given texts.
    """
    if texts.profile is None or texts.profile[0][1] != len(texts.lengths):
        return function(texts.replace(profile=None))
    order = jnp.argsort(texts.lengths, descending=True)
    return function(jax.tree.map(lambda x: jnp.take(x, order, axis=0), texts))[jnp.argsort(order)]


def pack(profile: Profile, words: chex.Array) -> chex.Array:
    """Returns the words [T, L, ...] of sorted texts for which a profile has a place, as one array [P, ...]."""
    return jnp.concatenate(
        [words[:rows, start:end].reshape(-1, *words.shape[2:]) for start, end, rows in _segments(profile)]
    )


def unpack(profile: Profile, packed: chex.Array) -> chex.Array:
    """Returns packed words [P, ...] as those of sorted texts [T, L, ...], zero where the profile has no place."""
    count = profile[0][1]
    stop = 0
    parts = []
    for start, end, rows in _segments(profile):
        first = stop
        stop = stop + rows * (end - start)
        part = packed[first:stop].reshape(rows, end - start, *packed.shape[1:])
        parts.append(jnp.pad(part, [(0, count - rows), *[(0, 0)] * packed.ndim]))
    return jnp.concatenate(parts, axis=1)


def _segments(profile: Profile) -> list[tuple[int, int, int]]:
    """Returns the first position of each segment, the first one after it, and the number of texts."""
    ends = itertools.accumulate(tokens for tokens, _ in profile)
    return [(end - tokens, end, rows) for end, (tokens, rows) in zip(ends, profile, strict=True)]


def groups(profile: Profile, count: int) -> list[tuple[int, int, int]]:
    """Groups some texts that are sorted by length, the longest first.

    Args:
      profile: The profile of these texts, or of each of several parts of equal size.
      count: The number of texts.

    Returns:
      The first text of each group, the first one after it, and their maximum length.
    """
    repeats = count // profile[0][1]
    ends = itertools.accumulate(tokens for tokens, _ in profile)
    segments = [(repeats * rows, end) for (_, rows), end in zip(profile, ends, strict=True)][::-1]
    starts = [0, *(stop for stop, _ in segments)]
    return [(start, *group) for start, group in zip(starts, segments, strict=False)]
