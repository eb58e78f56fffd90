"""AOQ losses (Chen et al., 2020): hinges of negatives in the batch, and of negatives mined in the whole training set.

    loss(scores, positives, negatives=None, *, offline_scores, ...) -> [Q]

The contract and the notation follow `jitm.losses.ranking`, except that a query without a negative in the batch
keeps its offline hinges. A pair (i, t) has the mined negatives tbar and ibar, which match the image itilde and the text
ttilde. For the query i, and for the query t,

    s_off   `offline_scores` [Q], the query with its mined negative: S(i, tbar), and S(ibar, t)
    s_pair  `offline_pair_scores` [Q], a mined negative pair without the query: S(ibar, tbar), and S(itilde, ttilde)

Published: sum; online margin 0.2, offline margin 0.
"""

from __future__ import annotations

import jax.numpy as jnp

from jitm.config.arguments import checked
from jitm.errors import ArgumentError
from jitm.losses.ranking import hardest_negative, hardest_positive, max_of_hinges, prepare
from jitm.types import Margin, Mask, NotNegative, PerQuery, Positive, Scores


def _hinge(scores: Scores, positives: Mask, extra: PerQuery, margin: float) -> PerQuery:
    """Returns [margin + s - s_p]_+ for an additional score s of each query; 0 without a positive."""
    hinge = margin + extra - hardest_positive(scores, positives)
    return jnp.where(positives.any(axis=1), jnp.maximum(hinge, 0), 0)


@checked
def offline_triplet(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    offline_scores: PerQuery,
    online_margin: Margin = 0.2,
    offline_margin: Margin = 0.0,
) -> PerQuery:
    """OffTri (AOQ, eq. 3): `max_of_hinges` + [offline_margin + s_off - s_p]_+."""
    online = max_of_hinges(scores, positives, negatives, margin=online_margin)
    return online + _hinge(scores, positives, offline_scores, offline_margin)


@checked
def offline_quintuplet(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    offline_scores: PerQuery,
    offline_pair_scores: PerQuery,
    online_margin: Margin = 0.2,
    offline_margin: Margin = 0.0,
    online_weight: NotNegative | PerQuery = 1.0,
) -> PerQuery:
    """OffQuin (AOQ, eq. 4): `max_of_hinges` + [offline_margin + s_off - s_p]_+ + [offline_margin + s_pair - s_p]_+.

    `online_weight` is a factor of the first term, a number or [Q]. With 0 this is OnlyOffline of table 3.
    """
    online = max_of_hinges(scores, positives, negatives, margin=online_margin)
    offline = [_hinge(scores, positives, extra, offline_margin) for extra in (offline_scores, offline_pair_scores)]
    return online_weight * online + sum(offline)


@checked
def adaptive_offline_quintuplet(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    offline_scores: PerQuery,
    offline_pair_scores: PerQuery,
    online_margin: Margin = 0.2,
    offline_margin: Margin = 0.0,
    alpha: Positive = 0.3,
    beta: NotNegative = 1.5,
    weigh_by_positive: bool = False,
) -> PerQuery:
    """AdapOffQuin, AOQ (eq. 5): `offline_quintuplet` with `online_weight` beta - (s_off - s_n) / alpha.

    n is the hardest negative. With `weigh_by_positive`, the weight has s_p in place of s_off ("w/o OfflineAdap" of
    table 3). The gradient flows through the weight, as in eq. 6. The weight and the loss can be negative.
    """
    negatives, _ = prepare(positives, negatives)
    upper = hardest_positive(scores, positives) if weigh_by_positive else offline_scores
    return offline_quintuplet(
        scores,
        positives,
        negatives,
        offline_scores=offline_scores,
        offline_pair_scores=offline_pair_scores,
        online_margin=online_margin,
        offline_margin=offline_margin,
        online_weight=beta - (upper - hardest_negative(scores, negatives)) / alpha,
    )


@checked
def online_quintuplet(
    scores: Scores,
    positives: Mask,
    negatives: Mask | None = None,
    *,
    offline_scores: PerQuery,
    online_margin: Margin = 0.2,
    offline_margin: Margin = 0.0,
) -> PerQuery:
    """OnlineQuin (AOQ, table 3): eq. 4 with pairs of the hardest negatives in the batch; scores are square.

    Row q and column q are the two sides of a pair. Both pairs, S(ibar, tbar) and S(itilde, ttilde), are the same for
    the queries i and t, so each direction has half of both hinges. A pair that is not a negative, such as ibar with
    its own text, has no hinge.
    """
    negatives, _ = prepare(positives, negatives)
    if len(scores) != scores.shape[1]:
        raise ArgumentError('scores', f'has the shape {list(scores.shape)}; it must be square, a batch of pairs')
    margins = {'online_margin': online_margin, 'offline_margin': offline_margin}
    triplet = offline_triplet(scores, positives, negatives, offline_scores=offline_scores, **margins)
    mined = jnp.where(negatives, scores, -jnp.inf)
    candidate = jnp.argmax(mined, axis=1)
    query = jnp.argmax(mined, axis=0)
    have_both = negatives.any(axis=1) & negatives.any(axis=0)
    pairs = [
        jnp.where(have_both & negatives[pair], _hinge(scores, positives, scores[pair], offline_margin), 0)
        for pair in ((query, candidate), (candidate, query))
    ]
    return triplet + sum(pairs) / 2
