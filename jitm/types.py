"""The arrays that cross module boundaries, with their shapes.

I images, T texts, R regions, L words, D features; B pairs of a batch, E copies of each; Q queries, C candidates of a
ranking, A anchors; N pairs of an image with a text; K masked variants of a text; V
words of the vocabulary.
"""

from typing import NamedTuple

import chex
import jax.numpy as jnp
from flax import struct


class Images(struct.PyTreeNode):
    """Images as sets of region features; a global feature vector is one region.

    Attributes:
      regions: float16 or float32 [I, R, D].
      counts: int32 [I], how many of the R regions are real; the rest is padding.
      kept: bool [I, E, R], the regions that each of E copies of an image keeps; None for one copy that keeps all.
      locations: float32 [I, R, 7], x1 y1 x2 y2 width height area of each region as fractions of the image's; None for
        models that do not read them.
    """

    regions: chex.Array
    counts: chex.Array
    kept: chex.Array | None = None
    locations: chex.Array | None = None

    @property
    def mask(self) -> chex.Array:
        """Which regions are real, bool [I, R]."""
        return jnp.arange(self.regions.shape[1]) < self.counts[:, None]


class Texts(struct.PyTreeNode):
    """Texts as word ids, `<start>` and `<end>` included.

    Attributes:
      ids: int32 [T, L], 0 where padded.
      lengths: int32 [T], how many of the L ids are real.
    """

    ids: chex.Array
    lengths: chex.Array

    @property
    def mask(self) -> chex.Array:
        """Which words are real, bool [T, L]."""
        return jnp.arange(self.ids.shape[1]) < self.lengths[:, None]


class Elements(struct.PyTreeNode):
    """N images as encoded regions, or N texts as encoded words, for models that compare these.

    Attributes:
      vectors: float [N, K, D], zero where padded.
      mask: bool [N, K], which of the K elements are real; at least one is.
      whole: float [N, D], the image or the text as one vector; None if the model has no use for it.
    """

    vectors: chex.Array
    mask: chex.Array
    whole: chex.Array | None = None

    def first(self, count: int) -> 'Elements':
        """Without the elements beyond the first of each item, `count` in number."""
        return self.replace(vectors=self.vectors[:, :count], mask=self.mask[:, :count])


class TextFormat(NamedTuple):
    """What texts a model reads.

    Attributes:
      kind: 'words' or 'word pieces'; None for either.
      max_length: ids of the longest, both ends included; None for any length.
    """

    kind: str | None
    max_length: int | None = None


class Pairs(struct.PyTreeNode):
    """N images and N texts: text n with image n.

    Attributes:
      images: Images with N rows.
      texts: Texts with N rows.
    """

    images: Images
    texts: Texts


class Masked(NamedTuple):
    """Sentences with places to fill in.

    Attributes:
      ids: int32 [..., K, L], K variants of a sentence of L ids.
      labelled: bool [..., K, L], the places whose original id is to be predicted, some of which show it.
    """

    ids: chex.Array
    labelled: chex.Array


class Batch(struct.PyTreeNode):
    """B matching pairs: text n describes image n. With E copies of each pair, texts n E to n E + E - 1 do.

    Attributes:
      step: int32 [], the training step this batch belongs to.
      images: Images with B rows; an image may occur more than once.
      texts: Texts with B E rows.
      image_index: int32 [B], row of each image in its split; equal numbers are the same image.
      relevance: float32 [B, C], a metric phi of all C texts of the global batch for each image; None if not asked for.
      offline: two Pairs with B rows, mined negatives of each pair and what corresponds to these, see
        `jitm.data.candidates`; None without.
      extra: Pairs with P rows, more candidates; None without.
      extra_index: int32 [P], row of each of their images in the split; None without.
      masked: K variants of each text, [B, K, L]; None without.
      caption_words: int32 [B, W], the ids in all captions of each image, padded with -1; None without.
    """

    step: chex.Array
    images: Images
    texts: Texts
    image_index: chex.Array
    relevance: chex.Array | None = None
    offline: tuple[Pairs, Pairs] | None = None
    extra: Pairs | None = None
    extra_index: chex.Array | None = None
    masked: Masked | None = None
    caption_words: chex.Array | None = None


class Ranking(struct.PyTreeNode):
    """Scores of one retrieval direction, and which candidates count.

    Attributes:
      scores: float32 [Q, C], query by candidate.
      positives: bool [Q, C], the matching candidates.
      negatives: bool [Q, C], the candidates a loss may push away.
      anchor_scores: float32 [A, Q, C], by each member that this one learns from; None without.
      margins: float32 [Q, C], by how much the positive shall be ahead of each candidate; None without a relevance.
      offline_scores: float32 [Q], of each query with its mined negative; None without.
      offline_pair_scores: float32 [Q], of a mined pair that has nothing in common with the query; None without.
    """

    scores: chex.Array
    positives: chex.Array
    negatives: chex.Array
    anchor_scores: chex.Array | None = None
    margins: chex.Array | None = None
    offline_scores: chex.Array | None = None
    offline_pair_scores: chex.Array | None = None


class TokenPredictions(struct.PyTreeNode):
    """What a model predicts at each place of N texts, and what it should.

    Attributes:
      logits: float [N, L, V], before the softmax.
      labels: int32 [N, L], below V where the mask is True.
      mask: bool [N, L], the places that count.
    """

    logits: chex.Array
    labels: chex.Array
    mask: chex.Array
