"""Similarity matrices of whole splits, scored in blocks of fixed shape within a memory budget.

Images are encoded once, texts once per block of images. Finished blocks can be kept on disk, see `blocks`.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import chex
import jax
import numpy as np

from jitm import parallel
from jitm.data.pipeline import bucket, pad_texts, take_images
from jitm.data.splits import Split
from jitm.data.text import Tokens
from jitm.errors import UserError
from jitm.files import hash_arrays
from jitm.inference.blocks import FinishedBlocks
from jitm.inference.encoder import Encoder, fill
from jitm.models.matcher import Encoding, Matcher
from jitm.runs.progress import Progress
from jitm.runs.run import Run, read_tokens
from jitm.types import DTYPES, Images

MAX_TEXTS = 128  # of a block
MAX_VECTORS = 4096  # texts of a block of a dual encoder, so that most calls of the encoder are full
MIN_TEXTS = 8
MAX_PAIRS = 256  # per device and call, where only some pairs of a block are scored


@dataclasses.dataclass(frozen=True)
class ScoringOptions:
    """Precision and memory of scoring.

    Attributes:
      dtype: of the encodings, a key of `DTYPES`; None for `evaluation.dtype` of the run's config. Scores are float32.
      memory_mb: MiB that a block may take on host and devices, with its encodings and intermediate arrays: everything
        but the parameters and the similarity matrix; None for `run.memory_mb` of the run's config.
    """

    dtype: str | None = None
    memory_mb: int | None = None


DEFAULT_OPTIONS = ScoringOptions()


def resolve_options(run: Run, options: ScoringOptions) -> ScoringOptions:
    """Replaces None in the options by the values of a run's config."""
    config = run.config
    return ScoringOptions(
        dtype=config['evaluation']['dtype'] if options.dtype is None else options.dtype,
        memory_mb=config['run']['memory_mb'] if options.memory_mb is None else options.memory_mb,
    )


def check_dtype(dtype: str) -> None:
    """Raises a UserError unless `dtype` is one of `DTYPES`."""
    if dtype not in DTYPES:
        raise UserError(f"dtype is '{dtype}'; take 'float32' or 'bfloat16'")


@functools.lru_cache(maxsize=16)
def _compiled_pairs(model: Matcher) -> Callable:
    """Returns `((images, (rows, columns)), (variables, texts)) -> scores`; the rows index the images of one device."""

    def apply(sides: tuple[Encoding, chex.ArrayTree], shared: tuple[chex.ArrayTree, Encoding]) -> chex.Array:
        (images, (rows, columns)), (variables, texts) = sides, shared
        pairs = jax.tree.map(lambda x: x[rows], images), jax.tree.map(lambda x: x[columns], texts)
        return model.apply(variables, *pairs, method='similarity_pairwise')

    return parallel.map_rows(apply)


def _shapes(tree: chex.ArrayTree, count: int) -> chex.ArrayTree:
    """Returns the shapes of a tree with `count` rows."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape[1:]), x.dtype), tree)


def _repeat_first(tree: chex.ArrayTree, size: int) -> chex.ArrayTree:
    """Returns a tree with the item on axis 0 with `size` items, of which the last ones are the first item."""
    return jax.tree.map(lambda x: x[fill(np.arange(len(x)), size)], tree)


def _num_bytes(tree: chex.ArrayTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


class Scorer:
    """Scores the pairs of one split with one model, in blocks whose shape is chosen at construction.

    Attributes:
      images_per_block: images of a block; their encodings stay on the devices while the texts are scored.
      texts_per_block: texts of a block, all of similar length.
    """

    def __init__(
        self,
        model: Matcher,
        variables: chex.ArrayTree,
        split: Split,
        tokens: Tokens,
        options: ScoringOptions,
        pairs: np.ndarray | None = None,
    ):
        """Chooses the largest blocks that fit into the memory budget.

        Args:
          model: any matcher.
          variables: its parameters and statistics.
          split: the images.
          tokens: the texts of the split.
          options: dtype and memory budget; neither may be None.
          pairs: bool [I, T], the pairs to score; None for all.

        Raises:
          UserError: if the smallest block does not fit, or the dtype is unknown.
        """
        check_dtype(options.dtype)
        self._model, self._encoder, self._options = model, Encoder(model, variables, options.dtype), options
        self._split, self._tokens = split, tokens
        self._pairs = None if pairs is None or pairs.all() else pairs
        self._by_length = np.argsort(tokens.lengths, kind='stable')
        self._encoded: tuple[np.ndarray, Encoding] | None = None  # the images of the last block
        longest = self._encoder.padded_length(tokens.lengths)
        devices = parallel.num_local_devices()
        self._read = _shapes(self._take_images(np.array([0])), devices)
        self._padded = _shapes(pad_texts(tokens, self._by_length[-1:], longest), devices)
        encode_image, encode_text = map(self._encoder.function, ('encode_image', 'encode_text'))
        self._image = jax.eval_shape(encode_image, (self._read,), (variables,))
        self._text = jax.eval_shape(encode_text, (self._padded,), (variables,))
        self._choose_block_shape()

    def _choose_block_shape(self) -> None:
        """Halves the side of the block that needs more memory until the block fits."""
        devices, budget = parallel.num_local_devices(), self._options.memory_mb * 2**20
        max_images = max(1, budget * devices // (4 * _num_bytes(self._image)))
        self.images_per_block = bucket(min(self._split.num_images, max_images), devices)
        max_texts = MAX_TEXTS
        if self._encoder.is_dual:  # two blocks for each process, if they are large
            max_texts = np.clip(-(-self._split.num_texts // (2 * jax.process_count())), MAX_TEXTS, MAX_VECTORS)
        self.texts_per_block = bucket(min(self._split.num_texts, max_texts), devices)
        while (needed := sum(sides := self._required_bytes())) > budget:
            only_texts = sides[1] > sides[0] or self.images_per_block == devices
            if self.texts_per_block > max(MIN_TEXTS, devices) and only_texts:
                self.texts_per_block = bucket(self.texts_per_block // 2, devices)
            elif self.images_per_block > devices:
                self.images_per_block = bucket(self.images_per_block // 2, devices)
            else:
                raise UserError(
                    f"config key 'run.memory_mb' is {self._options.memory_mb}, but scoring {self.images_per_block} x "
                    f'{self.texts_per_block} pairs of {self._split.name} at a time takes {-(-needed // 2**20)} MiB; '
                    'allow that much'
                )

    @property
    def _images_per_call(self) -> int:
        """Images that are encoded at once: fewer if a block has fewer, or always as many for dual encoders."""
        most = self._encoder.images_per_call
        whole = self.images_per_block >= min(most, self._split.num_images)
        return most if self._encoder.is_dual and whole else min(self.images_per_block, most)

    @property
    def _pairs_per_call(self) -> int:
        """Pairs scored at once on each device."""
        return min(self.images_per_block * self.texts_per_block // parallel.num_local_devices(), MAX_PAIRS)

    def _required_bytes(self) -> tuple[int, int]:
        """Returns the bytes of the images' side and of the texts' side of a block, on host and devices together.

        The first covers reading, encoding and holding the images; the second encoding the longest texts and scoring.
        """
        devices = parallel.num_local_devices()
        read = _shapes(self._read, self._images_per_call)
        images = _shapes(self._image, self.images_per_block)
        texts, encoder = _shapes(self._text, self.texts_per_block), self._encoder
        padded = _shapes(self._padded, devices * encoder.texts_per_call if encoder.is_dual else self.texts_per_block)
        encode_images = parallel.memory_of(encoder.function('encode_image'), (read,), (encoder.variables,))
        encode_texts = parallel.memory_of(encoder.function('encode_text'), (padded,), (encoder.variables,))
        if self._pairs is None:
            score = parallel.memory_of(encoder.function('similarity'), (images,), (encoder.variables, texts))
        else:
            index = jax.ShapeDtypeStruct((self._pairs_per_call * devices,), np.int32)
            sides = images, (index, index)
            score = parallel.memory_of(_compiled_pairs(self._model), sides, (encoder.variables, texts))
        copies = 1 + devices  # every device holds all texts of the block
        return 2 * _num_bytes((read, images)) + encode_images, copies * _num_bytes(texts) + max(encode_texts, score)

    def _take_images(self, index: np.ndarray) -> Images:
        return take_images(self._split, index, self._model.reads, self._tokens.tags)

    def encode_images(self, index: np.ndarray) -> Encoding:
        """Encodes some images, a few at a time.

        Args:
          index: int [N], rows of the split.

        Returns:
          Leaves [N, ...] in host memory.
        """
        encoded = jax.tree.map(lambda x: np.empty((len(index), *x.shape[1:]), x.dtype), self._image)
        for start in range(0, len(index), self._images_per_call):
            rows = index[start : start + self._images_per_call]
            part = self._encoder.apply('encode_image', self._take_images(fill(rows, self._images_per_call)))
            for whole, leaf in zip(jax.tree.leaves(encoded), jax.tree.leaves(part), strict=True):
                whole[start : start + len(rows)] = leaf[: len(rows)]
        return encoded

    def _encode_texts(self, index: np.ndarray) -> Encoding:
        """Encodes the texts of a block, padded to the longest one, and repeats the first one up to the block's size."""
        if self._encoder.is_dual:
            return _repeat_first(self._encoder.encode_texts(self._tokens, index), self.texts_per_block)
        index = fill(index, self.texts_per_block)
        length = self._encoder.padded_length(self._tokens.lengths[index])
        return self._encoder.apply('encode_text', pad_texts(self._tokens, index, length))

    def encode_texts(self) -> Encoding:
        """Encodes all texts, by a dual encoder.

        Returns:
          Leaves [T, ...] in host memory.
        """
        return self._encoder.encode_texts(self._tokens, np.arange(self._split.num_texts))

    def cache_key(self) -> dict[str, Any]:
        """Returns everything that the blocks depend on, as JSON: model, parameters, data, shapes and dtype."""
        arrays = jax.tree.leaves(jax.device_get(self._encoder.variables))
        arrays += [self._split.counts] if 'regions' in self._model.reads else []
        arrays += [self._tokens.ids, self._tokens.starts]
        arrays += [self._split.boxes] if 'locations' in self._model.reads else []
        arrays += [self._tokens.tags.ids, self._tokens.tags.starts] if 'tags' in self._model.reads else []
        return {
            'model': repr(self._model),
            'arrays': hash_arrays(arrays),
            'split': self._split.identity,
            'block': [self.images_per_block, self.texts_per_block],
            'dtype': self._options.dtype,
        } | ({} if self._pairs is None else {'pairs': hash_arrays([self._pairs])})

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the images int [N] and the texts int [M] of each block, both ascending.

        The blocks of the same images are consecutive, so that these images are encoded once.
        """
        for start in range(0, self._split.num_images, self.images_per_block):
            rows = np.arange(start, min(start + self.images_per_block, self._split.num_images))
            for first in range(0, self._split.num_texts, self.texts_per_block):
                yield rows, np.sort(self._by_length[first : first + self.texts_per_block])

    def _encode_block(self, rows: np.ndarray, columns: np.ndarray) -> tuple[Encoding, Encoding]:
        """Encodes a block, padded to its full size: the images on the devices, the texts in host memory."""
        if self._encoded is None or self._encoded[0] is not rows:
            encoded = _repeat_first(self.encode_images(rows), self.images_per_block)
            self._encoded = rows, parallel.put_rows(encoded)
        return self._encoded[1], self._encode_texts(columns)

    def score_block(self, rows: np.ndarray, columns: np.ndarray) -> chex.Array:
        """Scores a block.

        Args:
          rows: int [N], its images.
          columns: int [M], its texts.

        Returns:
          float32 [images_per_block, texts_per_block]; beyond N and M the first image and text are repeated.
        """
        images, texts = self._encode_block(rows, columns)
        return self._encoder.function('similarity')((images,), (self._encoder.variables, texts))

    def _score_pairs(self, rows: np.ndarray, columns: np.ndarray, selected: np.ndarray) -> np.ndarray:
        """Scores the selected pairs of a block, bool [N, M]: float32 [N, M], -inf elsewhere."""
        images, texts = self._encode_block(rows, columns)
        texts = parallel.put_everywhere(texts)
        devices, pairs_per_call = parallel.num_local_devices(), self._pairs_per_call
        images_per_device = self.images_per_block // devices
        row, column = (index.astype(np.int32) for index in np.nonzero(selected))
        # Device d scores the pairs starts[d] to starts[d + 1], those of the images that it holds.
        starts = np.searchsorted(row, images_per_device * np.arange(devices + 1))
        block = np.full(selected.shape, -np.inf, np.float32)
        for first in range(0, np.diff(starts).max(), pairs_per_call):
            pairs = starts[:-1, None] + first + np.arange(pairs_per_call)
            valid = (pairs < starts[1:, None]).ravel()
            pairs = np.where(valid, pairs.ravel(), 0)
            index = parallel.put_rows((row[pairs] % images_per_device, column[pairs]))
            scores = _compiled_pairs(self._model)((images, index), (self._encoder.variables, texts))
            block[row[pairs[valid]], column[pairs[valid]]] = jax.device_get(scores)[valid]
        return block

    def score(
        self, finished: FinishedBlocks | None = None, report: Callable[[Progress], None] | None = None
    ) -> np.ndarray:
        """Scores all pairs, or those selected at construction.

        Args:
          finished: where finished blocks are read and written; None to keep none.
          report: is called after each computed block.

        Returns:
          float32 [I, T]; -inf for pairs that were not selected.
        """
        sims = np.full((self._split.num_images, self._split.num_texts), -np.inf, np.float32)
        total = sims.size if self._pairs is None else np.count_nonzero(self._pairs)
        if finished is not None:
            finished.begin(self.cache_key(), self.blocks())
        start, scored, read = time.perf_counter(), 0, 0
        for rows, columns in self.blocks():
            index = np.ix_(rows, columns)
            selected = None if self._pairs is None else self._pairs[index]
            num_pairs = len(rows) * len(columns) if selected is None else np.count_nonzero(selected)
            if not num_pairs:
                continue
            block = None if finished is None else finished.read(rows, columns)
            if block is not None:
                sims[index] = block
                read += num_pairs
                continue
            if selected is None:
                block = jax.device_get(self.score_block(rows, columns))[: len(rows), : len(columns)]
            else:
                block = self._score_pairs(rows, columns, selected)
            if finished is not None:
                finished.write(rows, columns, block)
            sims[index] = block
            scored += num_pairs
            if report is not None:
                report(Progress.since(start, read, scored, total))
        return sims

    def score_together(self) -> np.ndarray:
        """Scores all pairs, of which each process scores a part: all processes must call this.

        Returns:
          float32 [I, T], in every process.
        """
        sims = np.empty((self._split.num_images, self._split.num_texts), np.float32)
        for _, group in itertools.groupby(self.blocks(), lambda block: block[0][0]):
            blocks = list(group)
            rows = blocks[0][0]
            if self._encoder.is_dual:  # the images of others are encoded by each process, as their encodings are large
                self._encoded = rows, parallel.put_rows(self._encode_images_together(fill(rows, self.images_per_block)))
            parts = parallel.share(blocks, lambda block: jax.device_get(self.score_block(*block)))
            for (_, columns), part in zip(blocks, parts, strict=True):
                sims[np.ix_(rows, columns)] = part[: len(rows), : len(columns)]
        return sims

    def _encode_images_together(self, index: np.ndarray) -> Encoding:
        """Encodes images as `encode_images` does, of which each process encodes a part."""
        size = self._images_per_call
        calls = [fill(index[start : start + size], size) for start in range(0, len(index), size)]
        parts = list(parallel.share(calls, self.encode_images))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(index)], *parts)


def make_scorer(
    run: Run, split: Split, options: ScoringOptions = DEFAULT_OPTIONS, pairs: np.ndarray | None = None
) -> Scorer:
    """Returns a scorer of a split with a run.

    Args:
      run: a trained matcher.
      split: images and texts.
      options: precision and memory.
      pairs: bool [I, T], the pairs to score; None for all.

    Raises:
      UserError: if the run cannot read these images or texts, or the memory is too little.
    """
    tokens = read_tokens(run, split)
    return Scorer(run.model, run.variables, split, tokens, resolve_options(run, options), pairs)


def similarity_matrix(
    model: Matcher, variables: chex.ArrayTree, split: Split, tokens: Tokens, options: ScoringOptions
) -> np.ndarray:
    """Scores every image of a split with every text, see `Scorer.score_together`.

    Args:
      model, variables, split, tokens, options: see `Scorer`.

    Returns:
      float32 [I, T].

    Raises:
      UserError: if the memory is too little, or the dtype is unknown.
    """
    return Scorer(model, variables, split, tokens, options).score_together()
