"""A model on the devices of this process, which encodes and scores in calls of fixed shape.

The shape of a matrix product decides how it is rounded. An evaluation therefore encodes a fixed number of images or
captions in each call of a dual encoder, pads each caption to a length that depends on its own length only, and scores
tiles of a fixed shape. Neither a vector nor a score then depends on the other items in its call.
"""

from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jitm.data.splits import LENGTH_MULTIPLE, bucket, pad_texts
from jitm.data.text.word_level import Tokens
from jitm.devices import parallel, policy
from jitm.layers.linear import product
from jitm.models import tiling
from jitm.models.matcher import DualEncoder, Encoding, Matcher
from jitm.types import DTYPES, Precision

IMAGES_PER_CALL = 64  # per device
TEXTS_PER_CALL = 128  # per device; a product of a GRU has a row for each
SHORTEST = 8  # padded length of a text, see `Engine.own_length`
FREQUENT = 24  # longest text whose length is padded to a multiple of `LENGTH_MULTIPLE`
LONG_MULTIPLE = 12  # lengths of longer texts are padded to its multiples
COUNT_FACTOR = 4  # numbers of items are padded to powers of this
SCORED_PER_CALL = 256  # images, and texts, of a call that scores given encodings
TILE = (256, 64)  # vectors on each side

Method = str | Callable[[Matcher, chex.ArrayTree], Encoding]  # 'encode_image', 'encode_text', or a function like them


def padded_count(count: int, multiple: int = 1) -> int:
    """Returns the number to which `count` items are padded: the next power of `COUNT_FACTOR`, made a multiple."""
    size = 1
    while size < count:
        size *= COUNT_FACTOR
    return bucket(size, multiple)


def pad(items: chex.ArrayTree, size: int) -> chex.ArrayTree:
    """Pads items, such as an index, to a size with the first one."""
    rows = np.arange(size)
    return jax.tree.map(lambda x: np.asarray(x)[np.where(rows < len(x), rows, 0)], items)


def first(items: chex.ArrayTree, count: int) -> chex.ArrayTree:
    """Returns the first `count` items."""
    return jax.tree.map(lambda x: x[:count], items)


def batches(items: chex.ArrayTree, size: int) -> Iterator[chex.ArrayTree]:
    """Yields items in batches of a size; the last one may be smaller."""
    for start in range(0, len(jax.tree.leaves(items)[0]), size):
        yield jax.tree.map(lambda x, start=start: np.asarray(x[start : start + size]), items)


def concatenate(parts: list[chex.ArrayTree]) -> chex.ArrayTree:
    """Concatenates the items of several trees."""
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)


def products(rows: chex.Array, columns: chex.Array) -> chex.Array:
    """Returns the inner products of vectors [I, D] and [T, D], float32 [I, T], in tiles of one shape."""
    padded = [
        jnp.pad(jnp.asarray(side), ((0, -len(side) % size), (0, 0)))
        for side, size in zip((rows, columns), TILE, strict=True)
    ]
    sims = tiling.map_pairs(lambda _, *sides: product('id,td->it', *sides), None, *padded, *TILE)
    return sims[: len(rows), : len(columns)]


def encode(model: Matcher, method: Method, dtype: str, items: chex.ArrayTree, variables: chex.ArrayTree) -> Encoding:
    """Applies 'encode_image' to images, 'encode_text' to texts, or a function; the encodings have a given dtype."""
    encoding = model.apply(variables, items, method=method)
    return jax.tree.map(lambda x: x.astype(DTYPES[dtype]) if jnp.issubdtype(x.dtype, jnp.floating) else x, encoding)


def score(model: Matcher, images: Encoding, variables: chex.ArrayTree, texts: Encoding) -> chex.Array:
    """Scores every image with every text: float32 [I, T]."""
    if isinstance(model, DualEncoder):
        return products(model.vectors(images), model.vectors(texts))
    return model.apply(variables, images, texts, method='similarity')


def score_pairs(model: Matcher, pairs: tuple[Encoding, Encoding], variables: chex.ArrayTree) -> chex.Array:
    """Scores image n with text n: float32 [N]."""
    return model.apply(variables, *pairs, method='similarity_pairwise')


class SelectedPairs(NamedTuple):
    """Pairs of a block, to score in one call.

    Attributes:
      images: The encoded images that a device holds.
      rows: Row of the image of each pair among these images, int32 [N].
      columns: Row of its text among the texts of the block, int32 [N].
    """

    images: Encoding
    rows: chex.Array
    columns: chex.Array


def score_selected(model: Matcher, selected: SelectedPairs, variables: chex.ArrayTree, texts: Encoding) -> chex.Array:
    """Scores some pairs of a block: float32 [N]."""
    images = jax.tree.map(lambda x: x[selected.rows], selected.images)
    texts = jax.tree.map(lambda x: x[selected.columns], texts)
    return score_pairs(model, (images, texts), variables)


class Engine:
    """A model on the devices of this process; equal models share compiled functions.

    Attributes:
      model: The model.
      variables: Its parameters and statistics, on every device.
      dtype: The dtype of the encodings, a key of `DTYPES`; scores are float32.
      precision: The precision of products of float32 arrays.
      is_dual: Whether the model is a dual encoder.
      images_per_call: Images that are encoded at once on all devices.
      texts_per_call: Captions that a dual encoder encodes at once on all devices.
    """

    def __init__(self, model: Matcher, variables: chex.ArrayTree, dtype: str, precision: Precision):
        """Moves the parameters to the devices."""
        self.model = model
        self.variables = parallel.put_state(variables)
        self.dtype = dtype
        self.precision = precision
        self.is_dual = isinstance(model, DualEncoder)
        self.images_per_call = IMAGES_PER_CALL * parallel.num_local_devices()
        recurrent = model.text_format.max_length is None
        texts = policy.texts_per_call(TEXTS_PER_CALL, recurrent)
        self.texts_per_call = texts * parallel.num_local_devices()

    def compiled(self, function: Callable[..., chex.ArrayTree], *static: Hashable) -> Callable[..., chex.ArrayTree]:
        """Returns a compiled function of a model, such as `score`: `(rows, variables, ...) -> leaves [N, ...]`.

        Args:
          function: A function `(model, *static, rows, variables, ...)`, see `parallel.map_rows`.
          *static: Its arguments between the model and the rows.
        """
        return parallel.map_rows(function, self.model, *static, precision=self.precision)

    def padded_length(self, lengths: np.ndarray) -> int:
        """Returns the length to which texts are padded that are encoded together."""
        return bucket(lengths.max(), LENGTH_MULTIPLE, self.model.text_format.max_length)

    def own_length(self, length: int) -> int:
        """Returns the length to which a dual encoder's text is padded whatever others are encoded with it.

        Few captions are very short or long. They share lengths, since each length needs a compilation and has a call
        that is not full.
        """
        multiple = LENGTH_MULTIPLE if length <= FREQUENT else LONG_MULTIPLE
        return bucket(max(length, SHORTEST), multiple, self.model.text_format.max_length)

    def encode(self, method: str, items: chex.ArrayTree) -> Encoding:
        """Encodes images or texts in one call, with the shape of the items.

        Args:
          method: 'encode_image' or 'encode_text'.
          items: N images or texts; the number of devices divides N.

        Returns:
          Leaves [N, ...] in host memory.
        """
        return jax.device_get(self.compiled(encode, method, self.dtype)(parallel.put_rows(items), self.variables))

    def encode_each_alike(self, tokens: Tokens, index: np.ndarray) -> Encoding:
        """Encodes texts by a dual encoder, in full calls: the encoding of a text does not depend on the others.

        Args:
          tokens: The texts.
          index: Rows of the texts, int [N], in any order.

        Returns:
          Leaves [N, ...] in host memory.
        """
        positions, parts = zip(*self.calls('encode_text', tokens, index), strict=True)
        return jax.tree.map(lambda x: x[np.argsort(np.concatenate(positions))], concatenate(parts))

    def calls(self, method: Method, tokens: Tokens, index: np.ndarray) -> list[tuple[np.ndarray, Encoding]]:
        """Encodes texts as `encode_each_alike` does, texts of one padded length together.

        Args:
          method: 'encode_text', or a function of a model and texts.
          tokens: The texts.
          index: Rows of the texts, int [N], in any order.

        Returns:
          For each call the positions of its texts in `index`, int [n], and their encodings, leaves [n, ...] in host
          memory. Each text is in one of the calls.
        """
        lengths = np.array([self.own_length(length) for length in tokens.lengths[index]])
        order = np.argsort(lengths, kind='stable')
        calls = []
        encoder = self.compiled(encode, method, self.dtype)
        size = self.texts_per_call
        for length in np.unique(lengths):
            positions = order[lengths[order] == length]
            for start in range(0, len(positions), size):
                call = positions[start : start + size]
                texts = parallel.put_rows(pad_texts(tokens, pad(index[call], size), length))
                calls.append((call, encoder(texts, self.variables)))  # returns before it is computed
        return [(call, first(part, len(call))) for call, part in jax.device_get(calls)]

    def encode_any(self, method: str, items: chex.ArrayTree) -> Encoding:
        """Encodes any number of images or texts, in calls of few sizes: the rounding depends on the number.

        Args:
          method: 'encode_image' or 'encode_text'.
          items: N images or texts.

        Returns:
          Leaves [N, ...] in host memory.
        """
        encoder = self.compiled(encode, method, self.dtype)
        return concatenate([self._padded(encoder, batch) for batch in batches(items, self.images_per_call)])

    def similarity(self, images: Encoding, texts: Encoding) -> np.ndarray:
        """Scores every image with every text, in calls of few sizes.

        Args:
          images: I encoded images.
          texts: T encoded texts.

        Returns:
          float32 [I, T].
        """
        parts = []
        for columns in batches(texts, SCORED_PER_CALL):
            count = len(jax.tree.leaves(columns)[0])
            placed = parallel.put_everywhere(pad(columns, padded_count(count)))
            rows = [self._padded(self.compiled(score), part, placed) for part in batches(images, SCORED_PER_CALL)]
            parts.append(np.concatenate(rows)[:, :count])
        return np.concatenate(parts, axis=1)

    def similarity_pairwise(self, images: Encoding, texts: Encoding) -> np.ndarray:
        """Scores image n with text n, in calls of few sizes: float32 [N]."""
        pairs = batches((images, texts), SCORED_PER_CALL)
        return concatenate([self._padded(self.compiled(score_pairs), batch) for batch in pairs])

    def _padded(self, compiled: Callable, items: chex.ArrayTree, *shared: chex.ArrayTree) -> chex.ArrayTree:
        """Applies a compiled function to items, padded to one of few sizes; returns leaves [N, ...] in host memory."""
        count = len(jax.tree.leaves(items)[0])
        rows = parallel.put_rows(pad(items, padded_count(count, parallel.num_local_devices())))
        return first(jax.device_get(compiled(rows, self.variables, *shared)), count)
