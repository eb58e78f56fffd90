"""Arrays that cross module boundaries, with their shapes.

I images, T texts, R regions, L words, D features, H x W pixels; B pairs of a batch, E augmented views of each;
Q queries, C candidates of a ranking, A anchors; N pairs of an image with a text; K masked variants of a text; V words
of the vocabulary.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

import chex
import jax.numpy as jnp
from annotated_types import Ge, Gt, Interval
from flax import struct

# Types and ranges of the arguments that a config sets, as hints of these arguments; `config.section.bind` checks them.
Count = Annotated[int, Ge(1)]
Index = Annotated[int, Ge(0)]
Positive = Annotated[float, Gt(0)]
NotNegative = Annotated[float, Ge(0)]
Margin = Weight = NotNegative
Temperature = Positive
Probability = Annotated[float, Interval(ge=0, le=1)]
Rate = Annotated[float, Interval(ge=0, lt=1)]  # dropout; a rate of 1 would drop everything
Share = Annotated[float, Interval(gt=0, le=1)]
HeldOut = Annotated[float, Interval(gt=0, lt=0.5)]  # share of the images for each of two splits
Cosine = Annotated[float, Interval(ge=-1, le=1)]
Bias = Annotated[float, Interval(ge=-100, le=100)]  # logits beyond saturate the sigmoid in float32
InverseTemperature = Annotated[float, Interval(gt=0, le=30)]  # float32 holds sums of squares of exponentials
SequenceLength = Annotated[int, Ge(2)]  # with a special token at the start and at the end

# Arrays of the losses, as `config.arguments.checked` reads them.
Scores = Annotated[chex.Array, 'float [Q, C]']
"""A number for each candidate of each query."""
Mask = Annotated[chex.Array, 'bool [Q, C]']
"""Some candidates of each query."""
PerQuery = Annotated[chex.Array, 'float [Q]']
"""A number for each query."""
Logits = Annotated[chex.Array, 'float [N, L, V]']
"""Scores of the words at each token position, before the softmax."""
Labels = Annotated[chex.Array, 'int [N, L]']
"""A word for each token position, below V where its mask is True."""
TokenMask = Annotated[chex.Array, 'bool [N, L]']
"""Some token positions of each text."""
PerText = Annotated[chex.Array, 'float [N]']
"""A number for each text."""

DTYPES = {'float32': jnp.float32, 'bfloat16': jnp.bfloat16}  # encoders and encodings
PRECISIONS = ('default', 'high', 'highest')  # products of float32 arrays, see docs/notes/precision.md
Precision = Literal[*PRECISIONS]


class Segment(NamedTuple):
    """Token positions of texts that are sorted by length, the longest first.

    Attributes:
      start: The first position.
      stop: The position after the last one.
      count: The number of texts that are read there; the others end before.
    """

    start: int
    stop: int
    count: int


Segments = tuple[Segment, ...]
"""Segments one after the other, with ever fewer texts."""


class Profile(NamedTuple):
    """Bounds the lengths of some texts.

    Attributes:
      segments: How many texts are long.
      tokens: The maximum number of tokens of all these texts together.
    """

    segments: Segments
    tokens: int

    @property
    def texts(self) -> int:
        """The number of texts."""
        return self.segments[0].count

    @property
    def length(self) -> int:
        """The maximum length of a text."""
        return self.segments[-1].stop


class Images(struct.PyTreeNode):
    """Images as sets of region features, a global feature vector being one region, or as pixels.

    A field that the model does not read is None, see `Matcher.reads`.

    Attributes:
      regions: float16 or float32 [I, R, D].
      counts: int32 [I], the number of valid regions; the other rows are padding.
      kept: bool [I, E, R], the regions that each of E views of an image keeps; None for one view with all regions.
      locations: float32 [I, R, 7], x1 y1 x2 y2 width height area of each region as fractions of the image's.
      pixels: uint8 [I, H, W, 3], red green blue.
      tags: The words of each image's object tags, without a start token and with an end token.
    """

    regions: chex.Array | None = None
    counts: chex.Array | None = None
    kept: chex.Array | None = None
    locations: chex.Array | None = None
    pixels: chex.Array | None = None
    tags: 'Texts | None' = None

    @property
    def mask(self) -> chex.Array:
        """Mask of the valid regions, bool [I, R]."""
        return jnp.arange(self.regions.shape[1]) < self.counts[:, None]


class Texts(struct.PyTreeNode):
    """Texts as word ids, `<start>` and `<end>` included.

    Attributes:
      ids: int32 [T, L], 0 where padded.
      lengths: int32 [T], the number of valid ids.
      vectors: float16 or float32 [T, L, F], the vectors of the ids by a frozen encoder, 0 where padded; None without.
      profile: Bounds of the lengths of these T texts, see `jitm.data.profile`; None if they are not known. They are
        static: a step is compiled for each.
    """

    ids: chex.Array
    lengths: chex.Array
    vectors: chex.Array | None = None
    profile: Profile | None = struct.field(pytree_node=False, default=None)

    @property
    def mask(self) -> chex.Array:
        """Mask of the valid words, bool [T, L]."""
        return jnp.arange(self.ids.shape[1]) < self.lengths[:, None]


class Elements(struct.PyTreeNode):
    """N images as encoded regions, or N texts as encoded words, for models that compare regions and words.

    Attributes:
      vectors: float [N, K, D], zero where padded.
      mask: bool [N, K], the valid elements, at least one for each item.
      whole: float [N, D], a global vector of the image or the text; None for models without one.
      gram: float32 [N, K, K], the inner products of the elements of each item, if they are shared by many pairs.
      mapped: float [N, K, P], linear maps of the elements, if they are shared by many pairs.
      profile: The `Texts.profile` of these texts, or of each of several parts of equal size; None if not known.
    """

    vectors: chex.Array
    mask: chex.Array
    whole: chex.Array | None = None
    gram: chex.Array | None = None
    mapped: chex.Array | None = None
    profile: Profile | None = struct.field(pytree_node=False, default=None)

    def first(self, count: int) -> 'Elements':
        """Returns the first `count` elements of each item."""
        gram = None if self.gram is None else self.gram[:, :count, :count]
        mapped = None if self.mapped is None else self.mapped[:, :count]
        return self.replace(vectors=self.vectors[:, :count], mask=self.mask[:, :count], gram=gram, mapped=mapped)


class TextFormat(NamedTuple):
    """The texts that a model reads.

    Attributes:
      kind: 'words' or 'word pieces'; None for either.
      max_length: The maximum number of ids, special tokens included; None for any length.
      vectors: Whether the model reads the vectors of the ids.
      skips_padding: Whether the model computes little of the padding.
    """

    kind: str | None
    max_length: int | None = None
    vectors: bool = False
    skips_padding: bool = False


class Pairs(struct.PyTreeNode):
    """N images and N texts: text n with image n."""

    images: Images
    texts: Texts


class Masked(NamedTuple):
    """Texts with masked token positions.

    Attributes:
      ids: int32 [..., K, L], K variants of a text of L ids.
      labelled: bool [..., K, L], the positions whose original id is predicted; some of them show it.
    """

    ids: chex.Array
    labelled: chex.Array


class Batch(struct.PyTreeNode):
    """B matching pairs: text n describes image n; with E views of each pair, texts n E to n E + E - 1 do.

    Attributes:
      step: int32 [], the training step of this batch.
      images: Images with B rows; an image may occur more than once.
      texts: Texts with B E rows.
      image_index: int32 [B], the row of each image in its split; rows are equal for the same image.
      text_index: int32 [B], the row of each text in its split.
      clean: bool [B], the pairs that noise did not mix, which only diagnostics read; None without noise.
      drawn: The samples of sources for these pairs, by the name of the source; leaves have the rows of this device.
    """

    step: chex.Array
    images: Images
    texts: Texts
    image_index: chex.Array
    text_index: chex.Array | None = None
    clean: chex.Array | None = None
    drawn: Mapping[str, chex.ArrayTree] = struct.field(default_factory=dict)


class Ranking(struct.PyTreeNode):
    """Scores of one retrieval direction with masks of its candidates.

    Attributes:
      scores: float32 [Q, C], query by candidate.
      positives: bool [Q, C], the matching candidates.
      negatives: bool [Q, C], the candidates that a loss may use as negatives.
      inputs: Further inputs of losses, by the names of their arguments. Inputs [Q] whose names end with `_scores` are
        scores of the queries.
      query_values: The values of each term over all candidates, by its name, where a source keeps few scores.
    """

    scores: chex.Array
    positives: chex.Array
    negatives: chex.Array
    inputs: Mapping[str, chex.Array] = struct.field(default_factory=dict)
    query_values: 'Mapping[str, QueryValues]' = struct.field(default_factory=dict)

    @classmethod
    def from_list(cls, scores: chex.Array, valid: chex.Array) -> 'Ranking':
        """Makes the ranking of queries with their positive and a list of H negatives.

        Args:
          scores: float32 [Q, 1 + H], the positive first.
          valid: bool [Q, H], which of the negatives are real.
        """
        positives = jnp.zeros(scores.shape, bool).at[:, 0].set(True)
        return cls(scores, positives, jnp.pad(valid, [(0, 0), (1, 0)]))

    def with_inputs(self, **inputs: chex.Array) -> 'Ranking':
        """Returns the ranking with further inputs of losses."""
        return self.replace(inputs={**self.inputs, **inputs})


class QueryValues(NamedTuple):
    """The numbers [Q] that a term of the objective and its diagnostics need of the queries of a ranking.

    Attributes:
      loss: The unreduced loss.
      constant: The loss of constant scores, for each query the mean of its candidates.
      pull: The absolute gradient of the loss at the scores of the positives.
    """

    loss: chex.Array
    constant: chex.Array
    pull: chex.Array


class TokenPredictions(struct.PyTreeNode):
    """Predictions at each token position of N texts, with their labels.

    Attributes:
      logits: float [N, L, V], before the softmax.
      labels: int32 [N, L], below V where the mask is True.
      mask: bool [N, L], the positions that have a label.
    """

    logits: chex.Array
    labels: chex.Array
    mask: chex.Array
