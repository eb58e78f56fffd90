"""Ranking losses with offline hard negatives (AOQ): of one retrieval direction, one value per query out.

Beside `scores`, `positives` and `negatives` of the batch, as in `jitm.losses.ranking`, they take scores [Q] of pairs
mined in the whole training set: `offline_scores` of the query with its offline negative, and `offline_pair_scores` of
an offline negative pair without the query. Of a pair (i, t) with offline negatives tbar and ibar, whose own image and
text are itilde and ttilde, these are S(i, tbar) and S(ibar, tbar) where i is the query, S(ibar, t) and
S(itilde, ttilde) where t is.

p is the score of the hardest positive. Every loss is unreduced; a query without a positive costs 0, one without a
negative in the batch only its offline hinges. The published value is the sum over both directions of the batch.
"""

import chex
import jax
import jax.numpy as jnp

from jitm.losses.ranking import hardest_negative, hardest_positive, max_of_hinges


def _hinge(scores: chex.Array, positives: chex.Array, others: chex.Array, margin: float) -> chex.Array:
    """The hinge [margin + others - p]_+ of one more score per query [Q]; 0 where there is no positive."""
    chex.assert_shape(others, scores.shape[:1])
    hinge = margin + others - hardest_positive(scores, positives)
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
      online_weight: a number or [Q], 1 in eq. 4; 0 is OnlyOffline of table 3.

    Returns:
      [Q].
    """
    chex.assert_rank(online_weight, {0, 1})
    online = max_of_hinges(scores, positives, negatives, margin=online_margin)
    offline = [_hinge(scores, positives, others, offline_margin) for others in (offline_scores, offline_pair_scores)]
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
    detach: bool = False,
    clamp: bool = False,
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
      alpha: in score units.
      beta: the weight where s_off = s_on.
      weigh_by_positive: p for s_off in the weight, which is "w/o OfflineAdap" of table 3.
      detach: no gradient through the weight; published with it (eq. 6).
      clamp: no weight below 0; published without, so that the loss can be negative.

    Returns:
      [Q].
    """
    negatives = ~positives if negatives is None else negatives
    chex.assert_equal_shape([scores, positives, negatives])
    upper = hardest_positive(scores, positives) if weigh_by_positive else offline_scores
    weight = beta - (upper - hardest_negative(scores, negatives)) / alpha
    weight = jnp.maximum(weight, 0) if clamp else weight
    return offline_quintuplet(
        scores,
        positives,
        negatives,
        offline_scores=offline_scores,
        offline_pair_scores=offline_pair_scores,
        online_margin=online_margin,
        offline_margin=offline_margin,
        online_weight=jax.lax.stop_gradient(weight) if detach else weight,
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
    """Eq. 4 of AOQ whose pairs are of the hardest negatives in the batch (OnlineQuin of table 3).

    Both pairs, S(ibar, tbar) and S(itilde, ttilde), are the same for the query i as for the query t, so each direction
    takes half of both hinges. A pair that is not a negative, such as ibar with its own text, costs nothing.

    Args:
      scores: [Q, Q], query q with the counterpart of each query.
      positives: bool [Q, Q].
      negatives: bool [Q, Q], default `~positives`.
      offline_scores: [Q].
      online_margin: in score units.
      offline_margin: in score units, also of the pairs.

    Returns:
      [Q].
    """
    negatives = ~positives if negatives is None else negatives
    chex.assert_shape([scores, positives, negatives], (len(scores), len(scores)))
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
