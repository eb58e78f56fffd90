"""How validation went: R@1 of both directions and rsum by epoch (AOQ, figure 4)."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from jitm.analysis.figures import Curve, curve, draw_curves, save
from jitm.analysis.settings import Run, Setting
from jitm.analysis.tables import table

TITLES = {'i2t/recall@1': 'i2t R@1', 't2i/recall@1': 't2i R@1', 'rsum': 'rsum'}
NOTE = 'lines: means over seeds; bands: minimum to maximum'


def curves(runs: Iterable[Run]) -> dict[str, Curve]:
    """The curves of a setting's runs.

    Raises:
      UserError: if a run has no validation.
    """
    lines = [run.require_validations() for run in runs]
    return {name: curve([{line['epoch']: line[name] for line in seed} for seed in lines]) for name in TITLES}


def passing(mean: Curve, level: float) -> str:
    """The first epoch at which the mean is above a level, '-' if there is none."""
    above = (epoch for epoch, value in zip(mean.epochs, mean.mean, strict=True) if value > level)
    return next((f'{epoch:g}' for epoch in above), '-')


def validation(settings: Sequence[Setting]) -> str:
    """A Markdown table of the best of each curve, and of when it passes the best of the first setting.

    Returns:
      Markdown: of the mean over seeds the best value in percent and the epoch of it, then the first epoch above the
      first setting's best.

    Raises:
      UserError: if a run has no validation.
    """
    by_setting = [curves(setting.runs) for setting in settings]
    first = {name: max(one.mean) for name, one in by_setting[0].items()}
    rows = []
    for setting, drawn in zip(settings, by_setting, strict=True):
        best = [max(zip(one.mean, one.epochs, strict=True), key=lambda point: point[0]) for one in drawn.values()]
        cells = [f'{value:.1f} ({epoch:g})' for value, epoch in best]
        cells += [passing(one, first[name]) for name, one in drawn.items()]
        rows.append([setting.name, *cells, setting.run_names])
    columns = [f'{title} (epoch)' for title in TITLES.values()]
    columns += [f'{title} past the first' for title in TITLES.values()]
    return table(['setting', *columns, 'runs'], rows)


def draw(settings: Sequence[Setting], output: Path) -> None:
    """Draws the curves.

    Raises:
      UserError: if a run has no validation or the figure cannot be written.
    """
    figure, panels = draw_curves(settings, [curves(setting.runs) for setting in settings], TITLES, NOTE)
    for row in panels.values():
        row[0].set_ylim(bottom=0)
    save(figure, output)
