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
    """Running statistics of matched (index 0) and mismatched (index 1) word similarities within a batch.

    Attributes:
      threshold: float32 [], the similarity below which a word and a region do not match.
      safe_threshold: float32 [], three standard deviations below the mean of the matched similarities.
      count: float32 [], the number of words collected.
      mean: float32 [2], the mean similarity of a word with its best region.
      squares: float32 [2], the sums of squared differences from the means.
    """

    threshold: Array
    safe_threshold: Array
    count: Array
    mean: Array
    squares: Array


def add_words(statistics: Statistics, similarities: Array, mask: Array) -> Statistics:
    """Adds the words of a caption, by the parallel update of mean and variance (Chan et al., 1979).

    `similarities` are [2, L], matched and mismatched, and `mask` [L] has the words to add.
    """
    count = jnp.sum(mask, dtype=statistics.count.dtype)
    mean = jnp.sum(jnp.where(mask, similarities, 0), axis=-1) / jnp.maximum(count, 1)
    squares = jnp.sum(jnp.where(mask, jnp.square(similarities - mean[:, None]), 0), axis=-1)
    total = statistics.count + count
    difference = mean - statistics.mean
    weight = count / jnp.maximum(total, 1)
    return statistics.replace(
        count=total,
        mean=statistics.mean + weight * difference,
        squares=statistics.squares + squares + weight * statistics.count * jnp.square(difference),
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


def move_thresholds(statistics: Statistics, alpha: float) -> Statistics:
    """Moves both thresholds towards their current estimates; an estimate outside of [0, 1] counts as 0.

    Without a `decision_boundary` both thresholds stay. The statistics need at least two words.
    """
    deviation = jnp.sqrt(statistics.squares / (statistics.count - 1))
    threshold = decision_boundary(statistics.mean, deviation, alpha)
    safe_threshold = statistics.mean[0] - 3 * deviation[0]

    def moved(old, new):
        new = jnp.where(jnp.isnan(threshold), old, new)
        return STEP_SIZE * jnp.where((new >= 0) & (new <= 1), new, 0) + (1 - STEP_SIZE) * old

    return statistics.replace(
        threshold=moved(statistics.threshold, threshold),
        safe_threshold=moved(statistics.safe_threshold, safe_threshold),
    )


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
) -> tuple[Statistics, MinedTexts]:
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
      The statistics after all texts, and the texts with their thresholds and scores.
    """
    images, texts = jax.lax.stop_gradient((images, texts))
    scalar = jnp.zeros((), images.gram.dtype)
    pair = jnp.zeros(2, images.gram.dtype)
    start = Statistics(threshold=scalar, safe_threshold=scalar, count=scalar, mean=pair, squares=pair)
    one_by_one = policy.one_text_at_a_time()
    size = 1 if one_by_one else len(texts.mask)
    score_texts = at_own_length if one_by_one else functools.partial(by_length, axis=1)

    def score_cut(cut):
        scores, best = model.in_tiles('score_and_best', images, cut, all_images=one_by_one)
        return scores, jnp.pad(best, [(0, 0), (0, 0), (0, texts.mask.shape[1] - best.shape[2])])

    def add_text(statistics, similarities_and_mask):
        threshold = statistics.threshold
        statistics = add_words(statistics, *similarities_and_mask)
        moved = move_thresholds(statistics, alpha)
        enough = statistics.count > minimum_words
        return jax.tree.map(lambda new, old: jnp.where(enough, new, old), moved, statistics), threshold

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
            statistics, thresholds = jax.lax.scan(add_text, earlier, (similarities, selected))
            return statistics, mined.replace(scores=scores.T), thresholds

        mined = MinedTexts(
            **vars(tile),
            threshold=jnp.full(len(rows), jnp.nan, scalar.dtype),  # unlike any, so that they are scored
            scores=jnp.zeros((len(rows), len(images.mask)), scalar.dtype),
        )
        state = earlier, mined, jnp.full_like(mined.threshold, earlier.threshold)
        statistics, mined, _ = jax.lax.while_loop(lambda state: jnp.any(state[1].threshold != state[2]), score, state)
        return statistics, (mined.threshold, mined.scores)

    rows_and_texts = jnp.arange(len(texts.mask)), texts
    tiles = jax.tree.map(lambda x: einops.rearrange(x, '(n s) ... -> n s ...', s=size), rows_and_texts)
    statistics, mined = jax.lax.scan(score_tile, start, tiles)
    thresholds, scores = jax.tree.map(lambda x: einops.rearrange(x, 'n s ... -> (n s) ...'), mined)
    return statistics, MinedTexts(**vars(texts), threshold=thresholds, scores=scores)
