"""`jitm average`, see `usage.average`."""

import functools
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from jitm.commands import flags as shared
from jitm.commands import programs
from jitm.data.splits import Split
from jitm.devices import parallel
from jitm.errors import UserError
from jitm.evaluation.protocol import evaluate_runs
from jitm.runs.run import Run, load_run, read_split
from jitm.training import averages
from jitm.training.weights import check_new


def main(values: flags.FlagValues, words: Sequence[str]) -> None:
    """Averages, and prints what was averaged and the command that evaluates the result."""
    parallel.use_all_cores()
    folder = Path(values.out)
    check_new(folder, averages.KIND)
    if len(words) < 2:
        raise UserError(f'{len(words)} runs are given: give two run directories or more')
    weights = read_weights(values.weights, len(words))
    runs = [load_run(word, values.step, values.member) for word in words]
    averages.check_alike(runs)
    if values.greedy:
        split = read_split(runs, values.split, values.data_root)
        runs, rsum = averages.choose_greedily(runs, functools.partial(rsum_of, split=split))
        weights = [1.0] * len(runs)
        print(f'greedy       {len(runs)} of {len(words)} runs, rsum {rsum:.1f} on {split.name}')
    averages.write_average(runs, weights, folder)
    for run, weight in zip(runs, weights, strict=True):
        print(f'{weight / sum(weights):<13.3g}{run.workdir}, step {run.step}, {run.member}')
    programs.print_run(folder, words=shared.given(values, 'import'))


def read_weights(texts: Sequence[str], count: int) -> list[float]:
    """Returns the weight of each of some runs.

    Raises:
      UserError: If they are not one number for each run, or negative, or their sum is 0 or not finite.
    """
    try:
        weights = [float(weight) for weight in texts] or [1.0] * count
    except ValueError:
        weights = []
    if len(weights) != count or min(weights) < 0 or not 0 < sum(weights) < float('inf'):
        raise UserError(f'--weights is {",".join(texts)}: give {count} numbers of at least 0, one for each run')
    return weights


def rsum_of(run: Run, split: Split) -> float:
    """Returns rsum of a run on a split."""
    report, _ = evaluate_runs([run], split)
    return report['metrics']['rsum']
