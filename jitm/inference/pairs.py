"""Images of a split read together with given captions, pair by pair, in blocks of fixed shape."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jitm.data.splits import Split, pad_texts
from jitm.data.text.word_level import Tokens
from jitm.devices import parallel
from jitm.inference.engine import batches, first, pad
from jitm.inference.scoring import DEFAULT_OPTIONS, ScoringOptions, make_scorer
from jitm.models import tiling
from jitm.models.matcher import Encoding, Matcher
from jitm.runs.progress import Progress, ignore
from jitm.runs.run import Run
from jitm.types import Texts

WORD_HEADS = ('discriminate', 'correct')


class WordPredictions(NamedTuple):
    """Predictions for the words of N captions.

    Attributes:
      match_prob: The probability that the word at each token position matches the image, float32 [N, L].
      corrections: The most probable correct word at each token position, int32 [N, L].
    """

    match_prob: np.ndarray
    corrections: np.ndarray


class PaddedPairs(NamedTuple):
    """N pairs of an image and a caption.

    Attributes:
      rows: Row of each image among the encoded images of a block, int32 [N].
      texts: The captions.
      arguments: Further arguments of an output, leaves [N, ...].
    """

    rows: chex.Array
    texts: Texts
    arguments: tuple[chex.Array, ...]


SCORES = 'similarity_pairwise'
Output = str | Callable[..., chex.ArrayTree]  # (model, images [N], texts [N], *arguments [N]) -> leaves [N, ...]


def _predict_words(model: Matcher, images: Encoding, texts: Encoding) -> WordPredictions:
    logits = model.read_pairs(images, texts, WORD_HEADS)
    return WordPredictions(nn.softmax(logits['discriminate'])[..., 1], jnp.argmax(logits['correct'], axis=-1))


def _log_likelihood(
    model: Matcher, images: Encoding, texts: Encoding, positions: chex.Array, words: chex.Array
) -> chex.Array:
    logits = model.read_pairs(images, texts, ('mlm',))['mlm']
    logits = jnp.take_along_axis(logits, positions[:, None, None], axis=1)[:, 0]
    return jnp.take_along_axis(nn.log_softmax(logits), words[:, None], axis=1)[:, 0]


def _read_pairs(
    model: Matcher,
    output: Output,
    vocab_size: int,
    pairs: PaddedPairs,
    variables: chex.ArrayTree,
    images: Encoding,
) -> chex.ArrayTree:
    """Computes an output of pairs of encoded images and texts, in tiles: leaves [N, ...]."""
    encoded = model.apply(variables, pairs.texts, method='encode_text')
    size = len(pairs.rows)
    if output != SCORES:  # similarity_pairwise makes its own tiles
        floats = max(model.floats_per_pair(images, encoded), pairs.texts.ids.shape[1] * vocab_size)
        size = tiling.pairs_at_once(floats)

    def tile(items: tuple) -> chex.ArrayTree:
        row, *arrays = items
        of_rows = jax.tree.map(lambda x: x[row], images)
        return model.apply(variables, of_rows, *arrays, method=output)

    return tiling.map_tiles(tile, (pairs.rows, encoded, *pairs.arguments), size)


def word_mask(lengths: np.ndarray, padded_length: int) -> np.ndarray:
    """Returns the token positions of words, i.e. without the special tokens at both ends and padding.

    Args:
      lengths: The number of tokens of each caption, int [N].
      padded_length: The padded length L.

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
        report: Callable[[Progress], None] = ignore,
    ):
        """Prepares the scoring of a split's images.

        Args:
          run: A trained matcher.
          split: The images.
          options: Precision and memory.
          report: Called after each block.

        Raises:
          UserError: If the run cannot read these images, or the memory is too little.
        """
        self.run = run
        self._report = report
        self._scorer = make_scorer(run, split, options)

    def score(self, images: np.ndarray, tokens: Tokens) -> np.ndarray:
        """Scores image images[n] with caption n, with any model.

        Args:
          images: The image of each caption, int [N].
          tokens: N captions.

        Returns:
          float32 [N].
        """
        scores = np.empty(len(images), np.float32)
        for rows, block in self._read(SCORES, images, tokens):
            scores[rows] = block
        return scores

    def predict_words(self, images: np.ndarray, tokens: Tokens) -> WordPredictions:
        """Evaluates the heads `discriminate` and `correct` on image images[n] with caption n.

        Args:
          images: The image of each caption, int [N].
          tokens: N captions.

        Returns:
          Predictions [N, L], L being the length of the longest caption; 0 where padded.
        """
        shape = len(images), tokens.lengths.max()
        predictions = WordPredictions(np.zeros(shape, np.float32), np.zeros(shape, np.int32))
        for rows, block in self._read(_predict_words, images, tokens):
            for prediction, part in zip(predictions, block, strict=True):
                length = min(part.shape[1], shape[1])
                prediction[rows, :length] = part[:, :length]
        valid = np.arange(shape[1]) < tokens.lengths[:, None]
        return WordPredictions(*(np.where(valid, array, 0) for array in predictions))

    def log_likelihoods(self, images: np.ndarray, tokens: Tokens) -> np.ndarray:
        """Returns the log-likelihood of each word while it alone is masked, by the head `mlm`.

        Args:
          images: The image of each caption, int [N].
          tokens: N captions.

        Returns:
          float32 [N, L] in nats, L being the length of the longest caption; 0 at special tokens and padding.
        """
        likelihoods = np.zeros((len(images), tokens.lengths.max()), np.float32)
        texts, positions = np.nonzero(word_mask(tokens.lengths, likelihoods.shape[1]))
        if not len(texts):
            return likelihoods
        masked = tokens.take(texts)
        hidden = masked.starts[:-1] + positions
        targets = positions.astype(np.int32), masked.ids[hidden]
        masked.ids[hidden] = self.run.vocabulary.mask
        for rows, block in self._read(_log_likelihood, images[texts], masked, *targets):
            likelihoods[texts[rows], positions[rows]] = block
        return likelihoods

    def _read(
        self, output: Output, images: np.ndarray, tokens: Tokens, *arrays: np.ndarray
    ) -> Iterator[tuple[np.ndarray, chex.ArrayTree]]:
        """Yields the rows int [M] of some pairs of similar length, and the outputs for them, leaves [M, ...]."""
        engine = self._scorer.engine
        shape = self._scorer.shape
        compiled = engine.compiled(_read_pairs, output, len(self.run.vocabulary))
        start_time = time.perf_counter()
        done = 0
        # The images that occur are encoded block by block.
        for block_images in batches(np.unique(images), shape.images):
            encoded = parallel.put_everywhere(self._scorer.encode_images(pad(block_images, shape.images)))
            # Their pairs are read in the order of their lengths.
            pairs = np.flatnonzero(np.isin(images, block_images))
            pairs = pairs[np.argsort(tokens.lengths[pairs], kind='stable')]
            for rows in batches(pairs, shape.texts):
                index = pad(rows, shape.texts)
                image_rows = np.searchsorted(block_images, images[index]).astype(np.int32)
                texts = pad_texts(tokens, index, engine.padded_length(tokens.lengths[rows]))
                call = PaddedPairs(image_rows, texts, tuple(array[index] for array in arrays))
                result = jax.device_get(compiled(parallel.put_rows(call), engine.variables, encoded))
                yield rows, first(result, len(rows))
                done += len(rows)
                self._report(Progress.since(start_time, 0, done, len(images)))
