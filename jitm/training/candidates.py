"""Where the candidates of a retrieval ranking come from, and how they are scored.

A source chooses candidates without gradient (`choose`), scores them with it (`score`), and makes rankings of the
scores of the global batch (`rank`). A new one is one more class here, and its name in `SOURCES`.
"""

import dataclasses
from collections.abc import Mapping

import chex
import einops
import jax
import jax.numpy as jnp
from flax import struct

from jitm import parallel
from jitm.errors import UserError
from jitm.models.matcher import Encoding, Matcher
from jitm.types import Batch, Pairs, Ranking

SAME_IMAGE = ('negative', 'positive', 'ignored')


def relevance_margins(relevance: chex.Array, temperature: float) -> chex.Array:
    """The margins (phi(p) - phi(n)) / tau of SAM (arXiv 2110.02623, not checked against its text).

    Args:
      relevance: phi [Q, C] of each candidate n for each query; the positive p of query q is candidate q.
      temperature: tau, what a difference in phi is divided by to be one in scores.

    Returns:
      [Q, C], below 0 where a candidate is the more relevant one.
    """
    return (jnp.diagonal(relevance)[:, None] - relevance) / temperature


def in_batch(
    scores: chex.Array,
    image_index: chex.Array,
    relevance: chex.Array | None = None,
    offline: Mapping[str, tuple[chex.Array, chex.Array]] | None = None,
    anchor_scores: chex.Array | None = None,
    *,
    same_image: str,
    margin_temperature: float = 5.0,
) -> dict[str, Ranking]:
    """Ranks the batch's texts for each image and its images for each text.

    Args:
      scores: [E B, E B], image i with text j; a pair's E copies stand together, and all match each other.
      image_index: int [B], equal numbers are the same image.
      relevance: [B, B], phi of text j for image i, if there are to be margins.
      offline: direction -> scores [E B] of each query with its mined negative, and of a mined pair; if there are any.
      anchor_scores: [A, E B, E B], of the same pairs by each of A anchors, if there are any.
      same_image: what another pair of the same image is: a 'negative', as published; a 'positive', as in CMPM; or
        'ignored'.
      margin_temperature: tau of the margins.

    Returns:
      `i2t` and `t2i`, each a Ranking [E B, E B].

    Raises:
      UserError: same_image is something else, or margin_temperature is not above 0.
    """
    if same_image not in SAME_IMAGE:
        raise UserError(f"config key 'candidates.same_image' is '{same_image}'; take one of {', '.join(SAME_IMAGE)}")
    if not margin_temperature > 0:
        raise UserError(f"config key 'candidates.margin_temperature' is {margin_temperature}; it must be above 0")
    copies = len(scores) // len(image_index)
    chex.assert_shape(scores, (copies * len(image_index),) * 2)
    pair, image = jnp.repeat(jnp.arange(len(image_index)), copies), jnp.repeat(image_index, copies)
    same_pair, same = pair[:, None] == pair, image[:, None] == image
    positives = same if same_image == 'positive' else same_pair
    negatives = ~same_pair if same_image == 'negative' else ~same
    i2t, t2i = Ranking(scores, positives, negatives), Ranking(scores.T, positives, negatives)
    if relevance is not None:
        relevance = jnp.repeat(jnp.repeat(relevance, copies, axis=0), copies, axis=1)
        i2t = i2t.replace(margins=relevance_margins(relevance, margin_temperature))
        t2i = t2i.replace(margins=relevance_margins(relevance.T, margin_temperature))
    if anchor_scores is not None:
        chex.assert_shape(anchor_scores, (None, *scores.shape))
        i2t = i2t.replace(anchor_scores=anchor_scores)
        t2i = t2i.replace(anchor_scores=anchor_scores.transpose(0, 2, 1))
    rankings = {'i2t': i2t, 't2i': t2i}
    for direction, (with_query, of_pair) in (offline or {}).items():
        rankings[direction] = rankings[direction].replace(offline_scores=with_query, offline_pair_scores=of_pair)
    return rankings


class BatchScores(struct.PyTreeNode):
    """Scores of a batch's images with all texts of the global batch.

    Attributes:
      rows: float32 [B, C].
      offline: direction -> scores of mined negatives, see `score_offline`; None without.
    """

    rows: chex.Array
    offline: dict[str, tuple[chex.Array, chex.Array]] | None


class ShortlistScores(struct.PyTreeNode):
    """Scores of one direction's queries with their own texts or images, and with chosen candidates.

    Attributes:
      scores: float32 [B, 1 + H], what matches first.
      chosen: bool [B, H], the candidates that there are.
    """

    scores: chex.Array
    chosen: chex.Array

    def ranking(self) -> Ranking:
        """The ranking of every query."""
        first = jnp.zeros(self.scores.shape, bool).at[:, 0].set(True)
        return Ranking(self.scores, first, jnp.pad(self.chosen, [(0, 0), (1, 0)]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class InBatch:
    """Ranks the global batch's texts for each image and its images for each text.

    Attributes:
      same_image: see `rankings.in_batch`, as for the other.
      margin_temperature: tau.
    """

    same_image: str
    margin_temperature: float = 5.0

    num_extra = 0  # no candidates but the batch

    def choose(self, matcher: Matcher, batch: Batch, axis: str | None) -> None:
        """Chooses nothing: all are candidates."""
        del matcher, batch, axis

    def score(
        self,
        matcher: Matcher,
        images: Encoding,
        texts: Encoding,
        batch: Batch,
        chosen: None,
        axis: str | None,
        train: bool = True,
    ) -> BatchScores:
        """Scores this device's images with all texts; see `Shortlist.score`."""
        del chosen
        rows = matcher.similarity(images, parallel.all_gather(texts, axis), train)
        offline = None if batch.offline is None or not train else score_offline(matcher, images, texts, batch.offline)
        return BatchScores(rows, offline)

    def rank(
        self,
        scores: BatchScores,
        image_index: chex.Array,
        relevance: chex.Array | None = None,
        anchors: tuple[BatchScores, ...] = (),
    ) -> dict[str, Ranking]:
        """Makes `i2t` and `t2i` of scores [B, B] of the global batch; see `rankings.in_batch`."""
        anchor_scores = jnp.stack([anchor.rows for anchor in anchors]) if anchors else None
        keywords = dataclasses.asdict(self)
        return in_batch(scores.rows, image_index, relevance, scores.offline, anchor_scores, **keywords)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shortlist:
    """Ranks the hardest of many candidates: all are scored without gradient, those that are kept again with it.

    So UNITER trains with hard negatives (its released code): 399 random candidates, of which 31 are kept. There every
    query draws its own; here the queries of a step share the global batch and a pool.

    Attributes:
      num_extra: P, how many pairs there are besides the global batch, whose images and texts are candidates too.
      num_hard: H, how many candidates of each query are kept.
    """

    num_extra: int
    num_hard: int

    def __post_init__(self):
        if self.num_extra < 0:
            raise UserError(f"config key 'candidates.num_extra' is {self.num_extra}; it must not be negative")
        if self.num_hard < 1:
            raise UserError(f"config key 'candidates.num_hard' is {self.num_hard}; it must be at least 1")

    def choose(self, matcher: Matcher, batch: Batch, axis: str | None) -> dict[str, tuple[chex.Array, chex.Array]]:
        """Finds the hardest candidates of this device's queries, in evaluation mode.

        Returns:
          Direction -> int [B, H], the candidates in the order of `_candidates`, and bool [B, H], which of these there
          are.
        """
        images, texts = matcher.encode_image(batch.images), matcher.encode_text(batch.texts)
        all_images, all_texts = _candidates(matcher, images, texts, batch, axis, train=False)
        index = parallel.all_gather(batch.image_index, axis)
        if batch.extra is not None:
            index = jnp.concatenate([index, parallel.all_gather(batch.extra_index, axis)])
        negatives = batch.image_index[:, None] != index
        scores = {'i2t': matcher.similarity(images, all_texts), 't2i': matcher.similarity(all_images, texts).T}
        chosen = {}
        for direction, rows in scores.items():
            kept, chosen_index = jax.lax.top_k(jnp.where(negatives, rows, -jnp.inf), self.num_hard)
            chosen[direction] = chosen_index, jnp.isfinite(kept)
        return chosen

    def score(
        self,
        matcher: Matcher,
        images: Encoding,
        texts: Encoding,
        batch: Batch,
        chosen: Mapping[str, tuple[chex.Array, chex.Array]],
        axis: str | None,
        train: bool = True,
    ) -> dict[str, ShortlistScores]:
        """Scores this device's queries with what matches them and with their candidates.

        Args:
          matcher: the model.
          images: of the batch, encoded.
          texts: of the batch, encoded.
          batch: this device's rows.
          chosen: of `choose`.
          axis: of the devices; None for one.
          train: in training.

        Returns:
          Direction -> scores of this device's queries.
        """
        all_images, all_texts = _candidates(matcher, images, texts, batch, axis, train)

        def scores(direction: str, queries: Encoding, own: Encoding, candidates: Encoding) -> ShortlistScores:
            index, there = chosen[direction]
            per_query = 1 + index.shape[1]
            others = jax.tree.map(lambda x: x[index], candidates)
            listed = jax.tree.map(lambda a, b: jnp.concatenate([a[:, None], b], axis=1), own, others)
            listed = jax.tree.map(lambda x: einops.rearrange(x, 'q c ... -> (q c) ...'), listed)
            queries = jax.tree.map(lambda x: jnp.repeat(x, per_query, axis=0), queries)
            pair = (queries, listed) if direction == 'i2t' else (listed, queries)
            return ShortlistScores(matcher.similarity_pairwise(*pair, train).reshape(-1, per_query), there)

        return {'i2t': scores('i2t', images, texts, all_texts), 't2i': scores('t2i', texts, images, all_images)}

    def rank(
        self,
        scores: Mapping[str, ShortlistScores],
        image_index: chex.Array,
        relevance: None = None,
        anchors: tuple[()] = (),
    ) -> dict[str, Ranking]:
        """Makes `i2t` and `t2i` [B, 1 + H] of the scores of the global batch."""
        del image_index, relevance, anchors
        return {direction: listed.ranking() for direction, listed in scores.items()}


Source = InBatch | Shortlist
SOURCES = {'in_batch': InBatch, 'shortlist': Shortlist}


def _candidates(
    matcher: Matcher, images: Encoding, texts: Encoding, batch: Batch, axis: str | None, train: bool
) -> tuple[Encoding, Encoding]:
    """All images and all texts of a step, encoded: the global batch, then its pool."""
    own = parallel.all_gather((images, texts), axis)
    if batch.extra is None:
        return own
    pool = matcher.encode_image(batch.extra.images, train), matcher.encode_text(batch.extra.texts, train)
    return jax.tree.map(lambda *x: jnp.concatenate(x), own, parallel.all_gather(pool, axis))


def score_offline(
    matcher: Matcher, images: Encoding, texts: Encoding, offline: tuple[Pairs, Pairs]
) -> dict[str, tuple[chex.Array, chex.Array]]:
    """Scores mined negatives, each pair of batches encoded by itself as in the released code of AOQ (paper 000).

    Args:
      matcher: in training.
      images: of N matching pairs, encoded.
      texts: of these.
      offline: mined negatives of each pair, and what corresponds to these.

    Returns:
      Direction -> scores [N] of each query with its negative, and of a pair without the query: both negatives for
      images, what corresponds to them for texts.
    """
    negatives, partners = (
        (matcher.encode_image(pairs.images, train=True), matcher.encode_text(pairs.texts, train=True))
        for pairs in offline
    )
    pairs = [(images, negatives[1]), negatives, (negatives[0], texts), partners]
    of_image, of_negatives, of_text, of_partners = (matcher.similarity_pairwise(*pair, train=True) for pair in pairs)
    return {'i2t': (of_image, of_negatives), 't2i': (of_text, of_partners)}
