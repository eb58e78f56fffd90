"""Estimators of correspondence labels: the probabilities that training pairs match, for noisy captions.

The key `labels.source` names a class that implements `LabelEstimator`, and `jitm.training.sources.labels` calls it. The
values that it stores for each pair of the training split are a part of the training state.
"""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from chex import Array

from jitm.errors import ArgumentError, UserError, require
from jitm.losses.ranking import hardest_positive, masked_log_softmax, masked_mean
from jitm.training.objective import DIRECTIONS, Rankings
from jitm.types import Index, Margin, Probability, Temperature

MIXTURE = {'max_iter': 10, 'tol': 1e-2, 'reg_covar': 5e-4}  # as in the code of NCR
CLEAN = 0.5  # the posterior above which NCR calls a pair clean

Stored = Mapping[str, dict[str, Array]]  # model -> its stored values by name, [T]
Evaluate = Callable[[str], Rankings]  # model -> its rankings of the global batch in evaluation mode


class PairLabels(NamedTuple):
    """The labels of the pairs of the global batch.

    Attributes:
      labels: float32 [B], in [0, 1].
      groups: int32 [B]; pairs of different groups are not compared, and pairs of group -1 have no loss.
    """

    labels: Array
    groups: Array


@runtime_checkable
class LabelEstimator(Protocol):
    """Estimates the labels of training pairs."""

    def init(self, names: Sequence[str], num_pairs: int) -> Stored:
        """Returns the stored values before the first step, for the names of the models that train."""

    def of_batch(self, stored: Stored, rows: Array, epoch: Array, evaluate: Evaluate) -> dict:
        """Returns model -> `PairLabels` of the pairs with these rows, int [B], in the training split."""

    def after_batch(
        self, stored: Stored, rows: Array, labels: Mapping[str, PairLabels], rankings: Mapping[str, Rankings]
    ) -> Stored:
        """Returns the stored values after a batch, from the rankings of each model in training; by default the same."""
        del rows, labels, rankings
        return stored


@runtime_checkable
class RevisedLabelEstimator(LabelEstimator, Protocol):
    """Estimates labels and revises them before each epoch from `warm_up_epochs` on."""

    warm_up_epochs: int

    def hinges(self, rankings: Rankings, num_pairs: int) -> Array:
        """Returns the hinge of each of these pairs, [B], from the rankings of a model in evaluation mode."""

    def revise(self, stored: Stored, rows: np.ndarray, hinges: Mapping[str, np.ndarray]) -> Stored:
        """Returns the stored values of the next epoch, given the rows [N] of its pairs and their hinges by model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MovingAverage(LabelEstimator):
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
        return {name: {'label': jnp.ones(num_pairs), 'probability': jnp.ones(num_pairs)} for name in names}

    def of_batch(self, stored: Stored, rows: Array, epoch: Array, evaluate: Evaluate) -> dict:
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
        self, stored: Stored, rows: Array, labels: Mapping[str, PairLabels], rankings: Mapping[str, Rankings]
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
class CoTeaching(RevisedLabelEstimator):
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

    def of_batch(self, stored: Stored, rows: Array, epoch: Array, evaluate: Evaluate) -> dict:
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

    def hinges(self, rankings: Rankings, num_pairs: int) -> Array:
        """Returns the mean hinge of each pair with the others, summed over directions, averaged over views: [B]."""

        def mean_hinge(ranking):
            match = hardest_positive(ranking.scores, ranking.positives)[:, None]
            return masked_mean(jnp.maximum(self.margin + ranking.scores - match, 0), ranking.negatives)

        return sum(mean_hinge(rankings[direction]) for direction in DIRECTIONS).reshape(num_pairs, -1).mean(axis=1)

    def _predict(self, hinges: Array) -> Array:
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
            # Where all pairs seem clean, a hundredth of them counts as not clean, as in the released code.
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
