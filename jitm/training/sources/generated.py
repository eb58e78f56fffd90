"""Synthetic negative captions that a member generates (Fan et al., 2022, algorithm 1)."""

from collections.abc import Mapping

import chex
import jax
import jax.numpy as jnp

from jitm.devices import collectives
from jitm.models.matcher import Encoding, Matcher
from jitm.synthesis.generator import Synthesis, Synthetic, largest_array, map_images, read_captions
from jitm.training.objective import GENERATED, HEADS, TokenTerm
from jitm.training.source import Conditions, Scored, Source, View, each
from jitm.training.sources.masked import as_one_text, dropout_keys
from jitm.types import Batch, Ranking

CONDITIONS = Conditions(
    needs={'masking.num_views': "config key 'synthesis' refills masked captions: set it"},
    members=('synthesis.generator',),
    gives=(GENERATED, *HEADS),
    reader='a term of the ranking generated, or of word discrimination or correction',
)


def generate_captions(synthesis: Synthesis, terms: Mapping[str, TokenTerm]) -> Source:
    """Ranks each image's caption against synthetic negatives, and predicts their mismatched words in the same pass.

    The ranking `generated` is [B, 1 + m]. The captions that are refilled are those of `mask_captions`.

    Args:
      synthesis: The way in which the captions are generated and chosen.
      terms: The token terms of `HEADS`.
    """
    heads = [HEADS[term.predictions] for term in terms.values()]

    def generate(view: View, name: str, key: chex.PRNGKey) -> Synthetic:
        """Generates synthetic captions for this device's images; the model of this name chooses the hardest."""
        keys = jax.random.split(jax.random.fold_in(key, 1), len(view.batch.image_index))
        return synthesis.choose(*view.models[name], view.models[synthesis.generator], view.batch, keys)

    def score(
        matcher: Matcher, images: Encoding, texts: Encoding, batch: Batch, seen: Synthetic | None, train: bool
    ) -> Scored:
        del texts
        if not train:
            return {}, {}
        model, variables = matcher.unbind()

        def one(key, image, ids, length, synthetic):
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
        scores, losses, valid = collectives.gather_results((*map_images(one, rows, floats), seen.valid))
        return {GENERATED: Ranking.from_list(scores, valid)}, losses

    return Source(score, each(generate), conditions=CONDITIONS)
