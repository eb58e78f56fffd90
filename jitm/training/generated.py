"""Sources of token predictions and of synthetic negative captions (Fan et al., 2022, algorithm 1)."""

from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp

from jitm import collectives
from jitm.errors import UserError
from jitm.models.matcher import Encoding, Matcher
from jitm.synthesis.generator import Synthesis, Synthetic, largest_array, map_images, read_captions
from jitm.training.objective import GENERATED, TokenTerm
from jitm.training.step import Models, Rankings, TermLosses
from jitm.types import Batch, Ranking, TokenPredictions

MASKED = 'masked_language_modeling'
HEADS = {'word_discrimination': 'discriminate', 'word_correction': 'correct'}  # predictions -> head of the model

TokenTerms = Mapping[str, TokenTerm]


def matcher_predictions(
    matcher: Matcher, images: Encoding, texts: Encoding, batch: Batch, chosen: None, train: bool, *, terms: TokenTerms
) -> tuple[Rankings, TermLosses]:
    """Computes the losses of what the model predicts of matching pairs, see `Matcher.predict_tokens`.

    Args:
      matcher, images, texts, batch, chosen, train: See `Source`. Anchors predict nothing.
      terms: The token terms of these predictions.

    Raises:
      UserError: If the model does not make the predictions of a term.
    """
    del texts, chosen
    if not train:
        return {}, {}
    predictions = matcher.predict_tokens(images, batch.texts, train)
    for name, term in terms.items():
        if term.predictions not in predictions:
            raise UserError(
                f"'terms.{name}' needs predictions for '{term.predictions}', which {type(matcher).__name__} as "
                "configured does not make: change config key 'model', or leave the term out"
            )
    losses = {name: term.per_text(predictions[term.predictions]) for name, term in terms.items()}
    return {}, collectives.gather_results(losses)


def masked_captions(
    matcher: Matcher, images: Encoding, texts: Encoding, batch: Batch, chosen: None, train: bool, *, terms: TokenTerms
) -> tuple[Rankings, TermLosses]:
    """Computes the losses of masked words as the model's `mlm` head predicts them, for all K masked views of a caption.

    Args:
      matcher, images, texts, batch, chosen, train: See `Source`. Anchors predict nothing.
      terms: The token terms of these predictions.
    """
    del texts, chosen
    if not (terms and train):
        return {}, {}
    model, variables = matcher.unbind()

    def one(key, image, ids, length, masked):
        logits = read_captions(model, variables, image, masked.ids, length, heads=('mlm',), key=key)['mlm']
        predictions = _as_one_text(logits, jnp.broadcast_to(ids, masked.ids.shape), masked.labelled)
        return {name: term.per_text(predictions)[0] for name, term in terms.items()}

    rows = _dropout_keys(matcher, batch), images, batch.texts.ids, batch.texts.lengths, batch.masked
    floats = largest_array(model, images, *batch.masked.ids.shape[1:], word_logits=True)
    return {}, collectives.gather_results(map_images(one, rows, floats))


def generate(models: Models, name: str, batch: Batch, key: chex.PRNGKey, *, synthesis: Synthesis) -> Synthetic:
    """Generates synthetic captions for this device's images and keeps the hardest.

    Args:
      models, name, batch, key: See `Source`. The model of this name chooses among the captions.
      synthesis: The way in which the captions are generated and chosen.
    """
    keys = jax.random.split(jax.random.fold_in(key, 1), len(batch.image_index))
    return synthesis.choose(*models[name], models[synthesis.generator], batch, keys)


def generated_captions(
    matcher: Matcher,
    images: Encoding,
    texts: Encoding,
    batch: Batch,
    chosen: Synthetic,
    train: bool,
    *,
    terms: TokenTerms,
) -> tuple[Rankings, TermLosses]:
    """Ranks each image's caption against synthetic negatives, and reads their mismatched words in the same pass.

    Args:
      matcher, images, texts, batch, chosen, train: See `Source`. What is chosen are the captions of `generate`.
      terms: The token terms of `HEADS`.

    Returns:
      The ranking `generated` [B, 1 + m], and the token losses.
    """
    del texts, train
    model, variables = matcher.unbind()
    heads = [HEADS[term.predictions] for term in terms.values()]

    def one(key, image, ids, length, synthetic):
        captions = jnp.concatenate([ids[None], synthetic.ids])
        outputs = read_captions(model, variables, image, captions, length, heads=('rank', *heads), key=key)
        valid = synthetic.valid[:, None] & (jnp.arange(len(ids)) < length)
        labels = {
            'word_discrimination': ((synthetic.ids == ids).astype(jnp.int32), valid),
            'word_correction': (jnp.broadcast_to(ids, valid.shape), valid & synthetic.refilled),
        }
        losses = {
            name: term.per_text(_as_one_text(outputs[HEADS[term.predictions]][1:], *labels[term.predictions]))[0]
            for name, term in terms.items()
        }
        return outputs['rank'], losses

    rows = _dropout_keys(matcher, batch), images, batch.texts.ids, batch.texts.lengths, chosen
    _, negatives, length = chosen.ids.shape
    floats = largest_array(model, images, 1 + negatives, length, word_logits='correct' in heads)
    scores, losses, valid = collectives.gather_results((*map_images(one, rows, floats), chosen.valid))
    return {GENERATED: Ranking.from_list(scores, valid)}, losses


def _dropout_keys(matcher: Matcher, batch: Batch) -> chex.PRNGKey:
    """Returns a key for the dropout of each of this device's rows: [B]."""
    return jax.random.split(matcher.make_rng('dropout'), len(batch.image_index))


def _as_one_text(logits: chex.Array, labels: chex.Array, mask: chex.Array) -> TokenPredictions:
    """Joins the predictions [N, L] for all views of a caption as those of one text [1, N L]."""
    rows = logits.reshape(1, -1, logits.shape[-1]), labels.reshape(1, -1), mask.reshape(1, -1)
    return TokenPredictions(*rows)
