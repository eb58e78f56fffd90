"""The pairs of the global batch, whose scores are reduced to losses in chunks of queries."""

import dataclasses
import functools
from typing import Literal

import jax
import jax.numpy as jnp

from jitm.devices import collectives, parallel
from jitm.errors import UserError
from jitm.losses.ranking import hardest_negative, hardest_positive
from jitm.models.matcher import DualEncoder, Matcher
from jitm.training.objective import check_inputs, ranking_terms
from jitm.training.source import OF_OTHER_ROWS, Conditions, Context, Source, learned_inputs
from jitm.training.sources.in_batch import SAME_IMAGE, masks
from jitm.types import Count, Ranking


def in_chunks(same_image: Literal[*SAME_IMAGE], queries: Count, *, context: Context) -> Source:
    """Ranks the candidates of `in_batch` without keeping their scores: for large batches of dual encoders.

    Each device scores some of its queries at a time with all candidates of the global batch, reduces them to the losses
    of the ranking terms, and scores them again for the gradient. Vectors and losses are gathered, scores are not: a
    device holds `queries` B of the B^2 scores. Rankings have the match of each query, its hardest negative and what the
    terms and their diagnostics need of all candidates.

    Args:
      same_image: See `in_batch`.
      queries: The number of queries that a device scores at a time.
      context: The rest of the plan.
    """
    terms = ranking_terms(context.terms)

    def score(matcher, images, texts, batch, seen, train):
        """Returns the ranking of each query's match and hardest negative, [B, 2], with the numbers of the terms."""
        del seen, train
        check_dual(matcher, 'in_chunks')
        count = len(batch.image_index)
        device = jax.lax.axis_index(parallel.AXIS)
        (all_images, all_texts), index = collectives.all_gather(((images, texts), batch.image_index))
        sides = {'i2t': (images, all_texts), 't2i': (texts, all_images)}
        learned = learned_inputs(matcher)

        def reduce(way, query):
            encoded, *index_of_query = jax.tree.map(lambda x: x[None], query)
            scores = matcher.similarity(encoded, sides[way][1])  # inner products; either side may be images
            positives, negatives = masks(index_of_query, (jnp.arange(len(index)), index), same_image)
            ranking = Ranking(scores, positives, negatives, learned)
            used = {name: dataclasses.replace(t, rankings=(way,)) for name, t in terms.items() if way in t.rankings}
            check_inputs(used, {way: ranking})
            extremes = hardest_positive(scores, positives), hardest_negative(scores, negatives)
            numbers = {term.name: term.query_values(ranking) for term in used.values()}
            return jax.tree.map(lambda x: x[0], (numbers, (*extremes, negatives.any(axis=1))))

        reduced = {}
        for way, (encoded, _) in sides.items():
            rows = (encoded, device * count + jnp.arange(count), batch.image_index)
            size = min(queries, count)
            reduced[way] = jax.lax.map(jax.checkpoint(functools.partial(reduce, way)), rows, batch_size=size)
        rankings = {}
        for way, (numbers, (positive, negative, valid)) in collectives.gather_results(reduced).items():
            ranking = Ranking.from_list(jnp.stack([positive, negative], axis=1), valid[:, None])
            rankings[way] = ranking.replace(query_values=numbers, inputs=learned)
        return rankings, {}

    return Source(score, conditions=Conditions(OF_OTHER_ROWS, row_by_row=True))


def check_dual(matcher: Matcher, source: str) -> None:
    """Raises a UserError unless a matcher is a dual encoder, which a source needs."""
    if not isinstance(matcher, DualEncoder):
        raise UserError(
            f"'candidates.source' '{source}' needs a dual encoder, not {type(matcher).__name__}: use 'in_batch'"
        )
