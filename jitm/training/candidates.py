"""Sources of retrieval candidates: the global batch, whole, in chunks or with perturbed captions, and chosen negatives.

A public function makes a `Source` from the keys of the section `candidates`. The scores of an anchor are those of the
same ranking by the anchor. `jitm.training.generated` has the sources of synthetic captions and token predictions.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Literal

import chex
import einops
import jax
import jax.numpy as jnp

from jitm import collectives, parallel
from jitm.errors import ArgumentError, UserError
from jitm.losses.ranking import hardest_negative, hardest_positive
from jitm.models.matcher import DualEncoder, Encoding, Matcher
from jitm.training.objective import RankingTerm, check_inputs
from jitm.training.queue import Queue, Stored, encode
from jitm.training.step import Models, Rankings, Source, TermLosses
from jitm.types import Batch, Count, Index, Pairs, Ranking

Rows = tuple[chex.Array, chex.Array]

SAME_IMAGE = ('negative', 'positive', 'ignored')
MARGIN_TEMPERATURE = 5.0  # tau: differences in CIDEr divided by tau are 0.2 on average

# Patterns of config keys that a source excludes, and why.
NOT_IN_BATCH = {
    'augmentation.num_views': 'it has each pair once',
    **dict.fromkeys(('relevance.source', 'labels.source'), "its candidates are not those of 'in_batch'"),
}
NOT_MINED = NOT_IN_BATCH | {'offline.path': 'it scores no mined negatives'}
OF_EACH_MODEL = NOT_MINED | {'members.*.learn_from': 'models keep the scores of different candidates'}
SAME_WORDS = {'augmentation.change_words': 'its negatives are not changed'}
UNCHANGED = SAME_WORDS | {'augmentation.drop_regions': 'its negatives are not changed'}


def in_batch(same_image: Literal[*SAME_IMAGE], num_negatives: Count | None = None) -> Source:
    """Ranks the captions of the global batch for each image and its images for each caption, [E B, E B].

    The E views of a pair match each other. In training, mined negatives of the batch are scored too.

    Args:
      same_image: How another pair of the same image counts: as a 'negative', as published; as a 'positive', as in CMPM;
        or 'ignored'.
      num_negatives: The number of pairs of the batch among which a query has its negatives, the negative set of Faghri
        et al. (2018, section 3.6): those that follow its own in the random order of the batch, the first after the
        last. None for all.
    """
    return Source(functools.partial(_rank_in_batch, same_image=same_image, num_negatives=num_negatives))


def perturbed(same_image: Literal[*SAME_IMAGE], perturbations: tuple[str, ...]) -> Source:
    """Ranks the captions of the global batch and a perturbed caption of each pair for each image, [B, 2 B] (NegCLIP).

    A perturbed caption is a negative of all images, and no query (Yuksekgonul et al., 2023, without their hard images).
    It is sampled anew in every step, with equal probability of each kind that changes the caption.

    Args:
      same_image: See `in_batch`.
      perturbations: The kinds, see `jitm.data.perturbations.perturber`; all but 'swap' take `scene_graphs.source`.
    """
    if not perturbations:
        raise ArgumentError('perturbations', "is empty; give kinds, such as ('relation',)")
    rank = functools.partial(_rank_in_batch, same_image=same_image, num_negatives=None)
    excludes = NOT_IN_BATCH | SAME_WORDS | {'data.token_vectors': 'perturbed captions have no vectors of tokens'}
    return Source(rank, perturbations=perturbations, excludes=excludes)


def _rank_in_batch(
    matcher: Matcher,
    images: Encoding,
    texts: Encoding,
    batch: Batch,
    chosen: None,
    train: bool,
    *,
    same_image: str,
    num_negatives: int | None,
) -> tuple[Rankings, TermLosses]:
    del chosen
    # Score this device's images with all texts and its mined negatives, and gather the scores.
    all_texts = collectives.all_gather(texts)
    if batch.perturbed is not None:
        changed = collectives.all_gather(matcher.encode_text(batch.perturbed, train))
        all_texts = jax.tree.map(lambda *x: jnp.concatenate(x), all_texts, changed)
    rows = _score(matcher.similarity, matcher, images, all_texts, train)
    mined = _score_offline(matcher, images, texts, batch.offline) if train and batch.offline is not None else {}
    scores, image_index, is_perturbed, relevance, offline = collectives.gather_results(
        (rows, batch.image_index, batch.is_perturbed, batch.relevance, mined)
    )
    views = len(scores) // len(image_index)
    rows = jnp.repeat(jnp.arange(len(image_index)), views), jnp.repeat(image_index, views)
    positives, negatives = _masks(rows, rows, same_image)
    if num_negatives is not None:
        position = jnp.arange(len(image_index))
        offset = (position - position[:, None]) % len(position)  # the first pair follows the last
        negatives &= ((offset >= 1) & (offset <= num_negatives)).repeat(views, axis=0).repeat(views, axis=1)
    learned = {'temperature': matcher.temperature, 'bias': matcher.bias}
    rankings = {
        'i2t': Ranking(scores, positives, negatives, **learned),
        't2i': Ranking(scores[:, : len(scores)].T, positives, negatives, **learned),
    }
    # Add perturbed captions as candidates of images.
    if is_perturbed is not None:
        further = jnp.broadcast_to(is_perturbed, positives.shape)
        masks = {'positives': (positives, jnp.zeros_like(further)), 'negatives': (negatives, further)}
        masks = {name: jnp.concatenate(both, axis=1) for name, both in masks.items()}
        rankings['i2t'] = rankings['i2t'].replace(**masks)
    # Add the margins (phi(p) - phi(n)) / tau of SAM (Biten et al., 2022; not checked against its text), which are below
    # 0 where a candidate n is more relevant than the positive p.
    if relevance is not None:
        relevance = relevance.repeat(views, axis=0).repeat(views, axis=1)
        for direction, phi in (('i2t', relevance), ('t2i', relevance.T)):
            margins = (jnp.diagonal(phi)[:, None] - phi) / MARGIN_TEMPERATURE
            rankings[direction] = rankings[direction].replace(margins=margins, relevance=phi)
    # Add the scores of mined negatives.
    for direction, (query_scores, pair_scores) in offline.items():
        rankings[direction] = rankings[direction].replace(offline_scores=query_scores, offline_pair_scores=pair_scores)
    return rankings, {}


def in_chunks(same_image: Literal[*SAME_IMAGE], queries: Count) -> Source:
    """Ranks the candidates of `in_batch` without keeping their scores: for large batches of dual encoders.

    Each device scores some of its queries at a time with all candidates of the global batch, reduces them to the losses
    of the ranking terms, and scores them again for the gradient. Vectors and losses are gathered, scores are not: of
    the B^2 scores, a device holds `queries` B. The rankings that are left for the diagnostics have the match of each
    query and its hardest negative.

    Args:
      same_image: See `in_batch`.
      queries: The number of queries that a device scores at a time.
    """
    rank = functools.partial(_rank_in_chunks, same_image=same_image, queries=queries)
    return Source(rank, by_term=True, excludes=OF_EACH_MODEL)


def _rank_in_chunks(
    matcher: Matcher,
    images: Encoding,
    texts: Encoding,
    batch: Batch,
    chosen: None,
    train: bool,
    *,
    terms: Mapping[str, RankingTerm],
    same_image: str,
    queries: int,
) -> tuple[Rankings, TermLosses]:
    """Returns the ranking of each query's match and hardest negative, [B, 2], and the losses [B] of the terms."""
    del chosen, train
    _check_dual(matcher, 'in_chunks')
    count, device = len(batch.image_index), jax.lax.axis_index(parallel.AXIS)
    (all_images, all_texts), index = collectives.all_gather(((images, texts), batch.image_index))
    sides = {'i2t': (images, all_texts), 't2i': (texts, all_images)}
    learned = {'temperature': matcher.temperature, 'bias': matcher.bias}

    def reduce(way: str, query: tuple[Encoding, chex.Array, chex.Array]) -> tuple[dict[str, chex.Array], tuple]:
        encoded, *own = jax.tree.map(lambda x: x[None], query)
        scores = matcher.similarity(encoded, sides[way][1])  # inner products, of which either side may be the images
        positives, negatives = _masks(own, (jnp.arange(len(index)), index), same_image)
        ranking = Ranking(scores, positives, negatives, **learned)
        used = {name: term for name, term in terms.items() if way in term.rankings}
        check_inputs({name: dataclasses.replace(term, rankings=(way,)) for name, term in used.items()}, {way: ranking})
        extremes = hardest_positive(scores, positives)[0], hardest_negative(scores, negatives)[0]
        return {name: term.per_query(ranking)[0] for name, term in used.items()}, (extremes, negatives.any())

    reduced = {}
    for way, (encoded, _) in sides.items():
        rows = encoded, device * count + jnp.arange(count), batch.image_index
        reduced[way] = jax.lax.map(jax.checkpoint(functools.partial(reduce, way)), rows, batch_size=min(queries, count))
    rankings, losses = {}, {}
    for way, (of_terms, (extremes, valid)) in collectives.gather_results(reduced).items():
        rankings[way] = Ranking.from_list(jnp.stack(extremes, axis=1), valid[:, None]).replace(**learned)
        losses |= {name: losses.get(name, 0) + values for name, values in of_terms.items()}
    return rankings, losses


def queue(same_image: Literal[*SAME_IMAGE], encoder: str, length: Count) -> Source:
    """Ranks the pairs of the global batch and of past steps, [B, B + K], all encoded by another member (MoCo).

    The gradient flows through the query, not through the candidates, which `encoder` encodes in evaluation mode. A pair
    that is in the queue since the epoch before is a positive, as it is in the batch. Until the queue is full, there are
    fewer negatives.

    Args:
      same_image: See `in_batch`.
      encoder: The member that encodes the candidates, such as one of the rule 'ema'.
      length: K, the number of pairs of past steps.
    """

    def choose(models: Models, name: str, batch: Batch, key: chex.PRNGKey) -> Stored:
        """Returns the pairs of the global batch, encoded by the member `encoder`, before those of the queue."""
        del key
        model, variables = models[encoder]
        _check_dual(models[name][0], 'queue')
        pairs = collectives.all_gather(encode(model, variables, batch))
        return jax.tree.map(lambda *x: jnp.concatenate(x), pairs, batch.queue)

    def rank(
        matcher: Matcher, images: Encoding, texts: Encoding, batch: Batch, chosen: Stored, train: bool
    ) -> tuple[Rankings, TermLosses]:
        """Scores this device's queries with the pairs that were chosen."""
        del train
        (_, own), (_, other) = images.shape, chosen['images'].shape
        if own != other:
            raise UserError(
                f"config key 'candidates.encoder' is '{encoder}', whose vectors have {other} dimensions, but those of "
                f'a model that trains have {own}: give both the same model.embed_dim'
            )
        scores = {
            'i2t': matcher.similarity(images, chosen['texts']),
            't2i': matcher.similarity(chosen['images'], texts).T,
        }
        scores, *queries = collectives.gather_results((scores, batch.text_index, batch.image_index))
        masks = _masks(queries, (chosen['text_index'], chosen['image_index']), same_image)
        positives, negatives = (mask & (chosen['image_index'] >= 0) for mask in masks)
        learned = {'temperature': matcher.temperature, 'bias': matcher.bias}
        return {way: Ranking(rows, positives, negatives, **learned) for way, rows in scores.items()}, {}

    return Source(rank, choose, queue=Queue(encoder, length), excludes=OF_EACH_MODEL)


def _check_dual(matcher: Matcher, source: str) -> None:
    """Raises a UserError unless a matcher is a dual encoder, which a source needs."""
    if not isinstance(matcher, DualEncoder):
        raise UserError(
            f"'candidates.source' '{source}' needs a dual encoder, not {type(matcher).__name__}: take 'in_batch'"
        )


def _masks(queries: Rows, candidates: Rows, same_image: str) -> tuple[chex.Array, chex.Array]:
    """Returns the positives and the negatives of `in_batch`, bool [Q, C].

    Args:
      queries, candidates: The pair and the image of each, two int [Q] and two int [C].
      same_image: See `in_batch`.
    """
    equal_pair, equal_image = (one[:, None] == other for one, other in zip(queries, candidates, strict=True))
    positives = equal_image if same_image == 'positive' else equal_pair
    return positives, ~equal_pair if same_image == 'negative' else ~equal_image


def _score_offline(
    matcher: Matcher, images: Encoding, texts: Encoding, offline: tuple[Pairs, Pairs]
) -> dict[str, tuple[chex.Array, chex.Array]]:
    """Scores mined negatives in training, each set of pairs encoded by itself as in the code of Chen et al. (2020).

    Returns direction -> the scores [N] of each query with its negative, and the scores [N] of a pair without the query:
    of both negatives for images, of their partners for texts.
    """

    def encode(pairs: Pairs) -> tuple[Encoding, Encoding]:
        return matcher.encode_image(pairs.images, train=True), matcher.encode_text(pairs.texts, train=True)

    negatives, partners = map(encode, offline)
    pairs = (images, negatives[1]), negatives, (negatives[0], texts), partners
    image_scores, negative_scores, text_scores, partner_scores = (
        matcher.similarity_pairwise(*pair, train=True) for pair in pairs
    )
    return {'i2t': (image_scores, negative_scores), 't2i': (text_scores, partner_scores)}


def shortlist(num_extra: Index, num_hard: Count) -> Source:
    """Ranks the hardest of many candidates, [B, 1 + H]: all are scored without gradient, the chosen ones again with it.

    This is how UNITER trains with hard negatives (Chen et al., 2020b, released code): 399 random candidates, of which
    31 are kept. There every query samples its own candidates; here the queries of a step share the global batch and P
    extra pairs.

    Args:
      num_extra: P, the number of extra pairs of a step.
      num_hard: H, the number of candidates that each query keeps.
    """

    def choose(models: Models, name: str, batch: Batch, key: chex.PRNGKey) -> dict[str, tuple[chex.Array, chex.Array]]:
        """Finds the hardest candidates of this device's queries among all of the step, in evaluation mode.

        Returns direction -> int [B, H], rows of `_all_candidates`, and bool [B, H], which of them are real. H is
        smaller in a batch with fewer candidates, such as the last one of an epoch.
        """
        del key
        model, variables = models[name]

        def choose_with(matcher: Matcher) -> dict[str, tuple[chex.Array, chex.Array]]:
            # Score all candidates of the step for this device's queries.
            images, texts = matcher.encode_image(batch.images), matcher.encode_text(batch.texts)
            (all_images, all_texts), index = _all_candidates(matcher, images, texts, batch, train=False)
            negatives = batch.image_index[:, None] != index
            scores = {'i2t': matcher.similarity(images, all_texts), 't2i': matcher.similarity(all_images, texts).T}
            # Keep the negatives with the highest scores.
            chosen = {}
            for direction, rows in scores.items():
                values, rows = jax.lax.top_k(jnp.where(negatives, rows, -jnp.inf), min(num_hard, rows.shape[1]))
                chosen[direction] = rows, jnp.isfinite(values)
            return chosen

        return model.apply(variables, method=choose_with)

    return Source(_rank_chosen, choose, num_extra=num_extra, excludes=OF_EACH_MODEL | (UNCHANGED if num_extra else {}))


def _rank_chosen(
    matcher: Matcher,
    images: Encoding,
    texts: Encoding,
    batch: Batch,
    chosen: Mapping[str, tuple[chex.Array, chex.Array]],
    train: bool,
) -> tuple[Rankings, TermLosses]:
    """Scores the matching pairs and what was chosen."""
    (all_images, all_texts), _ = _all_candidates(matcher, images, texts, batch, train)

    def pairs(direction: str, queries: Encoding, positives: Encoding, candidates: Encoding) -> tuple[Encoding, ...]:
        """Returns each query repeated, [Q, 1 + H, ...], with its match and then its negatives."""
        index, _ = chosen[direction]
        negatives = jax.tree.map(lambda x: x[index], candidates)
        listed = jax.tree.map(lambda a, b: jnp.concatenate([a[:, None], b], axis=1), positives, negatives)
        return jax.tree.map(lambda x: jnp.repeat(x[:, None], 1 + index.shape[1], axis=1), queries), listed

    # Both directions are scored together, which compiles the model once.
    directions = pairs('i2t', images, texts, all_texts), pairs('t2i', texts, images, all_images)[::-1]
    listed = jax.tree.map(lambda *x: einops.rearrange([*x], 'd q c ... -> (d q c) ...'), *directions)
    scores = matcher.similarity_pairwise(*listed, train).reshape(len(directions), len(batch.image_index), -1)
    scored = {direction: (rows, chosen[direction][1]) for direction, rows in zip(('i2t', 't2i'), scores, strict=True)}
    return {direction: Ranking.from_list(*both) for direction, both in collectives.gather_results(scored).items()}, {}


def sampled() -> Source:
    """Ranks the match of one query of each pair above one random negative [B, 2] (OSCAR: Li et al., 2020).

    The query is the image if the text of `Batch.mismatched` was replaced, the text otherwise. The other query has no
    negative, so a loss of 0.
    """

    def rank(
        matcher: Matcher, images: Encoding, texts: Encoding, batch: Batch, chosen: None, train: bool
    ) -> tuple[Rankings, TermLosses]:
        del chosen
        pairs, text_replaced = batch.mismatched, batch.text_replaced[:, None]
        negatives = matcher.encode_image(pairs.images, train), matcher.encode_text(pairs.texts, train)
        both = jax.tree.map(lambda *x: jnp.concatenate(x), (images, texts), negatives)
        scores = _score(matcher.similarity_pairwise, matcher, *both, train).reshape(2, -1).T
        scores, text_replaced = collectives.gather_results((scores, text_replaced))
        return {'i2t': Ranking.from_list(scores, text_replaced), 't2i': Ranking.from_list(scores, ~text_replaced)}, {}

    return Source(rank, mismatched=True, excludes=NOT_MINED | UNCHANGED)


def _all_candidates(
    matcher: Matcher, images: Encoding, texts: Encoding, batch: Batch, train: bool
) -> tuple[tuple[Encoding, Encoding], chex.Array]:
    """Returns all images and texts of a step, encoded, and the rows of the images in their split.

    Each device has its part of the global batch and of the extra pairs.
    """
    candidates = (images, texts), batch.image_index
    if batch.extra is not None:
        encoded = matcher.encode_image(batch.extra.images, train), matcher.encode_text(batch.extra.texts, train)
        candidates = jax.tree.map(lambda *x: jnp.concatenate(x), candidates, (encoded, batch.extra_index))
    return collectives.all_gather(candidates)


def _score(score: Callable, matcher: Matcher, images: Encoding, texts: Encoding, train: bool) -> chex.Array:
    """Scores pairs; an anchor's scores, in evaluation mode, are mapped to the scale of those in training."""
    scores = score(images, texts, train)
    return scores if train else matcher.training_scores(scores)
