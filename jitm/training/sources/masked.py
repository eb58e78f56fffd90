"""Captions with masked words, which the model's `mlm` head predicts."""

from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jitm.config.section import Bound, Section
from jitm.data.pairs.masking import Masking, caption_words, find_phrases
from jitm.data.pipeline import Part, Pipeline, Sampler
from jitm.devices import collectives
from jitm.files import hash_arrays
from jitm.models.matcher import Encoding, Matcher
from jitm.synthesis.generator import largest_array, map_images, read_captions
from jitm.training.objective import TokenTerm, terms_of_predictions
from jitm.training.source import AUGMENTATION, OPTIONS, Conditions, Context, Scored, Source, together
from jitm.types import Batch, Masked, TokenPredictions

MASKED = 'masked_language_modeling'
HEADS = {'word_discrimination': 'discriminate', 'word_correction': 'correct'}  # predictions -> head of the model
SECTION, SWITCH = 'masking', 'masking.num_views'
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

    def samplers(pipeline: Pipeline) -> dict[str, Sampler]:
        split = pipeline.split
        tokens = pipeline.tokens
        phrases = find_phrases(split.captions, pipeline.vocabulary, pipeline.scene_graphs)
        words = caption_words(tokens, split.image_of_text)

        def pick(step: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            del step
            return rows, np.zeros(0, int)

        def take(rows: np.ndarray, part: Part) -> tuple[Masked, np.ndarray]:
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

        digest = hash_arrays(x for matrix in phrases for x in (np.int64(matrix.shape), matrix))
        return {'masked': Sampler(pick, take, {'phrases': digest})}

    def score(matcher: Matcher, images: Encoding, texts: Encoding, batch: Batch, seen: None, train: bool) -> Scored:
        del texts, seen
        if not (terms and train):
            return {}, {}
        model, variables = matcher.unbind()
        views, _ = batch.drawn['masked']

        def one(key, image, ids, length, view):
            logits = read_captions(model, variables, image, view.ids, length, heads=('mlm',), key=key)['mlm']
            predictions = as_one_text(logits, jnp.broadcast_to(ids, view.ids.shape), view.labelled)
            return {name: term.per_text(predictions)[0] for name, term in terms.items()}

        rows = dropout_keys(matcher, batch), images, batch.texts.ids, batch.texts.lengths, views
        floats = largest_array(model, images, *views.ids.shape[1:], word_logits=True)
        return {}, collectives.gather_results(map_images(one, rows, floats))

    return Source(score, samplers=samplers, name='masked')


def dropout_keys(matcher: Matcher, batch: Batch) -> chex.PRNGKey:
    """Returns a key for the dropout of each of this device's rows: [B]."""
    return jax.random.split(matcher.make_rng('dropout'), len(batch.image_index))


def as_one_text(logits: chex.Array, labels: chex.Array, mask: chex.Array) -> TokenPredictions:
    """Joins the predictions [N, L] for all views of a caption as one text [1, N L]."""
    rows = logits.reshape(1, -1, logits.shape[-1]), labels.reshape(1, -1), mask.reshape(1, -1)
    return TokenPredictions(*rows)
