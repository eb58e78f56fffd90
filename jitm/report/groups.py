"""Logs of runs in groups of seeds; `jitm.report.group_names` names the groups."""

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jitm.config.build import check_saved, differences, flatten
from jitm.data.pairs.mined_lists import read_manifest
from jitm.errors import UserError
from jitm.evaluation.saved import METRICS, folders_of
from jitm.files import hash_json, parse_json
from jitm.report.group_names import distinguish
from jitm.runs import own_code
from jitm.runs.checkpoint_files import read_description
from jitm.runs.log import best_time, make_line, read_metrics


class RunLog(NamedTuple):
    """The config of a run and the lines of its `metrics.jsonl`.

    Attributes:
      workdir: The run directory.
      config: A nested dict.
      lines: The lines of `metrics.jsonl`.
      origins: The configs behind the paths of other runs in the config, see `read_origins`; None to read them.
      captions: `Split.captions_hash` of the validation split; '' if it is not known.
    """

    workdir: Path
    config: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]
    origins: Mapping[str, str] | None = None
    captions: str = ''

    def has_data_of(self, run: 'RunLog') -> bool:
        """Returns whether two runs have the same captions for validation, or if unknown the same source and path."""
        if self.captions and run.captions:
            return self.captions == run.captions
        return _data_path(self.config) == _data_path(run.config)

    @property
    def validations(self) -> list[Mapping[str, Any]]:
        """The lines of the validation split."""
        return [line for line in self.lines if line['part'] == self.config['evaluation']['split']]

    def require_validations(self) -> list[Mapping[str, Any]]:
        """Returns the lines of the validation split; raises a UserError if there are none."""
        if not self.validations:
            raise UserError(f'{self.workdir} has no validation yet; leave it out, or wait for the first')
        return self.validations

    def require_finished(self) -> None:
        """Raises a UserError unless the run has been validated after its last epoch."""
        last = self.require_validations()[-1]['epoch']
        epochs = self.config['epochs']
        if last < epochs:
            raise UserError(
                f'{self.workdir} is validated up to epoch {last:g} of {epochs}; resume it, leave it out, or add '
                '--unfinished'
            )

    def best_validation(self) -> Mapping[str, Any]:
        """Returns the line of the best validation, see `best_time`; raises a UserError if there is none."""
        lines = {line['epoch']: line for line in self.require_validations()}
        return lines[best_time({epoch: line.get('rsum') or 0 for epoch, line in lines.items()})]

    def require_training(self) -> list[Mapping[str, Any]]:
        """Returns the lines of training; raises a UserError if there are none."""
        lines = [line for line in self.lines if line['part'] == 'train']
        if not lines:
            raise UserError(
                f'{self.workdir} has no line of training yet; leave it out, or wait for run.log_every steps'
            )
        return lines


def _data_path(config: Mapping[str, Any]) -> list[str | None]:
    return [flatten(config).get(key) for key in ('data.source', 'data.root')]


class Group(NamedTuple):
    """Runs that differ only in the seed, and their words, see `distinguish`."""

    words: Mapping[str, str]
    runs: Sequence[RunLog]

    @property
    def run_names(self) -> str:
        """The names of the run directories, with their parents' names if they are not distinct."""
        names = [run.workdir.name for run in self.runs]
        if len(set(names)) < len(names):
            names = ['/'.join(run.workdir.parts[-2:]) for run in self.runs]
        return ', '.join(names)

    @property
    def name(self) -> str:
        """Its words; for a single group the names of its run directories."""
        return ', '.join(self.words.values()) or self.run_names


def runs_of(groups: Iterable[Group]) -> list[RunLog]:
    """Returns the runs of all groups."""
    runs = []
    for group in groups:
        runs += group.runs
    return runs


def read_run_log(workdir: Path) -> RunLog:
    """Reads the config of a run and the lines of its `metrics.jsonl`.

    A converted run has no epochs; its evaluation, if there is one, is its validation.

    Raises:
      UserError: If the directory is not a run directory, or `config.json` differs from the config in its checkpoints.
    """
    path = workdir / 'metrics.jsonl'
    description = read_description(workdir)
    try:
        config = parse_json((workdir / 'config.json').read_text())
        path.stat()
    except (OSError, ValueError) as error:
        if description and 'steps_per_epoch' not in description:  # a converted run, without training
            return _read_converted(workdir, description['config'] | {'epochs': 0})
        raise UserError(f'{workdir} is not a run directory with config.json and metrics.jsonl ({error})') from None
    config = check_saved(config, workdir)
    different = differences(description['config'], config) if description else []
    different = [line for line in different if ': absent -> ' not in line]  # a default that a resumed run has since
    if different:
        raise UserError(f'{workdir / "config.json"} is not as in its checkpoints ({"; ".join(different)}); restore it')
    sources = own_code.read(workdir)
    if sources:
        config |= {'own_code': hash_json(sources)[:8]}
    lines = read_metrics(workdir)
    if any(not {'epoch', 'part'} <= line.keys() for line in lines):
        raise UserError(f'{path} has a line without epoch or part; restore the file, or leave the run out')
    return RunLog(workdir, config, lines, captions=(description or {}).get('validation_captions', ''))


def saved_file(workdir: Path, config: Mapping[str, Any], split: str, name: str, data_root: str | None = None) -> Path:
    """Returns a file of the evaluation of a run alone, whether it exists or not.

    Args:
      workdir: The run directory.
      config: The config of the run.
      split: The split, such as 'dev'.
      name: The name of the file.
      data_root: The data folder, if it has moved since training; a file from before the move counts too.
    """
    paths = [folder / name for folder in folders_of(workdir, split, config['evaluation'], data_root)]
    return next((path for path in paths if path.exists()), paths[0])


def _read_converted(workdir: Path, config: Mapping[str, Any]) -> RunLog:
    split = config['evaluation']['split']
    metrics = {}
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        metrics = parse_json(saved_file(workdir, config, split, METRICS).read_bytes())['metrics']
    return RunLog(workdir, config, [make_line(0, 0, split, metrics)])


def config_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the flattened config without the seed and the `run` sub-dict, which does not change results.

    Paths are kept, since logs do not show whether two paths hold the same data, words or weights; see `read_origins`
    for paths of other runs.
    """
    return {key: value for key, value in flatten(config).items() if key != 'seed' and not key.startswith('run.')}


def read_origins(config: Mapping[str, Any]) -> dict[str, str]:
    """Identifies the configs of the runs whose weights or mined negatives a run reads.

    Args:
      config: The config of the run, a nested dict.

    Returns:
      {path in the config: hash of the configs of the runs behind it}, equal for the seeds of a group. Paths that lead
      to no run are left out.
    """
    members = [member['init_from'] for member in config['members'].values() if member.get('init_from')]
    runs = {path: ['init_from', path] for path in members}
    candidates = config['offline']['path']
    if candidates:
        runs[candidates] = ['candidates', *(read_manifest(Path(candidates)) or {}).get('workdirs', [])]
    origins = {}
    for path, (kind, *workdirs) in runs.items():
        compared = []
        with contextlib.suppress(OSError, ValueError):
            for workdir in workdirs:
                origin = parse_json((Path(workdir) / 'config.json').read_text())
                compared.append(config_keys(replace_run_paths(origin, read_origins(origin))))
        if compared and len(compared) == len(workdirs):
            text = json.dumps([kind, compared], sort_keys=True)
            origins[path] = hashlib.sha256(text.encode()).hexdigest()[:16]
    return origins


def replace_run_paths(config: Mapping[str, Any], replacements: Mapping[str, str]) -> dict[str, Any]:
    """Returns a copy of a config with the paths of other runs (initial weights, mined negatives) replaced.

    Args:
      config: A nested dict.
      replacements: {path: replacement}; other paths are kept.
    """
    config = json.loads(json.dumps(config))
    for section in (config['offline'], *config['members'].values()):
        for key in ('path', 'init_from'):
            if section.get(key) in replacements:
                section[key] = replacements[section[key]]
    return config


def read_groups(workdirs: Sequence[Path]) -> list[Group]:
    """Reads the logs of runs and groups them, see `group_runs`.

    Raises:
      UserError: If a directory is not a run directory, or is given twice.
    """
    return group_runs(map(read_run_log, workdirs))


def group_runs(runs: Iterable[RunLog]) -> list[Group]:
    """Groups runs that differ only in the seed, in the order of their first runs.

    If a config names other runs (initial weights, mined negatives), their configs count, not their paths.

    Args:
      runs: Runs, or their rows.

    Raises:
      UserError: If a run or its copy is given twice, which would count it as two seeds.
    """
    configs: list[dict[str, Any]] = []
    grouped: list[list[RunLog]] = []
    canonical: dict[str, str] = {}
    workdirs: dict[str, Path] = {}
    for run in runs:
        training = json.dumps({key: value for key, value in run.config.items() if key != 'run'}, sort_keys=True)
        if training in workdirs:
            problem = f'{run.workdir} has the config and the seed of {workdirs[training]}'
            raise UserError(f'{problem}, so that one run is given twice; give each run once')
        workdirs[training] = run.workdir
        origins = read_origins(run.config) if run.origins is None else run.origins
        for path, origin in origins.items():
            canonical.setdefault(origin, path)
        config = replace_run_paths(run.config, {path: canonical[origin] for path, origin in origins.items()})
        origins = {canonical[origin]: origin for origin in origins.values()}
        keys = config_keys(config)
        if keys not in configs:
            configs.append(keys)
            grouped.append([])
        grouped[configs.index(keys)].append(run._replace(config=config, origins=origins))
    return [Group(words, members) for words, members in zip(distinguish(configs), grouped, strict=True)]
