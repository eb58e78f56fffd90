"""Similarity matrices of whole splits, scored in blocks of fixed shape within a memory budget.

Images are encoded once, texts once per block of images. Finished blocks can be kept on disk, see `blocks`.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import chex
import jax
import numpy as np

from jitm import parallel
from jitm.data.reading import pad_texts, take_images
from jitm.data.splits import Split
from jitm.data.text import Tokens
from jitm.files import hash_arrays
from jitm.inference.block_shape import BlockMemory
from jitm.inference.blocks import FinishedBlocks
from jitm.inference.engine import Engine, SelectedPairs, concatenate, fill, first, pad, score, score_selected
from jitm.inference.options import DEFAULT_OPTIONS, ScoringOptions, check_options, resolve_options
from jitm.models.matcher import Encoding, Matcher
from jitm.runs.progress import Progress
from jitm.runs.run import Run, read_tokens
from jitm.types import Images


class Scorer:
    """Scores the pairs of one split with one model, in blocks whose shape is chosen at construction.

    Attributes:
      shape: The number of images and of texts of a block.
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
          model: Any matcher.
          variables: Its parameters and statistics.
          split: The images.
          tokens: The texts of the split.
          options: Precision and memory budget; none of them may be None.
          pairs: The pairs to score, bool [I, T]; None for all.

        Raises:
          UserError: if the smallest block does not fit, or the dtype or the precision is unknown.
        """
        check_options(options)
        self._engine = Engine(model, variables, options.dtype, options.precision)
        self._split, self._tokens = split, tokens
        self._pairs = None if pairs is None or pairs.all() else pairs
        self._by_length = np.argsort(tokens.lengths, kind='stable')
        self._encoded: tuple[np.ndarray, Encoding] | None = None  # the images of the last block
        memory = BlockMemory(self._engine, split, tokens, only_selected=self._pairs is not None)
        self.shape = memory.choose_shape(options.memory_mb)

    @property
    def _images_per_call(self) -> int:
        return self.shape.images_per_call(self._engine, self._split.num_images)

    def _take_images(self, index: np.ndarray) -> Images:
        return take_images(self._split, index, self._engine.model.reads, self._tokens.tags)

    def encode_images(self, index: np.ndarray) -> Encoding:
        """Encodes some images, a few at a time.

        Args:
          index: Rows of the split, int [N].

        Returns:
          Leaves [N, ...] in host memory.
        """
        size, parts = self._images_per_call, []
        for start in range(0, len(index), size):
            rows = index[start : start + size]
            parts.append(first(self._engine.encode('encode_image', self._take_images(fill(rows, size))), len(rows)))
        return concatenate(parts)

    def _encode_texts(self, index: np.ndarray) -> Encoding:
        """Encodes the texts of a block, padded to the longest one, and repeats the first one up to the block's size."""
        if self._engine.is_dual:
            return pad(self._engine.encode_each_alike(self._tokens, index), self.shape.texts)
        index = fill(index, self.shape.texts)
        length = self._engine.padded_length(self._tokens.lengths[index])
        return self._engine.encode('encode_text', pad_texts(self._tokens, index, length))

    def encode_texts(self) -> Encoding:
        """Encodes all texts, by a dual encoder.

        Returns:
          Leaves [T, ...] in host memory.
        """
        return self._engine.encode_each_alike(self._tokens, np.arange(self._split.num_texts))

    def padded_length(self, lengths: np.ndarray) -> int:
        """Returns the length to which texts of these lengths are padded if they are encoded together."""
        return self._engine.padded_length(lengths)

    def cache_key(self) -> dict[str, Any]:
        """Returns everything that the blocks depend on, as JSON: model, parameters, data, shapes and precision."""
        arrays = jax.tree.leaves(jax.device_get(self._engine.variables))
        arrays += [self._split.counts] if 'regions' in self._engine.model.reads else []
        arrays += [self._tokens.ids, self._tokens.starts]
        arrays += [self._split.boxes] if 'locations' in self._engine.model.reads else []
        arrays += [self._tokens.tags.ids, self._tokens.tags.starts] if 'tags' in self._engine.model.reads else []
        return {
            'model': repr(self._engine.model),
            'arrays': hash_arrays(arrays),
            'split': self._split.identity,
            'block': list(self.shape),
            'dtype': self._engine.dtype,
            'precision': self._engine.precision,
        } | ({} if self._pairs is None else {'pairs': hash_arrays([self._pairs])})

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the images int [N] and the texts int [M] of each block, both ascending.

        The blocks of the same images are consecutive, so that these images are encoded once.
        """
        for start in range(0, self._split.num_images, self.shape.images):
            rows = np.arange(start, min(start + self.shape.images, self._split.num_images))
            for text in range(0, self._split.num_texts, self.shape.texts):
                yield rows, np.sort(self._by_length[text : text + self.shape.texts])

    def _encode_block(self, rows: np.ndarray, columns: np.ndarray) -> tuple[Encoding, Encoding]:
        """Encodes a block, padded to its full size: the images on the devices, the texts in host memory."""
        if self._encoded is None or self._encoded[0] is not rows:
            encoded = pad(self.encode_images(rows), self.shape.images)
            self._encoded = rows, parallel.put_rows(encoded)
        return self._encoded[1], self._encode_texts(columns)

    def score_block(self, rows: np.ndarray, columns: np.ndarray) -> chex.Array:
        """Scores a block.

        Args:
          rows: Its images, int [N].
          columns: Its texts, int [M].

        Returns:
          float32 of `shape`; beyond N and M the first image and text are repeated.
        """
        images, texts = self._encode_block(rows, columns)
        return self._engine.compiled(score)(images, self._engine.variables, texts)

    def _score_selected(self, rows: np.ndarray, columns: np.ndarray, selected: np.ndarray) -> np.ndarray:
        """Scores the selected pairs of a block, bool [N, M]: float32 [N, M], -inf elsewhere."""
        images, texts = self._encode_block(rows, columns)
        texts = parallel.put_everywhere(texts)
        compiled = self._engine.compiled(score_selected)
        # Device d scores the pairs starts[d] to starts[d + 1], those of the images that it holds.
        devices, size = parallel.num_local_devices(), self.shape.pairs_per_call
        images_per_device = self.shape.images // devices
        row, column = (index.astype(np.int32) for index in np.nonzero(selected))
        starts = np.searchsorted(row, images_per_device * np.arange(devices + 1))
        # Each call scores the next pairs of every device; a device that has fewer left scores pair 0 instead.
        block = np.full(selected.shape, -np.inf, np.float32)
        for offset in range(0, np.diff(starts).max(), size):
            pairs = starts[:-1, None] + offset + np.arange(size)
            valid = (pairs < starts[1:, None]).ravel()
            pairs = np.where(valid, pairs.ravel(), 0)
            index = parallel.put_rows((row[pairs] % images_per_device, column[pairs]))
            scores = jax.device_get(compiled(SelectedPairs(images, *index), self._engine.variables, texts))
            block[row[pairs[valid]], column[pairs[valid]]] = scores[valid]
        return block

    def score(
        self, finished: FinishedBlocks | None = None, report: Callable[[Progress], None] | None = None
    ) -> np.ndarray:
        """Scores all pairs, or those selected at construction.

        Args:
          finished: The folder in which finished blocks are read and written; None to keep none.
          report: Called after each computed block.

        Returns:
          float32 [I, T]; -inf for pairs that were not selected.
        """
        sims = np.full((self._split.num_images, self._split.num_texts), -np.inf, np.float32)
        total = sims.size if self._pairs is None else np.count_nonzero(self._pairs)
        if finished is not None:
            finished.begin(self.cache_key(), self.blocks())
        start, scored, read = time.perf_counter(), 0, 0
        for rows, columns in self.blocks():
            # Blocks without a pair to score are skipped.
            index = np.ix_(rows, columns)
            selected = None if self._pairs is None else self._pairs[index]
            num_pairs = len(rows) * len(columns) if selected is None else np.count_nonzero(selected)
            if not num_pairs:
                continue
            # Finished blocks are read.
            block = None if finished is None else finished.read(rows, columns)
            if block is not None:
                sims[index] = block
                read += num_pairs
                continue
            # The others are computed.
            if selected is None:
                block = jax.device_get(self.score_block(rows, columns))[: len(rows), : len(columns)]
            else:
                block = self._score_selected(rows, columns, selected)
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
            if self._engine.is_dual:  # the images of others are encoded by each process, as their encodings are large
                self._encoded = rows, parallel.put_rows(self._encode_images_together(fill(rows, self.shape.images)))
            parts = parallel.share(blocks, lambda block: jax.device_get(self.score_block(*block)))
            for (_, columns), part in zip(blocks, parts, strict=True):
                sims[np.ix_(rows, columns)] = part[: len(rows), : len(columns)]
        return sims

    def _encode_images_together(self, index: np.ndarray) -> Encoding:
        """Encodes images as `encode_images` does, of which each process encodes a part."""
        size = self._images_per_call
        calls = [fill(index[start : start + size], size) for start in range(0, len(index), size)]
        return first(concatenate(list(parallel.share(calls, self.encode_images))), len(index))


def make_scorer(
    run: Run, split: Split, options: ScoringOptions = DEFAULT_OPTIONS, pairs: np.ndarray | None = None
) -> Scorer:
    """Returns a scorer of a split with a run.

    Args:
      run: A trained matcher.
      split: Images and texts.
      options: Precision and memory.
      pairs: The pairs to score, bool [I, T]; None for all.

    Raises:
      UserError: if the run cannot read these images or texts, or the memory is too little.
    """
    tokens = read_tokens(run, split)
    return Scorer(run.model, run.variables, split, tokens, resolve_options(run, options), pairs=pairs)
