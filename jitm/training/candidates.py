"""Retrieval candidates: the global batch, mined or sampled negatives, and a shortlist of the hardest of many."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import chex
import einops
import jax
import jax.numpy as jnp
from flax import struct

from jitm import parallel
from jitm.config import member_model
from jitm.errors import UserError, check_choice
from jitm.models.matcher import Encoding, Matcher
from jitm.training.objective import DIRECTIONS, SETTABLE
from jitm.training.source import GlobalBatch, Inputs, Models, Source
from jitm.types import Batch, Pairs, Ranking

SAME_IMAGE = ('negative', 'positive', 'ignored')


class BatchScores(struct.PyTreeNode):
    """Scores of images with all texts of the global batch.

    Attributes:
      rows: float32 [B, C].
      offline: direction -> two arrays [B], see `score_offline`; None without mined negatives.
      temperature: float32 [B], that of the model for each row; None if it learns none.
    """

    rows: chex.Array
    offline: dict[str, tuple[chex.Array, chex.Array]] | None
    temperature: chex.Array | None = None


def relevance_margins(relevance: chex.Array, temperature: float) -> chex.Array:
    """Returns the margins (phi(p) - phi(n)) / tau of SAM (Biten et al., 2022; not checked against its text).

    Args:
      relevance: phi [Q, C] of each candidate n for each query; the positive p of query q is candidate q.
      temperature: tau, by which differences in phi are divided to be differences in scores.

    Returns:
      [Q, C], below 0 where a candidate is more relevant than the positive.
    """
    return (jnp.diagonal(relevance)[:, None] - relevance) / temperature


@dataclasses.dataclass(frozen=True, kw_only=True)
class InBatch(Source):
    """Ranks the captions of the global batch for each image and its images for each caption.

    Attributes:
      same_image: how another pair of the same image counts: as a 'negative', as published; as a 'positive', as in CMPM;
        or 'ignored'.
      margin_temperature: tau of the margins, see `relevance_margins`.

    Raises:
      ValueError: if `same_image` has another value.
    """

    same_image: str
    margin_temperature: float = 5.0

    rankings = DIRECTIONS
    for_anchors = True

    def __post_init__(self):
        check_choice(self.same_image, SAME_IMAGE, 'same_image')

    def supplies(self, config: Mapping[str, Any]) -> set[str]:
        """Supplies margins with a relevance, anchor scores, mined negatives, and a learned temperature."""
        supplied = {
            'margins': config['relevance']['source'],
            'anchor_scores': any(member.get('learn_from') for member in config['members'].values()),
            'offline_scores': config['offline']['path'],
            'offline_pair_scores': config['offline']['path'],
            'temperature': all('initial_temperature' in member_model(config, name) for name in config['members']),
        }
        return {name for name, given in supplied.items() if given}

    def score(self, matcher: Matcher, inputs: Inputs) -> tuple[BatchScores, dict[str, chex.Array]]:
        """Scores this device's images with all captions of the global batch, and mined negatives in training."""
        rows = matcher.similarity(inputs.images, parallel.all_gather(inputs.texts, inputs.axis), inputs.train)
        mined = inputs.train and inputs.batch.offline is not None
        offline, temperature = score_offline(matcher, inputs) if mined else None, matcher.temperature
        of_rows = None if temperature is None else jnp.broadcast_to(temperature, len(rows))
        return BatchScores(rows, offline, of_rows), {}

    def rank(self, scores: BatchScores, batch: GlobalBatch, anchors: Sequence[BatchScores] = ()) -> dict[str, Ranking]:
        """Makes the rankings `i2t` and `t2i` [E B, E B]; the E views of a pair match each other."""
        rows, image_index = scores.rows, batch.image_index
        views = len(rows) // len(image_index)
        chex.assert_shape([rows, *(anchor.rows for anchor in anchors)], (views * len(image_index),) * 2)
        pair, image = jnp.repeat(jnp.arange(len(image_index)), views), jnp.repeat(image_index, views)
        same_pair, same_image = pair[:, None] == pair, image[:, None] == image
        positives = same_image if self.same_image == 'positive' else same_pair
        negatives = ~same_pair if self.same_image == 'negative' else ~same_image
        i2t, t2i = Ranking(rows, positives, negatives), Ranking(rows.T, positives, negatives)
        if batch.relevance is not None:
            relevance = jnp.repeat(jnp.repeat(batch.relevance, views, axis=0), views, axis=1)
            i2t = i2t.replace(margins=relevance_margins(relevance, self.margin_temperature))
            t2i = t2i.replace(margins=relevance_margins(relevance.T, self.margin_temperature))
        if anchors:
            anchor_scores = jnp.stack([anchor.rows for anchor in anchors])
            i2t = i2t.replace(anchor_scores=anchor_scores)
            t2i = t2i.replace(anchor_scores=anchor_scores.swapaxes(1, 2))
        rankings = {'i2t': i2t, 't2i': t2i}
        if scores.temperature is not None:
            rankings = {name: ranking.replace(temperature=scores.temperature[0]) for name, ranking in rankings.items()}
        for direction, (with_query, of_pair) in (scores.offline or {}).items():
            rankings[direction] = rankings[direction].replace(offline_scores=with_query, offline_pair_scores=of_pair)
        return rankings


_IN_BATCH = InBatch(same_image='negative')


def _check_pairs(config: Mapping[str, Any], source: str, supplied: Collection[str] = ()) -> None:
    """Refuses several views of a pair, and inputs of losses that only `InBatch` supplies, not this source."""
    for name in sorted(_IN_BATCH.supplies(config).difference(supplied, SETTABLE)):
        raise UserError(f"the config supplies {name}, which needs 'candidates.source' 'in_batch'")
    if config['augmentation']['num_views'] != 1:
        raise UserError(
            f"config key 'augmentation.num_views' must be 1: 'candidates.source' '{source}' has each pair once"
        )


def _check_unchanged(config: Mapping[str, Any], source: str) -> None:
    """Refuses augmentation, which would tell the pairs of a batch from the negatives that the source adds to it."""
    for key in ('drop_regions', 'change_words'):
        if config['augmentation'][key]:
            raise UserError(
                f"config key 'augmentation.{key}' must be 0: 'candidates.source' '{source}' does not change its "
                'negatives'
            )


class ListScores(struct.PyTreeNode):
    """Scores of queries with their positive and with a list of negatives.

    Attributes:
      scores: float32 [B, 1 + H], the positive first.
      valid: bool [B, H], which of the negatives are real.
    """

    scores: chex.Array
    valid: chex.Array

    def ranking(self) -> Ranking:
        """Returns the ranking of every query."""
        positives = jnp.zeros(self.scores.shape, bool).at[:, 0].set(True)
        return Ranking(self.scores, positives, jnp.pad(self.valid, [(0, 0), (1, 0)]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shortlist(Source):
    """Ranks the hardest of many candidates: all are scored without gradient, the shortlist is scored again with it.

    This is how UNITER trains with hard negatives (Chen et al., 2020b, released code): 399 random candidates, of which
    31 are kept. There every query samples its own candidates; here the queries of a step share the global batch and P
    extra pairs.

    Attributes:
      num_extra: P, pairs besides the global batch whose images and captions are candidates too.
      num_hard: H, negatives kept for each query.
    """

    num_extra: int
    num_hard: int

    rankings = DIRECTIONS

    @property
    def extra_pairs(self) -> int:
        """P."""
        return self.num_extra

    def check(self, config: Mapping[str, Any], num_texts: int) -> None:
        """Refuses too few candidates, augmentation, and sections of the config that only `InBatch` uses."""
        _check_pairs(config, 'shortlist')
        if self.num_extra:
            _check_unchanged(config, 'shortlist')
        if self.num_extra > num_texts:
            raise UserError(
                f"config key 'candidates.num_extra' is {self.num_extra}, but there are {num_texts} texts for training"
            )
        candidates = config['batch_size'] + self.num_extra - 1
        if self.num_hard > candidates:
            raise UserError(
                f"config key 'candidates.num_hard' is {self.num_hard}, but a query has {candidates} candidates"
            )

    def choose(
        self, models: Models, name: str, batch: Batch, key: chex.PRNGKey, axis: str | None
    ) -> dict[str, tuple[chex.Array, chex.Array]]:
        """Finds the hardest candidates of this device's queries, in evaluation mode.

        Returns:
          Direction -> int [B, H], rows of `_candidates`, and bool [B, H], which of them are real. H is smaller in a
          batch with fewer candidates, such as the last one of an epoch.
        """
        del key
        model, variables = models[name]

        def choose(matcher: Matcher) -> dict[str, tuple[chex.Array, chex.Array]]:
            images, texts = matcher.encode_image(batch.images), matcher.encode_text(batch.texts)
            all_images, all_texts = _candidates(matcher, Inputs(images, texts, batch, axis=axis, train=False))
            index = parallel.all_gather(batch.image_index, axis)
            if batch.extra is not None:
                index = jnp.concatenate([index, parallel.all_gather(batch.extra_index, axis)])
            negatives = batch.image_index[:, None] != index
            scores = {'i2t': matcher.similarity(images, all_texts), 't2i': matcher.similarity(all_images, texts).T}
            chosen = {}
            for direction, rows in scores.items():
                num_hard = min(self.num_hard, rows.shape[1])
                values, rows = jax.lax.top_k(jnp.where(negatives, rows, -jnp.inf), num_hard)
                chosen[direction] = rows, jnp.isfinite(values)
            return chosen

        return model.apply(variables, method=choose)

    def score(self, matcher: Matcher, inputs: Inputs) -> tuple[dict[str, ListScores], dict[str, chex.Array]]:
        """Scores this device's queries with their positive and their shortlist: direction -> ListScores."""
        all_images, all_texts = _candidates(matcher, inputs)

        def scores(direction: str, queries: Encoding, positives: Encoding, candidates: Encoding) -> ListScores:
            index, valid = inputs.chosen[direction]
            per_query = 1 + index.shape[1]
            negatives = jax.tree.map(lambda x: x[index], candidates)
            listed = jax.tree.map(lambda a, b: jnp.concatenate([a[:, None], b], axis=1), positives, negatives)
            listed = jax.tree.map(lambda x: einops.rearrange(x, 'q c ... -> (q c) ...'), listed)
            queries = jax.tree.map(lambda x: jnp.repeat(x, per_query, axis=0), queries)
            pair = (queries, listed) if direction == 'i2t' else (listed, queries)
            return ListScores(matcher.similarity_pairwise(*pair, inputs.train).reshape(-1, per_query), valid)

        images, texts = inputs.images, inputs.texts
        return {'i2t': scores('i2t', images, texts, all_texts), 't2i': scores('t2i', texts, images, all_images)}, {}

    def rank(
        self, scores: Mapping[str, ListScores], batch: GlobalBatch, anchors: Sequence[Any] = ()
    ) -> dict[str, Ranking]:
        """Makes the rankings `i2t` and `t2i` [B, 1 + H]."""
        del batch, anchors
        return {direction: listed.ranking() for direction, listed in scores.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampled(Source):
    """Ranks the match of one query of each pair above one random negative, as OSCAR is fine-tuned (Li et al., 2020).

    The query is the image if the text of `Batch.mismatched` was replaced, the text otherwise. The other query has no
    negative, so a loss of 0.
    """

    rankings = DIRECTIONS
    for_anchors = True
    mismatched = True

    def supplies(self, config: Mapping[str, Any]) -> set[str]:
        """Supplies anchor scores if a model learns from others."""
        return _IN_BATCH.supplies(config) & {'anchor_scores'}

    def check(self, config: Mapping[str, Any], num_texts: int) -> None:
        """Refuses augmentation, and sections of the config that only `InBatch` uses."""
        del num_texts
        _check_pairs(config, 'sampled', {'anchor_scores'})
        _check_unchanged(config, 'sampled')

    def score(self, matcher: Matcher, inputs: Inputs) -> tuple[dict[str, ListScores], dict[str, chex.Array]]:
        """Scores this device's pairs and their mismatched pairs at once: direction -> ListScores of one negative."""
        pairs, text_replaced = inputs.batch.mismatched, inputs.batch.text_replaced[:, None]
        negatives = matcher.encode_image(pairs.images, inputs.train), matcher.encode_text(pairs.texts, inputs.train)
        both = jax.tree.map(lambda *x: jnp.concatenate(x), (inputs.images, inputs.texts), negatives)
        scores = matcher.similarity_pairwise(*both, inputs.train).reshape(2, -1).T
        return {'i2t': ListScores(scores, text_replaced), 't2i': ListScores(scores, ~text_replaced)}, {}

    def rank(
        self,
        scores: Mapping[str, ListScores],
        batch: GlobalBatch,
        anchors: Sequence[Mapping[str, ListScores]] = (),
    ) -> dict[str, Ranking]:
        """Makes the rankings `i2t` and `t2i` [B, 2]."""
        del batch

        def rank(direction: str) -> Ranking:
            of_anchors = [anchor[direction].scores for anchor in anchors]
            return scores[direction].ranking().replace(anchor_scores=jnp.stack(of_anchors) if anchors else None)

        return {direction: rank(direction) for direction in DIRECTIONS}


SOURCES = {'in_batch': InBatch, 'shortlist': Shortlist, 'sampled': Sampled}


def _candidates(matcher: Matcher, inputs: Inputs) -> tuple[Encoding, Encoding]:
    """Returns all images and all texts of a step, encoded: those of the global batch, then its extra pairs."""
    own, extra = (inputs.images, inputs.texts), inputs.batch.extra
    candidates = parallel.all_gather(own, inputs.axis)
    if extra is None:
        return candidates
    encoded = matcher.encode_image(extra.images, inputs.train), matcher.encode_text(extra.texts, inputs.train)
    return jax.tree.map(lambda *x: jnp.concatenate(x), candidates, parallel.all_gather(encoded, inputs.axis))


def score_offline(matcher: Matcher, inputs: Inputs) -> dict[str, tuple[chex.Array, chex.Array]]:
    """Scores mined negatives in training, each set of pairs encoded by itself as in the code of Chen et al. (2020).

    Args:
      matcher: the bound model.
      inputs: N matching pairs, whose batch has N mined negatives and the N partners of these negatives.

    Returns:
      Direction -> the scores [N] of each query with its negative, and the scores [N] of a pair without the query: of
      both negatives for images, of their partners for texts.
    """

    def encode(pairs: Pairs) -> tuple[Encoding, Encoding]:
        return matcher.encode_image(pairs.images, train=True), matcher.encode_text(pairs.texts, train=True)

    negatives, partners = map(encode, inputs.batch.offline)
    pairs = (inputs.images, negatives[1]), negatives, (negatives[0], inputs.texts), partners
    of_image, of_negatives, of_text, of_partners = (matcher.similarity_pairwise(*pair, train=True) for pair in pairs)
    return {'i2t': (of_image, of_negatives), 't2i': (of_text, of_partners)}
