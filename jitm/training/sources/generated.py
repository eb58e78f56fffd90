"""Synthetic negative captions that a member generates (Fan et al., 2022, algorithm 1)."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from jitm.config.section import Bound, Section
from jitm.devices import collectives
from jitm.errors import UserError
from jitm.synthesis.generator import Synthesis, largest_array, map_images, read_captions
from jitm.training.objective import Metrics, TokenTerm, terms_of_predictions
from jitm.training.source import Conditions, Context, Source, each, together
from jitm.training.sources.masked import HEADS, as_one_text, dropout_keys
from jitm.types import Ranking

GENERATED = 'generated'  # the ranking of an image's own caption against its synthetic negatives
BINS = 20  # bins of the histogram of difficulty
SECTION = 'synthesis'
SWITCH = 'synthesis.generator'
DECLARED = Section(function=Synthesis)
CONDITIONS = Conditions(
    needs={'masking.num_views': "config key 'synthesis' refills masked captions: set it"},
    members=('synthesis.generator',),
    gives=dict.fromkeys((GENERATED, *HEADS), "set 'synthesis.generator', or leave the term out"),
    reader='a term of the ranking generated, or of word discrimination or correction',
)


def add(source: Source, bound: Bound, context: Context) -> Source:
    """Adds synthetic captions where the section `synthesis` names a generator.

    Raises:
      UserError: If more captions are kept than generated.
    """
    synthesis = bound()
    if not synthesis.generator:
        return source
    masking = context.parts['masking']()
    limit = masking.num_views * synthesis.num_samples
    if masking.num_views and synthesis.num_hard > limit:
        raise UserError(
            f"config key 'synthesis.num_hard' is {synthesis.num_hard}, more than the synthetic captions of an image "
            f"('masking.num_views' x 'synthesis.num_samples' = {limit})"
        )
    return together(source, generate_captions(synthesis, terms_of_predictions(context.terms, HEADS)))


def generate_captions(synthesis: Synthesis, terms: Mapping[str, TokenTerm]) -> Source:
    """Ranks each image's caption against synthetic negatives, and predicts their mismatched words in the same pass.

    The ranking `generated` is [B, 1 + m]. The captions that are refilled are those of `mask_captions`.

    Args:
      synthesis: The way in which the captions are generated and chosen.
      terms: The token terms of `HEADS`.
    """
    heads = [HEADS[term.predictions] for term in terms.values()]

    def generate(view, name, key):
        """Generates synthetic captions for this device's images; the model of this name chooses the hardest."""
        keys = jax.random.split(jax.random.fold_in(key, 1), len(view.batch.image_index))
        return synthesis.choose(*view.models[name], view.models[synthesis.generator], view.batch, keys)

    def score(matcher, images, texts, batch, seen, train):
        del texts
        if not train:
            return {}, {}
        model, variables = matcher.unbind()

        def rank(key, image, ids, length, synthetic):
            captions = jnp.concatenate([ids[None], synthetic.ids])
            outputs = read_captions(model, variables, image, captions, length, heads=('rank', *heads), key=key)
            valid = synthetic.valid[:, None] & (jnp.arange(len(ids)) < length)
            labels = {
                'word_discrimination': ((synthetic.ids == ids).astype(jnp.int32), valid),
                'word_correction': (jnp.broadcast_to(ids, valid.shape), valid & synthetic.refilled),
            }
            losses = {
                name: term.per_text(as_one_text(outputs[HEADS[term.predictions]][1:], *labels[term.predictions]))[0]
                for name, term in terms.items()
            }
            return outputs['rank'], losses

        rows = dropout_keys(matcher, batch), images, batch.texts.ids, batch.texts.lengths, seen
        _, negatives, length = seen.ids.shape
        floats = largest_array(model, images, 1 + negatives, length, word_logits='correct' in heads)
        scores, losses, valid = collectives.gather_results((*map_images(rank, rows, floats), seen.valid))
        return {GENERATED: Ranking.from_list(scores, valid)}, losses

    def metrics(rankings, terms):
        del terms
        return {f'{GENERATED}/{key}': value for key, value in difficulty(rankings[GENERATED]).items()}

    return Source(score, each(generate), name=GENERATED, metrics=metrics)


def difficulty(ranking: Ranking) -> Metrics:
    """Compares the scores of synthetic captions with the true caption's (Fan et al., 2022, figure 2).

    Args:
      ranking: A ranking of each image's captions; the first is true.

    Returns:
      gap: The mean of a synthetic caption's score minus the true caption's.
      count: The mean number of synthetic captions per image.
      share_00, share_01 ...: The share of the synthetic captions in each of `BINS` equal parts of [-1, 1] by that gap.
    """
    gaps = ranking.scores - ranking.scores[:, :1]
    valid = ranking.negatives
    number = jnp.sum(valid)
    part = jnp.clip((gaps + 1) / 2 * BINS, 0, BINS - 1).astype(jnp.int32)
    counts = jnp.sum(jax.nn.one_hot(part, BINS) * valid[..., None], axis=(0, 1))
    shares = {f'share_{n:02}': count / jnp.maximum(number, 1) for n, count in enumerate(counts)}
    gap = jnp.sum(jnp.where(valid, gaps, 0)) / jnp.maximum(number, 1)
    return {'gap': gap, 'count': number / len(valid)} | shares
