"""Encodings and scores of a model, computed for evaluation and for search by the same functions.

The shape of a matrix product decides how it is rounded. A dual encoder therefore encodes a fixed number of images or
captions in each call, pads each caption to a length that depends on its own length only, and scores tiles of a fixed
shape. Neither a vector nor a score then depends on the others of its call, and a search ranks as the evaluation does.
"""

import functools
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jitm import parallel
from jitm.data.pipeline import LENGTH_MULTIPLE, bucket, pad_texts
from jitm.data.text import Tokens
from jitm.layers.linear import product
from jitm.models import tiling
from jitm.models.matcher import DualEncoder, Encoding, Matcher
from jitm.types import DTYPES

IMAGES_PER_CALL = TEXTS_PER_CALL = 64  # per device
SHORT_CALL = 16  # texts of a call on a CPU, where products have a row for each word of each text
TILE = (256, 64)  # vectors on each side


def products(rows: chex.Array, columns: chex.Array) -> chex.Array:
    """Returns the inner products of vectors [I, D] and [T, D], float32 [I, T], in tiles of one shape."""
    padded = [
        jnp.pad(jnp.asarray(side), ((0, -len(side) % size), (0, 0)))
        for side, size in zip((rows, columns), TILE, strict=True)
    ]

    def tile(_: None, rows: chex.Array, columns: chex.Array) -> chex.Array:
        return product('id,td->it', rows, columns)

    return tiling.map_pairs(tile, None, *padded, *TILE)[: len(rows), : len(columns)]


@functools.lru_cache(maxsize=64)
def compiled(model: Matcher, method: str, dtype: str, devices: int) -> Callable:
    """Returns `(rows, (variables, *others)) -> result` of a method, with the rows split over the devices.

    Args:
      model: the model; equal models share what is compiled.
      method: such as 'encode_image'.
      dtype: of the encodings, a key of `DTYPES`; scores are float32.
      devices: the number of devices.
    """

    def cast(x: chex.Array) -> chex.Array:
        return x.astype(DTYPES[dtype]) if jnp.issubdtype(x.dtype, jnp.floating) else x

    def apply(rows: tuple[chex.ArrayTree, ...], shared: tuple[chex.ArrayTree, ...]) -> chex.ArrayTree:
        variables, *others = shared
        if method == 'similarity' and isinstance(model, DualEncoder):
            return products(*map(model.vectors, (*rows, *others)))
        result = model.apply(variables, *rows, *others, method=method)
        return jax.tree.map(cast, result) if method.startswith('encode') else result

    return parallel.map_rows(apply, devices)


def fill(index: np.ndarray, size: int) -> np.ndarray:
    """Pads an index to a size with its first entry."""
    return np.pad(index, (0, size - len(index)), constant_values=index[0])


def first(tree: chex.ArrayTree, count: int) -> chex.ArrayTree:
    """Returns the first items of a tree with the item on axis 0."""
    return jax.tree.map(lambda x: x[:count], tree)


class Encoder:
    """A model on the devices of this process.

    Attributes:
      model: any matcher.
      variables: its parameters and statistics.
      dtype: of the encodings, a key of `DTYPES`.
    """

    def __init__(self, model: Matcher, variables: chex.ArrayTree, dtype: str):
        """Moves the parameters to the devices."""
        self.model, self.variables, self.dtype = model, parallel.put_state(variables), dtype
        self._first_copy = parallel.first_copy(self.variables)

    @property
    def is_dual(self) -> bool:
        """Whether the model is a dual encoder."""
        return isinstance(self.model, DualEncoder)

    @property
    def images_per_call(self) -> int:
        """Images that are encoded at once on all devices."""
        return IMAGES_PER_CALL * parallel.num_local_devices()

    @property
    def texts_per_call(self) -> int:
        """Captions that a dual encoder encodes at once on each device.

        A recurrent encoder multiplies one word of each caption at a time, so that a call needs more captions.
        """
        recurrent = self.model.text_format.max_length is None
        return TEXTS_PER_CALL if recurrent or jax.default_backend() != 'cpu' else SHORT_CALL

    def function(self, method: str, devices: int | None = None) -> Callable:
        """Returns a method of the model on some devices, on all if None, see `compiled`."""
        return compiled(self.model, method, self.dtype, devices or parallel.num_local_devices())

    def apply(self, method: str, *rows: chex.ArrayTree, others: tuple[chex.ArrayTree, ...] = ()) -> chex.ArrayTree:
        """Applies a method to rows, which are split over the devices, and to others, which are not.

        Returns:
          The result in host memory.
        """
        others = parallel.put_everywhere(others)
        return jax.device_get(self.function(method)(parallel.put_rows(rows), (self.variables, *others)))

    def padded_length(self, lengths: np.ndarray) -> int:
        """Returns the length to which texts are padded that are encoded together."""
        return bucket(lengths.max(), LENGTH_MULTIPLE, self.model.text_format.max_length)

    def encode_texts(self, tokens: Tokens, index: np.ndarray, one_device: bool = False) -> Encoding:
        """Encodes texts by a dual encoder; the encoding of a text depends on neither the others nor the devices.

        Args:
          tokens: the texts.
          index: int [N], some of them, in any order.
          one_device: takes only the first device, for a few texts.

        Returns:
          Leaves [N, ...] in host memory.
        """
        devices = 1 if one_device else parallel.num_local_devices()
        encode, size = self.function('encode_text', devices), devices * self.texts_per_call
        variables = self._first_copy if one_device else self.variables
        lengths = np.array([self.padded_length(length) for length in tokens.lengths[index]])
        order, parts, counts = np.argsort(lengths, kind='stable'), [], []
        for length in np.unique(lengths):
            rows = index[order[lengths[order] == length]]
            for start in range(0, len(rows), size):
                some = rows[start : start + size]
                texts = parallel.put_rows(pad_texts(tokens, fill(some, size), length), devices)
                parts.append(encode((texts,), (variables,)))  # returns before it is computed
                counts.append(len(some))
        parts = map(first, jax.device_get(parts), counts)
        places = np.argsort(order)
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[places], *parts)
