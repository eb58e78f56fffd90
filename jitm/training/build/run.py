"""Builds every part of a training run from its config; nothing is written before all of it is checked."""

import contextlib
import dataclasses
import functools
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import optax

from jitm import agreement, names, parallel
from jitm import config as config_lib
from jitm.data.augmentation import Augmentation
from jitm.data.load import source_of
from jitm.data.masking import Masking
from jitm.data.pipeline import Pipeline
from jitm.errors import UserError
from jitm.files import LOCK, PARTIAL, locked, parse_json
from jitm.importers.pretrained import Replacements, replace
from jitm.models.make import member_model, model_keys, own_names
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.log import read_metrics
from jitm.synthesis.generator import Synthesis
from jitm.training.build import data as data_lib
from jitm.training.build.data import Data
from jitm.training.build.model import check_initialize, check_members, load_weights, make_members, make_models
from jitm.training.build.objective import check_candidates, make_objective, make_optimizer, unreached_terms
from jitm.training.members import Member, copy_members, init_members
from jitm.training.optimizer import frozen_modules
from jitm.training.step import TrainState, train_step
from jitm.types import Batch

READ_EARLY = {'relevance': 'source', 'offline': 'path'}  # before their section is checked


@dataclasses.dataclass(frozen=True)
class Setup:
    """The parts of a training run, built from its config.

    Attributes:
      config: a nested dict.
      data: splits, vocabulary and tokens.
      pipeline: the training batches.
      members: the models that train together.
      init_members: `(images, texts) -> states of the members`, compiled.
      train_step: `(state, batch) -> (state, metrics)`, compiled for all devices.
      schedule: learning rate by step, compiled.
      weights: of each member, values that replace randomly initialized ones.
      warnings: of what is permitted, but may be a mistake.
    """

    config: Mapping[str, Any]
    data: Data
    pipeline: Pipeline
    members: dict[str, Member]
    init_members: Callable
    train_step: Callable
    schedule: optax.Schedule
    weights: Mapping[str, Mapping[str, Replacements]]
    warnings: tuple[str, ...]

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.config['epochs'] * self.pipeline.steps_per_epoch

    def make_batch(self, step: int) -> Batch:
        """Makes this process' rows of a step's batch."""
        return self.pipeline.batch(step, jax.process_index(), jax.process_count())

    def initial_state(self) -> TrainState:
        """Makes the state before the first step: random, except for the weights that the config names."""
        state = self.random_state()
        members = dict(state.members)
        for name, weights in self.weights.items():
            replaced = {part: replace(getattr(members[name], part), values) for part, values in weights.items()}
            members[name] = members[name].replace(**replaced)
        return state.replace(members=copy_members(self.members, members))

    def random_state(self) -> TrainState:
        """Makes a randomly initialized state before the first step."""
        batch = self.pipeline.one_pair()
        return TrainState(jax.numpy.zeros((), jax.numpy.int32), self.init_members(batch.images, batch.texts))


def set_up(config: Mapping[str, Any], resuming: bool = False, mined_later: bool = False) -> Setup:
    """Builds every part of a run from its config.

    Args:
      config: a nested dict, checked by `config.check`.
      resuming: whether the run resumes from a checkpoint, so that initial weights are not read.
      mined_later: whether mined negatives do not exist yet; everything else is checked.

    Returns:
      The parts.

    Raises:
      UserError: if a key, a name or the data are wrong.
    """
    check_sections(config)
    for section, part in (('augmentation', Augmentation), ('masking', Masking), ('synthesis', Synthesis)):
        config_lib.bind(part, config[section], where=section)
    terms, sources = make_objective(config)
    parallel.check_batch_size(config['batch_size'])
    parallel.check_batch_size(data_lib.num_extra(config), "config key 'candidates.num_extra'")
    augmentation = data_lib.make_augmentation(config, terms)
    data = data_lib.load_data(config, augmentation)
    check_candidates(config, data.train.num_texts)
    check_initialize(config)
    with own_models(config):
        models = make_models(config, data)
        pipeline = data_lib.make_pipeline(config, data, models, augmentation, mined_later)
        optimizer, schedule = make_optimizer(config['optimizer'], pipeline.steps_per_epoch, config['epochs'])
        members = make_members(config['members'], models, optimizer, frozen_modules(config['optimizer']['factors']))
        check_members(config, members, terms)
        clock = {'seed': config['seed'], 'steps_per_epoch': pipeline.steps_per_epoch, 'epochs': config['epochs']}
        step = functools.partial(train_step, members=members, terms=terms, sources=sources, **clock)
        init = jax.jit(functools.partial(init_members, members, config['seed']))
        warnings = *data.warnings, *unreached_terms(terms, config['epochs'])
        compiled = parallel.data_parallel(step), jax.jit(schedule)
        setup = Setup(config, data, pipeline, members, init, *compiled, {}, warnings)
        shapes = trace(setup)
    if resuming:
        return setup
    weights = load_weights(config, members, shapes.members, data.vocabulary)
    return dataclasses.replace(setup, weights=weights)


@contextlib.contextmanager
def own_models(config: Mapping[str, Any]) -> Iterator[None]:
    """Names file and line of any error within the block if a config has models that are not of jitm."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not (own := _own_names(config)):
            raise
        raise UserError(f"the model '{own[0]}' fails: {names.describe(error)}") from error


def _own_names(config: Mapping[str, Any]) -> list[str]:
    """Returns the names of all members' models and of their modules that are not of jitm."""
    sections = [member_model(config, name) for name in config['members']]
    return [name for section in sections for name in own_names(section)]


def trace(setup: Setup) -> TrainState:
    """Traces initialization and the first step without computing them, in which a part may refuse its arguments.

    The first call of the step reuses this trace.

    Returns:
      The shapes of the state.
    """
    with model_keys():
        shapes = jax.eval_shape(setup.random_state)
        jax.eval_shape(setup.train_step, shapes, parallel.split_rows(setup.make_batch(0)))
    return shapes


def check_sections(config: Mapping[str, Any]) -> None:
    """Raises a UserError if a key is missing that is read early, or scene graphs are unknown, which may not be read."""
    for section, key in READ_EARLY.items():
        config_lib.choose(config[section], key, where=section)
    source_of(config['scene_graphs'], 'scene_graphs')


def check_workdir(workdir: Path, config: Mapping[str, Any]) -> None:
    """Raises a UserError if the directory holds something else, another config, or a run without its checkpoints."""
    path = workdir / 'config.json'
    if not path.exists():
        started = {f'.config.json{PARTIAL}', 'processes', LOCK}  # left by a start that was killed at once
        if workdir.exists() and (not workdir.is_dir() or {entry.name for entry in workdir.iterdir()} - started):
            raise UserError(f'workdir {workdir} exists and is not a run of jitm; choose an empty or a new one')
        return
    try:
        old = parse_json(path.read_bytes())
    except ValueError:
        raise UserError(f'{path} is damaged; restore it, or choose a new workdir') from None
    if changed := config_lib.differences(config_lib.as_current(old, workdir), config):
        raise UserError(
            f'workdir {workdir} holds a run with another config ({"; ".join(changed)}); '
            'choose a new workdir, or the old values'
        )
    lines = read_metrics(workdir)
    if lines and lines[-1]['step'] > 0 and not Checkpoints(workdir).whole_steps():
        raise UserError(
            f'{workdir} has metrics of step {lines[-1]["step"]} but no whole checkpoint; restore '
            f'{workdir / "checkpoints"}, or choose a new workdir'
        )


def described(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what must be the same in all processes of a run before its data are read, as JSON."""
    devices = f'{jax.local_device_count()} {jax.devices()[0].device_kind}'
    return config_lib.training_relevant(config) | config_lib.flatten({'run': config['run']}) | {'devices': devices}


@contextlib.contextmanager
def claim(workdir: Path) -> Iterator[Path]:
    """Creates the workdir and excludes other jobs that train in it, see `files.locked`; all processes must call this.

    Yields:
      The folder of the files of this process: the workdir in process 0, a folder within it in others.

    Raises:
      UserError: in all processes, if another job trains there, or if they do not share one folder.
    """
    message = f'another process trains in {workdir}; wait for it, or choose a new workdir'
    path, process = workdir / LOCK, jax.process_index()
    folder = workdir / 'processes' / str(process) if process else workdir
    with contextlib.ExitStack() as stack:

        def take() -> str:
            stack.enter_context(locked(workdir, message))
            path.write_text(secrets.token_hex())
            return path.read_text()

        token = agreement.in_first(take)

        def follow() -> None:
            if not agreement.sees(lambda: path.exists() and path.read_text() == token):
                raise UserError(f'{workdir} is not the workdir of process 0; give all processes one shared folder')
            if process:
                stack.enter_context(locked(folder, message))

        agreement.in_all(follow)
        yield folder
