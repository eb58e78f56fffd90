"""Trains a config with several values of its keys, one run after the other, and compares them: `python -m jitm.sweep`.

python -m jitm.sweep --config configs/vsepp_f30k.py --workdir runs/margins --sweep terms.ranking.margin=0.1,0.2,0.3 \
    --seeds 0,1 --config.epochs=10
"""

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from absl import flags
from ml_collections import config_flags

from jitm.analysis.settings import read_settings
from jitm.analysis.summary import summary
from jitm.commands import cli
from jitm.config import flatten
from jitm.errors import NotFiniteError, UserError
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.interrupt import interruptible
from jitm.runs.progress import ProgressPrinter
from jitm.training import stages
from jitm.training.logs import read_metrics

CONFIG = config_flags.DEFINE_config_file('config', None, 'A file of configs/; --config.key=value overrides a key.')
WORKDIR = flags.DEFINE_string('workdir', None, 'Gets a run directory for each setting and seed.')
SWEEP = flags.DEFINE_multi_string('sweep', [], 'key=value,value: what is tried of a key; of several flags the product.')
SEEDS = flags.DEFINE_list('seeds', [], 'The seeds of each setting; that of the config if not given.')
flags.mark_flags_as_required(['config', 'workdir'])


def parse(sweep: str) -> tuple[str, list[str]]:
    """Reads `key=value,value`.

    Raises:
      UserError: if it does not say so.
    """
    key, _, values = sweep.partition('=')
    if not key or not values:
        raise UserError(f"--sweep is '{sweep}'; give key=value,value such as terms.ranking.margin=0.1,0.2")
    return key, values.split(',')


def settings(argv: Sequence[str], sweeps: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The config of each run, by the name of its directory.

    Args:
      argv: a command line as of train.py.
      sweeps: `key=value,value` each; the runs are their product, the last one changing fastest.

    Raises:
      UserError: if a key is unknown or named twice, or a value is of another type or named twice.
    """
    keys, values = zip(*map(parse, sweeps), strict=True)
    if len(set(keys)) < len(keys):
        raise UserError(f'the keys of a sweep must differ, but they are {", ".join(keys)}; --seeds sweeps seed')
    configs = {}
    for chosen in itertools.product(*values):
        overrides = [f'--config.{key}={value}' for key, value in zip(keys, chosen, strict=True)]
        config = cli.parse_config([*argv, *overrides])
        flat = flatten(config)
        for key in keys:
            if key not in flat:
                raise UserError(f"config key '{key}' is a sub-dict; sweep one of its keys")
        name = '_'.join(f'{key}={quote(str(flat[key]), safe="")}' for key in keys)
        if name in configs:
            raise UserError(f'a sweep has {name} twice; give each value once')
        configs[name] = config
    return configs


def is_finished(config: dict[str, Any], run: Path) -> bool:
    """Whether a run directory holds the last checkpoint of its config and the validation of it."""
    try:
        validations = [line for line in read_metrics(run) if 'rsum' in line]
    except (OSError, ValueError):  # not begun, or killed while it wrote a line
        return False
    last = [line['step'] for line in validations if line['epoch'] == config['epochs']]
    return bool(last) and last[-1] in Checkpoints(run).whole_steps()


def check(configs: Mapping[str, dict[str, Any]], workdir: Path) -> None:
    """Raises a UserError if one of the runs would not start; writes nothing."""
    if (workdir / 'config.json').exists():
        raise UserError(f'workdir {workdir} holds a run of its own; choose another for the sweep')
    for name, config in configs.items():
        try:
            stages.check(config, workdir / name)
        except UserError as error:
            raise UserError(f'{name}: {error}') from None


def train(configs: Mapping[str, dict[str, Any]], workdir: Path) -> list[str]:
    """Trains what is not finished, one after the other.

    Returns:
      The names of those that could not be finished, since a loss or gradient was not finite; the others go on.
    """
    broken = []
    for number, (name, config) in enumerate(configs.items(), 1):
        finished = is_finished(config, stages.run_directory(config, workdir / name))
        print(f'run {number} of {len(configs)}: {name}{", finished before" if finished else ""}', flush=True)
        if not finished:
            try:
                stages.train(config, workdir / name, ProgressPrinter())
            except NotFiniteError as error:
                print(f'{name}: {error}', file=sys.stderr, flush=True)
                broken.append(name)
    return broken


def main() -> None:
    """Trains all runs and prints their summary."""
    workdir = Path(WORKDIR.value)
    seeds = SEEDS.value or [CONFIG.value.seed]
    configs = settings(sys.argv, [*SWEEP.value, f'seed={",".join(map(str, seeds))}'])
    check(configs, workdir)
    with interruptible(workdir):
        broken = train(configs, workdir)
    runs = [stages.run_directory(config, workdir / name) for name, config in configs.items()]
    print(f'\n{summary(read_settings(runs))}')
    if broken:
        raise NotFiniteError(f'not trained to the end, since a loss or gradient was not finite: {", ".join(broken)}')


if __name__ == '__main__':
    cli.run(main)
