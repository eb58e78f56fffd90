"""Losses that are controls of an experiment: see the contract and the notation of `jitm.losses.anchored`."""

import jax.numpy as jnp

from jitm.config.arguments import checked
from jitm.losses.anchored import relative_max
from jitm.losses.ranking import hardest_negative, hardest_positive, prepare
from jitm.types import Margin, Mask, PerQuery, Scores


@checked
def selected_by_anchor(
    scores: Scores, positives: Mask, negatives: Mask | None = None, *, anchor_scores: Scores, margin: Margin = 0.2
) -> PerQuery:
    """[margin + s_n - s_p]_+ of the negative of highest s_n - a_n: RM's selection, without the anchor's distance."""
    negatives, valid = prepare(positives, negatives)
    hinges = margin + scores - hardest_positive(scores, positives)[:, None]
    return jnp.where(valid, jnp.maximum(hardest_negative(scores - anchor_scores, negatives, hinges), 0), 0)


def relative_to_relevance(
    scores: Scores, positives: Mask, negatives: Mask | None = None, *, relevance: Scores, margin: Margin = 0.2
) -> PerQuery:
    """RM with CIDEr, from 0 to 10, in place of ten times the anchor's scores."""
    return relative_max(scores, positives, negatives, anchor_scores=relevance / 10, margin=margin)
