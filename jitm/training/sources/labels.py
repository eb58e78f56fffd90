"""Correspondence labels of training pairs, estimated while training with noisy captions.

The labels are those of a `LabelEstimator`, whose values for each pair of the training split are kept in the memory of
the source, so that a resumed run continues exactly.
"""

import jax
import jax.numpy as jnp

from jitm.config.section import Bound, Section
from jitm.devices import collectives, parallel
from jitm.training import label_estimators
from jitm.training.label_estimators import LabelEstimator, PairLabels, RevisedLabelEstimator
from jitm.training.objective import DIRECTIONS
from jitm.training.source import Conditions, Context, Revision, Source, score_in_evaluation
from jitm.types import Ranking


def with_labels(source: Source, labels: LabelEstimator) -> Source:
    """Returns a source whose rankings of both directions have the labels of their pairs.

    Args:
      source: A source that ranks the pairs of the global batch.
      labels: The estimator of the labels.
    """

    def look(view, keys):
        inner = source.look(view, keys)
        rows = collectives.all_gather(view.batch.text_index)

        def evaluate(peer):
            return score_in_evaluation(source, *view.models[peer], view.batch)

        estimated = labels.of_batch(view.memory['labels'], rows, view.epoch, evaluate)
        return {name: (inner[name], estimated[name], rows) for name in keys}

    def score(matcher, images, texts, batch, seen, train):
        inner, estimated, _ = seen or (None, None, None)
        rankings, losses = source.score(matcher, images, texts, batch, inner, train)
        if estimated is not None:
            rankings |= {direction: labelled(rankings[direction], estimated) for direction in DIRECTIONS}
        return rankings, losses

    def init(models, trained, batch, num_pairs):
        return {**source.init(models, trained, batch, num_pairs), 'labels': labels.init(trained, num_pairs)}

    def remember(memory, seen, rankings):
        memory = source.remember(memory, {name: inner for name, (inner, *_) in seen.items()}, rankings)
        estimated = {name: pair_labels for name, (_, pair_labels, _) in seen.items()}
        _, _, rows = next(iter(seen.values()))
        return {**memory, 'labels': labels.after_batch(memory['labels'], rows, estimated, rankings)}

    def measure(models, trained, batch):
        num_pairs = len(batch.text_index) * jax.lax.axis_size(parallel.AXIS)
        return {name: labels.hinges(score_in_evaluation(source, *models[name], batch), num_pairs) for name in trained}

    def revise(memory, rows, hinges):
        return {**memory, 'labels': labels.revise(memory['labels'], rows, hinges)}

    revision = Revision(labels.warm_up_epochs, measure, revise) if isinstance(labels, RevisedLabelEstimator) else None
    return source._replace(look=look, score=score, init=init, remember=remember, revision=revision)


def labelled(ranking: Ranking, pair_labels: PairLabels) -> Ranking:
    """Returns a ranking of the batch with the labels of its queries, without comparisons of different groups."""
    views = len(ranking.scores) // len(pair_labels.labels)
    labels, groups = (jnp.repeat(values, views) for values in pair_labels)
    alike = groups[:, None] == groups
    compared = ranking.replace(
        positives=ranking.positives & alike & (groups >= 0)[:, None], negatives=ranking.negatives & alike
    )
    return compared.with_inputs(labels=labels)


SECTION = 'labels'
SWITCH = 'labels.source'
CONDITIONS = Conditions(
    gives={'labels': "set labels.source, such as to 'MovingAverage', and candidates.source to 'in_batch'"},
    reader='a term whose loss takes labels',
)
DECLARED = Section(
    'source',
    label_estimators.__name__,
    own=callable,
    null='',
    returns=(LabelEstimator, 'an object with init, of_batch and after_batch'),
)


def add(source: Source, bound: Bound | None, context: Context) -> Source:
    """Adds the labels that the section `labels` estimates, if it names an estimator."""
    del context
    return with_labels(source, bound()) if bound else source
