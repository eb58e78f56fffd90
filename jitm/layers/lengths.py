"""Functions of texts that compute little of their padding, with static shapes."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from chex import Array, ArrayTree

from jitm.devices import policy
from jitm.devices.recompute import keeping_share
from jitm.errors import UserError
from jitm.types import Elements, Texts


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
    if profile is None or len(texts.mask) % profile.texts or not policy.cut_texts():
        return function(unpacked)
    order = longest_first(texts)
    repeats = len(texts.mask) // profile.texts
    words = repeats * sum(segment.count * (segment.stop - segment.start) for segment in profile.segments)
    parts = []
    start = 0
    for segment in reversed(profile.segments):
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
    ends = [segment.stop for segment in texts.profile.segments]
    cut = [lambda end=end: function(texts.first(end)) for end in ends]
    return jax.lax.switch(jnp.searchsorted(jnp.asarray(ends), jnp.max(jnp.sum(texts.mask, axis=1))), cut)


class Packing(NamedTuple):
    """Where the words of T texts of L positions are in an array of P words, which has little padding.

    Attributes:
      places: The place t L + l of each packed word, int [P]; T L if there is no word.
      rows: The row of each word, int [T, L]; P for padding.
    """

    places: Array
    rows: Array


def make_packing(texts: Texts) -> Packing | None:
    """Returns where the words of texts are packed; None without a profile, or with that of another number of texts."""
    profile = texts.profile
    if profile is None or profile.texts != len(texts.lengths):
        return None
    mask = texts.mask
    (places,) = jnp.nonzero(mask.reshape(-1), size=profile.tokens, fill_value=mask.size)
    rows = jnp.cumsum(mask).reshape(mask.shape) - 1
    return Packing(places, jnp.where(mask, rows, profile.tokens))


def pack(packing: Packing, words: Array) -> Array:
    """Packs the words [T, L, ...] of texts as [P, ...]."""
    return _take(words.reshape(-1, *words.shape[2:]), packing.places, packing.rows.reshape(-1))


def unpack(packing: Packing, packed: Array) -> Array:
    """Returns packed words [P, ...] as those of texts [T, L, ...], zero where padded."""
    words = _take(packed, packing.rows.reshape(-1), packing.places)
    return words.reshape(*packing.rows.shape, *packed.shape[1:])


@jax.custom_vjp
def _take(x: Array, index: Array, inverse: Array) -> Array:
    """Returns x[index], zero where the index is len(x). The gradient takes rows by the inverse, without a scatter."""
    del inverse
    return x.at[index].get(mode='fill', fill_value=0)


def _take_forward(x: Array, index: Array, inverse: Array) -> tuple[Array, tuple[Array, Array]]:
    return _take(x, index, inverse), (index, inverse)


def _take_backward(residuals: tuple[Array, Array], gradient: Array) -> tuple[Array, None, None]:
    index, inverse = residuals
    return _take(gradient, inverse, index), None, None


_take.defvjp(_take_forward, _take_backward)
