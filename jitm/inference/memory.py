"""The memory of scoring: the largest shape of the blocks of a split that fits into a budget."""

from typing import NamedTuple

import chex
import jax
import numpy as np

from jitm.data.splits import Split, bucket, pad_texts, take_images
from jitm.data.text.word_level import Tokens
from jitm.devices import parallel
from jitm.errors import UserError
from jitm.inference.engine import Engine, SelectedPairs, encode, score, score_selected

MAX_TEXTS = 128  # texts of a block
MAX_VECTORS = 4096  # texts of a block of a dual encoder, so that most calls of the encoder are full
MIN_TEXTS = 8
MAX_PAIRS = 256  # per device and call, where only some pairs of a block are scored


class BlockShape(NamedTuple):
    """The number of images and of texts of a block, both multiples of the number of devices.

    Attributes:
      images: Images of a block; their encodings stay on the devices while the texts are scored.
      texts: Texts of a block, all of similar length.
    """

    images: int
    texts: int

    @property
    def pairs_per_call(self) -> int:
        """Pairs that are scored at once on each device, where only some pairs of a block are scored."""
        return min(self.images * self.texts // parallel.num_local_devices(), MAX_PAIRS)

    def images_per_call(self, engine: Engine, num_images: int) -> int:
        """Returns how many of a split's images are encoded at once: always as many by dual encoders, if possible."""
        limit = engine.images_per_call
        has_all = self.images >= min(limit, num_images)
        return limit if engine.is_dual and has_all else min(self.images, limit)


class BlockMemory:
    """The memory that one model needs for blocks of a split."""

    def __init__(self, engine: Engine, split: Split, tokens: Tokens, only_selected: bool):
        """Finds the shapes of images and texts, as they are read and as they are encoded; computes nothing.

        Args:
          engine: The model.
          split: The images.
          tokens: The texts of the split.
          only_selected: Whether only some pairs of a block are scored.
        """
        self._engine = engine
        self._split = split
        self._only_selected = only_selected
        self._encode_image = engine.compiled(encode, 'encode_image', engine.dtype)
        self._encode_text = engine.compiled(encode, 'encode_text', engine.dtype)
        devices = parallel.num_local_devices()
        longest = tokens.lengths.argmax()[None]
        self._read = _shapes(take_images(split, np.array([0]), engine.model.reads, tokens.tags), devices)
        length = engine.own_length(tokens.lengths.max()) if engine.is_dual else engine.padded_length(tokens.lengths)
        self._padded = _shapes(pad_texts(tokens, longest, length), devices)
        self._image = jax.eval_shape(self._encode_image, self._read, engine.variables)
        self._text = jax.eval_shape(self._encode_text, self._padded, engine.variables)

    def choose_shape(self, memory_mb: int) -> BlockShape:
        """Halves the side of the block that needs more memory until the block fits.

        Args:
          memory_mb: The budget in MiB.

        Raises:
          UserError: If the smallest block does not fit.
        """
        devices = parallel.num_local_devices()
        budget = memory_mb * 2**20
        shape = self._largest_shape(budget)
        while True:
            images, texts = self.required_bytes(shape)
            if images + texts <= budget:
                return shape
            if shape.texts > max(MIN_TEXTS, devices) and (texts > images or shape.images == devices):
                shape = shape._replace(texts=bucket(shape.texts // 2, devices))
            elif shape.images > devices:
                shape = shape._replace(images=bucket(shape.images // 2, devices))
            else:
                raise UserError(
                    f"config key 'run.memory_mb' is {memory_mb}, but scoring {shape.images} x {shape.texts} pairs of "
                    f'{self._split.name} at a time takes {-(-(images + texts) // 2**20)} MiB; allow that much'
                )

    def _largest_shape(self, budget: int) -> BlockShape:
        """Returns the largest block that is tried: its encoded images take a quarter of the budget of each device."""
        devices = parallel.num_local_devices()
        split = self._split
        max_images = max(1, budget * devices // (4 * _num_bytes(self._image)))
        max_texts = MAX_TEXTS
        if self._engine.is_dual:  # two blocks for each process, if they are large
            max_texts = np.clip(-(-split.num_texts // (2 * jax.process_count())), MAX_TEXTS, MAX_VECTORS)
        images = min(split.num_images, max_images)
        texts = min(split.num_texts, max_texts)
        return BlockShape(bucket(images, devices), bucket(texts, devices))

    def required_bytes(self, shape: BlockShape) -> tuple[int, int]:
        """Returns the bytes of the images' side and of the texts' side of a block, on host and devices together.

        The first covers reading, encoding and holding the images; the second encoding the longest texts and scoring.
        """
        engine = self._engine
        devices = parallel.num_local_devices()
        # The images.
        read = _shapes(self._read, shape.images_per_call(engine, self._split.num_images))
        images = _shapes(self._image, shape.images)
        encode_images = parallel.memory_of(self._encode_image, read, engine.variables)
        # The texts.
        texts = _shapes(self._text, shape.texts)
        padded = _shapes(self._padded, engine.texts_per_call if engine.is_dual else shape.texts)
        encode_texts = parallel.memory_of(self._encode_text, padded, engine.variables)
        # The scores.
        if self._only_selected:
            index = jax.ShapeDtypeStruct((shape.pairs_per_call * devices,), np.int32)
            selected = SelectedPairs(images, index, index)
            scoring = parallel.memory_of(engine.compiled(score_selected), selected, engine.variables, texts)
        else:
            scoring = parallel.memory_of(engine.compiled(score), images, engine.variables, texts)
        copies = 1 + devices  # every device holds all texts of the block
        return 2 * _num_bytes((read, images)) + encode_images, copies * _num_bytes(texts) + max(encode_texts, scoring)


def _shapes(tree: chex.ArrayTree, count: int) -> chex.ArrayTree:
    """Returns the shapes of a tree with `count` rows."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape[1:]), x.dtype), tree)


def _num_bytes(tree: chex.ArrayTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
