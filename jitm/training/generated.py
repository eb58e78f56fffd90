"""Sources of token predictions and of synthetic negative captions (Fan et al., 2022, algorithm 1)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import chex
import jax
import jax.numpy as jnp

from jitm.models.matcher import Matcher
from jitm.synthesis.generator import Synthesis, Synthetic, largest_array, map_images, read_captions
from jitm.training.candidates import ListScores
from jitm.training.source import GlobalBatch, Inputs, Models, Source
from jitm.types import Batch, Ranking, TokenPredictions

GENERATED = 'generated'  # the ranking of an image's own caption against its synthetic negatives
MASKED = 'masked_language_modeling'
HEADS = {'word_discrimination': 'discriminate', 'word_correction': 'correct'}  # predictions -> head of the model


@dataclasses.dataclass(frozen=True)
class MatcherPredictions(Source):
    """Predictions that the model makes of matching pairs, see `Matcher.predict_tokens`.

    Attributes:
      predictions: their names.
    """

    predictions: tuple[str, ...]

    def score(self, matcher: Matcher, inputs: Inputs) -> tuple[None, dict[str, chex.Array]]:
        """Computes the token losses only."""
        predictions = matcher.predict_tokens(inputs.images, inputs.batch.texts, inputs.train)
        return None, {name: term.per_text(predictions[term.predictions]) for name, term in inputs.token_terms.items()}


class MaskedCaptions(Source):
    """Predictions of masked words by the model's `mlm` head, for all K masked views of a caption."""

    predictions = (MASKED,)

    def score(self, matcher: Matcher, inputs: Inputs) -> tuple[None, dict[str, chex.Array]]:
        """Computes the token losses only."""
        if not inputs.token_terms:
            return None, {}
        (model, variables), batch = matcher.unbind(), inputs.batch

        def one(key, image, ids, length, masked):
            logits = read_captions(model, variables, image, masked.ids, length, ('mlm',), key)['mlm']
            predictions = _as_one_text(logits, jnp.broadcast_to(ids, masked.ids.shape), masked.labelled)
            return {name: term.per_text(predictions)[0] for name, term in inputs.token_terms.items()}

        rows = _dropout_keys(matcher, batch), inputs.images, batch.texts.ids, batch.texts.lengths, batch.masked
        floats = largest_array(model, inputs.images, *batch.masked.ids.shape[1:], word_logits=True)
        return None, map_images(one, rows, floats)


@dataclasses.dataclass(frozen=True)
class GeneratedCaptions(Source):
    """Ranks each image's caption against synthetic negatives, and predicts their mismatched words.

    Attributes:
      synthesis: how the negatives are generated and chosen.
    """

    synthesis: Synthesis

    rankings = (GENERATED,)
    predictions = tuple(HEADS)

    def choose(self, models: Models, name: str, batch: Batch, key: chex.PRNGKey, axis: str | None) -> Synthetic:
        """Generates synthetic captions for this device's images and keeps the hardest."""
        del axis
        keys = jax.random.split(jax.random.fold_in(key, 1), len(batch.image_index))
        return self.synthesis.choose(*models[name], models[self.synthesis.generator], batch, keys)

    def score(self, matcher: Matcher, inputs: Inputs) -> tuple[ListScores, dict[str, chex.Array]]:
        """Scores each image with its caption and its synthetic negatives, and reads their words in the same pass."""
        (model, variables), batch, synthetic = matcher.unbind(), inputs.batch, inputs.chosen
        heads = [HEADS[term.predictions] for term in inputs.token_terms.values()]

        def one(key, image, ids, length, synthetic):
            captions = jnp.concatenate([ids[None], synthetic.ids])
            outputs = read_captions(model, variables, image, captions, length, ('rank', *heads), key)
            valid = synthetic.valid[:, None] & (jnp.arange(len(ids)) < length)
            labels = {
                'word_discrimination': ((synthetic.ids == ids).astype(jnp.int32), valid),
                'word_correction': (jnp.broadcast_to(ids, valid.shape), valid & synthetic.refilled),
            }
            losses = {
                name: term.per_text(_as_one_text(outputs[HEADS[term.predictions]][1:], *labels[term.predictions]))[0]
                for name, term in inputs.token_terms.items()
            }
            return outputs['rank'], losses

        rows = _dropout_keys(matcher, batch), inputs.images, batch.texts.ids, batch.texts.lengths, synthetic
        _, negatives, length = synthetic.ids.shape
        floats = largest_array(model, inputs.images, 1 + negatives, length, word_logits='correct' in heads)
        scores, losses = map_images(one, rows, floats)
        return ListScores(scores, synthetic.valid), losses

    def rank(self, scores: ListScores, batch: GlobalBatch, anchors: Sequence[Any] = ()) -> dict[str, Ranking]:
        """Makes the ranking `generated` [B, 1 + m]."""
        del batch, anchors
        return {GENERATED: scores.ranking()}


def _dropout_keys(matcher: Matcher, batch: Batch) -> chex.PRNGKey:
    """Returns a key for the dropout of each of this device's rows: [B]."""
    return jax.random.split(matcher.make_rng('dropout'), len(batch.image_index))


def _as_one_text(logits: chex.Array, labels: chex.Array, mask: chex.Array) -> TokenPredictions:
    """Joins the predictions [N, L] for all views of a caption as those of one text [1, N L]."""
    rows = logits.reshape(1, -1, logits.shape[-1]), labels.reshape(1, -1), mask.reshape(1, -1)
    return TokenPredictions(*rows)
