"""Two rounds: train, mine the whole training split with what was trained, train again (AOQ, paper 000)."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jitm import config as config_lib
from jitm.data.candidates import read_manifest
from jitm.errors import UserError
from jitm.evaluation import Run, load_run, read_split
from jitm.mining.job import check_top_h, mine
from jitm.scoring import Progress
from jitm.training.loop import train_and_evaluate
from jitm.training.setup import set_up

KEYS = ('first', 'top_h_texts', 'top_h_images', 'fine_tune')
SHARED = ('data', 'seed', 'run')


def split_rounds(config: Mapping[str, Any], workdir: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """The configs of both rounds, with the same data and seed, and how many negatives are mined between them.

    Raises:
      UserError: if `rounds` lacks a key or has others.
    """
    rounds = config['rounds']
    config_lib.check_keys(rounds, KEYS, where='rounds')
    first = {**json.loads(json.dumps(rounds['first'])), **{key: config[key] for key in SHARED}}
    start = {**config['initialize'], 'run': str(workdir / 'round1')} if rounds['fine_tune'] else config['initialize']
    second = {
        **config,
        'initialize': start,
        'rounds': {},
        'offline': {**config['offline'], 'candidates': str(workdir / 'candidates')},
    }
    return first, second, {key: rounds[key] for key in ('top_h_texts', 'top_h_images')}


def check_rounds(first: Mapping[str, Any], second: Mapping[str, Any], top_h: Mapping[str, int]) -> None:
    """Raises a UserError for what is wrong in either round, before the first begins; nothing is mined yet."""
    setup = set_up(first)
    check_top_h(setup.pipeline.split, **top_h)
    for key, mined in top_h.items():
        if second['offline'][key] > mined:
            raise UserError(f"config key 'offline.{key}' is {second['offline'][key]}, but 'rounds.{key}' only {mined}")
    set_up(second, mined_later=True)


def is_mined(folder: Path, run: Run, data: Mapping[str, Any], top_h: Mapping[str, int]) -> bool:
    """Whether a folder holds the negatives that this run would mine."""
    manifest = read_manifest(folder) if folder.is_dir() else None
    wanted = {**top_h, 'runs': [{'workdir': str(run.workdir), 'step': run.step}], 'data': data}
    return manifest is not None and all(manifest[key] == value for key, value in wanted.items())


def train_in_rounds(
    config: Mapping[str, Any], workdir: str | Path, report: Callable[[Progress], None] | None = None
) -> dict[str, Any]:
    """Trains both rounds of a config, or goes on where it was stopped.

    Args:
      config: a nested dict with `rounds`.
      workdir: gets `round1` and `round2`, which are run directories, and `candidates`.
      report: is told after each block that is mined.

    Returns:
      What `train_and_evaluate` does of the second round.

    Raises:
      UserError: if something the user gave is wrong; nothing was written.
      InterruptedRun, NotFiniteError: see `train_and_evaluate`.
    """
    workdir = Path(workdir)
    first, second, top_h = split_rounds(config, workdir)
    check_rounds(first, second, top_h)
    train_and_evaluate(first, workdir / 'round1')
    run = load_run(workdir / 'round1')
    split = read_split([run], 'train', first['data'].get('root'))
    if not is_mined(workdir / 'candidates', run, split.identity, top_h):
        mine([run], split, 'train', workdir / 'candidates', report=report, **top_h)
    return train_and_evaluate(second, workdir / 'round2')
