"""Every image of a split with every text, scored in blocks of fixed shape within a budget of memory.

Images are encoded once, texts once for each block of images. A long job can keep its finished blocks on disk and go on
from there.
"""

import functools
import hashlib
import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jitm import parallel
from jitm.data.pipeline import bucket, pad_texts, take_images
from jitm.data.splits import Split
from jitm.data.text import Tokens
from jitm.errors import UserError
from jitm.files import hash_arrays, replacing
from jitm.models.matcher import Encoding, Matcher
from jitm.runs.progress import Progress
from jitm.types import Images

LENGTH_MULTIPLE = 4
TEXTS_AT_A_TIME = 128
FEWEST_TEXTS = 8
PAIRS_AT_A_TIME = 256  # on each device, where only some pairs of a block are scored
IMAGES_ENCODED_AT_A_TIME = 64  # on each device
DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}


def check_dtype(dtype: str) -> None:
    """Raises a UserError unless encodings can be scored in this precision."""
    if dtype not in DTYPES:
        raise UserError(f"config key 'evaluation.dtype' is '{dtype}'; take 'float32' or 'bfloat16'")


class FinishedBlocks:
    """The blocks of a similarity matrix that are done, each in a file: a checksum and the scores.

    Whatever did not reach the disk as it was is scored again. Each job has its own folder, named by all that its scores
    depend on, so that several may share a parent.
    """

    def __init__(self, parent: Path, job: Mapping[str, Any]):
        """Looks for a job's blocks; the folder is made by the first block.

        Args:
          parent: the folder of this job's folder.
          job: all that the scores depend on, as JSON.
        """
        self.folder = parent / hashlib.sha256(json.dumps(job).encode()).hexdigest()[:16]

    def _path(self, rows: np.ndarray, columns: np.ndarray) -> Path:
        return self.folder / f'{rows[0]}_{columns[0]}'

    def read(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray | None:
        """The block of these rows and columns, float32; None if it is not there or damaged."""
        try:
            checksum, scores = np.split(np.fromfile(self._path(rows, columns), np.uint8), [4])
        except OSError:
            return None
        if len(scores) != 4 * len(rows) * len(columns) or checksum.tobytes() != _checksum(scores):
            return None
        return scores.view(np.float32).reshape(len(rows), len(columns))

    def write(self, rows: np.ndarray, columns: np.ndarray, block: np.ndarray) -> None:
        """Keeps a block.

        Raises:
          UserError: if it cannot be written.
        """
        path, scores = self._path(rows, columns), np.ascontiguousarray(block, np.float32)
        with replacing(path) as file:
            file.write(_checksum(scores) + scores.tobytes())


def _checksum(array: np.ndarray) -> bytes:
    return zlib.crc32(array).to_bytes(4)


@functools.lru_cache(maxsize=64)
def _compiled(model: Matcher, method: str, dtype: str) -> Callable:
    """`(rows, (variables, *others)) -> result`, with the rows split over the devices."""

    def apply(rows: chex.ArrayTree, shared: tuple[chex.ArrayTree, ...]) -> chex.ArrayTree:
        variables, *others = shared
        result = model.apply(variables, rows, *others, method=method)
        if method == 'similarity':
            return result
        return jax.tree.map(lambda x: x.astype(DTYPES[dtype]) if jnp.issubdtype(x.dtype, jnp.floating) else x, result)

    return parallel.map_rows(apply)


@functools.lru_cache(maxsize=16)
def _compiled_pairs(model: Matcher) -> Callable:
    """`((images, (rows, columns)), (variables, texts)) -> scores` of pairs, whose images are those of their device."""

    def apply(sides: tuple[Encoding, chex.ArrayTree], shared: tuple[chex.ArrayTree, Encoding]) -> chex.Array:
        (images, (rows, columns)), (variables, texts) = sides, shared
        pairs = jax.tree.map(lambda x: x[rows], images), jax.tree.map(lambda x: x[columns], texts)
        return model.apply(variables, *pairs, method='similarity_pairwise')

    return parallel.map_rows(apply)


def _filled(index: np.ndarray, size: int) -> np.ndarray:
    """Fills an index up to a size with its first entry."""
    return np.pad(index, (0, size - len(index)), constant_values=index[0])


def _shapes(tree: chex.ArrayTree, count: int) -> chex.ArrayTree:
    """The shapes of a tree with so many rows."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape[1:]), x.dtype), tree)


def _num_bytes(tree: chex.ArrayTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


class Scorer:
    """Scores one split with one model, all pairs or some, in blocks whose shape is found when it is made.

    Attributes:
      images: how many images a block has; their encodings are kept while the texts pass by.
      texts: how many texts a block has, all of about one length.
    """

    def __init__(
        self,
        model: Matcher,
        variables: chex.ArrayTree,
        split: Split,
        tokens: Tokens,
        *,
        memory_mb: int,
        dtype: str,
        pairs: np.ndarray | None = None,
    ):
        """Finds the largest blocks that fit.

        Args:
          model: any matcher.
          variables: its parameters and statistics.
          split: the images.
          tokens: the split's texts.
          memory_mb: MiB that a block may take on host and devices, with its encodings and what is computed on the way:
            everything but the parameters and the matrix.
          dtype: of the encodings; scores are float32.
          pairs: bool [I, T], which pairs are scored; None for all.

        Raises:
          UserError: if the smallest block does not fit, or the dtype is unknown.
        """
        check_dtype(dtype)
        self._model, self._variables, self._dtype = model, parallel.put_state(variables), dtype
        self._split, self._tokens = split, tokens
        self._pairs = None if pairs is None or pairs.all() else pairs
        self._by_length = np.argsort(tokens.lengths, kind='stable')
        self._encoded: tuple[np.ndarray, Encoding] | None = None  # the images of the last block
        longest = self._length(tokens.lengths)
        devices, budget = parallel.num_local_devices(), memory_mb * 2**20
        self._read = _shapes(self._take_images(np.array([0])), devices)
        self._padded = _shapes(pad_texts(tokens, self._by_length[-1:], longest), devices)
        self._image = jax.eval_shape(self._function('encode_image'), self._read, (variables,))
        self._text = jax.eval_shape(self._function('encode_text'), self._padded, (variables,))
        most = max(1, budget * devices // (4 * _num_bytes(self._image)))
        self.images = bucket(min(split.num_images, most), devices)
        self.texts = bucket(min(split.num_texts, TEXTS_AT_A_TIME), devices)
        while (needed := sum(sides := self._needed())) > budget:
            if self.texts > max(FEWEST_TEXTS, devices) and (sides[1] > sides[0] or self.images == devices):
                self.texts = bucket(self.texts // 2, devices)
            elif self.images > devices:
                self.images = bucket(self.images // 2, devices)
            else:
                raise UserError(
                    f"config key 'run.memory_mb' is {memory_mb}, but scoring {self.images} x {self.texts} pairs of "
                    f'{split.name} at a time takes {-(-needed // 2**20)} MiB; allow that much'
                )

    def _function(self, method: str) -> Callable:
        return _compiled(self._model, method, self._dtype)

    def _length(self, lengths: np.ndarray) -> int:
        return bucket(lengths.max(), LENGTH_MULTIPLE, self._model.text_format.max_length)

    @property
    def _encoded_at_a_time(self) -> int:
        return min(self.images, IMAGES_ENCODED_AT_A_TIME * parallel.num_local_devices())

    @property
    def _pairs_at_a_time(self) -> int:
        """On each device."""
        return min(self.images * self.texts // parallel.num_local_devices(), PAIRS_AT_A_TIME)

    def _needed(self) -> tuple[int, int]:
        """Bytes to encode and hold a block's images, and to encode its longest texts and score; host and devices."""
        read = _shapes(self._read, self._encoded_at_a_time)
        images, padded, texts = _shapes(self._image, self.images), *_shapes((self._padded, self._text), self.texts)
        of_read = parallel.memory_of(self._function('encode_image'), read, (self._variables,))
        of_padded = parallel.memory_of(self._function('encode_text'), padded, (self._variables,))
        if self._pairs is None:
            of_pairs = parallel.memory_of(self._function('similarity'), images, (self._variables, texts))
        else:
            index = jax.ShapeDtypeStruct((self._pairs_at_a_time * parallel.num_local_devices(),), np.int32)
            sides = images, (index, index)
            of_pairs = parallel.memory_of(_compiled_pairs(self._model), sides, (self._variables, texts))
        copies_of_texts = 1 + parallel.num_local_devices()
        return 2 * _num_bytes((read, images)) + of_read, copies_of_texts * _num_bytes(texts) + max(of_padded, of_pairs)

    def _apply(self, method: str, rows: chex.ArrayTree) -> Encoding:
        return jax.device_get(self._function(method)(parallel.put_rows(rows), (self._variables,)))

    def _take_images(self, index: np.ndarray) -> Images:
        return take_images(self._split, index, self._model.reads_locations)

    def _encode_images(self, index: np.ndarray) -> Encoding:
        """Encodes the images of a block, and puts them on the devices."""
        return parallel.put_rows(self.encode_images(index))

    def encode_images(self, index: np.ndarray) -> Encoding:
        """Encodes some images, a few at a time: leaves [N, ...] in host memory."""
        encoded = jax.tree.map(lambda x: np.empty((len(index), *x.shape[1:]), x.dtype), self._image)
        for start in range(0, len(index), self._encoded_at_a_time):
            some = index[start : start + self._encoded_at_a_time]
            part = self._apply('encode_image', self._take_images(_filled(some, self._encoded_at_a_time)))
            for whole, leaf in zip(jax.tree.leaves(encoded), jax.tree.leaves(part), strict=True):
                whole[start : start + len(some)] = leaf[: len(some)]
        return encoded

    def _encode_texts(self, index: np.ndarray) -> Encoding:
        """Encodes the texts of a block, as long as the longest of them."""
        length = self._length(self._tokens.lengths[index])
        return self._apply('encode_text', pad_texts(self._tokens, index, length))

    def encode_texts(self) -> Encoding:
        """Encodes all texts, for encodings whose shape no length changes: leaves [T, ...] in host memory."""
        encoded = jax.tree.map(lambda x: np.empty((self._split.num_texts, *x.shape[1:]), x.dtype), self._text)
        for start in range(0, self._split.num_texts, self.texts):
            index = self._by_length[start : start + self.texts]
            part = self._encode_texts(_filled(index, self.texts))
            for whole, leaf in zip(jax.tree.leaves(encoded), jax.tree.leaves(part), strict=True):
                whole[index] = leaf[: len(index)]
        return encoded

    def job(self) -> dict[str, Any]:
        """What tells this job from another: data, parameters and shapes."""
        arrays = jax.tree.leaves(jax.device_get(self._variables))
        arrays += [self._split.counts, self._tokens.ids, self._tokens.starts]
        arrays += [self._split.boxes] if self._model.reads_locations else []
        return {
            'model': repr(self._model),
            'arrays': hash_arrays(arrays),
            'split': self._split.identity,
            'block': [self.images, self.texts],
            'dtype': self._dtype,
        } | ({} if self._pairs is None else {'pairs': hash_arrays([self._pairs])})

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The images and the texts of each block, both ascending; all blocks of some images follow each other."""
        for start in range(0, self._split.num_images, self.images):
            rows = np.arange(start, min(start + self.images, self._split.num_images))
            for first in range(0, self._split.num_texts, self.texts):
                yield rows, np.sort(self._by_length[first : first + self.texts])

    def _encode_block(self, rows: np.ndarray, columns: np.ndarray) -> tuple[Encoding, Encoding]:
        """The images of a block, on the devices, and its texts; both repeated where there are fewer."""
        if self._encoded is None or self._encoded[0] is not rows:
            self._encoded = rows, self._encode_images(_filled(rows, self.images))
        return self._encoded[1], self._encode_texts(_filled(columns, self.texts))

    def score_block(self, rows: np.ndarray, columns: np.ndarray) -> chex.Array:
        """Scores the images and texts of a block: [self.images, self.texts], repeated where there are fewer."""
        images, texts = self._encode_block(rows, columns)
        return self._function('similarity')(images, (self._variables, texts))

    def _score_pairs(self, rows: np.ndarray, columns: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """Scores those pairs of a block that are wanted, bool [I, T]: float32 [I, T], -inf elsewhere."""
        images, texts = self._encode_block(rows, columns)
        texts = parallel.put_everywhere(texts)
        devices, at_a_time = parallel.num_local_devices(), self._pairs_at_a_time
        images_each = self.images // devices
        row, column = (index.astype(np.int32) for index in np.nonzero(wanted))
        starts = np.searchsorted(row, images_each * np.arange(devices + 1))  # of each device's pairs, and their end
        block = np.full(wanted.shape, -np.inf, np.float32)
        for first in range(0, np.diff(starts).max(), at_a_time):
            pairs = starts[:-1, None] + first + np.arange(at_a_time)
            real = (pairs < starts[1:, None]).ravel()
            pairs = np.where(real, pairs.ravel(), 0)
            index = parallel.put_rows((row[pairs] % images_each, column[pairs]))
            scores = _compiled_pairs(self._model)((images, index), (self._variables, texts))
            block[row[pairs[real]], column[pairs[real]]] = jax.device_get(scores)[real]
        return block

    def score(
        self, finished: FinishedBlocks | None = None, report: Callable[[Progress], None] | None = None
    ) -> np.ndarray:
        """Scores every pair that is to be scored.

        Args:
          finished: where blocks are kept and found; None to keep none.
          report: is told after each block that was scored.

        Returns:
          float32 [I, T]; -inf for pairs that are not to be scored.
        """
        sims = np.full((self._split.num_images, self._split.num_texts), -np.inf, np.float32)
        total = sims.size if self._pairs is None else np.count_nonzero(self._pairs)
        began, scored, found = time.perf_counter(), 0, 0
        for rows, columns in self.blocks():
            place = np.ix_(rows, columns)
            wanted = None if self._pairs is None else self._pairs[place]
            pairs = len(rows) * len(columns) if wanted is None else np.count_nonzero(wanted)
            if not pairs:
                continue
            block = None if finished is None else finished.read(rows, columns)
            if block is not None:
                sims[place] = block
                found += pairs
                continue
            if wanted is None:
                block = jax.device_get(self.score_block(rows, columns))[: len(rows), : len(columns)]
            else:
                block = self._score_pairs(rows, columns, wanted)
            if finished is not None:
                finished.write(rows, columns, block)
            sims[place] = block
            scored += pairs
            if report is not None:
                report(Progress.since(began, found, scored, total))
        return sims


def similarity_matrix(
    model: Matcher, variables: chex.ArrayTree, split: Split, tokens: Tokens, *, memory_mb: int, dtype: str
) -> np.ndarray:
    """Scores every image of a split with every text: float32 [I, T]; see `Scorer`."""
    return Scorer(model, variables, split, tokens, memory_mb=memory_mb, dtype=dtype).score()
