"""Convert published weights to a run directory, which every command reads.

    jitm convert --from clip models/clip-vit-base-patch32 --out runs/clip_b32 --config.data.root=data/f30k
    jitm eval --workdir runs/clip_b32 --split test

The argument is the folder of the published files, or the file of weights in it. Data, losses and evaluation are those
of `--config`, by default of the file of the system in configs/; the model is that of the weights.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from jitm import ranges
from jitm.commands import flags as shared
from jitm.commands import programs
from jitm.data.vocabularies import describe_vocabulary
from jitm.errors import UserError, did_you_mean
from jitm.importers.clip import Published, load_clip
from jitm.runs.checkpoint import Checkpoints
from jitm.training.members import MemberState
from jitm.training.step import TrainState

TAKES_CONFIG = True
ARGUMENTS = 'PATH'
REQUIRED = ('from', 'out')


class System(NamedTuple):
    """How the weights of a system are converted.

    Attributes:
      load: maps the argument of the command and `--vocabulary` to the published model.
      config: the module whose config is the default.
    """

    load: Callable[[str, str | None], Published]
    config: str


SYSTEMS = {'clip': System(load_clip, 'configs.clip')}


def define_flags(values: flags.FlagValues) -> None:
    """Defines the flags."""
    flags.DEFINE_string('from', None, f'The system: {", ".join(SYSTEMS)}.', flag_values=values)
    flags.DEFINE_string('out', None, 'The run directory to make.', flag_values=values)
    flags.DEFINE_string(
        'vocabulary', None, 'The published vocabulary; the one beside the weights if not given.', flag_values=values
    )
    shared.define(values, 'compilation_cache')


def main(values: flags.FlagValues, words: Sequence[str]) -> None:
    """Converts, and prints the command that evaluates the run."""
    name, folder = values['from'].value, Path(values.out)
    if name not in SYSTEMS:
        raise UserError(f"--from is '{name}', no system{did_you_mean(name, SYSTEMS)}")
    if len(words) != 1:
        raise UserError(f'{len(words)} paths are given: give the path of the published weights')
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f'{folder} exists and is not empty: choose a new run directory')
    system = SYSTEMS[name]
    config = values.config or importlib.import_module(system.config).get_config()
    published = system.load(words[0], values.vocabulary)
    write_run(published, make_config(config.to_dict(), published), folder)
    print(f'run          {folder}  (checkpoints/)')
    print(f'vocabulary   {len(published.vocabulary)} entries')
    print(f'evaluate     {programs.jitm("eval", "--workdir", folder)}')


def make_config(config: Mapping[str, Any], published: Published) -> dict[str, Any]:
    """Returns the config of the run: the given one with the model and vocabulary, and the size of its images.

    Raises:
      UserError: if the config is wrong.
    """
    data = dict(config['data'])
    if 'pixels' in published.data:
        size = published.data['pixels'][1]
        data |= {key: size for key in ('image_size', 'short_side') if key in data}
    vocabulary = dict(config['vocabulary'], path=published.vocabulary_path)
    return ranges.check({**config, 'data': data, 'model': published.model, 'vocabulary': vocabulary})


def write_run(published: Published, config: Mapping[str, Any], folder: Path) -> None:
    """Writes a run of one checkpoint, at step 0, which is its best one.

    It has no config.json, so that training does not resume from it; `members.*.init_from` initializes from it.
    """
    run = {
        'config': config,
        'vocabulary': describe_vocabulary(published.vocabulary),
        'vocabulary_hash': published.vocabulary.hash,
        'data': published.data,
        'best_step': 0,
    }
    state = TrainState(0, {config['evaluation']['member']: MemberState(**published.variables)})
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(state, 0, run, None)
