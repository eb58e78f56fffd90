"""Losses against an anchor branch (DBL, and those it is compared with): of one direction, one value per query out.

Beside `scores` S, `positives` and `negatives`, as in `jitm.losses.ranking`, they take `anchor_scores` A [Q, C], the
scores of the same pairs by another matcher. These are constants to the caller's gradient: the training step stops it,
so the losses do not, and the soft margins, which are functions of A alone, are detached with it.

Every loss is unreduced, 0 for a query that has no positive or no negative, and ignores candidates that are neither. p
is the positive that S finds hardest, also where A is read. The published value of the four boosting losses, `relative_`
and `absolute_`, is the sum over both directions of the batch (reduction 'sum', weight 1), beside the loss that the
anchor was trained with; models H and I of DBL's table IV take two of them, each as a term of weight 0.5.
"""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jitm.losses.ranking import hardest_negative, hardest_positive, masked_log_softmax, prepare

LONGEST = 6  # candidates whose orders are listed: 720


def _margin(anchor: chex.Array, margin: float, extreme: float | None) -> chex.Numeric:
    """The margin, or the soft one that leads anchor + margin up to the extreme (DBL eq. 17 and 19, as a tanh)."""
    if extreme is None or margin == 0:
        return margin
    return margin * jnp.tanh((extreme - anchor) / margin)


def _relative_hinges(
    scores: chex.Array, positives: chex.Array, anchor_scores: chex.Array, margin: float, extreme: float | None
) -> chex.Array:
    """[margin + (a_p - a_n) - (s_p - s_n)]_+ of every candidate n [Q, C]."""
    distances = hardest_positive(scores, positives)[:, None] - scores
    anchor_distances = hardest_positive(scores, positives, anchor_scores)[:, None] - anchor_scores
    return jnp.maximum(_margin(anchor_distances, margin, extreme) + anchor_distances - distances, 0)


def _absolute_hinges(
    scores: chex.Array,
    positives: chex.Array,
    anchor_scores: chex.Array,
    margin: float,
    alpha: float,
    extreme: float | None,
) -> chex.Array:
    """[alpha margin + a_p - s_p]_+ + [(1 - alpha) margin + s_n - a_n]_+ of every candidate n [Q, C]."""
    positive, anchor = hardest_positive(scores, positives), hardest_positive(scores, positives, anchor_scores)
    of_positive = jnp.maximum(_margin(anchor, alpha * margin, extreme) + anchor - positive, 0)
    margins = _margin(-anchor_scores, (1 - alpha) * margin, extreme)
    return of_positive[:, None] + jnp.maximum(margins + scores - anchor_scores, 0)


def relative_sum(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    anchor_scores: chex.Array,
    margin: float = 0.2,
    extreme: float | None = None,
) -> chex.Array:
    """Sum over negatives n of [margin + (a_p - a_n) - (s_p - s_n)]_+ (RS, DBL eq. 7, one direction).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].
      margin: in score units.
      extreme: the highest a_p - a_n, 2 for scores in [-1, 1], for soft margins (eq. 17); None for the fixed one.

    Returns:
      [Q].
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    hinges = _relative_hinges(scores, positives, anchor_scores, margin, extreme)
    return jnp.sum(jnp.where(negatives & valid[:, None], hinges, 0), axis=1)


def relative_max(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    anchor_scores: chex.Array,
    margin: float = 0.2,
    extreme: float | None = None,
) -> chex.Array:
    """[margin + (a_p - a_n) - (s_p - s_n)]_+ of the negative n of highest s_n - a_n (RM, DBL eq. 8 and 18).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].
      margin: in score units.
      extreme: the highest a_p - a_n, 2 for scores in [-1, 1], for soft margins (eq. 17); None for the fixed one.

    Returns:
      [Q].
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    hinges = _relative_hinges(scores, positives, anchor_scores, margin, extreme)
    return jnp.where(valid, hardest_negative(scores - anchor_scores, negatives, hinges), 0)


def absolute_sum(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    anchor_scores: chex.Array,
    margin: float = 0.2,
    alpha: float = 0.5,
    extreme: float | None = None,
) -> chex.Array:
    """Sum over negatives n of [m_1 + a_p - s_p]_+ + [m_2 + s_n - a_n]_+ (AS, DBL eq. 9, one direction).

    The hinge of the positive is in the sum, so that it counts once for each negative.

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].
      margin: m_1 + m_2, in score units.
      alpha: the share of m_1.
      extreme: the highest a_p and -a_n, 1 for scores in [-1, 1], for soft margins (eq. 19); None for the fixed ones.

    Returns:
      [Q], not below `relative_sum` where margins are fixed.
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    hinges = _absolute_hinges(scores, positives, anchor_scores, margin, alpha, extreme)
    return jnp.sum(jnp.where(negatives & valid[:, None], hinges, 0), axis=1)


def absolute_max(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    anchor_scores: chex.Array,
    margin: float = 0.2,
    alpha: float = 0.5,
    extreme: float | None = None,
) -> chex.Array:
    """[m_1 + a_p - s_p]_+ + [m_2 + s_n - a_n]_+ of the negative n of highest s_n - a_n (AM, DBL eq. 10 and 20).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].
      margin: m_1 + m_2, in score units.
      alpha: the share of m_1.
      extreme: the highest a_p and -a_n, 1 for scores in [-1, 1], for soft margins (eq. 19); None for the fixed ones.

    Returns:
      [Q], not below `relative_max` where margins are fixed (eq. 13).
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    hinges = _absolute_hinges(scores, positives, anchor_scores, margin, alpha, extreme)
    return jnp.where(valid, hardest_negative(scores - anchor_scores, negatives, hinges), 0)


def _order_log_likelihoods(scores: chex.Array, present: chex.Array) -> chex.Array:
    """Log of the product over places of the softmax over what remains (Plackett-Luce): [..., L] -> [...]."""
    scores = jnp.where(present, scores, -jnp.inf)
    remaining = jax.lax.cumlogsumexp(scores, axis=scores.ndim - 1, reverse=True)
    return jnp.sum(jnp.where(present, scores - remaining, 0), axis=-1)


def rank_distillation(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    anchor_scores: chex.Array,
    length: int = 4,
    temperature: float = 0.1,
    hard: bool = False,
) -> chex.Array:
    """KL(P_A || P_S) of all orders of the anchor's highest candidates (DR: DarkRank's soft transfer, on scores).

    The probability of an order is the product of softmaxes over what remains (Plackett-Luce).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].
      length: how many candidates; the orders are its factorial, so at most 6 unless `hard`.
      temperature: divides the scores.
      hard: -log P_S of the anchor's own order instead (DarkRank's hard transfer).

    Returns:
      [Q]; reduced by the mean over the batch.

    Raises:
      ValueError: if the orders are too many.
    """
    if length > LONGEST and not hard:
        raise ValueError(
            f'length is {length}, whose factorial is too many orders; take at most {LONGEST}, or hard=True'
        )
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    candidates = positives | negatives
    _, top = jax.lax.top_k(jnp.where(candidates, anchor_scores, -jnp.inf), min(length, scores.shape[1]))
    present = jnp.take_along_axis(candidates, top, axis=1)
    target, anchor = (jnp.take_along_axis(x, top, axis=1) / temperature for x in (scores, anchor_scores))
    if hard:
        return jnp.where(valid, -_order_log_likelihoods(target, present), 0)
    orders = np.array(list(itertools.permutations(range(top.shape[1]))))
    target, anchor = (_order_log_likelihoods(x[:, orders], present[:, orders]) for x in (target, anchor))
    # Where fewer are present, an order of them is listed several times: the softmax shares its probability out.
    return jnp.where(valid, jnp.sum(jax.nn.softmax(anchor, axis=1) * (anchor - target), axis=1), 0)


def _mean_over_candidates(values: chex.Array, candidates: chex.Array, valid: chex.Array) -> chex.Array:
    mean = jnp.sum(jnp.where(candidates, values, 0), axis=1) / jnp.maximum(candidates.sum(axis=1), 1)
    return jnp.where(valid, mean, 0)


def relational_distillation(
    scores: chex.Array, positives: chex.Array, negatives: chex.Array | None = None, *, anchor_scores: chex.Array
) -> chex.Array:
    """Mean over candidates of d^2 / 2, or |d| - 1/2 where |d| > 1, d = s - a (RKD's distance loss, as DBL released).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].

    Returns:
      [Q]; published as 10 times the mean over the matrix. Both directions have that mean, so reduction 'mean' with
      weight 5 is the same.
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    distances = jnp.abs(scores - anchor_scores)
    values = jnp.where(distances > 1, distances - 0.5, distances**2 / 2)
    return _mean_over_candidates(values, positives | negatives, valid)


def similarity_preserving(
    scores: chex.Array, positives: chex.Array, negatives: chex.Array | None = None, *, anchor_scores: chex.Array
) -> chex.Array:
    """Mean over candidates of (s / |s| - a / |a|)^2, the norms over the query's candidates (SP, on scores).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].

    Returns:
      [Q]; published as 10 times the mean over the matrix, of either direction: reduction 'mean'.
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    candidates = positives | negatives

    def unit(row):
        row = jnp.where(candidates, row, 0)
        return row * jax.lax.rsqrt(jnp.maximum(jnp.sum(row**2, axis=1, keepdims=True), 1e-24))

    return _mean_over_candidates((unit(scores) - unit(anchor_scores)) ** 2, candidates, valid)


def _log_probabilities(scores: chex.Array, candidates: chex.Array, valid: chex.Array, temperature: float) -> chex.Array:
    """Log of the softmax over the candidates, 0 elsewhere, so that products and differences there are 0."""
    return jnp.where(candidates, masked_log_softmax(scores / temperature, candidates, valid), 0)


def mutual_learning(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    anchor_scores: chex.Array,
    temperature: float = 0.1,
) -> chex.Array:
    """KL(softmax(a / temperature) || softmax(s / temperature)) over the candidates (DML, on scores).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].
      temperature: in score units; DBL multiplies by 10, which is 0.1.

    Returns:
      [Q]; published as the mean over each direction, added.
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    target, anchor = (_log_probabilities(x, positives | negatives, valid, temperature) for x in (scores, anchor_scores))
    return jnp.where(valid, jnp.sum(jnp.exp(anchor) * (anchor - target), axis=1), 0)


def self_distillation(
    scores: chex.Array,
    positives: chex.Array,
    negatives: chex.Array | None = None,
    *,
    anchor_scores: chex.Array,
    temperature: float = 0.1,
    inverse: bool = False,
) -> chex.Array:
    """-sum P_A log P_S, P = softmax(. / temperature) over the candidates (DINO, on scores, without its centring).

    Args:
      scores: [Q, C].
      positives: bool [Q, C].
      negatives: bool [Q, C], default `~positives`.
      anchor_scores: [Q, C].
      temperature: in score units, of both; DBL multiplies by 10, which is 0.1.
      inverse: -sum P_S log P_A instead (DINO* of DBL's table II), of which P_S has the gradient.

    Returns:
      [Q]; reduced by the mean over the batch.
    """
    chex.assert_equal_shape([scores, anchor_scores])
    negatives, valid = prepare(scores, positives, negatives)
    target, anchor = (_log_probabilities(x, positives | negatives, valid, temperature) for x in (scores, anchor_scores))
    first, second = (target, anchor) if inverse else (anchor, target)
    return jnp.where(valid, -jnp.sum(jnp.exp(first) * second, axis=1), 0)
