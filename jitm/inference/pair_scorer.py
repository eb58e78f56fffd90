"""Images of a split read together with given captions, pair by pair, in blocks of fixed shape."""

import functools
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jitm import parallel
from jitm.data.pipeline import LENGTH_MULTIPLE, bucket, pad_texts
from jitm.data.splits import Split
from jitm.data.text import Tokens, join
from jitm.inference.scoring import DEFAULT_OPTIONS, ScoringOptions, make_scorer
from jitm.models import tiling
from jitm.models.matcher import Encoding, Matcher
from jitm.runs.progress import Progress
from jitm.runs.run import Run

WORD_HEADS = ('discriminate', 'correct')


class WordPredictions(NamedTuple):
    """Predictions for the words of N captions.

    Attributes:
      match_prob: float32 [N, L], the probability that the word at each token position matches the image.
      corrections: int32 [N, L], the most probable correct word at each token position.
    """

    match_prob: np.ndarray
    corrections: np.ndarray


def _score(model: Matcher, images: Encoding, texts: Encoding) -> chex.Array:
    return model.similarity_pairwise(images, texts)


def _predict_words(model: Matcher, images: Encoding, texts: Encoding) -> WordPredictions:
    logits = model.read_pairs(images, texts, WORD_HEADS)
    return WordPredictions(nn.softmax(logits['discriminate'])[..., 1], jnp.argmax(logits['correct'], axis=-1))


def _log_likelihood(
    model: Matcher, images: Encoding, texts: Encoding, positions: chex.Array, words: chex.Array
) -> chex.Array:
    logits = model.read_pairs(images, texts, ('mlm',))['mlm']
    logits = jnp.take_along_axis(logits, positions[:, None, None], axis=1)[:, 0]
    return jnp.take_along_axis(nn.log_softmax(logits), words[:, None], axis=1)[:, 0]


@functools.lru_cache(maxsize=64)
def _compiled(model: Matcher, output: Callable, vocab_size: int) -> Callable:
    """Returns `((image row of each pair [N], Texts, *others), (variables, images)) -> leaves [N, ...]`, in tiles."""

    def read(pairs: tuple, shared: tuple[chex.ArrayTree, Encoding]) -> chex.ArrayTree:
        (rows, texts, *others), (variables, images) = pairs, shared
        encoded = model.apply(variables, texts, method='encode_text')
        size = len(rows)
        if output is not _score:  # similarity_pairwise makes its own tiles
            floats = max(model.floats_per_pair(images, encoded), texts.ids.shape[1] * vocab_size)
            size = tiling.tile_edge(floats) ** 2

        def tile(pairs: tuple) -> chex.ArrayTree:
            row, *rest = pairs
            return model.apply(variables, jax.tree.map(lambda x: x[row], images), *rest, method=output)

        return tiling.map_tiles(tile, (rows, encoded, *others), size)

    return parallel.map_rows(read)


def word_mask(lengths: np.ndarray, padded_length: int) -> np.ndarray:
    """Returns the token positions of words, i.e. without the special tokens at both ends and padding.

    Args:
      lengths: int [N], tokens of each caption.
      padded_length: L.

    Returns:
      bool [N, L].
    """
    positions = np.arange(padded_length)
    return (positions > 0) & (positions < lengths[:, None] - 1)


class PairScorer:
    """Scores pairs of an image of one split and a caption, and predicts their words, with one run."""

    def __init__(
        self,
        run: Run,
        split: Split,
        options: ScoringOptions = DEFAULT_OPTIONS,
        report: Callable[[Progress], None] | None = None,
    ):
        """Prepares the scoring of a split's images.

        Args:
          run: a trained matcher.
          split: the images.
          options: precision and memory.
          report: is called after each block.

        Raises:
          UserError: if the run cannot read these images, or the memory is too little.
        """
        self.run = run
        self._scorer = make_scorer(run, split, options)
        self._variables = parallel.put_everywhere(run.variables)
        self._report = report

    def score(self, images: np.ndarray, tokens: Tokens) -> np.ndarray:
        """Scores image images[n] with caption n, with any model.

        Args:
          images: int [N], the image of each caption.
          tokens: N captions.

        Returns:
          float32 [N].
        """
        scores = np.empty(len(images), np.float32)
        for rows, block in self._read(_score, images, tokens):
            scores[rows] = block
        return scores

    def predict_words(self, images: np.ndarray, tokens: Tokens) -> WordPredictions:
        """Evaluates the heads `discriminate` and `correct` on image images[n] with caption n.

        Args:
          images: int [N], the image of each caption.
          tokens: N captions.

        Returns:
          Predictions [N, L], L being the length of the longest caption; 0 where padded.
        """
        shape = len(images), tokens.lengths.max()
        predictions = WordPredictions(np.zeros(shape, np.float32), np.zeros(shape, np.int32))
        for rows, block in self._read(_predict_words, images, tokens):
            for whole, part in zip(predictions, block, strict=True):
                length = min(part.shape[1], shape[1])
                whole[rows, :length] = part[:, :length]
        valid = np.arange(shape[1]) < tokens.lengths[:, None]
        return WordPredictions(*(np.where(valid, array, 0) for array in predictions))

    def log_likelihoods(self, images: np.ndarray, tokens: Tokens) -> np.ndarray:
        """Returns the log-likelihood of each word while it alone is masked, by the head `mlm`.

        Args:
          images: int [N], the image of each caption.
          tokens: N captions.

        Returns:
          float32 [N, L] in nats, L being the length of the longest caption; 0 at special tokens and padding.
        """
        likelihoods = np.zeros((len(images), tokens.lengths.max()), np.float32)
        texts, positions = np.nonzero(word_mask(tokens.lengths, likelihoods.shape[1]))
        if not len(texts):
            return likelihoods
        masked = [tokens.ids[tokens.starts[n] : tokens.starts[n + 1]].copy() for n in texts]
        words = np.array([ids[position] for ids, position in zip(masked, positions, strict=True)])
        for ids, position in zip(masked, positions, strict=True):
            ids[position] = self.run.vocabulary.mask
        others = positions.astype(np.int32), words
        for rows, block in self._read(_log_likelihood, images[texts], join(masked), *others):
            likelihoods[texts[rows], positions[rows]] = block
        return likelihoods

    def _read(
        self, output: Callable, images: np.ndarray, tokens: Tokens, *others: np.ndarray
    ) -> Iterator[tuple[np.ndarray, chex.ArrayTree]]:
        """Yields the rows int [M] of some pairs of similar length, and the outputs for them, leaves [M, ...]."""
        scorer, max_length = self._scorer, self.run.model.text_format.max_length
        size = scorer.texts_per_block
        compiled = _compiled(self.run.model, output, len(self.run.vocabulary))
        start_time, done, used = time.perf_counter(), 0, np.unique(images)
        for start in range(0, len(used), scorer.images_per_block):
            block_images = used[start : start + scorer.images_per_block]
            encoded = scorer.encode_images(np.resize(block_images, scorer.images_per_block))
            encoded = parallel.put_everywhere(encoded)
            pairs = np.flatnonzero(np.isin(images, block_images))
            pairs = pairs[np.argsort(tokens.lengths[pairs], kind='stable')]
            for first in range(0, len(pairs), size):
                rows = pairs[first : first + size]
                padded = np.resize(rows, size)
                texts = pad_texts(tokens, padded, bucket(tokens.lengths[rows].max(), LENGTH_MULTIPLE, max_length))
                image_rows = np.searchsorted(block_images, images[padded]).astype(np.int32)
                block = parallel.put_rows((image_rows, texts, *(other[padded] for other in others)))
                result = jax.device_get(compiled(block, (self._variables, encoded)))
                yield rows, jax.tree.map(functools.partial(_first_rows, len(rows)), result)
                done += len(rows)
                if self._report is not None:
                    self._report(Progress.since(start_time, 0, done, len(images)))


def _first_rows(count: int, array: np.ndarray) -> np.ndarray:
    return array[:count]
