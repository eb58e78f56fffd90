"""Where the candidates of a ranking come from."""

from collections.abc import Mapping

import chex
import jax.numpy as jnp

from jitm.errors import UserError
from jitm.types import Ranking

SAME_IMAGE = ('negative', 'positive', 'ignored')


def relevance_margins(relevance: chex.Array, temperature: float) -> chex.Array:
    """The margins (phi(p) - phi(n)) / tau of SAM (arXiv 2110.02623, not checked against its text).

    Args:
      relevance: phi [Q, C] of each candidate n for each query; the positive p of query q is candidate q.
      temperature: tau, what a difference in phi is divided by to be one in scores.

    Returns:
      [Q, C], below 0 where a candidate is the more relevant one.
    """
    return (jnp.diagonal(relevance)[:, None] - relevance) / temperature


def in_batch(
    scores: chex.Array,
    image_index: chex.Array,
    relevance: chex.Array | None = None,
    offline: Mapping[str, tuple[chex.Array, chex.Array]] | None = None,
    anchor_scores: chex.Array | None = None,
    *,
    same_image: str,
    margin_temperature: float = 5.0,
) -> dict[str, Ranking]:
    """Ranks the batch's texts for each image and its images for each text.

    Args:
      scores: [E B, E B], image i with text j; a pair's E copies stand together, and all match each other.
      image_index: int [B], equal numbers are the same image.
      relevance: [B, B], phi of text j for image i, if there are to be margins.
      offline: direction -> scores [E B] of each query with its mined negative, and of a mined pair; if there are any.
      anchor_scores: [A, E B, E B], of the same pairs by each of A anchors, if there are any.
      same_image: what another pair of the same image is: a 'negative', as published; a 'positive', as in CMPM; or
        'ignored'.
      margin_temperature: tau of the margins.

    Returns:
      `i2t` and `t2i`, each a Ranking [E B, E B].

    Raises:
      UserError: same_image is something else, or margin_temperature is not above 0.
    """
    if same_image not in SAME_IMAGE:
        raise UserError(f"config key 'rankings.same_image' is '{same_image}'; take one of {', '.join(SAME_IMAGE)}")
    if not margin_temperature > 0:
        raise UserError(f"config key 'rankings.margin_temperature' is {margin_temperature}; it must be above 0")
    copies = len(scores) // len(image_index)
    chex.assert_shape(scores, (copies * len(image_index),) * 2)
    pair, image = jnp.repeat(jnp.arange(len(image_index)), copies), jnp.repeat(image_index, copies)
    same_pair, same = pair[:, None] == pair, image[:, None] == image
    positives = same if same_image == 'positive' else same_pair
    negatives = ~same_pair if same_image == 'negative' else ~same
    i2t, t2i = Ranking(scores, positives, negatives), Ranking(scores.T, positives, negatives)
    if relevance is not None:
        relevance = jnp.repeat(jnp.repeat(relevance, copies, axis=0), copies, axis=1)
        i2t = i2t.replace(margins=relevance_margins(relevance, margin_temperature))
        t2i = t2i.replace(margins=relevance_margins(relevance.T, margin_temperature))
    if anchor_scores is not None:
        chex.assert_shape(anchor_scores, (None, *scores.shape))
        i2t = i2t.replace(anchor_scores=anchor_scores)
        t2i = t2i.replace(anchor_scores=anchor_scores.transpose(0, 2, 1))
    rankings = {'i2t': i2t, 't2i': t2i}
    for direction, (with_query, of_pair) in (offline or {}).items():
        rankings[direction] = rankings[direction].replace(offline_scores=with_query, offline_pair_scores=of_pair)
    return rankings
