"""The workdir of a run: its files, and the lock of the one job that writes to it."""

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from jitm.config import build as config_lib
from jitm.devices import agreement
from jitm.errors import UserError
from jitm.files import LOCK, PARTIAL, locked, parse_json
from jitm.runs import own_code
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.log import read_metrics
from jitm.training.sections import with_defaults


def check_workdir(workdir: Path, config: Mapping[str, Any], accept_changed_code: bool = False) -> None:
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
    if not accept_changed_code and (files := own_code.changed_files(workdir)):
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


def described(config: Mapping[str, Any]) -> dict[str, Any]:
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
