"""Runs as they lie on disk, put together by setting and named by what tells the settings apart."""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from jitm.config import flatten
from jitm.data.candidates import read_manifest
from jitm.errors import UserError

ABSENT = object()
SECTIONS = ('terms', 'model')  # what comparisons are mostly about
SELF_EVIDENT = ('loss', 'name', 'source')  # keys whose values speak for themselves


@dataclasses.dataclass(frozen=True)
class Run:
    """What a run directory says: its config and the lines of its `metrics.jsonl`."""

    workdir: Path
    config: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]

    @property
    def validations(self) -> list[Mapping[str, Any]]:
        """The lines of the split that training validates on."""
        return [line for line in self.lines if line['part'] == self.config['evaluation']['split']]

    def require_validations(self) -> list[Mapping[str, Any]]:
        """The same lines; raises a UserError if there is none."""
        if not self.validations:
            raise UserError(f'{self.workdir} has no validation yet; leave it out, or wait for the first')
        return self.validations

    def require_training(self) -> list[Mapping[str, Any]]:
        """The lines of training; raises a UserError if there is none."""
        lines = [line for line in self.lines if line['part'] == 'train']
        if not lines:
            raise UserError(
                f'{self.workdir} has no line of training yet; leave it out, or wait for run.log_every steps'
            )
        return lines


@dataclasses.dataclass(frozen=True)
class Setting:
    """Runs that differ in nothing but the seed, and the words of `distinguish` for them."""

    words: Mapping[str, str]
    runs: Sequence[Run]

    @property
    def run_names(self) -> str:
        """The names of the run directories, after those of the folders they are in if they do not differ."""
        names = [run.workdir.name for run in self.runs]
        return ', '.join(names if len({*names}) == len(names) else ['/'.join(r.workdir.parts[-2:]) for r in self.runs])

    @property
    def name(self) -> str:
        """What tells it from the other settings; of an only setting its run directories."""
        return ', '.join(self.words.values()) or self.run_names


def read_run(workdir: Path) -> Run:
    """Reads a run's config and the lines of its `metrics.jsonl`.

    Raises:
      UserError: if the directory holds no run.
    """
    try:
        config = json.loads((workdir / 'config.json').read_text())
        lines = [json.loads(line) for line in (workdir / 'metrics.jsonl').read_text().splitlines()]
    except (OSError, ValueError) as error:
        raise UserError(f'{workdir} is not a run directory with config.json and metrics.jsonl ({error})') from None
    return Run(workdir, config, lines)


def decisive(config: Mapping[str, Any]) -> dict[str, Any]:
    """The flattened config without the seed and the `run` sub-dict, which cannot change a number.

    Paths count: logs do not say whether two of them hold the same data, words or weights. Other runs are an exception,
    see `name_alike`.
    """
    return {key: value for key, value in flatten(config).items() if key != 'seed' and not key.startswith('run.')}


def name_alike(config: Mapping[str, Any], named: dict[str, str]) -> dict[str, Any]:
    """Gives all runs of a setting one path, where a config names another run: one that it begins with, or that mined.

    Args:
      config: a nested dict.
      named: what is named and the setting of such runs, as JSON -> the path that stands for them; it is added to.

    Returns:
      The config. A path that leads to no run stays as it is.
    """

    def alike(what: str, path: str, runs: Sequence[str]) -> str:
        try:
            origins = [decisive(json.loads((Path(run) / 'config.json').read_text())) for run in runs]
        except (OSError, ValueError):
            return path
        return named.setdefault(json.dumps([what, origins], sort_keys=True), path) if origins else path

    config = json.loads(json.dumps(config))
    if candidates := config['offline']['path']:
        mined = read_manifest(Path(candidates)) or {}
        config['offline']['path'] = alike('candidates', candidates, mined.get('workdirs', []))
    for member in config['members'].values():
        if member.get('init_from'):
            member['init_from'] = alike('init_from', member['init_from'], [member['init_from']])
    return config


def read_settings(workdirs: Sequence[Path]) -> list[Setting]:
    """Reads runs and puts together those that differ in nothing but the seed, in the order of the first of each.

    Raises:
      UserError: if a directory holds no run.
    """
    groups: list[list[Run]] = []
    named: dict[str, str] = {}
    for run in map(read_run, workdirs):
        run = dataclasses.replace(run, config=name_alike(run.config, named))
        group = next((group for group in groups if decisive(group[0].config) == decisive(run.config)), None)
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    words = distinguish([group[0].config for group in groups])
    return [Setting(named, group) for named, group in zip(words, groups, strict=True)]


def distinguish(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Says in few words what tells configs apart: 'max_of_hinges', 'learning_rate=0.002', 'no epsilon'.

    A key that differs is named if it parts configs that the keys before it leave together. Losses come before models,
    these before the rest, and in each what all have before what some lack, and what has a name before numbers.

    Args:
      configs: nested dicts, each different from all others where it is `decisive`.

    Returns:
      For each config {key: word}, with the same keys in all.
    """
    flat = [decisive(config) for config in configs]
    keys = {key for one in flat for key in one}
    words = {key: _words(key, [one.get(key, ABSENT) for one in flat], keys) for key in keys}

    def rank(key: str) -> tuple[int, bool, bool, str]:
        section = key.partition('.')[0]
        lacking = any(key not in one for one in flat)
        with_key = any('=' in word for word in words[key])
        return (*SECTIONS, section).index(section), lacking, with_key, key

    def parts(chosen: Sequence[str]) -> int:
        return len({tuple(words[key][n] for key in chosen) for n in range(len(configs))})

    chosen: list[str] = []
    for key in sorted(keys, key=rank):
        if parts([*chosen, key]) > parts(chosen):
            chosen.append(key)
    return [{key: words[key][n] for key in chosen} for n in range(len(configs))]


def _words(key: str, values: Sequence[Any], keys: Collection[str]) -> list[str]:
    """A key's values, without the key where they speak for themselves and none of its section is called the same."""

    def first_and_last(key: str) -> tuple[str, str]:
        return key.partition('.')[0], key.rpartition('.')[2]

    alike = [other for other in keys if first_and_last(other) == first_and_last(key)]
    if key.rpartition('.')[2] in SELF_EVIDENT and ABSENT not in values and alike == [key]:
        return [_shorten(value, values) for value in values]
    short = _shorten(key, keys)
    return [f'no {short}' if value is ABSENT else f'{short}={value}' for value in values]


def _shorten(path: str, paths: Collection[str]) -> str:
    """The last parts of a dotted path, as many as it takes to tell it from the others."""
    parts = path.split('.')
    ends = ('.'.join(parts[-n:]) for n in range(1, len(parts)))
    others = {other for other in paths if other != path}
    return next((end for end in ends if not any(f'.{other}'.endswith(f'.{end}') for other in others)), path)
