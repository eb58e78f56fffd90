"""Negative-aware attention: a word that no region matches counts against the pair (NAAF, Zhang et al., 2022)."""

import chex
import einops
import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from jitm import parallel
from jitm.errors import UserError
from jitm.layers import attention
from jitm.models.cross_attention import UNPAIRED, ElementMatcher
from jitm.types import Elements

NEW_SHARE = 0.7  # of a newly mined threshold; the rest is the one before


class Mined(struct.PyTreeNode):
    """What the captions of a batch have taught so far; of pairs, the first is of positives, the second of negatives.

    Attributes:
      threshold: float32 [], below it a word and a region do not match.
      safe_threshold: float32 [], three deviations below the mean of the positives.
      count: float32 [], how many words were collected.
      mean: float32 [2], of the words' similarities with their best regions.
      squares: float32 [2], the sums of squared differences from the means.
    """

    threshold: chex.Array
    safe_threshold: chex.Array
    count: chex.Array
    mean: chex.Array
    squares: chex.Array


def nothing_mined() -> Mined:
    """What a batch begins with."""
    number, pair = jnp.zeros((), jnp.float32), jnp.zeros(2, jnp.float32)
    return Mined(threshold=number, safe_threshold=number, count=number, mean=pair, squares=pair)


def collect(mined: Mined, similarities: chex.Array, counted: chex.Array) -> Mined:
    """Adds the words of a caption to the statistics, by the rule for joining means and squares of two samples.

    Args:
      mined: before.
      similarities: [2, L].
      counted: bool [L], the words to be added.
    """
    count = jnp.sum(counted, dtype=mined.count.dtype)
    mean = jnp.sum(jnp.where(counted, similarities, 0), axis=-1) / jnp.maximum(count, 1)
    squares = jnp.sum(jnp.where(counted, jnp.square(similarities - mean[:, None]), 0), axis=-1)
    total, difference = mined.count + count, mean - mined.mean
    share = count / jnp.maximum(total, 1)
    return mined.replace(
        count=total,
        mean=mined.mean + share * difference,
        squares=mined.squares + squares + share * mined.count * jnp.square(difference),
    )


def boundary(mean: chex.Array, deviation: chex.Array, alpha: float) -> chex.Array:
    """Where the normal density of positives is alpha times that of negatives.

    The released code solves A x^2 + B x + C = 0 by (-B + sqrt(B^2 - 4 A C)) / (2 A). This is the same root, written so
    that it does not divide by A, the difference of the variances, which is near 0.

    Args:
      mean: [2], of positives and of negatives.
      deviation: [2].
      alpha: above 1 the boundary is nearer to the positives.

    Returns:
      []; NaN if the densities have no such ratio anywhere.
    """
    (positive, negative), gap = deviation, mean[0] - mean[1]
    logarithm = jnp.log(negative / (alpha * positive) + attention.EPSILON)
    discriminant = gap**2 - 2 * (positive**2 - negative**2) * logarithm
    root = jnp.sqrt(jnp.maximum(discriminant, 0))
    step = negative * (gap**2 - 2 * positive**2 * logarithm) / (positive * root + negative * gap)
    return jnp.where(positive * negative * discriminant > 0, mean[1] + step, jnp.nan)


def move_thresholds(mined: Mined, alpha: float) -> Mined:
    """Moves both thresholds to where the collected words want them, if there is a boundary; 0 if outside of [0, 1]."""
    deviation = jnp.sqrt(mined.squares / (mined.count - 1))
    threshold = boundary(mined.mean, deviation, alpha)
    safe_threshold = mined.mean[0] - 3 * deviation[0]

    def moved(old, new):
        new = jnp.where(jnp.isnan(threshold), old, new)
        return NEW_SHARE * jnp.where((new >= 0) & (new <= 1), new, 0) + (1 - NEW_SHARE) * old

    return mined.replace(
        threshold=moved(mined.threshold, threshold), safe_threshold=moved(mined.safe_threshold, safe_threshold)
    )


def mine(
    mined: Mined, row: chex.Array, scores: chex.Array, best: chex.Array, mask: chex.Array, alpha: float, minimum: int
) -> Mined:
    """Learns from a caption: from its words with its image, if that ranks first, and with the image that ranks last.

    Args:
      mined: after the captions before.
      row: int32 [], of the caption's image.
      scores: [I], of the caption with every image.
      best: [I, L], the similarity of its words with each image's best region.
      mask: bool [L], which words are real.
      alpha: see `boundary`.
      minimum: more words than these must have been collected for a threshold to be moved.
    """
    pair = jnp.stack([best[row], best[jnp.argmin(scores)]])
    mined = collect(mined, pair, mask & (jnp.argmax(scores) == row))
    moved = move_thresholds(mined, alpha)
    return jax.tree.map(lambda new, old: jnp.where(mined.count > minimum, new, old), moved, mined)


def best_similarities(scores: chex.Array, context_mask: chex.Array) -> chex.Array:
    """The largest of [C, K, Q, M] over the real context elements: [C, Q, M]."""
    return jnp.max(jnp.where(einops.rearrange(context_mask, 'c k -> c k 1 1'), scores, -jnp.inf), axis=1)


class NAAF(ElementMatcher):
    """The mean over words of their cosine with the regions that match, of their relevance, and of what they lack.

    A region matches a word if their similarity is above a threshold, which training mines from the captions of a batch
    in order: it is 0 until `minimum_words` are collected, and 0 again when the next batch begins. Evaluation takes the
    safe threshold that the last batch has left.

    All is as released. There, batches are sorted by caption length; here they are in the order of the data. The paper's
    negatives are of all mismatched pairs and its alpha adapts, by rules that are not given here.

    Attributes:
      embed_dim, image, text: see `ElementMatcher`.
      slope: of the leaky ReLU of similarities for the relevance, 0.1 as released; 0 is the paper's ReLU.
      lambda_softmax: temperature of both attentions.
      smoothing: in evaluation, whether no region matches a word is decided with the words of its text that are like it.
      lambda_smoothing: temperature of how alike words are.
      alpha: how many times as dense as negatives positives must be to match.
      minimum_words: no threshold is mined from fewer words.
    """

    slope: float
    lambda_softmax: float
    smoothing: bool
    lambda_smoothing: float
    alpha: float
    minimum_words: int

    def setup(self):
        """Checks the options and makes the thresholds."""
        attention.check_temperature(self.lambda_softmax)
        if self.alpha <= 0:
            raise UserError(f"config key 'model.alpha' is {self.alpha}; it must be above 0")
        self.threshold = self.variable('batch_stats', 'threshold', jnp.zeros, ())
        self.safe_threshold = self.variable('batch_stats', 'safe_threshold', jnp.zeros, ())

    def weights(self, images: Elements, texts: Elements) -> chex.Array:
        """Attention of each word over the regions that match it, up to a factor: [I, R, T, L]; 0 if none does."""
        return self._matching(attention.similarities(images, texts), images.mask, self.safe_threshold.value)

    def attention_block(self, images: Elements, texts: Elements) -> dict[str, chex.Array]:
        """The attention of each word over the regions that match it: 't2i' -> [I, T, L, R]."""
        return {'t2i': attention.word_by_region(self.weights(images, texts), texts, 't2i')}

    def _matching(self, scores: chex.Array, context_mask: chex.Array, threshold: chex.Array) -> chex.Array:
        above = scores - threshold
        return jnp.where(above > 0, attention.attend(above, context_mask, self.lambda_softmax), 0)

    def _score(
        self,
        scores: chex.Array,
        context_mask: chex.Array,
        gram: chex.Array,
        query_mask: chex.Array,
        threshold: chex.Array,
        likeness: chex.Array | None = None,
    ) -> chex.Array:
        """From similarities [C, K, Q, M] and the likeness of words [Q, M, M] to the scores of pairs [C, Q]."""
        best = best_similarities(scores, context_mask) - threshold
        decision = best
        if likeness is not None:
            decision = jnp.einsum('qmn,cqn->cqm', likeness, best, precision=jax.lax.Precision.HIGHEST)
        missing = jnp.where(decision < 0, best, 0)
        matched = attention.attended_cosine(scores, self._matching(scores, context_mask, threshold), gram)
        normalized = attention.normalize_over_queries(scores, query_mask, 'clipped_l2norm', self.slope)
        shares = attention.shares(attention.attend(normalized, context_mask, self.lambda_softmax))
        relevance = jnp.sum(shares * scores, axis=1)
        return attention.masked_mean(missing + matched + relevance, query_mask)

    def score_block(self, images: Elements, texts: Elements) -> chex.Array:
        """Scores every image of a block with every text of it, by the rule of evaluation: [I, T]."""
        scores, gram = attention.similarities(images, texts), attention.gram(images)
        likeness = None
        if self.smoothing:
            logits = self.lambda_smoothing * attention.gram(texts)
            likeness = nn.softmax(logits, axis=-1, where=einops.rearrange(texts.mask, 't l -> t 1 l'))
        return self._score(scores, images.mask, gram, texts.mask, self.safe_threshold.value, likeness)

    def similarity(self, images: Elements, texts: Elements, train: bool = False) -> chex.Array:
        """Scores every image with every text: [I, T]; in training text n must describe image n of all devices."""
        if not train:
            return super().similarity(images, texts)
        scores, gram = attention.similarities(images, texts), attention.gram(images)
        best = best_similarities(jax.lax.stop_gradient(scores), images.mask)

        def score_text(mined: Mined, text: tuple[chex.Array, ...]) -> tuple[Mined, chex.Array]:
            row, scores, best, mask = text
            column = self._score(scores[:, :, None], images.mask, gram, mask[None], mined.threshold)[:, 0]
            ranked = parallel.gather_over_devices(jax.lax.stop_gradient(column))
            return mine(mined, row, ranked, best, mask, self.alpha, self.minimum_words), column

        mined, columns = jax.lax.scan(
            jax.checkpoint(score_text, prevent_cse=False),  # keeps nothing of a text for the gradient but its scores
            nothing_mined(),
            (
                jnp.arange(len(texts.mask)),
                einops.rearrange(scores, 'i r t l -> t i r l'),
                einops.rearrange(parallel.gather_over_devices(best), 'i t l -> t i l'),
                texts.mask,
            ),
        )
        if not self.is_initializing():
            self.threshold.value, self.safe_threshold.value = mined.threshold, mined.safe_threshold
        return columns.T

    def similarity_pairwise(self, images: Elements, texts: Elements, train: bool = False) -> chex.Array:
        """Scores image n with text n, by the rule of evaluation: [N].

        Raises:
          UserError: in training, whose thresholds are mined from a whole batch.
        """
        if train:
            raise UserError(UNPAIRED.format(type(self).__name__))
        return super().similarity_pairwise(images, texts)
