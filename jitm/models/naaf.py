"""Negative-aware attention: words without a matching region lower the score (NAAF; Zhang et al., 2022)."""

import einops
import jax.numpy as jnp
from chex import Array
from flax import linen as nn

from jitm.layers import attention
from jitm.layers.lengths import by_length
from jitm.models.naaf_thresholds import MinedTexts, mine
from jitm.models.tiled import CrossAttentionMatcher
from jitm.types import Elements, Index, InverseTemperature, Positive


class NAAF(CrossAttentionMatcher):
    """Averages over words their cosine with the matching regions, their relevance, and their negative evidence.

    A region matches a word if their similarity is above a threshold. Training estimates the threshold from the captions
    of a batch, one after the other: it is 0 until `minimum_words` words are collected, and it is reset for each batch.
    Evaluation uses the safe threshold of the last training batch.

    This follows the released code, except that it sorts batches by caption length, and here they keep the order of the
    data. The paper's mismatches come from all negative pairs and its alpha adapts, by rules that it does not state.

    Attributes:
      embed_dim, image, text: See `CrossAttentionMatcher`.
      lambda_softmax: The inverse temperature of both attentions.
      lambda_smoothing: The inverse temperature of the similarity of words. In evaluation, whether a word lacks a
        matching region is decided together with the similar words of its text.
      alpha: The ratio of the densities of matches and mismatches at the threshold.
      minimum_words: The number of words below which no threshold is estimated.
    """

    lambda_softmax: InverseTemperature
    lambda_smoothing: Positive
    alpha: Positive
    minimum_words: Index

    trains_on_batches = True  # which the thresholds are estimated from

    def setup(self):
        """Creates the thresholds."""
        self.threshold = self.variable('batch_stats', 'threshold', jnp.zeros, ())
        self.safe_threshold = self.variable('batch_stats', 'safe_threshold', jnp.zeros, ())

    def weights(self, scores: Array, context: Elements, queries: Elements) -> Array:
        """See `CrossAttentionMatcher`; a word attends to its matching regions, and to none without any."""
        return self._matching(scores, context.mask, self.safe_threshold.value)

    def _matching(self, scores: Array, context_mask: Array, threshold: Array) -> Array:
        above = scores - threshold
        return jnp.where(above > 0, attention.attend(above, context_mask, self.lambda_softmax), 0)

    def _score(
        self,
        scores: Array,
        images: Elements,
        texts: Elements,
        threshold: Array,
        smoothing: Array | None = None,
    ) -> Array:
        """Computes the scores of pairs [I, T] from similarities [I, R, T, L] and smoothing weights [T, L, L]."""
        best = attention.best_similarities(scores, images.mask) - threshold
        decision = best if smoothing is None else jnp.einsum('qmn,cqn->cqm', smoothing, best)
        unmatched = jnp.where(decision < 0, best, 0)
        matching = self._matching(scores, images.mask, threshold)
        matched = attention.attended_cosine(scores, matching, attention.gram(images))
        weights = attention.normalize(super().weights(scores, images, texts))
        relevance = jnp.sum(weights * scores, axis=1)
        return jnp.mean(unmatched + matched + relevance, axis=-1, where=texts.mask)

    def score_block(self, images: Elements, texts: Elements) -> Array:
        """Scores every image of a block with every text of it, by the rule of evaluation: [I, T]."""
        scores = attention.similarities(images, texts)
        logits = self.lambda_smoothing * attention.gram(texts)
        smoothing = nn.softmax(logits, axis=-1, where=einops.rearrange(texts.mask, 't l -> t 1 l'))
        return self._score(scores, images, texts, self.safe_threshold.value, smoothing)

    def score_at_threshold(self, images: Elements, texts: MinedTexts) -> Array:
        """Scores every image of a block with every text of it, by the rule of training: [I, T]."""
        return self.score_and_best(images, texts)[0]

    def score_and_best(self, images: Elements, texts: MinedTexts) -> tuple[Array, Array]:
        """Also returns the similarity of each word with each image's most similar region: [I, T, L]."""
        scores = attention.similarities(images, texts)
        result = self._score(scores, images, texts, texts.threshold[:, None])
        return result, attention.best_similarities(scores, images.mask)

    def similarity(self, images: Elements, texts: Elements, train: bool = False) -> Array:
        """Scores every image with every text: [I, T]; in training text n must describe image n of all devices."""
        if not train:
            return super().similarity(images, texts)
        images, texts = self.prepare(images, texts)
        thresholds, mined = mine(self, images, texts, self.alpha, self.minimum_words)
        if not self.is_initializing():
            self.threshold.value, self.safe_threshold.value = thresholds
        mined = mined.replace(vectors=texts.vectors)  # with gradient

        def mined_scores(variables, images, texts):
            del variables, images
            return texts.scores.T

        def score(part):
            return self.score_in_tiles('score_at_threshold', images, part, mined_scores)

        return by_length(score, mined, axis=1)
