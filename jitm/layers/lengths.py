"""Functions of texts in groups of similar length, whose shapes are static."""

import itertools
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from jitm.devices import parallel
from jitm.devices.recompute import keeping_share
from jitm.types import Elements, Profile


def longest_first(texts: Elements) -> chex.Array:
    """Returns the index [T] of texts by length, the longest first."""
    return jnp.argsort(jnp.sum(texts.mask, axis=1), descending=True)


def by_length(function: Callable[[Elements], chex.ArrayTree], texts: Elements, axis: int = 0) -> chex.ArrayTree:
    """Applies a function to groups of texts, each cut to its bound in `Texts.profile`.

    Args:
      function: A function of some texts, whose results have an axis of texts and none of words.
      texts: The texts. Without a profile, or with that of another number of texts, they are one group.
      axis: The axis of texts in the results.

    Returns:
      The results of all texts.
    """
    if texts.profile is None or len(texts.mask) % texts.profile[0][1]:
        return function(texts)
    order, whole = longest_first(texts), texts.replace(profile=None)
    found, parts = groups(texts.profile, len(texts.mask)), []
    words = sum((stop - start) * length for start, stop, length in found)
    for start, stop, length in found:
        rows = order[start:stop]
        with keeping_share((stop - start) * length / words):
            parts.append(function(jax.tree.map(lambda x, rows=rows: x[rows], whole).first(length)))
    back = jnp.argsort(order)
    return jax.tree.map(lambda *x: jnp.take(jnp.concatenate(x, axis), back, axis), *parts)


def at_own_length(function: Callable[[Elements], chex.ArrayTree], texts: Elements) -> chex.ArrayTree:
    """Applies a function to a few texts, cut at run time to the first bound of their profile that holds all words."""
    if texts.profile is None:
        return function(texts)
    ends = list(itertools.accumulate(tokens for tokens, _ in texts.profile))
    cut = [lambda end=end: function(texts.first(end)) for end in ends]
    return jax.lax.switch(jnp.searchsorted(jnp.asarray(ends), jnp.max(jnp.sum(texts.mask, axis=1))), cut)


def groups(profile: Profile, count: int) -> list[tuple[int, int, int]]:
    """Groups some texts that are sorted by length, the longest first.

    On accelerators, whose compilers take a minute for each length, these are the two groups of the fewest words.

    Args:
      profile: The profile of these texts, or of each of several parts of equal size.
      count: The number of texts.

    Returns:
      The first text of each group, the first one after it, and their maximum length.
    """
    repeats = count // profile[0][1]
    ends = itertools.accumulate(tokens for tokens, _ in profile)
    found = [(repeats * rows, end) for (_, rows), end in zip(profile, ends, strict=True)][::-1]
    if len(found) > 2 and parallel.platform() != 'cpu':
        (_, longest), *_ = found
        halves = [((stop, longest), (count, end)) for (stop, _), (_, end) in itertools.pairwise(found)]
        found = min(halves, key=lambda two: two[0][0] * longest + (count - two[0][0]) * two[1][1])
    starts = [0, *(stop for stop, _ in found)]
    return [(start, *group) for start, group in zip(starts, found, strict=False)]
