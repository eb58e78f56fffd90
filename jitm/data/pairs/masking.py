"""Masking of the phrases of scene graphs, which a model refills with synthetic negatives (TAGS; Fan et al., 2022)."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from jitm.data.pipeline import generator
from jitm.data.scene_graphs import CaptionGraph
from jitm.data.text.word_level import Tokens, Vocabulary
from jitm.data.text.wordpiece import WordPiece
from jitm.errors import ArgumentError
from jitm.types import Index, Masked, Probability

MASKING = 1  # the stream of these random numbers


def phrase_matrix(graph: CaptionGraph, offsets: np.ndarray) -> np.ndarray:
    """Returns the words or word pieces that each phrase of a scene graph overlaps.

    Args:
      graph: The scene graph of a caption.
      offsets: int [L, 2], the characters of each word or piece, see `Vocabulary.offsets`.

    Returns:
      bool [P, L], a row for each relation, attribute and object that overlaps a piece; `word_matrix` if there is none.
    """
    spans = np.array([*graph.relations, *graph.attributes, *graph.objects], int).reshape(-1, 2)
    phrases = (offsets[:, 0] < spans[:, 1:]) & (offsets[:, 1] > spans[:, :1])
    phrases = phrases[phrases.any(axis=1)]
    return phrases if len(phrases) else word_matrix(len(offsets))


def word_matrix(length: int) -> np.ndarray:
    """Returns a phrase for each word or word piece, without the special tokens: bool [L - 2, L]."""
    return np.eye(length, dtype=bool)[1:-1]


def find_phrases(
    captions: Sequence[str], vocabulary: Vocabulary | WordPiece, graphs: Sequence[CaptionGraph] | None
) -> tuple[np.ndarray, ...]:
    """Returns the `phrase_matrix` of every caption of a split; without graphs the `word_matrix` (the ablation WM)."""
    offsets = map(vocabulary.offsets, captions)
    if graphs is None:
        return tuple(word_matrix(len(spans)) for spans in offsets)
    return tuple(phrase_matrix(graph, spans) for graph, spans in zip(graphs, offsets, strict=True))


def caption_words(tokens: Tokens, image_of_text: np.ndarray) -> np.ndarray:
    """Returns the ids in all captions of each image of a split: int32 [I, W], padded with -1.

    Args:
      tokens: The token ids of the T captions.
      image_of_text: int [T], the image of each caption.
    """
    pairs = np.stack([np.repeat(image_of_text, tokens.lengths), tokens.ids], axis=1)
    images, ids = np.unique(pairs, axis=0).T
    counts = np.bincount(images)
    words = np.full((len(counts), counts.max()), -1, np.int32)
    words[np.arange(words.shape[1]) < counts[:, None]] = ids
    return words


def phrase_probabilities(phrases: np.ndarray, rate: float) -> np.ndarray:
    """Returns the probability of masking each phrase: the mean over its positions of rate / number of their phrases.

    Args:
      phrases: bool [P, L], each with at least one position.
      rate: The probability of masking a phrase that shares no position with others; 0.15 as published.

    Returns:
      float64 [P].
    """
    shared = rate / np.maximum(phrases.sum(axis=0), 1)
    return (phrases * shared).sum(axis=1) / phrases.sum(axis=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Masking:
    """Masks captions at random.

    Attributes:
      num_views: K, masked variants of each caption; 20 as published.
      rate: The probability of masking a phrase that shares no position with others; at least one phrase is always
        masked.
      mask_prob: The probability that a position of a masked phrase shows the mask; 0.8 in the code, 1 in the paper.
      random_prob: The probability that it shows a random word; 0.1 in the code. Otherwise it shows the original word.

    Raises:
      ArgumentError: If mask_prob and random_prob add up to more than 1.
    """

    num_views: Index
    rate: Probability
    mask_prob: Probability
    random_prob: Probability

    def __post_init__(self):
        total = self.mask_prob + self.random_prob
        if total > 1:
            raise ArgumentError(
                'mask_prob', f'and random_prob add up to {total}; lower one of them, to a sum of at most 1'
            )

    def mask(
        self, ids: np.ndarray, phrases: np.ndarray, vocabulary: Vocabulary | WordPiece, rng: np.random.Generator
    ) -> Masked:
        """Masks one caption K times (algorithm 1, line 4, as in the released code).

        Args:
          ids: int32 [L], padded.
          phrases: bool [P, L'], L' being the length without padding.
          vocabulary: The vocabulary of the ids; its special tokens are not sampled as random words.
          rng: The generator of the example.

        Returns:
          ids and labels, [K, L]; without phrases there are no labels.
        """
        chosen = rng.random((self.num_views, len(phrases))) < phrase_probabilities(phrases, self.rate)
        shape = self.num_views, phrases.shape[1]
        action = rng.random(shape)
        words = rng.integers(vocabulary.first_word, len(vocabulary), size=shape, dtype=np.int32)
        if len(phrases):
            fallback = rng.integers(len(phrases), size=self.num_views)
            chosen[np.arange(self.num_views), fallback] |= ~chosen.any(axis=1)
        masked = np.tile(ids, (self.num_views, 1))
        labelled = np.zeros((self.num_views, len(ids)), bool)
        labelled[:, : phrases.shape[1]] = chosen @ phrases
        shown = np.select(
            [action < self.mask_prob, action < self.mask_prob + self.random_prob],
            [vocabulary.mask, words],
            ids[: shape[1]],
        )
        masked[labelled] = shown[labelled[:, : shape[1]]]
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
        """Masks the captions of a batch, each as a function of the seed, the step and its row alone.

        Args:
          ids: int32 [B, L], padded.
          phrases: The phrases of these B captions, from `find_phrases`.
          vocabulary: The vocabulary of the ids.
          seed: The seed of the run.
          step: The step of the batch.
          texts: int [B], row of each caption in its split.

        Returns:
          ids and labels, [B, K, L].
        """
        masked = []
        for row, matrix, text in zip(ids, phrases, texts.tolist(), strict=True):
            rng = generator(seed, step, text, stream=MASKING)
            masked.append(self.mask(row, matrix, vocabulary, rng))
        return Masked(*map(np.stack, zip(*masked, strict=True)))
