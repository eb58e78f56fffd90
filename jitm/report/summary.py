"""The best validation metrics of each group, and rsum by epoch."""

from collections.abc import Sequence

from jitm.evaluation.tables import mean_and_deviation, table
from jitm.report.groups import Group

RECALLS = {
    'i2t/recall@1': 'R@1 i2t',
    'i2t/recall@5': 'R@5',
    'i2t/recall@10': 'R@10',
    't2i/recall@1': 'R@1 t2i',
    't2i/recall@5': 'R@5',
    't2i/recall@10': 'R@10',
    'rsum': 'rsum',
}
DISTANCE = 'mean_distance'


def best_values(groups: Sequence[Group]) -> dict[str, list[list[float]]]:
    """Returns the metrics of each run's best validation: the recalls, rsum, and the mean distance if all runs log it.

    Returns:
      {metric: a list per group of the values of its seeds}; recalls and rsum in percent, none of a converted run that
      was not evaluated.

    Raises:
      UserError: If a run has no validation yet.
    """
    best = [[run.best_validation() for run in group.runs] for group in groups]
    best = [[line for line in lines if line.get('rsum') is not None] for lines in best]
    has_distance = all(DISTANCE in line for lines in best for line in lines)
    metrics = [*RECALLS, *([DISTANCE] if has_distance else [])]
    return {metric: [[line[metric] for line in lines] for lines in best] for metric in metrics}


def show(metric: str, values: Sequence[float]) -> str:
    """Returns mean and sample standard deviation over seeds as text."""
    return mean_and_deviation(values, '.3g' if metric == DISTANCE else '.1f')


def best_epochs(group: Group) -> str:
    """Returns the epoch of the best validation of each run of a group."""
    return ', '.join(f'{run.best_validation()["epoch"]:g}' for run in group.runs)


def summary(groups: Sequence[Group]) -> str:
    """Returns Markdown tables of the best validation of each group, and of rsum by epoch.

    Returns:
      Markdown: recalls and rsum in percent, and the mean distance (MD) if all runs log it; mean and sample standard
      deviation over seeds.

    Raises:
      UserError: If a run has no validation yet.
    """
    values = best_values(groups)
    header = ['group', *(RECALLS.get(metric, 'MD') for metric in values), 'best epoch', 'runs']
    best_rows = [
        [group.name, *(show(metric, values[metric][n]) for metric in values), best_epochs(group), group.run_names]
        for n, group in enumerate(groups)
    ]
    by_group = [
        [
            {line['epoch']: line['rsum'] for line in run.require_validations() if line.get('rsum') is not None}
            for run in group.runs
        ]
        for group in groups
    ]
    epochs = sorted({epoch for runs in by_group for run in runs for epoch in run})
    epoch_rows = [
        [group.name, *(mean_and_deviation([run[epoch] for run in runs if epoch in run]) for epoch in epochs)]
        for group, runs in zip(groups, by_group, strict=True)
    ]
    epoch_header = ['rsum after epoch', *(f'{epoch:g}' for epoch in epochs)]
    return f'{table(header, best_rows)}\n\n{table(epoch_header, epoch_rows)}'
