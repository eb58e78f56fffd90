"""The thresholds of NAAF, which training estimates from the captions of a batch in their order."""

import functools

import einops
import jax
import jax.numpy as jnp
from chex import Array
from flax import struct

from jitm.devices import collectives, policy
from jitm.layers import attention
from jitm.layers.lengths import at_own_length, by_length
from jitm.models.tiled import TiledMatcher
from jitm.types import Elements

STEP_SIZE = 0.7  # weight of a new threshold in the moving average


class Statistics(struct.PyTreeNode):
    """Statistics of matched (index 0) and mismatched (index 1) word similarities.

    Attributes:
      count: float32 [..., 1], the number of words.
      mean: float32 [..., 2], the mean similarity of a word with its best region.
      squares: float32 [..., 2], the sums of squared differences from the means.
    """

    count: Array
    mean: Array
    squares: Array


def describe(similarities: Array, mask: Array) -> Statistics:
    """Returns the statistics of the words of captions.

    `similarities` are [..., 2, L], matched and mismatched, and `mask` [..., L] has the words to count.
    """
    mask = mask[..., None, :]
    count = jnp.sum(mask, axis=-1, dtype=similarities.dtype)
    mean = jnp.sum(jnp.where(mask, similarities, 0), axis=-1) / jnp.maximum(count, 1)
    squares = jnp.sum(jnp.where(mask, jnp.square(similarities - mean[..., None]), 0), axis=-1)
    return Statistics(count=count, mean=mean, squares=squares)


def merge(first: Statistics, second: Statistics) -> Statistics:
    """Returns the statistics of all words, by the parallel update of mean and variance (Chan et al., 1979)."""
    total = first.count + second.count
    difference = second.mean - first.mean
    weight = second.count / jnp.maximum(total, 1)
    return Statistics(
        count=total,
        mean=first.mean + weight * difference,
        squares=first.squares + second.squares + weight * first.count * jnp.square(difference),
    )


def decision_boundary(mean: Array, deviation: Array, alpha: float) -> Array:
    """Returns the similarity at which the normal density of matches is alpha times the density of mismatches.

    The released code solves A x^2 + B x + C = 0 by (-B + sqrt(B^2 - 4 A C)) / (2 A). This is the same root in a form
    that does not divide by A, the difference of the variances, which is near 0.

    `mean` and `deviation` are [2], for matches and mismatches. A larger alpha moves the boundary towards the matches.
    The result is NaN if the densities have this ratio nowhere.
    """
    positive, negative = deviation
    gap = mean[0] - mean[1]
    logarithm = jnp.log(negative / (alpha * positive) + attention.EPSILON)
    discriminant = gap**2 - 2 * (positive**2 - negative**2) * logarithm
    root = jnp.sqrt(jnp.maximum(discriminant, 0))
    step = negative * (gap**2 - 2 * positive**2 * logarithm) / (positive * root + negative * gap)
    return jnp.where(positive * negative * discriminant > 0, mean[1] + step, jnp.nan)


def estimate_thresholds(statistics: Statistics, alpha: float) -> Array:
    """Returns the threshold, see `decision_boundary`, and the safe threshold of at least two words: [2].

    The safe threshold is three standard deviations below the mean of the matched similarities. Both are NaN without a
    boundary, and 0 outside of [0, 1].
    """
    deviation = jnp.sqrt(statistics.squares / (statistics.count - 1))
    threshold = decision_boundary(statistics.mean, deviation, alpha)
    estimates = jnp.stack([threshold, statistics.mean[0] - 3 * deviation[0]])
    return jnp.where(jnp.isnan(threshold), jnp.nan, jnp.where((estimates >= 0) & (estimates <= 1), estimates, 0))


def move_thresholds(thresholds: Array, estimates: Array) -> Array:
    """Moves thresholds towards estimates, but for those that are NaN."""
    return jnp.where(jnp.isnan(estimates), thresholds, STEP_SIZE * estimates + (1 - STEP_SIZE) * thresholds)


class MinedTexts(Elements):
    """Texts with the results of mining the thresholds.

    Attributes:
      threshold: float32 [N], the similarity below which their words and a region do not match.
      scores: float32 [N, I], their scores with all images of this device.
    """

    threshold: Array | None = None
    scores: Array | None = None


def mine(
    model: TiledMatcher, images: Elements, texts: Elements, alpha: float, minimum_words: int
) -> tuple[Array, MinedTexts]:
    """Estimates the threshold of each text from the texts before it, without gradient.

    A tile of texts is scored at the threshold of the texts before it, then at the thresholds that its scores lead
    to, until these stay. A threshold depends on earlier texts alone, so that the result is that of scoring one text
    after the other: what a CPU does, with tiles of one text. On accelerators all texts are one tile.

    Args:
      model: The model, with a method `score_and_best` of a block of images and texts.
      images: The images of this device.
      texts: The texts of all devices; text n describes image n.
      alpha, minimum_words: See `NAAF`.

    Returns:
      The threshold and the safe threshold after all texts [2], and the texts with their thresholds and scores.
    """
    images, texts = jax.lax.stop_gradient((images, texts))
    zeros = functools.partial(jnp.zeros, dtype=images.gram.dtype)
    start = Statistics(count=zeros(1), mean=zeros(2), squares=zeros(2)), zeros(2)
    one_by_one = policy.one_text_at_a_time()
    size = 1 if one_by_one else len(texts.mask)
    score_texts = at_own_length if one_by_one else functools.partial(by_length, axis=1)

    def score_cut(cut):
        scores, best = model.in_tiles('score_and_best', images, cut, all_images=one_by_one)
        return scores, jnp.pad(best, [(0, 0), (0, 0), (0, texts.mask.shape[1] - best.shape[2])])

    def add_texts(earlier, similarities, selected):
        statistics, thresholds = earlier
        described = describe(similarities, selected)
        # For a TPU its compiler estimates a third of the time of adding one text after the other.
        joined = jax.tree.map(lambda x, y: jnp.concatenate([x[None], y]), statistics, described)
        after = jax.tree.map(lambda x: x[1:], jax.lax.associative_scan(merge, joined))
        estimates = jax.vmap(functools.partial(estimate_thresholds, alpha=alpha))(after)
        estimates = jnp.where(after.count > minimum_words, estimates, jnp.nan)
        thresholds, thresholds_of_texts = jax.lax.scan(
            lambda old, new: (move_thresholds(old, new), old), thresholds, estimates
        )
        return (jax.tree.map(lambda x: x[-1], after), thresholds), thresholds_of_texts[:, 0]

    def score_tile(earlier, rows_and_texts):
        rows, tile = rows_and_texts
        columns = jnp.arange(len(rows))

        def score(state):
            _, mined, thresholds = state
            mined = mined.replace(threshold=thresholds)
            scores, best = score_texts(score_cut, mined)
            all_scores, best = collectives.gather_over_devices((scores, best))
            # Words count if their image ranks first; mismatches come from the image that ranks last.
            similarities = jnp.stack([best[rows, columns], best[jnp.argmin(all_scores, axis=0), columns]], axis=1)
            selected = tile.mask & (jnp.argmax(all_scores, axis=0) == rows)[:, None]
            latest, thresholds = add_texts(earlier, similarities, selected)
            return latest, mined.replace(scores=scores.T), thresholds

        mined = MinedTexts(
            **vars(tile),
            threshold=jnp.full_like(zeros(len(rows)), jnp.nan),  # unlike any, so that they are scored
            scores=zeros((len(rows), len(images.mask))),
        )
        state = earlier, mined, jnp.full_like(mined.threshold, earlier[1][0])
        latest, mined, _ = jax.lax.while_loop(lambda state: jnp.any(state[1].threshold != state[2]), score, state)
        return latest, (mined.threshold, mined.scores)

    rows_and_texts = jnp.arange(len(texts.mask)), texts
    tiles = jax.tree.map(lambda x: einops.rearrange(x, '(n s) ... -> n s ...', s=size), rows_and_texts)
    (_, final), mined = jax.lax.scan(score_tile, start, tiles)
    thresholds, scores = jax.tree.map(lambda x: einops.rearrange(x, 'n s ... -> (n s) ...'), mined)
    return final, MinedTexts(**vars(texts), threshold=thresholds, scores=scores)
