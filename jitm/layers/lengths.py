"""Functions of texts in groups of similar length, whose shapes are static."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from chex import Array, ArrayTree

from jitm.devices import policy
from jitm.devices.recompute import keeping_share
from jitm.errors import UserError
from jitm.types import Elements, Profile, Texts


def check_length(length: int, maximum: int) -> None:
    """Raises a UserError if texts are padded to more tokens than a model reads."""
    if length > maximum:
        raise UserError(f'a batch has texts padded to {length} tokens, the model reads {maximum}: shorten the captions')


def longest_first(texts: Elements) -> Array:
    """Returns the index [T] of texts by length, the longest first."""
    return jnp.argsort(jnp.sum(texts.mask, axis=1), descending=True)


def with_lengths_of(texts: Texts, encoded: ArrayTree) -> ArrayTree:
    """Adds to encoded words what is known of the lengths of their texts; other encodings stay as they are.

    Args:
      texts: The texts, or one of several parts of equal size.
      encoded: All texts, encoded.
    """
    return encoded.replace(profile=texts.profile) if isinstance(encoded, Elements) else encoded


def by_length(function: Callable[[Elements], ArrayTree], texts: Elements, axis: int = 0) -> ArrayTree:
    """Applies a function to groups of texts, each cut to its bound in `Texts.profile`.

    On TPUs all texts are one group, since their compiler estimates a slower step of SCAN and NAAF for two.

    Args:
      function: A function of some texts, whose results have an axis of texts and none of words.
      texts: The texts. Without a profile, or with that of another number of texts, they are one group.
      axis: The axis of texts in the results.

    Returns:
      The results of all texts.
    """
    profile = texts.profile
    unpacked = texts.replace(profile=None)
    if profile is None or len(texts.mask) % profile[0].count or not policy.cut_texts():
        return function(unpacked)
    order = longest_first(texts)
    repeats = len(texts.mask) // profile[0].count
    words = repeats * sum(segment.count * (segment.stop - segment.start) for segment in profile)
    parts = []
    start = 0
    for segment in reversed(profile):
        stop = repeats * segment.count
        rows = order[start:stop]
        with keeping_share((stop - start) * segment.stop / words):
            parts.append(function(jax.tree.map(lambda x, rows=rows: x[rows], unpacked).first(segment.stop)))
        start = stop
    back = jnp.argsort(order)
    return jax.tree.map(lambda *x: jnp.take(jnp.concatenate(x, axis), back, axis), *parts)


def at_own_length(function: Callable[[Elements], ArrayTree], texts: Elements) -> ArrayTree:
    """Applies a function to a few texts, cut at run time to the first bound of their profile that holds all words."""
    if texts.profile is None:
        return function(texts)
    ends = [segment.stop for segment in texts.profile]
    cut = [lambda end=end: function(texts.first(end)) for end in ends]
    return jax.lax.switch(jnp.searchsorted(jnp.asarray(ends), jnp.max(jnp.sum(texts.mask, axis=1))), cut)


def in_order(function: Callable[[Texts], Array], texts: Texts) -> Array:
    """Applies a function to texts that are sorted by their length, the longest first, as their profile counts them.

    Args:
      function: Maps T texts to an array of T rows. Without a profile, or with that of another number of texts, they are
        as given, and have none.
      texts: The texts.

    Returns:
      The rows, in the order of the given texts.
    """
    if texts.profile is None or texts.profile[0].count != len(texts.lengths):
        return function(texts.replace(profile=None))
    order = jnp.argsort(texts.lengths, descending=True)
    return function(jax.tree.map(lambda x: jnp.take(x, order, axis=0), texts))[jnp.argsort(order)]


def pack(profile: Profile, words: Array) -> Array:
    """Returns the words [T, L, ...] of sorted texts for which a profile has a place, as one array [P, ...]."""
    return jnp.concatenate([words[:count, start:stop].reshape(-1, *words.shape[2:]) for start, stop, count in profile])


def unpack(profile: Profile, packed: Array) -> Array:
    """Returns packed words [P, ...] as those of sorted texts [T, L, ...], zero where the profile has no place."""
    parts = []
    end = 0
    for start, stop, count in profile:
        first = end
        end += count * (stop - start)
        part = packed[first:end].reshape(count, stop - start, *packed.shape[1:])
        parts.append(jnp.pad(part, [(0, profile[0].count - count), *[(0, 0)] * packed.ndim]))
    return jnp.concatenate(parts, axis=1)
