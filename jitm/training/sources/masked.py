"""Captions with masked words, which the model's `mlm` head predicts."""

import itertools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from chex import Array, PRNGKey

from jitm.config.section import Bound, Section
from jitm.data.pairs.masking import Masking, caption_words, find_phrases
from jitm.data.pipeline import Sampler
from jitm.devices import collectives
from jitm.files import hash_arrays
from jitm.models.matcher import Matcher
from jitm.synthesis.generator import largest_array, map_images, read_captions
from jitm.training.objective import TokenTerm, terms_of_predictions
from jitm.training.source import AUGMENTATION, OPTIONS, Conditions, Context, Source, pick_rows, together
from jitm.types import Batch, TokenPredictions

MASKED = 'masked_language_modeling'
HEADS = {'word_discrimination': 'discriminate', 'word_correction': 'correct'}  # predictions -> head of the model
SECTION = 'masking'
SWITCH = 'masking.num_views'
DECLARED = Section(function=Masking)
CONDITIONS = Conditions(
    accepts=OPTIONS.keys() - AUGMENTATION,
    uses=('scene_graphs.source',),
    gives=dict.fromkeys((*HEADS, MASKED), "set 'masking.num_views', or leave the term out"),
    reader='a term of masked words',
)


def add(source: Source, bound: Bound, context: Context) -> Source:
    """Adds masked captions where the section `masking` has views."""
    masking = bound()
    if not masking.num_views:
        return source
    return together(source, mask_captions(masking, terms_of_predictions(context.terms, [MASKED])))


def mask_captions(masking: Masking, terms: Mapping[str, TokenTerm]) -> Source:
    """Computes the losses of masked words as the model's `mlm` head predicts them, for all K masked views of a caption.

    Args:
      masking: The masking of a caption.
      terms: The token terms of these predictions; if there are none, captions are masked for other sources only.
    """

    def samplers(pipeline):
        split = pipeline.split
        tokens = pipeline.tokens
        phrases = find_phrases(split.captions, pipeline.vocabulary, pipeline.scene_graphs)
        words = caption_words(tokens, split.image_of_text)

        def take(rows, part):
            """Returns K variants of each text [B, K, L], and the ids in all captions of its image [B, W]."""
            rows = part.cut(rows)
            views = masking.mask_batch(
                part.texts(rows).ids,
                [phrases[row] for row in rows],
                pipeline.vocabulary,
                seed=pipeline.seed,
                step=part.step,
                texts=rows,
            )
            return views, words[split.image_of_text[rows]]

        shaped = ((np.int64(matrix.shape), matrix) for matrix in phrases)
        digest = hash_arrays(itertools.chain.from_iterable(shaped))
        return {'masked': Sampler(pick_rows, take, {'phrases': digest})}

    def score(matcher, images, texts, batch, seen, train):
        del texts, seen
        if not (terms and train):
            return {}, {}
        model, variables = matcher.unbind()
        views, _ = batch.drawn['masked']

        def predict(key, image, ids, length, view):
            logits = read_captions(model, variables, image, view.ids, length, heads=('mlm',), key=key)['mlm']
            predictions = as_one_text(logits, jnp.broadcast_to(ids, view.ids.shape), view.labelled)
            return {name: term.per_text(predictions)[0] for name, term in terms.items()}

        rows = dropout_keys(matcher, batch), images, batch.texts.ids, batch.texts.lengths, views
        floats = largest_array(model, images, *views.ids.shape[1:], word_logits=True)
        return {}, collectives.gather_results(map_images(predict, rows, floats))

    return Source(score, samplers=samplers, name='masked')


def dropout_keys(matcher: Matcher, batch: Batch) -> PRNGKey:
    """Returns a key for the dropout of each of this device's rows: [B]."""
    return jax.random.split(matcher.make_rng('dropout'), len(batch.image_index))


def as_one_text(logits: Array, labels: Array, mask: Array) -> TokenPredictions:
    """Joins the predictions [N, L] for all views of a caption as one text [1, N L]."""
    rows = logits.reshape(1, -1, logits.shape[-1]), labels.reshape(1, -1), mask.reshape(1, -1)
    return TokenPredictions(*rows)
