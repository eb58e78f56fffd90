"""Ranking losses with offline hard negatives (AOQ; Chen et al., 2020): one retrieval direction, one value per query.

Beside `scores`, `positives` and `negatives` of the batch, as in `jitm.losses.ranking`, they take scores [Q] of pairs
that are mined in the whole training set: `offline_scores` of the query with its offline negative, and
`offline_pair_scores` of an offline negative pair without the query. A pair (i, t) has offline negatives tbar and ibar,
which correspond to the image itilde and the text ttilde. For the query i the scores are S(i, tbar) and S(ibar, tbar),
for the query t they are S(ibar, t) and S(itilde, ttilde).

p is the score of the hardest positive. Every loss is unreduced. For a query without a positive it is 0, for one without
a negative in the batch it has only the offline hinges. The published value is the sum over both directions of the
batch.
"""

import chex
import jax.numpy as jnp

from jitm.losses.ranking import hardest_negative, hardest_positive, max_of_hinges, prepare


def _hinge(scores: chex.Array, positives: chex.Array, extra: chex.Array, margin: float) -> chex.Array:
    """Returns the hinge [margin + s - p]_+ of an additional score s per query: [Q]; 0 without a positive."""
    chex.assert_shape(extra, scores.shape[:1])
    hinge = margin + extra - hardest_positive(scores, positives)
    return jnp.where(positives.any(axis=1), jnp.maximum(hinge, 0), 0)


def offline_triplet(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    offline_scores: chex.Array,
    online_margin: float = 0.2,
    offline_margin: float = 0.0,
) -> chex.Array:
    """`max_of_hinges` and the hinge [offline_margin + s_off - p]_+ (AOQ eq. 3, one direction).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      offline_scores: s_off [Q].
      online_margin: in score units.
      offline_margin: in score units.

    Returns:
      [Q].
    """
    online = max_of_hinges(scores, positives, negatives, margin=online_margin)
    return online + _hinge(scores, positives, offline_scores, offline_margin)


def offline_quintuplet(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    offline_scores: chex.Array,
    offline_pair_scores: chex.Array,
    online_margin: float = 0.2,
    offline_margin: float = 0.0,
    online_weight: chex.Numeric = 1.0,
) -> chex.Array:
    """`online_weight * max_of_hinges`, and [offline_margin + s - p]_+ of s_off and s_pair (AOQ eq. 4, one direction).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      offline_scores: s_off [Q].
      offline_pair_scores: s_pair [Q].
      online_margin: in score units.
      offline_margin: in score units, of both offline hinges.
      online_weight: a number or [Q], 1 in eq. 4; 0 for OnlyOffline of table 3.

    Returns:
      [Q].
    """
    chex.assert_rank(online_weight, {0, 1})
    online = max_of_hinges(scores, positives, negatives, margin=online_margin)
    offline = [_hinge(scores, positives, extra, offline_margin) for extra in (offline_scores, offline_pair_scores)]
    return online_weight * online + sum(offline)


def adaptive_offline_quintuplet(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    offline_scores: chex.Array,
    offline_pair_scores: chex.Array,
    online_margin: float = 0.2,
    offline_margin: float = 0.0,
    alpha: float = 0.3,
    beta: float = 1.5,
    weigh_by_positive: bool = False,
) -> chex.Array:
    """`offline_quintuplet` of online weight beta - (s_off - s_on) / alpha, s_on the hardest negative (AOQ eq. 5).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      offline_scores: s_off [Q].
      offline_pair_scores: [Q].
      online_margin: in score units.
      offline_margin: in score units, of both offline hinges.
      alpha: in score units, above 0.
      beta: the weight at s_off = s_on.
      weigh_by_positive: replaces s_off by p in the weight ("w/o OfflineAdap" of table 3).

    Returns:
      [Q]. The gradient flows through the weight, as in eq. 6; the weight and the loss can be negative.

    Raises:
      ValueError: if alpha is not above 0.
    """
    if isinstance(alpha, int | float) and alpha <= 0:
        raise ValueError(f'alpha is {alpha}; it must be above 0')
    negatives, _ = prepare(scores, positives, negatives)
    upper = hardest_positive(scores, positives) if weigh_by_positive else offline_scores
    weight = beta - (upper - hardest_negative(scores, negatives)) / alpha
    return offline_quintuplet(
        scores,
        positives,
        negatives,
        offline_scores=offline_scores,
        offline_pair_scores=offline_pair_scores,
        online_margin=online_margin,
        offline_margin=offline_margin,
        online_weight=weight,
    )


def online_quintuplet(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    offline_scores: chex.Array,
    online_margin: float = 0.2,
    offline_margin: float = 0.0,
) -> chex.Array:
    """Eq. 4 of AOQ with pairs of the hardest negatives in the batch (OnlineQuin of table 3).

    Both pairs, S(ibar, tbar) and S(itilde, ttilde), are the same for the queries i and t, so each direction takes half
    of both hinges. A pair that is not a negative, such as ibar with its own text, has no hinge.

    Args:
      scores: [Q, Q], query q with the counterpart of each query.
      positives: bool [Q, Q].
      negatives: bool [Q, Q], default `~positives`.
      offline_scores: [Q].
      online_margin: in score units.
      offline_margin: in score units, of the pairs too.

    Returns:
      [Q].
    """
    negatives, _ = prepare(scores, positives, negatives)
    chex.assert_shape(scores, (len(scores), len(scores)))
    triplet = offline_triplet(
        scores,
        positives,
        negatives,
        offline_scores=offline_scores,
        online_margin=online_margin,
        offline_margin=offline_margin,
    )
    mined = jnp.where(negatives, scores, -jnp.inf)
    candidate, query = jnp.argmax(mined, axis=1), jnp.argmax(mined, axis=0)
    have_both = negatives.any(axis=1) & negatives.any(axis=0)
    pairs = [
        jnp.where(have_both & negatives[pair], _hinge(scores, positives, scores[pair], offline_margin), 0)
        for pair in ((query, candidate), (candidate, query))
    ]
    return triplet + sum(pairs) / 2
