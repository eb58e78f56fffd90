"""Every image of a split with every text: encoded once, scored in blocks of fixed shape, within a budget of memory.

A long job can keep its finished blocks on disk and go on from there.
"""

import contextlib
import dataclasses
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
from jitm.data.pipeline import Tokens, bucket, pad_texts, take_images
from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.matcher import Encoding, Matcher
from jitm.types import Images, Texts

LENGTH_MULTIPLE = 4
TEXTS_AT_A_TIME = 128
IMAGES_ENCODED_AT_A_TIME = 64
DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}


def check_dtype(dtype: str) -> None:
    """Raises a UserError unless encodings can be scored in this precision."""
    if dtype not in DTYPES:
        raise UserError(f"config key 'evaluation.dtype' is '{dtype}'; take 'float32' or 'bfloat16'")


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a job is.

    Attributes:
      pairs: scored, those found on disk included.
      total: pairs of the job.
      rate: pairs per second since this process began to score.
      seconds_left: at this rate.
    """

    pairs: int
    total: int
    rate: float
    seconds_left: float


class FinishedBlocks:
    """The blocks of a similarity matrix that are done, in files of a folder: the matrix, and a line for each block.

    A line holds the block's checksum, so that whatever did not reach the disk is scored again. Files of another job are
    begun anew.
    """

    def __init__(self, folder: Path, job: Mapping[str, Any], shape: tuple[int, int]):
        """Opens the files, or begins them.

        Args:
          folder: where they are.
          job: all that the scores depend on.
          shape: of the matrix.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self._lines = folder / 'sims.partial.npy', folder / 'blocks.jsonl'
        self._checksums: dict[str, int] = {}
        job = json.loads(json.dumps(job))
        if not self._read(job, shape):
            self.sims = np.lib.format.open_memmap(self.path, 'w+', np.float32, shape)
            self._lines.write_text(json.dumps(job) + '\n')

    def _read(self, job: Mapping[str, Any], shape: tuple[int, int]) -> bool:
        with contextlib.suppress(OSError, ValueError):
            first, *lines = self._lines.read_text().splitlines()
            self.sims = np.lib.format.open_memmap(self.path, 'r+')
            if json.loads(first) != job or self.sims.shape != shape:
                return False
            for line in lines:
                with contextlib.suppress(ValueError):  # the last one may be cut off
                    self._checksums |= json.loads(line)
            return True
        return False

    def has(self, rows: np.ndarray, columns: np.ndarray) -> bool:
        """Whether the block of these rows and columns is done."""
        known = self._checksums.get(f'{rows[0]},{columns[0]}')
        return known is not None and known == zlib.crc32(np.ascontiguousarray(self.sims[np.ix_(rows, columns)]))

    def write(self, rows: np.ndarray, columns: np.ndarray, block: np.ndarray) -> None:
        """Keeps a block."""
        self.sims[np.ix_(rows, columns)] = block
        with self._lines.open('a') as file:
            file.write(json.dumps({f'{rows[0]},{columns[0]}': zlib.crc32(np.ascontiguousarray(block))}) + '\n')


@functools.lru_cache(maxsize=64)
def _compiled(model: Matcher, method: str, dtype: str) -> Callable:
    """`(rows, (variables, *others)) -> result`, with the rows split over the devices."""

    def apply(rows: chex.ArrayTree, shared: tuple[chex.ArrayTree, ...]) -> chex.ArrayTree:
        variables, *others = shared
        result = model.apply(variables, rows, *others, method=method)
        if method == 'similarity':
            return result.astype(jnp.float32)
        return jax.tree.map(lambda x: x.astype(DTYPES[dtype]) if jnp.issubdtype(x.dtype, jnp.floating) else x, result)

    return parallel.map_rows(apply)


def _cut(index: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Cuts an index into pieces of one size, the last filled up with its first entry; yields how many count."""
    for start in range(0, len(index), size):
        piece = index[start : start + size]
        yield np.pad(piece, (0, size - len(piece)), constant_values=index[0]), len(piece)


def _specs(tree: chex.ArrayTree, count: int) -> chex.ArrayTree:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape[1:]), x.dtype), tree)


def _num_bytes(tree: chex.ArrayTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


class Scorer:
    """Scores one split with one model, in blocks whose shape is found when it is made.

    Attributes:
      images: how many images a block has; their encodings are kept while the texts pass by.
      texts: how many texts a block has, all of about one length.
    """

    def __init__(
        self, model: Matcher, variables: chex.ArrayTree, split: Split, tokens: Tokens, *, memory_mb: int, dtype: str
    ):
        """Finds the largest blocks that fit.

        Args:
          model: any matcher.
          variables: its parameters and statistics.
          split: the images.
          tokens: the split's texts.
          memory_mb: MiB that encodings, blocks and what is computed on the way may take, besides the parameters.
          dtype: of the encodings; scores are float32.

        Raises:
          UserError: if the smallest block does not fit, or the dtype is unknown.
        """
        check_dtype(dtype)
        self._model, self._variables, self._split, self._tokens = model, jax.device_put(variables), split, tokens
        self._dtype = dtype
        self._by_length = np.argsort(tokens.lengths, kind='stable')
        longest = self._padded(tokens.lengths)
        image = jax.eval_shape(self._function('encode_image'), self._read_images(np.array([0])), (variables,))
        texts = Texts(np.zeros((1, longest), np.int32), np.ones(1, np.int32))
        text = jax.eval_shape(self._function('encode_text'), texts, (variables,))
        devices, budget = parallel.num_local_devices(), memory_mb * 2**20
        most = min(split.num_images, budget // (4 * _num_bytes(image)))
        self.images = max(devices, -(-most // devices) * devices)
        self.texts = min(TEXTS_AT_A_TIME, split.num_texts)
        while (needed := self._needed(image, text)) > budget:
            if self.texts > 8:
                self.texts //= 2
            elif self.images > devices:
                self.images = max(devices, self.images // 2 // devices * devices)
            else:
                raise UserError(
                    f"config key 'run.memory_mb' is {memory_mb}, but scoring {self.images} x {self.texts} pairs of "
                    f'{split.name} takes {-(-needed // 2**20)} MiB'
                )

    def _function(self, method: str) -> Callable:
        return _compiled(self._model, method, self._dtype)

    def _needed(self, image: chex.ArrayTree, text: chex.ArrayTree) -> int:
        """Bytes of the largest block: what is computed, encodings on devices and host, regions about to be encoded."""
        images, texts = _specs(image, self.images), _specs(text, self.texts)
        computed = parallel.memory_of(self._function('similarity'), images, (self._variables, texts))
        encoded = 2 * _num_bytes(images) + (1 + parallel.num_local_devices()) * _num_bytes(texts)
        regions = self._split.regions
        return computed + encoded + IMAGES_ENCODED_AT_A_TIME * 4 * regions.shape[1] * regions.shape[2]

    def _padded(self, lengths: np.ndarray) -> int:
        return bucket(lengths.max(), LENGTH_MULTIPLE, self._model.text_format.max_length)

    def _read_images(self, index: np.ndarray) -> Images:
        return take_images(self._split, index)

    def _apply(self, method: str, rows: chex.ArrayTree, *others: chex.ArrayTree) -> chex.ArrayTree:
        return self._function(method)(parallel.put_batch(rows), (self._variables, *others))

    def encode_images(self, index: np.ndarray) -> Encoding:
        """Encodes some images: leaves [len(index), ...], in the layout of `parallel.map_rows`."""
        size = min(len(index), max(IMAGES_ENCODED_AT_A_TIME, parallel.num_local_devices()))
        parts = []
        for piece, count in _cut(index, size):
            encoded = parallel.take_rows(self._apply('encode_image', self._read_images(piece)))
            parts.append(jax.tree.map(lambda x, count=count: x[:count], encoded))
        return parallel.put_batch(jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts))

    def encode_texts(self, index: np.ndarray) -> Encoding:
        """Encodes some texts: leaves [len(index), ...], as long as the longest of them."""
        length = self._padded(self._tokens.lengths[index])
        padded, count = next(_cut(index, -(-len(index) // parallel.num_local_devices()) * parallel.num_local_devices()))
        encoded = parallel.take_rows(self._apply('encode_text', pad_texts(self._tokens, padded, length)))
        return jax.tree.map(lambda x: x[:count], encoded)

    def job(self) -> dict[str, Any]:
        """What tells this job from another: data, parameters and shapes."""
        digest = hashlib.sha256()
        for leaf in jax.tree.leaves(jax.device_get(self._variables)):
            digest.update(np.ascontiguousarray(leaf))
        texts = hashlib.sha256(self._tokens.ids.tobytes() + self._tokens.starts.tobytes())
        return {
            'model': repr(self._model),
            'variables': digest.hexdigest(),
            'images': self._split.identity,
            'texts': texts.hexdigest(),
            'block': [self.images, self.texts],
            'dtype': self._dtype,
        }

    def score(
        self, finished: FinishedBlocks | None = None, report: Callable[[Progress], None] | None = None
    ) -> np.ndarray:
        """Scores every pair.

        Args:
          finished: where blocks are kept and found; None to keep them in memory alone.
          report: is told after each block.

        Returns:
          float32 [I, T]; the matrix of `finished`, if given.
        """
        total = self._split.num_images * self._split.num_texts
        sims = np.empty((self._split.num_images, self._split.num_texts), np.float32) if finished is None else None
        began, scored, found = time.perf_counter(), 0, 0
        for rows, num_rows in _cut(np.arange(self._split.num_images), self.images):
            images = None
            for columns, num_columns in _cut(self._by_length, self.texts):
                where = rows[:num_rows], columns[:num_columns]
                if finished is not None and finished.has(*where):
                    found += num_rows * num_columns
                    continue
                if images is None:
                    images = self.encode_images(rows)
                texts = self.encode_texts(columns)
                block = self._function('similarity')(images, (self._variables, texts))
                block = parallel.take_rows(block)[:num_rows, :num_columns]
                if finished is None:
                    sims[np.ix_(*where)] = block
                else:
                    finished.write(*where, block)
                scored += block.size
                if report is not None:
                    rate = scored / (time.perf_counter() - began)
                    report(Progress(found + scored, total, rate, (total - found - scored) / rate))
        return sims if finished is None else finished.sims


def similarity_matrix(
    model: Matcher, variables: chex.ArrayTree, split: Split, tokens: Tokens, *, memory_mb: int, dtype: str
) -> np.ndarray:
    """Scores every image of a split with every text: float32 [I, T]; see `Scorer`."""
    return Scorer(model, variables, split, tokens, memory_mb=memory_mb, dtype=dtype).score()
