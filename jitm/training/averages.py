"""Averages of the weights of several runs: WiSE-FT and model soups (Wortsman et al., 2022a and 2022b)."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from chex import ArrayTree

from jitm.config import build as config_lib
from jitm.errors import UserError
from jitm.models.make import member_model
from jitm.runs.run import Run, describe_run, describe_runs
from jitm.training.weights import write_weights

KIND = 'an averaged run'


def check_alike(runs: Sequence[Run]) -> None:
    """Raises a UserError unless all runs have the same model and vocabulary, and data of the same encoder.

    A run on other data is warned of: the average claims the data of the last run.
    """
    first, *runs_after = runs
    for run in runs_after:
        models = [{'model': member_model(run_of_pair.config, run_of_pair.member)} for run_of_pair in (first, run)]
        different = [line for line in config_lib.differences(*models) if '.dtype:' not in line]
        shapes = [jax.tree.map(np.shape, run_of_pair.variables) for run_of_pair in (first, run)]
        if different or shapes[0] != shapes[1]:
            reason = '; '.join(different) or 'its parameters have other shapes'
            raise UserError(f'{run.workdir} has another model than {first.workdir} ({reason}): average runs of one')
        if run.vocabulary.hash != first.vocabulary.hash:
            raise UserError(f'{run.workdir} has another vocabulary than {first.workdir}: average runs of one')
        encoders = _encoders(run)
        if encoders and _encoders(first) not in ({}, encoders):
            problem = f'was trained on features or tokens of another network than {first.workdir}'
            raise UserError(f'{run.workdir} {problem} (encoded_by): average runs of one')
        if run.data_hash and first.data_hash and run.data_hash != first.data_hash:
            logging.warning('%s was trained on other data than %s', run.workdir, first.workdir)


def _encoders(run: Run) -> dict[str, Any]:
    """Returns the identities of the networks that encoded the data of a run, wherever they are stored."""
    identity = 'network', 'parameters', 'vocabulary'
    encoded_by = config_lib.flatten(run.encoded_by or {})
    return {key: value for key, value in encoded_by.items() if key.rpartition('.')[2] in identity}


def average(runs: Sequence[Run], weights: Sequence[float]) -> Run:
    """Returns the last run with the weighted mean of the variables of all runs, batch statistics too.

    A learned temperature is averaged as it is stored, which is its logarithm; adapters are merged before.

    Args:
      runs: Runs with the same model.
      weights: The weight of each run; only proportions count.
    """
    shares = np.asarray(weights, np.float64) / np.sum(weights)

    def mean(*leaves):
        total = sum(share * np.asarray(leaf, np.float64) for share, leaf in zip(shares, leaves, strict=True))
        return np.asarray(total, leaves[0].dtype)

    variables: ArrayTree = jax.tree.map(mean, *(run.variables for run in runs))
    return dataclasses.replace(runs[-1], variables=variables)


def choose_greedily(runs: Sequence[Run], score: Callable[[Run], float]) -> tuple[list[Run], float]:
    """Chooses the runs of a greedy soup: from the best one on, each that raises the score of the mean.

    As in the released code, a run that leaves the score unchanged is not chosen; the paper keeps it.

    Args:
      runs: Runs with the same model.
      score: The function that scores a run on a validation split.

    Returns:
      The chosen runs, and the score of their mean.
    """
    ranked = sorted(((score(run), run) for run in runs), key=lambda pair: -pair[0])
    best, first = ranked[0]
    chosen = [first]
    for _, run in ranked[1:]:
        candidates = [*chosen, run]
        metrics = score(average(candidates, [1.0] * len(candidates)))
        if metrics > best:
            best = metrics
            chosen = candidates
    return chosen, best


def write_average(runs: Sequence[Run], weights: Sequence[float], folder: Path) -> None:
    """Writes the average as a run of one checkpoint, with the config and the data of the last run."""
    averaged = average(runs, weights)
    sources = [described | {'weight': weight} for described, weight in zip(describe_runs(runs), weights, strict=True)]
    write_weights(describe_run(averaged) | {'average_of': sources}, averaged.variables, folder, KIND)
