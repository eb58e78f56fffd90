"""Rows, one JSON object with the numbers of each run, and files of rows, from which tables of results are made."""

import fnmatch
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jitm.errors import UserError
from jitm.files import parse_json, read_text, replacing, split_lines
from jitm.report.groups import Group, RunLog, read_origins, read_run_log, runs_of
from jitm.runs.log import read_lines

SECONDS = ('train_seconds', 'validation_seconds')
LOGGED = ('step', 'epoch', 'part')  # keys of a logged line that are not metrics


def row_of(run: RunLog) -> dict[str, Any]:
    """Returns the row of a run.

    Args:
      run: A run with at least one validation.

    Returns:
      run: The run directory as given.
      seed: The seed of the config.
      split: The split of the validations.
      epochs: The number of epochs of the config.
      steps: The step of the last validation.
      train_seconds: The time of training until the last validation, from `timing.jsonl`; None without this file.
      validation_seconds: The time of the validations, likewise from `timing.jsonl`.
      best_epoch: The epoch of the best validation, see `runs.log.best_time`.
      metrics: The metrics of this validation; recalls and rsum in percent.
      rsum_by_epoch: Pairs of epoch and rsum.
      config: The config without the sub-dict `run`, which does not change results.
      captions: The hash of the captions of the split, see `RunLog`.
      origins: The configs behind the paths of other runs in the config, see `read_origins`.

    Raises:
      UserError: If there is no validation yet, or `timing.jsonl` is damaged.
    """
    validations = run.require_validations()
    best = run.best_validation()
    return {
        'run': str(run.workdir),
        'seed': run.config['seed'],
        'split': run.config['evaluation']['split'],
        'epochs': run.config['epochs'],
        'steps': validations[-1]['step'],
        **_seconds(run.workdir / 'timing.jsonl'),
        'best_epoch': best['epoch'],
        'metrics': {key: value for key, value in best.items() if key not in LOGGED},
        'rsum_by_epoch': [[line['epoch'], line.get('rsum')] for line in validations],
        'config': {key: value for key, value in run.config.items() if key != 'run'},
        'captions': run.captions,
        'origins': dict(read_origins(run.config) if run.origins is None else run.origins),
    }


def _seconds(timing: Path) -> dict[str, float | None]:
    """Returns the sums of the times in `timing.jsonl`, None if it has none."""
    lines = read_lines(timing)
    if not lines:
        return dict.fromkeys(SECONDS)
    sums = dict.fromkeys(SECONDS, 0)
    try:
        for line, name in itertools.product(lines, SECONDS):
            sums[name] += line[name]
    except (KeyError, TypeError) as error:
        raise UserError(f'{timing} is damaged ({error!r}); remove it, the page then has no times') from None
    return sums


def run_of(row: Mapping[str, Any]) -> RunLog:
    """Returns a run as its row describes it: all validations with rsum, the best one with all metrics.

    Raises:
      KeyError: If the row lacks a key.
    """
    lines = [{'part': row['split'], 'epoch': epoch, 'rsum': rsum} for epoch, rsum in row['rsum_by_epoch']]
    lines = [line | (row['metrics'] if line['epoch'] == row['best_epoch'] else {}) for line in lines]
    return RunLog(Path(row['run']), row['config'], lines, row['origins'], row.get('captions', ''))


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Reads a file of rows.

    Returns:
      {run: row}, in the order of the file.

    Raises:
      UserError: If the file cannot be read, or a line is not a row.
    """
    rows = {}
    for number, line in enumerate(split_lines(read_text(path, 'give a file of jitm report --rows')), 1):
        try:
            row = parse_json(line)
            run_of(row)
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f'line {number} of {path} is not a row of jitm report --rows ({error!r}); remove the line, or '
                'write the row again'
            ) from None
        rows[row['run']] = row
    return rows


def update_rows(groups: Sequence[Group], path: Path, fields: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Writes the rows of runs to a file, where they replace the rows of the same runs; others are kept.

    Args:
      groups: The runs.
      path: The file; it is created if needed.
      fields: Further keys of the rows of these runs.

    Raises:
      UserError: If a run has no validation yet, or the file is damaged or cannot be written.
    """
    new = {row['run']: row | fields for row in map(row_of, runs_of(groups))}
    rows = (read_rows(path) if path.exists() else {}) | new
    text = ''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows.values())
    with replacing(path) as file:
        file.write(text.encode())


def read_runs(paths: Iterable[Path], patterns: Sequence[str] = ()) -> list[RunLog]:
    """Reads runs from their directories and from files of rows.

    Args:
      paths: Run directories and files of rows.
      patterns: Shell patterns of the names of the runs to keep, such as `runs/vse0_*`; all if there is none.

    Raises:
      UserError: If a path is neither, or no run has a name of one of the patterns.
    """
    runs = []
    for path in paths:
        if not path.exists():
            raise UserError(f'{path} does not exist: give run directories or files of rows')
        runs += map(run_of, read_rows(path).values()) if path.is_file() else [read_run_log(path)]
    names = [str(run.workdir) for run in runs]
    selected = set()
    for pattern in patterns:
        matches = fnmatch.filter(names, pattern)
        if not matches:
            raise UserError(f"no run is named '{pattern}'; the names are such as {names[0] if names else 'none'}")
        selected.update(matches)
    return [run for run, name in zip(runs, names, strict=True) if name in selected or not patterns]
