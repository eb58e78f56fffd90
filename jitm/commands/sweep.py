"""`jitm sweep`, see `usage.sweep`."""

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from absl import flags

from jitm.config.build import flatten
from jitm.errors import NotFiniteError, UserError
from jitm.report.groups import read_groups
from jitm.report.summary import summary
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.interrupt import interruptible
from jitm.runs.log import read_metrics
from jitm.runs.progress import ProgressPrinter
from jitm.training import stages
from jitm.training.sections import override

SAME_TRAINING = 'run.', 'evaluation.'  # keys of these sections change no parameter
NAME_BYTES = 255  # the longest name in the usual file systems


def parse(sweep: str) -> tuple[str, list[str]]:
    """Returns the key and the values of `key=value,value`.

    Raises:
      UserError: If the text has another form.
    """
    key, _, values = sweep.partition('=')
    if not key or not values:
        raise UserError(f"--sweep is '{sweep}'; give key=value,value such as terms.ranking.margin=0.1,0.2")
    return key, values.split(',')


def settings(config: Mapping[str, Any], sweeps: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the config of each run by the name of its directory.

    Args:
      config: The config of the command line.
      sweeps: `key=value,value` each; the runs are their product, the last key changing fastest.

    Raises:
      UserError: If a key is unknown or given twice or does not change training, or a value has another type, is given
        twice or is too long for the name of a directory.
    """
    keys, values = zip(*map(parse, sweeps), strict=True)
    if len(set(keys)) < len(keys):
        raise UserError(f'the keys of a sweep must differ, but they are {", ".join(keys)}; --seeds sweeps seed')
    for key in keys:
        if key.startswith(SAME_TRAINING):
            raise UserError(f"--sweep has '{key}', which does not change training: its runs would be copies")
    configs = {}
    for chosen in itertools.product(*values):
        config_of_run = override(config, dict(zip(keys, chosen, strict=True)))
        flat = flatten(config_of_run)
        words = {key: f'{key}={quote(str(flat[key]), safe="")}' for key in keys}
        name = '_'.join(words.values())
        if len(name) > NAME_BYTES:
            longest = max(keys, key=lambda key: len(words[key]))
            problem = f'the name of a run directory has {len(name)} characters, above {NAME_BYTES}'
            raise UserError(f"{problem}: give shorter values of '{longest}'")
        if name in configs:
            raise UserError(f'a sweep has {name} twice; give each value once')
        configs[name] = config_of_run
    return configs


def is_finished(config: dict[str, Any], run: Path) -> bool:
    """Returns whether a run directory holds the last checkpoint of its config and the validation of it."""
    try:
        validations = [line for line in read_metrics(run) if 'rsum' in line]
    except UserError:  # training it again reports the damage
        return False
    last = [line['step'] for line in validations if line['epoch'] == config['epochs']]
    return bool(last) and last[-1] in Checkpoints(run).whole_steps()


def check(configs: Mapping[str, dict[str, Any]], workdir: Path, accept_changed_code: bool = False) -> None:
    """Raises a UserError if one of the runs would not start; writes nothing."""
    if (workdir / 'config.json').exists():
        raise UserError(f'workdir {workdir} is a run directory; choose another for the sweep')
    for name, config in configs.items():
        try:
            stages.check(config, workdir / name, accept_changed_code)
        except UserError as error:
            raise UserError(f'{name}: {error}') from None


def train(configs: Mapping[str, dict[str, Any]], workdir: Path, accept_changed_code: bool = False) -> list[str]:
    """Trains the runs that are not finished, one after the other.

    Returns:
      The names of the runs that stopped because a loss or gradient was not finite.
    """
    broken = []
    for number, (name, config) in enumerate(configs.items(), 1):
        finished = is_finished(config, stages.run_directory(config, workdir / name))
        print(f'run {number} of {len(configs)}: {name}{", finished before" if finished else ""}', flush=True)
        if not finished:
            try:
                stages.train(config, workdir / name, ProgressPrinter(), accept_changed_code)
            except NotFiniteError as error:
                print(f'{name}: {error}', file=sys.stderr, flush=True)
                broken.append(name)
    return broken


def main(values: flags.FlagValues) -> None:
    """Trains all runs and prints their summary."""
    workdir = Path(values.workdir)
    seeds = values.seeds or [str(values.config['seed'])]
    configs = settings(values.config, [*values.sweep, f'seed={",".join(seeds)}'])
    accept = values.accept_changed_code
    check(configs, workdir, accept)
    with interruptible(workdir):
        broken = train(configs, workdir, accept)
    runs = [stages.run_directory(config, workdir / name) for name, config in configs.items()]
    print(f'\n{summary(read_groups(runs))}')
    if broken:
        raise NotFiniteError(f'not trained to the end, since a loss or gradient was not finite: {", ".join(broken)}')
