"""What a step of TAGS-DC learns from masked and from written sentences (paper 001, algorithm 1)."""

from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp

from jitm.models.matcher import Encoding, Matcher
from jitm.synthesis.generator import Synthetic, largest_array, map_images, read_sentences
from jitm.training.candidates import ShortlistScores
from jitm.training.objective import Term
from jitm.types import Batch, TokenPredictions

GENERATED = 'generated'  # the ranking of an image's own sentence against those written for it
MASKED = 'masked_language_modeling'
HEADS = {'word_discrimination': 'discriminate', 'word_correction': 'correct'}  # of terms of generated sentences


def score_synthetic(
    matcher: Matcher, images: Encoding, batch: Batch, synthetic: Synthetic, terms: Mapping[str, Term]
) -> tuple[ShortlistScores, dict[str, chex.Array]]:
    """Scores each image with its own and with its wrong sentences, in training, and reads the words of the wrong ones.

    Args:
      matcher: in training.
      images: of the batch, encoded.
      batch: this device's rows.
      synthetic: wrong sentences of these images.
      terms: token terms of wrong sentences.

    Returns:
      The scores, and the loss [B] of each term.
    """
    model, variables = matcher.unbind()
    heads = [HEADS[term.predictions] for term in terms.values()]

    def one(key, image, ids, length, synthetic):
        sentences = jnp.concatenate([ids[None], synthetic.ids])
        said = read_sentences(model, variables, image, sentences, length, ('rank', *heads), key)
        real = synthetic.there[:, None] & (jnp.arange(len(ids)) < length)
        wanted = {
            'word_discrimination': ((synthetic.ids == ids).astype(jnp.int32), real),
            'word_correction': (jnp.broadcast_to(ids, real.shape), real & synthetic.labelled),
        }
        predictions = {name: _one_text(said[HEADS[name]][1:], *wanted[name]) for name in HEADS if HEADS[name] in said}
        return said['rank'], {name: term.per_text(predictions)[0] for name, term in terms.items()}

    rows = _keys(matcher, batch), images, batch.texts.ids, batch.texts.lengths, synthetic
    _, wrong, length = synthetic.ids.shape
    floats = largest_array(model, images, 1 + wrong, length, words='correct' in heads)
    scores, losses = map_images(one, rows, floats)
    return ShortlistScores(scores, synthetic.there), losses


def masked_losses(matcher: Matcher, images: Encoding, batch: Batch, terms: Mapping[str, Term]) -> dict[str, chex.Array]:
    """The loss [B] of each term of masked words, over all variants of a text, in training; see `score_synthetic`."""
    model, variables = matcher.unbind()

    def one(key, image, ids, length, masked):
        logits = read_sentences(model, variables, image, masked.ids, length, ('mlm',), key)['mlm']
        predictions = {MASKED: _one_text(logits, jnp.broadcast_to(ids, masked.ids.shape), masked.labelled)}
        return {name: term.per_text(predictions)[0] for name, term in terms.items()}

    rows = _keys(matcher, batch), images, batch.texts.ids, batch.texts.lengths, batch.masked
    return map_images(one, rows, largest_array(model, images, *batch.masked.ids.shape[1:], words=True))


def _keys(matcher: Matcher, batch: Batch) -> chex.PRNGKey:
    """Of the dropout for each of this device's rows: [B]."""
    return jax.random.split(matcher.make_rng('dropout'), len(batch.image_index))


def _one_text(logits: chex.Array, labels: chex.Array, mask: chex.Array) -> TokenPredictions:
    """The predictions [N, L] of all variants of a text as those of one text [1, N L]."""
    rows = logits.reshape(1, -1, logits.shape[-1]), labels.reshape(1, -1), mask.reshape(1, -1)
    return TokenPredictions(*rows)
