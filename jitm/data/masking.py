"""Masks the phrases of scene graphs, for a model to fill in and so write negative sentences (TAGS, paper 001)."""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence

import numpy as np

from jitm.data.scene_graphs import SentenceGraph
from jitm.data.text import Tokens, Vocabulary
from jitm.data.wordpiece import WordPiece
from jitm.errors import UserError
from jitm.types import Masked

_STREAM = 1  # sets these random numbers apart from those of `augmentation.example_generator`


def phrase_matrix(graph: SentenceGraph, offsets: np.ndarray) -> np.ndarray:
    """Finds the words or word pieces of each phrase of a scene graph: all that it overlaps.

    Args:
      graph: of a sentence.
      offsets: int [L, 2], where its pieces stand, as a vocabulary's `offsets` gives them.

    Returns:
      bool [P, L], its relations, attributes and objects, as far as they have pieces; if none has, every piece but both
      ends as a phrase of its own, as `word_matrix`.
    """
    spans = np.array([*graph.relations, *graph.attributes, *graph.objects], int).reshape(-1, 2)
    phrases = (offsets[:, 0] < spans[:, 1:]) & (offsets[:, 1] > spans[:, :1])
    phrases = phrases[phrases.any(axis=1)]
    return phrases if len(phrases) else word_matrix(len(offsets))


def word_matrix(length: int) -> np.ndarray:
    """Every id but both ends as a phrase of its own: bool [L - 2, L]."""
    return np.eye(length, dtype=bool)[1:-1]


def find_phrases(
    captions: Sequence[str], vocabulary: Vocabulary | WordPiece, graphs: Sequence[SentenceGraph] | None
) -> tuple[np.ndarray, ...]:
    """Makes the `phrase_matrix` of every sentence of a split; without graphs the `word_matrix` (the ablation WM)."""
    offsets = map(vocabulary.offsets, captions)
    if graphs is None:
        return tuple(word_matrix(len(places)) for places in offsets)
    return tuple(phrase_matrix(graph, places) for graph, places in zip(graphs, offsets, strict=True))


def caption_words(tokens: Tokens, image_of_text: np.ndarray) -> np.ndarray:
    """Collects the ids in all captions of each image of a split: int32 [I, W], padded with -1, which is no word.

    Args:
      tokens: of the captions, T of them.
      image_of_text: int [T], the image of each.
    """
    pairs = np.stack([np.repeat(image_of_text, tokens.lengths), tokens.ids], axis=1)
    images, ids = np.unique(pairs, axis=0).T
    counts = np.bincount(images)
    words = np.full((len(counts), counts.max()), -1, np.int32)
    words[np.arange(words.shape[1]) < counts[:, None]] = ids
    return words


def phrase_probabilities(phrases: np.ndarray, rate: float) -> np.ndarray:
    """With what probability each phrase is masked: the mean over its places of rate / phrases that have this place.

    Args:
      phrases: bool [P, L], none without a place.
      rate: 0.15 as published.

    Returns:
      float64 [P].
    """
    shared = rate / np.maximum(phrases.sum(axis=0), 1)
    return (phrases * shared).sum(axis=1) / phrases.sum(axis=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masking:
    """How sentences are masked.

    Attributes:
      num_views: K, variants of each sentence; 20 as published.
      rate: of a phrase that shares no place with others; if no phrase is drawn, one is masked all the same.
      mask_prob: probability that a place of a masked phrase shows the mask; 0.8 as released, 1 in the paper.
      replace: probability that it shows a random word; 0.1 as released. Else it shows what stood there.
    """

    num_views: int
    rate: float
    mask_prob: float
    random_prob: float

    def __post_init__(self):
        if self.num_views < 1:
            raise UserError(f"config key 'masking.num_views' is {self.num_views}; it must be at least 1")
        for key in ('rate', 'mask_prob', 'random_prob'):
            if not 0 <= getattr(self, key) <= 1:
                raise UserError(f"config key 'masking.{key}' is {getattr(self, key)}; it must be in [0, 1]")
        if self.mask_prob + self.random_prob > 1:
            raise UserError(
                f"config keys 'masking.mask_prob' and 'masking.random_prob' add up to {self.mask_prob + self.random_prob}; lower one, so "
                'that they are at most 1 together'
            )

    def mask(
        self, ids: np.ndarray, phrases: np.ndarray, vocabulary: Vocabulary | WordPiece, rng: np.random.Generator
    ) -> Masked:
        """Masks one sentence K times (algorithm 1, line 4, as released).

        Args:
          ids: int32 [L], padded.
          phrases: bool [P, L'] with L' the length without padding.
          vocabulary: whose mask is shown, and from whose words random ones are drawn; special ones are not among them.
          rng: of the example.

        Returns:
          ids and labels, [K, L]; no label only where there is no phrase.
        """
        drawn = rng.random((self.num_views, len(phrases))) < phrase_probabilities(phrases, self.rate)
        places = self.num_views, phrases.shape[1]
        fate = rng.random(places)
        words = rng.integers(vocabulary.first_word, len(vocabulary), size=places, dtype=np.int32)
        if len(phrases):
            one = rng.integers(len(phrases), size=self.num_views)
            drawn[np.arange(self.num_views), one] |= ~drawn.any(axis=1)
        masked, labelled = np.tile(ids, (self.num_views, 1)), np.zeros((self.num_views, len(ids)), bool)
        labelled[:, : phrases.shape[1]] = drawn @ phrases
        shown = np.select(
            [fate < self.mask_prob, fate < self.mask_prob + self.random_prob],
            [vocabulary.mask, words],
            ids[: places[1]],
        )
        masked[labelled] = shown[labelled[:, : places[1]]]
        return Masked(masked, labelled)

    def mask_batch(
        self,
        ids: np.ndarray,
        phrases: Sequence[np.ndarray],
        vocabulary: Vocabulary | WordPiece,
        *,
        seed: int,
        step: int,
        texts: np.ndarray,
    ) -> Masked:
        """Masks the sentences of a batch, each as a function of the seed, the step and its number alone.

        Args:
          ids: int32 [B, L], padded.
          phrases: of these B sentences, from `find_phrases`.
          vocabulary: of the ids.
          seed: of the run.
          step: of the batch.
          texts: int [B], the number of each sentence in its split.

        Returns:
          ids and labels, [B, K, L].
        """
        masked = [
            self.mask(
                row,
                matrix,
                vocabulary,
                np.random.default_rng(np.random.SeedSequence([seed, step, t], spawn_key=(_STREAM,))),
            )
            for row, matrix, t in zip(ids, phrases, texts.tolist(), strict=True)
        ]
        return Masked(*map(np.stack, zip(*masked, strict=True)))


@dataclasses.dataclass(frozen=True)
class MaskedWords:
    """What a pipeline needs to mask the sentences of a split.

    Attributes:
      masking: how.
      phrases: of every sentence, from `find_phrases`.
      words: int32 [I, W], see `caption_words`.
    """

    masking: Masking
    phrases: tuple[np.ndarray, ...]
    words: np.ndarray

    @functools.cached_property
    def hash(self) -> str:
        """Of the phrases."""
        digest = hashlib.sha256()
        for matrix in self.phrases:
            digest.update(np.int64(matrix.shape))
            digest.update(np.ascontiguousarray(matrix))
        return digest.hexdigest()
