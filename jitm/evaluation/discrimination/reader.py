"""Images of a split read together with any sentences, pair by pair, in blocks of fixed shape."""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jitm import parallel
from jitm.data.pipeline import bucket, pad_texts
from jitm.data.splits import Split
from jitm.data.text import Tokens, join
from jitm.errors import UserError
from jitm.evaluation.protocol import make_scorer
from jitm.evaluation.scoring import LENGTH_MULTIPLE
from jitm.models import tiling
from jitm.models.matcher import Encoding, Matcher
from jitm.runs.progress import Progress
from jitm.runs.run import Run
from jitm.types import Images, Texts

WORD_HEADS = ('discriminate', 'correct')


class Judged(NamedTuple):
    """What is said of the words of N sentences.

    Attributes:
      fits: float32 [N, L], the probability that the word at each place fits the image.
      corrections: int32 [N, L], the word that should stand there.
    """

    fits: np.ndarray
    corrections: np.ndarray


def _score(model: Matcher, images: Encoding, texts: Encoding) -> chex.Array:
    return model.similarity_pairwise(images, texts)


def _judge(model: Matcher, images: Encoding, texts: Encoding) -> Judged:
    logits = model.read_pairs(images, texts, WORD_HEADS)
    return Judged(nn.softmax(logits['discriminate'])[..., 1], jnp.argmax(logits['correct'], axis=-1))


def _log_likelihood(
    model: Matcher, images: Encoding, texts: Encoding, places: chex.Array, words: chex.Array
) -> chex.Array:
    logits = model.read_pairs(images, texts, ('mlm',))['mlm']
    logits = jnp.take_along_axis(logits, places[:, None, None], axis=1)[:, 0]
    return jnp.take_along_axis(nn.log_softmax(logits), words[:, None], axis=1)[:, 0]


@functools.lru_cache(maxsize=64)
def _compiled(model: Matcher, say: Callable, vocab_size: int) -> Callable:
    """`((image of each pair [N], Texts, *others), (variables, images)) -> leaves [N, ...]`, a tile at a time."""

    def read(pairs: tuple, shared: tuple[chex.ArrayTree, Encoding]) -> chex.ArrayTree:
        (rows, texts, *others), (variables, images) = pairs, shared
        encoded = model.apply(variables, texts, method='encode_text')
        size = len(rows)
        if say is not _score:  # which has tiles of its own
            floats = max(model.floats_per_pair(images, encoded), texts.ids.shape[1] * vocab_size)
            size = tiling.tile_edge(floats) ** 2

        def tile(pairs: tuple) -> chex.ArrayTree:
            row, *rest = pairs
            return model.apply(variables, jax.tree.map(lambda x: x[row], images), *rest, method=say)

        return tiling.map_tiles(tile, (rows, encoded, *others), size)

    return parallel.map_rows(read)


def smallest_pair(run: Run) -> tuple[Images, Texts]:
    """An image and a text of the shapes that a run reads, to ask with what it can do."""
    images = Images(
        np.zeros((1, 1, run.feature_size), np.float32), np.ones(1, np.int32), locations=np.zeros((1, 1, 7), np.float32)
    )
    return images, Texts(np.zeros((1, 2), np.int32), np.full(1, 2, np.int32))


def has_heads(run: Run, heads: Sequence[str]) -> bool:
    """Whether a run's model reads pairs and has all these heads; computes nothing."""

    def read(variables, images, texts):
        def apply(model):
            return model.read_pairs(model.encode_image(images), model.encode_text(texts), heads)

        return run.model.apply(variables, method=apply)

    try:
        jax.eval_shape(read, run.variables, *smallest_pair(run))
    except UserError:
        return False
    return True


def inner_places(lengths: np.ndarray, length: int) -> np.ndarray:
    """The places of N sentences between both ends, padded to some length L: bool [N, L]."""
    places = np.arange(length)
    return (places > 0) & (places < lengths[:, None] - 1)


def _first(count: int, x: np.ndarray) -> np.ndarray:
    return x[:count]


class PairReader:
    """Reads images of one split together with sentences, with one run."""

    def __init__(
        self,
        run: Run,
        split: Split,
        *,
        dtype: str | None = None,
        memory_mb: int | None = None,
        report: Callable[[Progress], None] | None = None,
    ):
        """Makes ready.

        Args:
          run: a trained matcher.
          split: the images.
          dtype: of the encodings, if not that of the run's validation.
          memory_mb: see `Scorer`, if not that of the run's config.
          report: is told after each block.

        Raises:
          UserError: if these are no images that the run can read, or the memory is too little.
        """
        self.run = run
        self._scorer = make_scorer(run, split, dtype=dtype, memory_mb=memory_mb)
        self._variables = parallel.put_everywhere(run.variables)
        self._report = report

    def score(self, images: np.ndarray, tokens: Tokens) -> np.ndarray:
        """Scores image images[n] with text n, by any model: float32 [N]."""
        scores = np.empty(len(images), np.float32)
        for rows, block in self._read(_score, images, tokens):
            scores[rows] = block
        return scores

    def judge(self, images: np.ndarray, tokens: Tokens) -> Judged:
        """Judges the words of text n with image images[n], by the heads `discriminate` and `correct`.

        Returns:
          Of each place [N, L], L being the longest text's; 0 where padded.
        """
        shape = len(images), tokens.lengths.max()
        judged = Judged(np.zeros(shape, np.float32), np.zeros(shape, np.int32))
        for rows, block in self._read(_judge, images, tokens):
            for whole, part in zip(judged, block, strict=True):
                length = min(part.shape[1], shape[1])
                whole[rows, :length] = part[:, :length]
        within = np.arange(shape[1]) < tokens.lengths[:, None]
        return Judged(*(np.where(within, part, 0) for part in judged))

    def log_likelihoods(self, images: np.ndarray, tokens: Tokens) -> np.ndarray:
        """The log-likelihood of each word while it alone is masked, by the head `mlm`.

        Args:
          images: int [N], the image of each text.
          tokens: N texts.

        Returns:
          float32 [N, L] in nats, L being the longest text's; 0 at both ends and where padded.
        """
        found = np.zeros((len(images), tokens.lengths.max()), np.float32)
        texts, places = np.nonzero(inner_places(tokens.lengths, found.shape[1]))
        if not len(texts):
            return found
        masked = [tokens.ids[tokens.starts[n] : tokens.starts[n + 1]].copy() for n in texts]
        words = np.array([ids[place] for ids, place in zip(masked, places, strict=True)])
        for ids, place in zip(masked, places, strict=True):
            ids[place] = self.run.vocabulary.mask
        for rows, block in self._read(_log_likelihood, images[texts], join(masked), places.astype(np.int32), words):
            found[texts[rows], places[rows]] = block
        return found

    def _read(
        self, say: Callable, images: np.ndarray, tokens: Tokens, *others: np.ndarray
    ) -> Iterator[tuple[np.ndarray, chex.ArrayTree]]:
        """Yields some of the pairs, of about one length, and what is said of them: leaves [their number, ...]."""
        scorer, most = self._scorer, self.run.model.text_format.max_length
        compiled = _compiled(self.run.model, say, len(self.run.vocabulary))
        began, done, used = time.perf_counter(), 0, np.unique(images)
        for start in range(0, len(used), scorer.images):
            some = used[start : start + scorer.images]
            encoded = parallel.put_everywhere(scorer.encode_images(np.resize(some, scorer.images)))
            pairs = np.flatnonzero(np.isin(images, some))
            pairs = pairs[np.argsort(tokens.lengths[pairs], kind='stable')]
            for first in range(0, len(pairs), scorer.texts):
                rows = pairs[first : first + scorer.texts]
                filled = np.resize(rows, scorer.texts)
                texts = pad_texts(tokens, filled, bucket(tokens.lengths[rows].max(), LENGTH_MULTIPLE, most))
                places = np.searchsorted(some, images[filled]).astype(np.int32)
                block = parallel.put_rows((places, texts, *(other[filled] for other in others)))
                said = jax.device_get(compiled(block, (self._variables, encoded)))
                yield rows, jax.tree.map(functools.partial(_first, len(rows)), said)
                done += len(rows)
                if self._report is not None:
                    self._report(Progress.since(began, 0, done, len(images)))
