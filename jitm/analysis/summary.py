"""The best validation metrics of each setting, and rsum by epoch."""

from collections.abc import Sequence

from jitm.analysis.settings import Setting
from jitm.analysis.tables import mean_and_deviation, table


def summary(settings: Sequence[Setting]) -> str:
    """Returns Markdown tables of the best validation of each setting, and of rsum by epoch.

    Returns:
      Markdown: recalls and rsum in percent, and the mean distance (MD) if all runs log it; mean and sample standard
      deviation over seeds.

    Raises:
      UserError: if a run has no validation yet.
    """
    columns = ('i2t/recall@1', 'i2t/recall@5', 'i2t/recall@10', 't2i/recall@1', 't2i/recall@5', 't2i/recall@10', 'rsum')
    best_rows, by_setting, epochs = [], [], set()
    by_run = [[run.require_validations() for run in setting.runs] for setting in settings]
    has_distance = all('mean_distance' in line for runs in by_run for lines in runs for line in lines)
    for setting, validations in zip(settings, by_run, strict=True):
        best = [max(lines, key=lambda line: line['rsum']) for lines in validations]
        cells = [mean_and_deviation([line[column] for line in best]) for column in columns]
        if has_distance:
            cells.append(mean_and_deviation([line['mean_distance'] for line in best], '.3g'))
        best_rows.append([setting.name, *cells, ', '.join(f'{line["epoch"]:g}' for line in best), setting.run_names])
        by_epoch = [{line['epoch']: line['rsum'] for line in lines} for lines in validations]
        by_setting.append((setting.name, by_epoch))
        epochs.update(*by_epoch)
    epoch_rows = [
        [name, *(mean_and_deviation([run[epoch] for run in runs if epoch in run]) for epoch in sorted(epochs))]
        for name, runs in by_setting
    ]
    best_table = table(['setting', *columns, *(['MD'] if has_distance else []), 'best epoch', 'runs'], best_rows)
    return f'{best_table}\n\n{table(["rsum after epoch", *(f"{epoch:g}" for epoch in sorted(epochs))], epoch_rows)}'
