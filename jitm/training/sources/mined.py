"""Negatives that were mined over the whole training split (Chen et al., 2020)."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from jitm.config.section import Bound, Section
from jitm.data.pairs.mined_lists import ROUNDING, Candidates, OfflineNegatives, expected_rank, load
from jitm.data.pipeline import Sampler
from jitm.devices import collectives
from jitm.errors import ArgumentError
from jitm.losses.ranking import hardest_negative, hardest_positive
from jitm.models.matcher import Encoding, Matcher
from jitm.training.objective import Metrics, first_argument
from jitm.training.source import AUGMENTATION, OPTIONS, Conditions, Context, Rankings, Source, encode_pairs
from jitm.types import Count, Pairs

SECTION = 'offline'
SWITCH = 'offline.path'
REMEDY = 'mine negatives with `jitm mine` and set offline.path to their folder, or set stages'
CONDITIONS = Conditions(
    accepts=OPTIONS.keys() - AUGMENTATION,
    gives={'offline_scores': REMEDY, 'offline_pair_scores': REMEDY},
    reader='a term of mined negatives',
)


def with_mined(
    source: Source,
    *,
    path: str,
    top_h_texts: Count,
    top_h_images: Count,
    context: Context,
) -> Source:
    """Returns a source whose rankings have, in training, the score of a mined negative of each query.

    Each set of pairs is encoded by itself, as in the code of Chen et al. (2020).

    Args:
      source: A source that ranks the global batch.
      path: The folder that `jitm mine` wrote.
      top_h_texts: For each image, one of this many hardest captions is sampled; 300 as published.
      top_h_images: For each caption, one of this many hardest images is sampled; 60 as published.
      context: The rest of the plan.
    """

    def samplers(pipeline):
        split = pipeline.split
        if context.pending:
            shapes = (split.num_images, top_h_texts), (split.num_texts, top_h_images)
            lists = Candidates(*(np.zeros(shape, np.int32) for shape in shapes))
        else:
            lists = load(Path(path), split)
        try:
            negatives = OfflineNegatives(lists, top_h_texts, top_h_images)
        except ArgumentError as error:
            raise error.in_section('offline') from error

        def pick(step, rows):
            pairs = negatives.sample(rows, split, np.random.default_rng([pipeline.seed, step]))
            return pairs, pipeline.tokens.lengths[np.concatenate([texts for _, texts in pairs])]

        def take(picked, part):
            return tuple(part.pairs(*map(part.cut, pairs)) for pairs in picked)

        counts = {'i2t': split.num_texts, 't2i': split.num_images}
        num_negatives = context.parts['candidates'].keywords.get('num_negatives')
        pairs = 1 + (num_negatives or context.batch_size - 1)
        ranks = {f'mined/{way}/expected_rank': expected_rank(count, pairs) for way, count in counts.items()}
        mined = Sampler(pick, take, {'candidates': lists.hash}, ranks)
        return source.samplers(pipeline) | {'mined': mined}

    def score(matcher, images, texts, batch, seen, train):
        rankings, losses = source.score(matcher, images, texts, batch, seen, train)
        if train:
            mined = collectives.gather_results(_score(matcher, images, texts, batch.drawn['mined']))
            for way, (of_queries, of_pairs) in mined.items():
                rankings[way] = rankings[way].with_inputs(offline_scores=of_queries, offline_pair_scores=of_pairs)
        return rankings, losses

    def metrics(rankings, terms):
        return source.metrics(rankings, terms) | mined_metrics(rankings, first_argument(terms, 'offline_margin', 0.0))

    return source._replace(score=score, samplers=samplers, metrics=metrics)


DECLARED = Section(function=with_mined, takes=('source', 'context'))


def add(source: Source, bound: Bound, context: Context) -> Source:
    """Adds mined negatives where the section `offline` has a path."""
    return bound(source=source, context=context) if bound.keywords['path'] else source


def _score(matcher: Matcher, images: Encoding, texts: Encoding, mined: tuple[Pairs, Pairs]) -> dict[str, tuple]:
    """Returns direction -> the scores [N] of each query with its mined negative, and the scores [N] of another pair.

    The other pair of `i2t` is the mined image with the mined caption; that of `t2i` the image of the mined caption with
    a caption of the mined image.
    """
    negatives, partners = (encode_pairs(matcher, pairs, train=True) for pairs in mined)
    pairs = (images, negatives[1]), negatives, (negatives[0], texts), partners
    image_scores, negative_scores, text_scores, partner_scores = (
        matcher.similarity_pairwise(*pair, train=True) for pair in pairs
    )
    return {'i2t': (image_scores, negative_scores), 't2i': (text_scores, partner_scores)}


def mined_metrics(rankings: Rankings, margin: float) -> Metrics:
    """Compares the mined negative that was sampled for each query with the scores in the batch (Chen et al., 2020).

    Args:
      rankings: The rankings by name.
      margin: The offline margin.

    Returns:
      For each direction with mined negatives,
      mined/DIRECTION/harder: The share of queries whose mined negative scores above all their negatives in the batch;
        queries without a negative do not count. Where it is small, the batch is as hard as the mined lists.
      mined/DIRECTION/active: The share of queries whose mined negative scores less than the margin below the positive,
        so that its hinge is above 0.
    """
    metrics = {}
    for name, ranking in rankings.items():
        if 'offline_scores' in ranking.inputs:
            mined = ranking.inputs['offline_scores']
            valid = ranking.negatives.any(axis=1)
            harder = valid & (mined > hardest_negative(ranking.scores, ranking.negatives) + ROUNDING)
            active = margin + mined > hardest_positive(ranking.scores, ranking.positives)
            metrics[f'mined/{name}/harder'] = jnp.sum(harder) / jnp.maximum(jnp.sum(valid), 1)
            metrics[f'mined/{name}/active'] = jnp.mean(active)
    return metrics
