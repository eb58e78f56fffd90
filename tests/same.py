"""Comparison of run directories, to the last bit or to rounding."""

from pathlib import Path

import jax
import numpy as np

from jitm.runs.checkpoint import Checkpoints
from jitm.runs.log import read_metrics


def assert_same_run(workdir: Path, other: Path) -> None:
    """Parameters, optimizer, best checkpoint and metrics file agree to the last bit."""
    assert (workdir / 'metrics.jsonl').read_bytes() == (other / 'metrics.jsonl').read_bytes()
    assert_same_states(workdir, other)


def assert_same_states(workdir: Path, other: Path) -> None:
    """Parameters, optimizer and best checkpoint agree to the last bit."""
    with Checkpoints(workdir) as a, Checkpoints(other) as b:
        assert a.best_step() == b.best_step()
        assert a.steps()[-1] == b.steps()[-1]
        for step in {a.best_step(), a.steps()[-1]}:
            first, second = a.read(step), b.read(step)
            assert first[1] == second[1]
            assert jax.tree.structure(first[0]) == jax.tree.structure(second[0])
            jax.tree.map(np.testing.assert_array_equal, first[0], second[0])


def assert_same_training(workdir: Path, other: Path) -> None:
    """Parameters, optimizer, statistics and metrics agree to the last bit, the mean distance to rounding.

    The latter is computed from the scores of the validation, which devices of one process share in other blocks.
    """
    assert_same_states(workdir, other)
    first, second = (read_metrics(folder) for folder in (workdir, other))
    distances = [[line.pop('mean_distance', 0) for line in lines] for lines in (first, second)]
    np.testing.assert_allclose(*distances, atol=1e-6)
    assert first == second


def assert_about_the_same_metrics(workdir: Path, other: Path) -> None:
    """Of the same steps; losses agree at first, and later as far as rounding lets them."""
    got, want = read_metrics(workdir), read_metrics(other)
    assert [line['step'] for line in got] == [line['step'] for line in want]
    np.testing.assert_allclose(got[1]['target/loss'], want[1]['target/loss'], rtol=1e-5)
    np.testing.assert_allclose(got[-2]['target/loss'], want[-2]['target/loss'], rtol=2e-2)
