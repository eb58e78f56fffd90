"""What a config asks for: one run, or two stages, the second with negatives mined by the first (AOQ, paper 000)."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from jitm import config as config_lib
from jitm import parallel
from jitm.data.candidates import read_manifest
from jitm.errors import UserError
from jitm.mining.job import check_top_h, describe, mine
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.interrupt import interruptible
from jitm.runs.progress import Progress
from jitm.runs.run import load_run
from jitm.training.build.run import LOCK, Setup, check_workdir, lock, set_up
from jitm.training.loop import train_and_evaluate

KEYS = ('first', 'top_h_texts', 'top_h_images', 'fine_tune')
SHARED = ('data', 'seed', 'run')
FOLDERS = {'stage1', 'stage2', 'candidates', 'processes', LOCK}


def split_stages(config: Mapping[str, Any], workdir: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """The configs of both stages, with the same data and seed, and how many negatives are mined between them.

    Raises:
      UserError: if `stages` lacks a key or has others.
    """
    stages = config['stages']
    config_lib.check_keys(stages, KEYS, where='stages')
    first = {**stages['first'], **{key: config[key] for key in SHARED}}
    offline = {**config['offline'], 'candidates': str(workdir / 'candidates')}
    second = {**config, 'offline': offline, 'stages': {}}
    if stages['fine_tune']:
        name = config['evaluation']['member']
        begun = {**config['members'][name], 'init_from': str(workdir / 'stage1')}
        second['members'] = {**config['members'], name: begun}
    return first, second, {key: stages[key] for key in ('top_h_texts', 'top_h_images')}


def check_stages(
    first: Mapping[str, Any], second: Mapping[str, Any], top_h: Mapping[str, int], workdir: Path, fine_tune: bool
) -> None:
    """Raises a UserError for what is wrong in either round, before the first begins; nothing is mined yet."""
    if workdir.exists() and (not workdir.is_dir() or {entry.name for entry in workdir.iterdir()} - FOLDERS):
        raise UserError(f'workdir {workdir} exists and does not hold two stages; choose an empty or a new one')
    check_workdir(workdir / 'stage1', first)
    check_workdir(workdir / 'stage2', second)
    name = second['evaluation']['member']
    anew = {**second['members'][name], 'init_from': ''} if fine_tune else second['members'][name]
    not_begun = {**second, 'members': {**second['members'], name: anew}}  # there is no first round to begin with yet
    begun = [bool(Checkpoints(workdir / name).whole_steps()) for name in ('stage1', 'stage2')]
    setups = set_up(first, resuming=begun[0]), set_up(not_begun, resuming=begun[1], mined_later=True)
    check_top_h(setups[0].pipeline.split, **top_h)
    for key, mined in top_h.items():
        if second['offline'][key] > mined:
            raise UserError(f"config key 'offline.{key}' is {second['offline'][key]}, but 'stages.{key}' only {mined}")
    if fine_tune and _weights(setups[0]) != _weights(setups[1]):
        raise UserError("config key 'stages.fine_tune' needs the same model and vocabulary in both stages")


def _weights(setup: Setup) -> tuple[str, Any]:
    """What runs must have in common for one to go on from the other: vocabulary and shapes of parameters."""
    member = jax.eval_shape(setup.draw_state).members[setup.config['evaluation']['member']]
    return setup.vocabulary.hash, jax.tree.map(lambda x: x.shape, (member.params, member.batch_stats))


def train_stages(
    config: Mapping[str, Any], workdir: str | Path, report: Callable[[Progress], None] | None = None
) -> dict[str, Any]:
    """Trains both stages of a config, or goes on where it was stopped.

    Args:
      config: a nested dict with `stages`.
      workdir: gets `stage1` and `stage2`, which are run directories, and `candidates`.
      report: is told after each block that is mined.

    Returns:
      What `train_and_evaluate` does of the second round.

    Raises:
      UserError: if something the user gave is wrong; nothing was written.
      InterruptedRun, NotFiniteError: see `train_and_evaluate`.
    """
    workdir = Path(workdir)
    config = json.loads(json.dumps(config))  # as it will be read from the run directories
    first, second, top_h = split_stages(config, workdir)
    check_stages(first, second, top_h, workdir, config['stages']['fine_tune'])
    with lock(workdir if parallel.is_primary() else workdir / 'processes' / str(jax.process_index())):
        train_and_evaluate(first, workdir / 'stage1')
        _mine(workdir, first, top_h, report)
        return train_and_evaluate(second, workdir / 'stage2')


def _mine(
    workdir: Path, first: Mapping[str, Any], top_h: Mapping[str, int], report: Callable[[Progress], None] | None
) -> None:
    """Mines with the first round, unless the folder holds what it would find."""
    run, folder = load_run(workdir / 'stage1'), workdir / 'candidates'
    split = config_lib.load_split(first['data'], 'train')
    manifest, wanted = read_manifest(folder) or {}, describe([run], split, **top_h)
    if not parallel.any_process(any(manifest.get(key) != value for key, value in wanted.items())):
        return
    if manifest and (workdir / 'stage2' / 'config.json').exists():
        raise UserError(
            f'{workdir / "stage2"} was begun with other negatives than {folder} would get; choose a new workdir'
        )
    with interruptible(folder):
        mine([run], split, 'train', folder, memory_mb=first['run']['memory_mb'], report=report, **top_h)


def run_directory(config: Mapping[str, Any], workdir: Path) -> Path:
    """Where the run lies that counts: the workdir, or that of the second round."""
    return workdir / 'stage2' if config['stages'] else workdir


def check(config: Mapping[str, Any], workdir: Path) -> None:
    """Raises the UserError with which `train` would refuse to start; writes nothing."""
    config = json.loads(json.dumps(config))
    if config['stages']:
        check_stages(*split_stages(config, workdir), workdir, config['stages']['fine_tune'])
    else:
        check_workdir(workdir, config)
        set_up(config, resuming=bool(Checkpoints(workdir).whole_steps()))


def train(config: Mapping[str, Any], workdir: Path, report: Callable[[Progress], None] | None = None) -> dict[str, Any]:
    """`train_stages` if the config has stages, else `train_and_evaluate`."""
    return train_stages(config, workdir, report) if config['stages'] else train_and_evaluate(config, workdir)
