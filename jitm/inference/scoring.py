"""Similarity matrices of whole splits, scored in blocks of fixed shape within a memory budget.

Images are encoded once, texts once per block of images. Finished blocks can be kept on disk.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import chex
import jax
import numpy as np

from jitm.data.splits import Split, pad_texts, take_images
from jitm.data.text.word_level import Tokens
from jitm.devices import parallel
from jitm.errors import ArgumentError, UserError, check_choice
from jitm.files import describe, hash_arrays
from jitm.files.outputs import OutputFolder
from jitm.inference.engine import Engine, SelectedPairs, batches, concatenate, first, pad, score, score_selected
from jitm.inference.memory import BlockMemory
from jitm.models.matcher import Encoding, Matcher
from jitm.runs.progress import Progress, ignore
from jitm.runs.run import Run, read_tokens
from jitm.types import DTYPES, PRECISIONS, Precision


@dataclasses.dataclass(frozen=True)
class ScoringOptions:
    """Precision and memory of scoring.

    Attributes:
      dtype: The dtype of the encodings, a key of `DTYPES`; None for `evaluation.dtype` of the run's config. Scores are
        float32.
      memory_mb: MiB that a block may take on host and devices, with its encodings and intermediate arrays: everything
        but the parameters and the similarity matrix; None for `run.memory_mb` of the run's config.
      precision: The precision of products of float32 arrays; None for `evaluation.precision` of the run's config.
    """

    dtype: str | None = None
    memory_mb: int | None = None
    precision: Precision | None = None


DEFAULT_OPTIONS = ScoringOptions()


def resolve_options(run: Run, options: ScoringOptions) -> ScoringOptions:
    """Replaces None in the options by the values of a run's config."""
    sections = run.config['evaluation'] | run.config['run']
    values = dataclasses.asdict(options)
    return ScoringOptions(**{name: sections[name] if value is None else value for name, value in values.items()})


def precision_of(run: Run, options: ScoringOptions) -> dict[str, str]:
    """Returns `dtype` and `precision` of the scores of a run, for JSON reports."""
    resolved = resolve_options(run, options)
    return {'dtype': resolved.dtype, 'precision': resolved.precision}


def share_precision(runs: Sequence[Run], options: ScoringOptions) -> ScoringOptions:
    """Sets the default dtype and precision of all runs to the first run's."""
    return dataclasses.replace(options, **precision_of(runs[0], options))


class Scorer:
    """Scores the pairs of one split with one model, in blocks whose shape is chosen at construction.

    Attributes:
      engine: The model on the devices.
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
          UserError: If the smallest block does not fit, or the dtype or the precision is unknown.
        """
        try:
            check_choice(options.dtype, DTYPES, 'dtype')
            check_choice(options.precision, PRECISIONS, 'precision')
        except ArgumentError as error:
            raise UserError(str(error)) from None
        self.engine = Engine(model, variables, options.dtype, options.precision)
        self._split = split
        self._tokens = tokens
        self._pairs = None if pairs is None or pairs.all() else pairs
        self._by_length = np.argsort(tokens.lengths, kind='stable')
        self._encoded: tuple[np.ndarray, Encoding] | None = None  # the images of the last block
        memory = BlockMemory(self.engine, split, tokens, only_selected=self._pairs is not None)
        self.shape = memory.choose_shape(options.memory_mb)

    def encode_images(self, index: np.ndarray) -> Encoding:
        """Encodes the images of rows int [N] of the split, a few at a time: leaves [N, ...] in host memory."""
        size = self.shape.images_per_call(self.engine, self._split.num_images)
        parts = []
        for rows in batches(index, size):
            images = take_images(self._split, pad(rows, size), self.engine.model.reads, self._tokens.tags)
            parts.append(first(self.engine.encode('encode_image', images), len(rows)))
        return concatenate(parts)

    def _encode_texts(self, index: np.ndarray) -> Encoding:
        """Encodes the texts of a block, padded to the longest one, and repeats the first one up to the block's size."""
        if self.engine.is_dual:
            return pad(self.engine.encode_each_alike(self._tokens, index), self.shape.texts)
        index = pad(index, self.shape.texts)
        length = self.engine.padded_length(self._tokens.lengths[index])
        return self.engine.encode('encode_text', pad_texts(self._tokens, index, length))

    def encode_texts(self) -> Encoding:
        """Encodes all texts by a dual encoder: leaves [T, ...] in host memory."""
        return self.engine.encode_each_alike(self._tokens, np.arange(self._split.num_texts))

    def cache_key(self) -> dict[str, Any]:
        """Returns all inputs of the blocks, as JSON: model, parameters, data, shapes and precision."""
        tokens = self._tokens
        model = self.engine.model
        boxes = self._split.boxes if 'locations' in model.reads else None
        tags = (tokens.tags.ids, tokens.tags.starts) if 'tags' in model.reads else None
        arrays = self.engine.variables, tokens.ids, tokens.starts, boxes, tags
        return {
            'model': describe(model),
            'arrays': hash_arrays(jax.tree.leaves(jax.device_get(arrays))),
            'split': self._split.identity,
            'block': list(self.shape),
            'dtype': self.engine.dtype,
            'precision': self.engine.precision,
            'pairs': None if self._pairs is None else hash_arrays([self._pairs]),
        }

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
        """Scores the images [N] and the texts [M] of a block: float32 of `shape`, with the first ones as padding."""
        images, texts = self._encode_block(rows, columns)
        return self.engine.compiled(score)(images, self.engine.variables, texts)

    def _score_selected(self, rows: np.ndarray, columns: np.ndarray, selected: np.ndarray) -> np.ndarray:
        """Scores the selected pairs of a block, bool [N, M]: float32 [N, M], -inf elsewhere."""
        images, texts = self._encode_block(rows, columns)
        texts = parallel.put_everywhere(texts)
        compiled = self.engine.compiled(score_selected)
        # Device d scores the pairs starts[d] to starts[d + 1], whose images it holds.
        devices = parallel.num_local_devices()
        size = self.shape.pairs_per_call
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
            scores = jax.device_get(compiled(SelectedPairs(images, *index), self.engine.variables, texts))
            block[row[pairs[valid]], column[pairs[valid]]] = scores[valid]
        return block

    def score(self, output: OutputFolder | None = None, report: Callable[[Progress], None] = ignore) -> np.ndarray:
        """Scores all pairs, or those selected at construction.

        Args:
          output: The folder in which finished blocks are kept until its `end_jobs`; None to keep none.
          report: Called after each computed block.

        Returns:
          float32 [I, T]; -inf for pairs that were not selected.
        """
        sims = np.full((self._split.num_images, self._split.num_texts), -np.inf, np.float32)
        total = sims.size if self._pairs is None else np.count_nonzero(self._pairs)
        job = None if output is None else output.begin(self.cache_key())
        start = time.perf_counter()
        scored = 0
        read = 0
        for rows, columns in self.blocks():
            # Blocks without a pair to score are skipped.
            index = np.ix_(rows, columns)
            selected = None if self._pairs is None else self._pairs[index]
            num_pairs = len(rows) * len(columns) if selected is None else np.count_nonzero(selected)
            if not num_pairs:
                continue
            # Finished blocks are read.
            part = f'{rows[0]}_{columns[0]}'
            finished = None if job is None else job.load(part)
            if finished is not None:
                sims[index] = finished['scores']
                read += num_pairs
                continue
            # The others are computed.
            if selected is None:
                block = jax.device_get(self.score_block(rows, columns))[: len(rows), : len(columns)]
            else:
                block = self._score_selected(rows, columns, selected)
            sims[index] = block
            if job is not None:
                job.save(part, scores=block)
            scored += num_pairs
            report(Progress.since(start, read, scored, total))
        return sims

    def score_together(self) -> np.ndarray:
        """Scores all pairs, a part in each process: all processes must call this.

        Returns:
          float32 [I, T], in every process.
        """
        sims = np.empty((self._split.num_images, self._split.num_texts), np.float32)
        for _, group in itertools.groupby(self.blocks(), lambda block: block[0][0]):
            blocks = list(group)
            rows = blocks[0][0]
            if self.engine.is_dual:  # the images of others are encoded by each process, as their encodings are large
                size = self.shape.images_per_call(self.engine, self._split.num_images)
                calls = [pad(part, size) for part in batches(pad(rows, self.shape.images), size)]
                encoded = concatenate(list(parallel.share(calls, self.encode_images)))
                self._encoded = rows, parallel.put_rows(first(encoded, self.shape.images))
            parts = parallel.share(blocks, lambda block: jax.device_get(self.score_block(*block)))
            for (_, columns), part in zip(blocks, parts, strict=True):
                sims[np.ix_(rows, columns)] = part[: len(rows), : len(columns)]
        return sims


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
      UserError: If the run cannot read these images or texts, or the memory is too little.
    """
    tokens = read_tokens(run, split)
    return Scorer(run.model, run.variables, split, tokens, resolve_options(run, options), pairs=pairs)
