"""Correspondence labels of training pairs, estimated while training with noisy captions.

A class that implements `LabelEstimator` is a way to estimate them; the key `labels.source` names it. Its values for
each pair of the training split are kept in the memory of the source, so that a resumed run continues exactly.
"""

import dataclasses
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import chex
import jax
import jax.numpy as jnp
import numpy as np

from jitm.config.section import Bound, Section
from jitm.devices import collectives, parallel
from jitm.errors import ArgumentError, UserError, require
from jitm.losses.ranking import hardest_positive, masked_log_softmax, masked_mean
from jitm.models.matcher import Encoding, Matcher
from jitm.training.objective import DIRECTIONS
from jitm.training.source import (
    Conditions,
    Context,
    Memory,
    Models,
    Rankings,
    Revision,
    Scored,
    Source,
    View,
    score_in_evaluation,
)
from jitm.types import Batch, Index, Margin, Probability, Ranking, Temperature

MIXTURE = {'max_iter': 10, 'tol': 1e-2, 'reg_covar': 5e-4}  # as released for NCR
CLEAN = 0.5  # the posterior above which NCR calls a pair clean

Stored = Mapping[str, dict[str, chex.Array]]  # model -> its stored values by name, [T]
Evaluate = Callable[[str], Mapping[str, Ranking]]  # model -> its rankings of the global batch in evaluation mode


class PairLabels(NamedTuple):
    """The labels of the pairs of the global batch.

    Attributes:
      labels: float32 [B], in [0, 1].
      groups: int32 [B]; pairs of different groups are not compared, and pairs of group -1 have no loss.
    """

    labels: chex.Array
    groups: chex.Array


@runtime_checkable
class LabelEstimator(Protocol):
    """Estimates the labels of training pairs."""

    def init(self, names: Sequence[str], num_pairs: int) -> Stored:
        """Returns the stored values before the first step, for the names of the models that train."""

    def of_batch(self, stored: Stored, rows: chex.Array, epoch: chex.Array, evaluate: Evaluate) -> dict:
        """Returns model -> `PairLabels` of the pairs with these rows, int [B], in the training split."""

    def after_batch(
        self, stored: Stored, rows: chex.Array, labels: Mapping[str, PairLabels], rankings: Mapping[str, Rankings]
    ) -> Stored:
        """Returns the stored values after a batch, from the rankings of each model in training."""


@runtime_checkable
class RevisedLabelEstimator(LabelEstimator, Protocol):
    """Estimates labels and revises them before each epoch from `warm_up_epochs` on."""

    warm_up_epochs: int

    def hinges(self, rankings: Mapping[str, Ranking], num_pairs: int) -> chex.Array:
        """Returns the hinge of each of these pairs, [B], from the rankings of a model in evaluation mode."""

    def revise(self, stored: Stored, rows: np.ndarray, hinges: Mapping[str, np.ndarray]) -> Stored:
        """Returns the stored values of the next epoch, given the rows [N] of its pairs and their hinges by model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MovingAverage:
    """CRCL (Qin et al., 2023, released): a label is a moving average of the probability of its pair in the batch.

    The released code restarts the network several times and keeps the labels; here it trains once.

    Attributes:
      warm_up_epochs: The epochs in which all labels are 1.
      momentum: The weight of the label so far.
      minimum: Labels below this are 0.
      temperature: The temperature of the softmax of the probability.
    """

    warm_up_epochs: Index = 2
    momentum: Probability = 0.8
    minimum: Probability = 0.1
    temperature: Temperature = 0.05

    def init(self, names: Sequence[str], num_pairs: int) -> Stored:
        """Returns labels and probabilities of 1 for each model that trains."""
        return {name: {key: jnp.ones(num_pairs) for key in ('label', 'probability')} for name in names}

    def of_batch(self, stored: Stored, rows: chex.Array, epoch: chex.Array, evaluate: Evaluate) -> dict:
        """Returns model -> `PairLabels` of the pairs with these rows, int [B], in the training split."""
        del evaluate
        estimated = {}
        for name, values in stored.items():
            average = self.momentum * values['label'][rows] + (1 - self.momentum) * values['probability'][rows]
            labels = jnp.where(average < self.minimum, 0, average)
            labels = jnp.where(epoch < self.warm_up_epochs, 1, labels)
            estimated[name] = PairLabels(labels, jnp.zeros(len(rows), jnp.int32))
        return estimated

    def after_batch(
        self, stored: Stored, rows: chex.Array, labels: Mapping[str, PairLabels], rankings: Mapping[str, Rankings]
    ) -> Stored:
        """Returns the stored values after a batch, from the rankings of each model in training."""
        updated = {}
        for name, values in stored.items():
            probability = 0
            for ranking in (rankings[name][direction] for direction in DIRECTIONS):
                valid = ranking.positives.any(axis=1) & ranking.negatives.any(axis=1)
                scores = ranking.scores / self.temperature
                candidates = ranking.positives | ranking.negatives
                log_probs = hardest_positive(masked_log_softmax(scores, candidates, valid), ranking.positives)
                of_views = jnp.exp(log_probs).reshape(len(rows), -1)
                probability += of_views.mean(axis=1) / len(DIRECTIONS)
            new = {'label': labels[name].labels, 'probability': probability}
            updated[name] = {key: values[key].at[rows].set(new[key]) for key in values}
        return updated


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoTeaching:
    """NCR (Huang et al., 2021): two models, each of which estimates for the other which pairs are clean.

    Before each epoch from `warm_up_epochs` on, both models evaluate the pairs of the epoch, batch by batch. A mixture
    of two normal distributions is fitted to the hinges of the pairs; w is the posterior of the component of lower mean
    by the hinges of the other model, and q the label that a model predicts itself. A clean pair has the label
    w + (1 - w) q, any other pair the mean of both models' q.

    The released code trains with clean and with other pairs in turn, in batches of 128 of each; here a batch has both,
    which are not compared with each other, for one step. The released code scales q within a batch of one kind, this
    one within the mixed batch.

    Attributes:
      warm_up_epochs: The epochs in which all labels are 1.
      noisy_epoch: The first epoch in which pairs that are not clean have a loss.
      margin: The margin of the hinges that the labels are made of.

    Raises:
      ArgumentError: If other pairs would have a loss before there are labels.
    """

    warm_up_epochs: Index
    noisy_epoch: Index
    margin: Margin = 0.2

    def __post_init__(self):
        require('sklearn.mixture', extra='noise')  # before anything is trained
        if self.noisy_epoch < self.warm_up_epochs:
            raise ArgumentError(
                'noisy_epoch', f'is {self.noisy_epoch}, below warm_up_epochs {self.warm_up_epochs}: raise it'
            )

    def init(self, names: Sequence[str], num_pairs: int) -> Stored:
        """Returns a posterior of 1 for all pairs and each of two models.

        Raises:
          UserError: Unless two models train.
        """
        if len(names) != 2:
            raise UserError(
                f"config key 'labels.source' is for two members that train, not {len(names)}: change 'members', or "
                'choose another source'
            )
        return {name: {'clean': jnp.ones(num_pairs, bool), 'posterior': jnp.ones(num_pairs)} for name in names}

    def of_batch(self, stored: Stored, rows: chex.Array, epoch: chex.Array, evaluate: Evaluate) -> dict:
        """Returns model -> `PairLabels` of the pairs with these rows, int [B], in the training split."""
        predicted = {name: self._predict(self.hinges(evaluate(name), len(rows))) for name in stored}
        mean_label = sum(predicted.values()) / len(predicted)
        estimated = {}
        for name, values in stored.items():
            clean = values['clean'][rows]
            posterior = values['posterior'][rows]
            labels = jnp.where(clean, posterior + (1 - posterior) * predicted[name], mean_label)
            groups = jnp.where(clean, 0, jnp.where(epoch < self.noisy_epoch, -1, 1))
            warming_up = epoch < self.warm_up_epochs
            estimated[name] = PairLabels(jnp.where(warming_up, 1, labels), jnp.where(warming_up, 0, groups))
        return estimated

    def after_batch(
        self, stored: Stored, rows: chex.Array, labels: Mapping[str, PairLabels], rankings: Mapping[str, Rankings]
    ) -> Stored:
        """Returns the stored values, which a batch does not change."""
        del rows, labels, rankings
        return stored

    def hinges(self, rankings: Mapping[str, Ranking], num_pairs: int) -> chex.Array:
        """Returns the mean hinge of each pair with the others, summed over directions, averaged over views: [B]."""

        def mean_hinge(ranking: Ranking) -> chex.Array:
            match = hardest_positive(ranking.scores, ranking.positives)[:, None]
            return masked_mean(jnp.maximum(self.margin + ranking.scores - match, 0), ranking.negatives)

        return sum(mean_hinge(rankings[direction]) for direction in DIRECTIONS).reshape(num_pairs, -1).mean(axis=1)

    def _predict(self, hinges: chex.Array) -> chex.Array:
        """Returns the q of each pair: its lead, over the mean lead of the largest tenth in the batch.

        The lead is the margin minus the mean hinge of a direction, clipped to [0, margin].
        """
        leads = jnp.clip(self.margin - hinges / 2, 0, self.margin)
        largest, _ = jax.lax.top_k(leads, len(leads) // 10 + 1)
        return jnp.clip(leads / jnp.maximum(largest.mean(), 1e-6), 0, 1)

    def revise(self, stored: Stored, rows: np.ndarray, hinges: Mapping[str, np.ndarray]) -> Stored:
        """Returns the stored values of the next epoch.

        Args:
          stored: The values stored so far.
          rows: The rows of the pairs of the epoch in the training split, int [N].
          hinges: Model -> the hinges of these pairs, float [N].
        """
        revised = {}
        for name, peer in zip(hinges, [*hinges][::-1], strict=True):
            posterior = clean_posterior(hinges[peer])
            # Where all pairs seem clean, a hundredth of them counts as not clean, as released.
            threshold = CLEAN if posterior.min() <= CLEAN else np.sort(posterior)[len(posterior) // 100]
            new = {'clean': posterior > threshold, 'posterior': posterior}
            revised[name] = {key: np.array(values) for key, values in stored[name].items()}
            for key, values in new.items():
                revised[name][key][rows] = values
        return revised


def clean_posterior(losses: np.ndarray) -> np.ndarray:
    """Returns the posterior of the component of lower mean in a mixture of two normal distributions.

    The mixture has the settings of NCR's released code and is fitted to the losses scaled to [0, 1].

    Args:
      losses: float [N].

    Returns:
      float64 [N].
    """
    x = losses.astype(np.float64)[:, None]
    x = (x - x.min()) / max(np.ptp(x), 1e-12)
    mixture = require('sklearn.mixture', extra='noise').GaussianMixture(2, random_state=0, **MIXTURE)
    with warnings.catch_warnings(action='ignore'):  # ten iterations need not converge
        mixture.fit(x)
    return mixture.predict_proba(x)[:, mixture.means_.argmin()]


def with_labels(source: Source, labels: LabelEstimator) -> Source:
    """Returns a source whose rankings of both directions have the labels of their pairs.

    Args:
      source: A source that ranks the pairs of the global batch.
      labels: The estimator of the labels.
    """

    def look(view: View, keys: Mapping[str, chex.PRNGKey]) -> dict[str, tuple]:
        inner = source.look(view, keys)
        rows = collectives.all_gather(view.batch.text_index)

        def evaluate(peer: str) -> Rankings:
            return score_in_evaluation(source, *view.models[peer], view.batch)

        estimated = labels.of_batch(view.memory['labels'], rows, view.epoch, evaluate)
        return {name: (inner[name], estimated[name], rows) for name in keys}

    def score(
        matcher: Matcher, images: Encoding, texts: Encoding, batch: Batch, seen: tuple | None, train: bool
    ) -> Scored:
        inner, estimated, _ = seen or (None, None, None)
        rankings, losses = source.score(matcher, images, texts, batch, inner, train)
        if estimated is not None:
            rankings |= {direction: labelled(rankings[direction], estimated) for direction in DIRECTIONS}
        return rankings, losses

    def init(models: Models, trained: Collection[str], batch: Batch, num_pairs: int) -> Memory:
        return {**source.init(models, trained, batch, num_pairs), 'labels': labels.init(trained, num_pairs)}

    def remember(memory: Memory, seen: Mapping[str, tuple], rankings: Mapping[str, Rankings]) -> Memory:
        memory = source.remember(memory, {name: inner for name, (inner, *_) in seen.items()}, rankings)
        estimated = {name: pair_labels for name, (_, pair_labels, _) in seen.items()}
        _, _, rows = next(iter(seen.values()))
        return {**memory, 'labels': labels.after_batch(memory['labels'], rows, estimated, rankings)}

    def measure(models: Models, trained: Collection[str], batch: Batch) -> dict[str, chex.Array]:
        num_pairs = len(batch.text_index) * jax.lax.axis_size(parallel.AXIS)
        return {name: labels.hinges(score_in_evaluation(source, *models[name], batch), num_pairs) for name in trained}

    def revise(memory: Memory, rows: np.ndarray, hinges: Mapping[str, np.ndarray]) -> Memory:
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


SECTION, SWITCH = 'labels', 'labels.source'
CONDITIONS = Conditions(
    gives={'labels': "set labels.source, such as to 'MovingAverage', and candidates.source to 'in_batch'"},
    reader='a term whose loss takes labels',
)
DECLARED = Section(
    'source',
    __name__,
    own=callable,
    null='',
    returns=(LabelEstimator, 'an object with init, of_batch and after_batch'),
)


def add(source: Source, bound: Bound | None, context: Context) -> Source:
    """Adds the labels that the section `labels` estimates, if it names an estimator."""
    del context
    return with_labels(source, bound()) if bound else source
