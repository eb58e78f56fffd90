"""Candidates from the global batch: each image ranks its captions, each caption its images."""

from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp
from chex import Array

from jitm.devices import collectives
from jitm.errors import ArgumentError
from jitm.layers.lengths import with_lengths_of
from jitm.models.matcher import Encoding, Matcher
from jitm.training.source import Context, Rankings, Source, learned_inputs
from jitm.types import Batch, Count, Ranking

Rows = tuple[Array, Array]  # the pair and the image of each query or candidate, int [N]

SAME_IMAGE = ('negative', 'positive', 'ignored')


def in_batch(same_image: Literal[*SAME_IMAGE], num_negatives: Count | None = None, *, context: Context) -> Source:
    """Ranks the captions of the global batch for each image and its images for each caption, [E B, E B].

    The E augmented views of a pair match each other.

    Args:
      same_image: The role of another pair of the same image: 'negative', as published; 'positive', as in CMPM;
        or 'ignored'.
      num_negatives: The maximum number of pairs of the batch that are negatives of a query (Faghri et al., 2018,
        section 3.6): the next ones in the random order of the batch, cyclically. None for all.
      context: The rest of the plan.
    """
    if num_negatives is not None and num_negatives >= context.batch_size:
        available = context.batch_size - 1
        problem = f'a batch of {context.batch_size} has {available} other pairs: lower it, or set it to None for all'
        raise ArgumentError('num_negatives', f'is {num_negatives}, but {problem}')

    def score(matcher, images, texts, batch, seen, train):
        del seen
        all_texts = collectives.all_gather(texts)
        return rank_batch(matcher, images, all_texts, batch, train, same_image, num_negatives), {}

    return Source(score)


def rank_batch(
    matcher: Matcher,
    images: Encoding,
    all_texts: Encoding,
    batch: Batch,
    train: bool,
    same_image: str,
    num_negatives: int | None = None,
    is_further_negative: Array | None = None,
) -> Rankings:
    """Scores this device's images with all texts, where the texts of the global batch come first.

    Args:
      matcher: The bound model.
      images: The encoded images of this device.
      all_texts: The encoded texts of the global batch, and any others.
      batch: The part of the batch on this device.
      train: Whether to score in training mode; else scores are mapped by `Matcher.training_scores`.
      same_image, num_negatives: See `in_batch`.
      is_further_negative: bool [E B], which of the further texts of this device, one for each query, are negatives of
        every image; None without further texts.

    Returns:
      The rankings of both directions; the other texts are candidates of images only.
    """
    if is_further_negative is None:  # further texts have other lengths
        all_texts = with_lengths_of(batch.texts, all_texts)
    scores_of_device = on_training_scale(matcher.similarity, matcher, images, all_texts, train)
    scores, image_index = collectives.gather_results((scores_of_device, batch.image_index))
    views = len(scores) // len(image_index)
    pairs = jnp.repeat(jnp.arange(len(image_index)), views), jnp.repeat(image_index, views)
    positives, negatives = masks(pairs, pairs, same_image)
    if num_negatives is not None:
        position = jnp.arange(len(image_index))
        offset = (position - position[:, None]) % len(position)  # the first pair follows the last
        is_next = (offset >= 1) & (offset <= num_negatives)
        negatives &= is_next.repeat(views, axis=0).repeat(views, axis=1)
    learned = learned_inputs(matcher)
    i2t = Ranking(scores, positives, negatives, learned)
    t2i = Ranking(scores[:, : len(scores)].T, positives, negatives, learned)  # without the further texts
    if is_further_negative is not None:
        is_candidate = jnp.broadcast_to(collectives.all_gather(is_further_negative), positives.shape)
        i2t = i2t.replace(
            positives=jnp.concatenate([positives, jnp.zeros_like(is_candidate)], axis=1),
            negatives=jnp.concatenate([negatives, is_candidate], axis=1),
        )
    return {'i2t': i2t, 't2i': t2i}


def on_training_scale(
    score: Callable[..., Array], matcher: Matcher, images: Encoding, texts: Encoding, train: bool
) -> Array:
    """Scores pairs with a method of a matcher; scores in evaluation mode are mapped to the scale of training."""
    scores = score(images, texts, train)
    return scores if train else matcher.training_scores(scores)


def masks(queries: Rows, candidates: Rows, same_image: str) -> tuple[Array, Array]:
    """Returns the positives and the negatives of `in_batch`, bool [Q, C].

    Args:
      queries, candidates: The Q queries and the C candidates.
      same_image: See `in_batch`.
    """
    pair, image = queries
    equal_pair = pair[:, None] == candidates[0]
    equal_image = image[:, None] == candidates[1]
    positives = equal_image if same_image == 'positive' else equal_pair
    negatives = ~equal_pair if same_image == 'negative' else ~equal_image
    return positives, negatives
