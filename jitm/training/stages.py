"""Training in one stage, or in two.

The second stage trains with negatives that the first has mined (Chen et al., 2020), or fine-tunes its model (Faghri et
al., 2018, section 3.2), or both.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jitm.config import build as config_lib
from jitm.config import schema
from jitm.config.hints import check_keys
from jitm.data.load import load_split
from jitm.data.pairs.mined_lists import read_manifest
from jitm.devices import agreement, parallel
from jitm.errors import UserError
from jitm.files import LOCK
from jitm.inference.scoring import ScoringOptions
from jitm.mining.resumable_job import check_top_h, describe, mine
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.interrupt import interruptible
from jitm.runs.progress import Progress, ignore
from jitm.runs.run import load_run
from jitm.training.loop import train_and_evaluate
from jitm.training.plan import make_plan
from jitm.training.sections import Config, complete
from jitm.training.setup import Setup, set_up
from jitm.training.workdir import check_workdir, claim, described

KEYS = ('first', 'top_h_texts', 'top_h_images', 'fine_tune')
FOLDERS = {'stage1', 'stage2', 'candidates', 'processes', LOCK}

Report = Callable[[Progress], None]


class Stages(NamedTuple):
    """The two stages of a config.

    Attributes:
      first: The config of the first stage.
      second: The config of the second stage.
      top_h: The numbers of negatives mined between them, `top_h_texts` and `top_h_images`; 0 for none.
      fine_tune: Whether the second stage is initialized from the first.
    """

    first: dict[str, Any]
    second: dict[str, Any]
    top_h: dict[str, int]
    fine_tune: bool

    @property
    def mines(self) -> bool:
        """Whether the second stage trains with mined negatives."""
        return any(self.top_h.values())


def split_stages(config: Config, workdir: Path) -> Stages:
    """Splits a config with `stages`.

    Args:
      config: A nested dict.
      workdir: The folder for `stage1`, `stage2` and the mined `candidates`.

    Raises:
      UserError: If `stages` lacks a key or has others, or the config names a file that the first stage replaces.
    """
    stages = config['stages']
    second = {**config, 'stages': {}}
    check_keys(stages, KEYS, where='stages')
    first = {**stages['first'], **{key: second[key] for key in schema.SHARED}}
    top_h = {key: stages[key] for key in ('top_h_texts', 'top_h_images')}
    if any(top_h.values()):
        _check_empty('offline.path', config['offline']['path'], 'the negatives that the first stage mines')
        second |= {'offline': {**config['offline'], 'path': str(workdir / 'candidates')}}
    if stages['fine_tune']:
        config_lib.check_member(config, 'evaluation.member')
        name = config_lib.trained_member(config)
        trained = 'the model that the first stage trains'
        _check_empty(f'members.{name}.init_from', config['members'][name].get('init_from'), trained)
        second = _initialized_from(second, str(workdir / 'stage1'))
    return Stages(first, second, top_h, stages['fine_tune'])


def _check_empty(key: str, value: str | None, replaced_by: str) -> None:
    if value:
        raise UserError(f"config key '{key}' is '{value}', but the second stage uses {replaced_by}: set it to ''")


def _initialized_from(config: Config, init_from: str) -> dict[str, Any]:
    """Returns a config whose evaluated model is initialized from a run directory; '' for randomly."""
    name = config_lib.trained_member(config)
    return {**config, 'members': {**config['members'], name: {**config['members'][name], 'init_from': init_from}}}


def check_stages(stages: Stages, workdir: Path, accept_changed_code: bool = False) -> list[Setup]:
    """Checks both stages before the first one starts; nothing is mined or trained yet.

    Returns:
      Their setups.

    Raises:
      UserError: If something in either of them is wrong.
    """
    if workdir.exists() and (not workdir.is_dir() or {entry.name for entry in workdir.iterdir()} - FOLDERS):
        raise UserError(
            f'workdir {workdir} exists and does not hold two stages of this version; choose an empty or a new one'
        )
    # There is no first stage to be initialized from yet.
    second = _initialized_from(stages.second, '') if stages.fine_tune else stages.second
    setups = []
    for name, config, checked in (('stage1', stages.first, stages.first), ('stage2', stages.second, second)):
        check_workdir(workdir / name, config, accept_changed_code)
        resuming = bool(Checkpoints(workdir / name).whole_steps())
        try:
            make_plan(config, pending=True)  # the second stage as it is initialized from the first
            setups.append(set_up(checked, resuming=resuming, pending=stages.mines and name == 'stage2'))
        except UserError as error:  # keys of the first stage are in `stages.first`
            raise UserError(f'{name}: {error}') from error
    if stages.mines:
        check_top_h(setups[0].data.train, **stages.top_h)
        for key, mined in stages.top_h.items():
            num_needed = stages.second['offline'][key]
            if num_needed > mined:
                raise UserError(f"config key 'offline.{key}' is {num_needed}, but 'stages.{key}' only {mined}")
    if stages.fine_tune and _weights(setups[0]) != _weights(setups[1]):
        raise UserError("config key 'stages.fine_tune' needs the same model and vocabulary in both stages")
    return setups


def _weights(setup: Setup) -> tuple[str, Any]:
    """Returns the properties that a run must share with the one it is initialized from: vocabulary and shapes."""
    name = setup.plan.evaluation['member']
    variables = jax.eval_shape(lambda: setup.random_state().members[name].variables)
    return setup.data.vocabulary.hash, jax.tree.map(lambda x: x.shape, variables)


def train_stages(
    config: Config, workdir: str | Path, report: Report = ignore, accept_changed_code: bool = False
) -> dict[str, Any]:
    """Trains both stages of a config, or resumes where it was stopped.

    Args:
      config: A nested dict with `stages`.
      workdir: The folder for `stage1` and `stage2`, which are run directories, and for the mined `candidates`.
      report: A function called after each mined block.
      accept_changed_code: See `train_and_evaluate`.

    Returns:
      The result of `train_and_evaluate` for the second stage.

    Raises:
      UserError: If something the user gave is wrong; nothing was written.
      InterruptedRun, NotFiniteError: See `train_and_evaluate`.
    """
    workdir = Path(workdir)
    stages = split_stages(complete(config), workdir)
    agreement.check_same(described(config))
    agreement.in_all(lambda: check_stages(stages, workdir, accept_changed_code))
    with claim(workdir):
        train_and_evaluate(stages.first, workdir / 'stage1', accept_changed_code)
        if stages.mines:
            _mine(workdir, stages, report)
        return train_and_evaluate(stages.second, workdir / 'stage2', accept_changed_code)


def _mine(workdir: Path, stages: Stages, report: Report) -> None:
    """Mines with the first stage, unless the folder holds the same negatives already."""
    run = load_run(workdir / 'stage1')
    folder = workdir / 'candidates'
    split = load_split(stages.first['data'], 'train', noisy=True, imports=True)
    manifest = read_manifest(folder) or {}
    description = describe([run], split, **stages.top_h)
    if not parallel.any_process(any(manifest.get(key) != value for key, value in description.items())):
        return
    if manifest and (workdir / 'stage2' / 'config.json').exists():
        raise UserError(
            f'{workdir / "stage2"} was started with other negatives than {folder} would get; choose a new workdir'
        )
    options = ScoringOptions(memory_mb=stages.first['run']['memory_mb'])
    with interruptible(folder):
        mine([run], split, 'train', folder, options=options, report=report, **stages.top_h)


def run_directory(config: Config, workdir: Path) -> Path:
    """Returns the folder of the final run of a config: the workdir, or the second stage's folder."""
    return workdir / 'stage2' if config['stages'] else workdir


def check(config: Config, workdir: Path, accept_changed_code: bool = False) -> list[Setup]:
    """Returns the setup of each stage, or raises the UserError of `train` at its start; writes nothing."""
    config = complete(config)
    if config['stages']:
        return check_stages(split_stages(config, workdir), workdir, accept_changed_code)
    check_workdir(workdir, config, accept_changed_code)
    return [set_up(config, resuming=bool(Checkpoints(workdir).whole_steps()))]


def train(config: Config, workdir: Path, report: Report = ignore, accept_changed_code: bool = False) -> dict[str, Any]:
    """Trains a config in two stages if it has `stages`, else in one."""
    config = complete(config)
    if config['stages']:
        return train_stages(config, workdir, report, accept_changed_code)
    return train_and_evaluate(config, workdir, accept_changed_code)
