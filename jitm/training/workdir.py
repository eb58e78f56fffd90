"""The workdir of a run: its files, and the lock of the one job that writes to it."""

import contextlib
import json
import math
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from jitm.config import build as config_lib
from jitm.devices import agreement, parallel
from jitm.errors import NotFiniteError, UserError
from jitm.files import LOCK, PARTIAL, locked, parse_json, replacing
from jitm.runs import own_code
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.log import read_metrics
from jitm.training.plan import Plan
from jitm.training.sections import Config, with_defaults
from jitm.training.setup import Setup
from jitm.training.step import TrainState

DATA = 'data', 'vocabulary_hash'  # what describes the data of a run


def check_workdir(workdir: Path, config: Config, accept_changed_code: bool = False) -> None:
    """Raises a UserError if the directory holds something else, or a run that does not resume.

    Args:
      workdir: The run directory.
      config: The config; modules of the user that it names were imported.
      accept_changed_code: Whether these may have changed.
    """
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
    different = config_lib.differences(with_defaults(config_lib.check_saved(old, workdir)), config)
    if different:
        key = f'members.{config["evaluation"]["member"]}.init_from'
        raise UserError(
            f'workdir {workdir} holds a run with another config ({"; ".join(different)}); choose the old values, or a '
            f'new workdir, where --config.{key}={workdir} trains its model further'
        )
    files = [] if accept_changed_code else own_code.changed_files(workdir)
    if files:
        raise UserError(
            f'{" and ".join(map(str, files))} changed since the run in {workdir} was started; restore it, choose a new '
            'workdir, or give --accept_changed_code to train on with the new code'
        )
    lines = read_metrics(workdir)
    if lines and lines[-1]['step'] > 0 and not Checkpoints(workdir).whole_steps():
        raise UserError(
            f'{workdir} has metrics of step {lines[-1]["step"]} but no whole checkpoint; restore '
            f'{workdir / "checkpoints"}, or choose a new workdir'
        )


def check_resumable(workdir: Path, saved: Mapping[str, Any], description: Mapping[str, Any]) -> None:
    """Raises a UserError if the data of a run, or its steps per epoch, have changed since its first start.

    Args:
      workdir: The run directory.
      saved: The description of the run in its checkpoint.
      description: The description of the present run.
    """
    old = {key: saved[key] for key in DATA}
    new = {key: description[key] for key in DATA}
    different = config_lib.differences(old, new)
    if different:
        raise UserError(
            f'the run in {workdir} was started with other data ({"; ".join(different)}); '
            'restore its data, or choose a new workdir'
        )
    old_steps = saved['steps_per_epoch']
    steps = description['steps_per_epoch']
    if old_steps != steps:
        raise UserError(
            f'the run in {workdir} has {old_steps} steps per epoch, but {steps} on {jax.device_count()} devices; '
            'resume it on as many devices as before'
        )


def write_config(plan: Plan, workdir: Path) -> None:
    """Writes the config and the hashes of the user's modules, in process 0."""
    if not parallel.is_primary():
        return
    path = workdir / 'config.json'
    text = (json.dumps(plan.config, indent=2) + '\n').encode()
    if not path.exists() or path.read_bytes() != text:
        with replacing(path) as file:
            file.write(text)
    own_code.write(own_code.hash_sources(plan.own.values()), workdir)


def not_finite_error(setup: Setup, state: TrainState, folder: Path) -> NotFiniteError:
    """Repeats the step that left the state unchanged; returns an error that names the file of its batch and metrics."""
    step = int(state.step)
    _, values = setup.train_step(state, parallel.put_batch(setup.make_batch(step)))
    metrics = {name: float(value) for name, value in jax.device_get(values).items()}
    texts = setup.pipeline.text_index(step)
    split = setup.data.train
    report = {
        'step': step,
        # JSON lacks NaN and infinity, so they are strings.
        'metrics': {name: x if math.isfinite(x) else str(x) for name, x in metrics.items()},
        'texts': texts.tolist(),
        'captions': [split.captions[t] for t in texts],
        'images': [split.image_ids[i] for i in split.image_of_text[texts]],
    }
    path = folder / f'not_finite_step_{step}.json'
    with replacing(path) as file:
        file.write((json.dumps(report, indent=1) + '\n').encode())
    return NotFiniteError(
        f'the loss or a gradient was not finite at step {step}: the state before it is saved, the batch is in {path}'
    )


def described(config: Config) -> dict[str, Any]:
    """Returns the values that must agree in all processes of a run before its data are read, as JSON."""
    devices = f'{jax.local_device_count()} {jax.devices()[0].device_kind}'
    return config_lib.training_relevant(config) | config_lib.flatten({'run': config['run']}) | {'devices': devices}


@contextlib.contextmanager
def claim(workdir: Path) -> Iterator[Path]:
    """Creates the workdir and excludes other jobs that train in it, see `files.locked`; all processes must call this.

    Yields:
      The folder of the files of this process: the workdir in process 0, a folder within it in others.

    Raises:
      UserError: In all processes, if another job trains there, or if they do not share one folder.
    """
    message = f'another process trains in {workdir}; wait for it, or choose a new workdir'
    path = workdir / LOCK
    process = jax.process_index()
    folder = workdir / 'processes' / str(process) if process else workdir
    with contextlib.ExitStack() as stack:

        def take():
            stack.enter_context(locked(workdir, message))
            path.write_text(secrets.token_hex())
            return path.read_text()

        token = agreement.in_first(take)

        def follow():
            if not agreement.sees(lambda: path.exists() and path.read_text() == token):
                raise UserError(f'{workdir} is not the workdir of process 0; give all processes one shared folder')
            if process:
                stack.enter_context(locked(folder, message))

        agreement.in_all(follow)
        yield folder
