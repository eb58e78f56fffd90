"""Checkpoints: Orbax, with a manifest of checksums, because Orbax does not notice a flipped byte.

A checkpoint holds plain nested dicts of numpy arrays, which can be read on any number of devices, and the description
of the run: its config, vocabulary and data. A checkpoint is whole if every file matches its manifest. Each names the
best checkpoint at its time, so that a damaged or missing one is noticed and never replaced by another.
"""

import contextlib
import errno
import functools
import logging
import operator
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging as absl_logging
from flax import serialization
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from jitm.devices import parallel
from jitm.errors import UserError
from jitm.files import RESUMES, parse_json, writing
from jitm.runs.checkpoint_files import (
    DESCRIPTION,
    FOLDER,
    MANIFEST,
    damaged_file,
    held_files,
    list_steps,
    write_manifest,
)
from jitm.runs.log import best_time

score_of = operator.itemgetter('rsum')  # the metric that selects the best checkpoint
PARTIAL = '*.orbax-checkpoint-tmp'  # Orbax's name of a checkpoint until it is saved
REMOVED = 'removed'  # a checkpoint is moved here, and then removed: a killed process never leaves a part of it
OVERHEAD = 2**20  # upper bound on the bytes of a checkpoint besides its arrays
START = 2**20  # bytes of the other files of a new run
FORMAT = 7  # raise it when older checkpoints can no longer be read


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keeps Orbax within the block from logging the traceback of an error that it raises as well."""
    logger = absl_logging.get_absl_logger()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


class Checkpoints(contextlib.AbstractContextManager):
    """The checkpoints of a run; the two latest and the best by rsum are kept.

    Reading does not write anything; the first save creates the folder.
    """

    def __init__(self, workdir: str | Path):
        """Opens `workdir/checkpoints`, which need not exist."""
        self.folder = Path(workdir).absolute() / FOLDER

    @functools.cached_property
    def _manager(self) -> ocp.CheckpointManager:
        policy = AnyPreservationPolicy(
            [LatestN(2), BestN(get_metric_fn=score_of, n=1, keep_checkpoints_without_metrics=False)]
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy, best_fn=score_of, enable_async_checkpointing=False, todelete_subdir=REMOVED
        )
        return ocp.CheckpointManager(self.folder, options=options)

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints, whole or not, in ascending order."""
        return list_steps(self.folder)

    def whole_steps(self) -> list[int]:
        """Returns the steps of all whole checkpoints, in ascending order."""
        return [step for step in self.steps() if damaged_file(self.folder / str(step)) is None]

    def save(self, state: chex.ArrayTree, step: int, run: dict[str, Any], metrics: dict[str, float] | None) -> None:
        """Writes a checkpoint atomically and returns when it is whole.

        Args:
          state: A pytree with numpy or replicated jax arrays.
          step: The step, which names the checkpoint.
          run: The config, vocabulary and data of the run, as JSON; with a `best_step` in it, as for weights that were
            trained elsewhere, metrics do not select the best checkpoint.
          metrics: The metrics of the validation at this step, which select the best checkpoint; None if there was none.

        Raises:
          UserError: If it cannot be written, for example on a full disk; the earlier checkpoints are left unchanged.
        """
        # The content of the checkpoint.
        tree = jax.tree.map(np.asarray, serialization.to_state_dict(jax.device_get(state)))
        scores = {number: score_of(validation) for number, validation in self.validations().items()}
        scores |= {step: score_of(metrics)} if metrics else {}
        described = {'best_step': best_time(scores), **run, 'format': FORMAT}
        items = ocp.args.Composite(state=ocp.args.StandardSave(tree), run=ocp.args.JsonSave(described))
        # Orbax writes it.
        folder = self.folder / str(step)
        with writing(folder, RESUMES), _silent():
            if parallel.any_process(not self.has_room(tree)):  # Orbax prints more than it raises on a full disk
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._manager.save(step, args=items, metrics=metrics, force=True)
            self._manager.wait_until_finished()
        # With its manifest it is whole.
        if parallel.is_primary():
            shutil.rmtree(self.folder / REMOVED, ignore_errors=True)
            write_manifest(folder)
        parallel.barrier('saved')

    def has_room(self, state: chex.ArrayTree, more_bytes: int = 0) -> bool:
        """Returns whether a state and bytes of other files fit on the disk; only the shapes of the state are read."""
        existing = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        bytes_needed = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state)) + OVERHEAD + more_bytes
        return shutil.disk_usage(existing).free >= bytes_needed

    def set_aside_damaged(self) -> None:
        """Moves damaged checkpoints to `damaged/` with a warning; every process calls it before the first save.

        A last checkpoint without a manifest was not saved completely, so it is removed, as are parts of others.

        Raises:
          UserError: If the best checkpoint is damaged; nothing is moved.
        """
        # The best checkpoint must be whole.
        steps = self.steps()
        damaged = {step: file for step in steps if (file := damaged_file(self.folder / str(step)))}
        intact = [step for step in steps if step not in damaged]
        best = self.check(intact[-1])['best_step'] if intact else None
        if best in damaged:
            raise UserError(
                f'{damaged[best]} is damaged, and its checkpoint is the best one; restore it, or move '
                f'{self.folder / str(best)} away: a run before its end then trains on, and --step evaluates '
                f'{", ".join(map(str, intact))}'
            )
        if best not in (None, *steps):
            logging.warning('the best checkpoint %s is missing: the best of the others counts', self.folder / str(best))
        parallel.barrier('checked checkpoints')
        # Orbax's partial checkpoints are removed, and damaged ones are moved.
        for left in (*self.folder.glob(PARTIAL), *self.folder.glob(REMOVED)) if parallel.is_primary() else ():
            shutil.rmtree(left)
        for step, file in damaged.items() if parallel.is_primary() else ():
            folder = self.folder / str(step)
            if step == steps[-1] and not (folder / MANIFEST).exists():
                shutil.rmtree(folder)
                continue
            aside = self.folder.with_name('damaged')
            aside.mkdir(exist_ok=True)
            target = aside / f'{step}_{len(list(aside.iterdir()))}'
            logging.warning('%s is damaged: its checkpoint is moved to %s', file, target)
            shutil.move(folder, target)
        parallel.barrier('set damaged checkpoints aside')

    def restore_latest(self, template: chex.ArrayTree) -> tuple[chex.ArrayTree, dict[str, Any]] | None:
        """Reads the latest whole checkpoint.

        Args:
          template: A pytree of the same structure and types.

        Returns:
          The state with numpy arrays and the description of the run; None if there is no whole checkpoint.
        """
        steps = self.whole_steps()
        if not steps:
            return None
        tree, run = self.read(steps[-1])
        return serialization.from_state_dict(template, tree), run

    def best_step(self) -> int | None:
        """Returns the step of the highest rsum, the later one of ties, as stored in the last checkpoint.

        Its own checkpoint may be damaged or missing, for which `read` raises an error.

        Raises:
          UserError: If the last checkpoint is damaged.
        """
        steps = self.steps()
        if not steps:
            return None
        with self._refusing_removed(steps[-1]):
            return self.check(steps[-1])['best_step']

    @contextlib.contextmanager
    def _refusing_removed(self, step: int) -> Iterator[None]:
        """Raises a UserError if a checkpoint that is read within the block is removed in the meantime."""
        folder = self.folder / str(step)
        existed = folder.is_dir()
        try:
            yield
        except Exception as error:
            removed = existed and not folder.is_dir()
            if not removed and (isinstance(error, UserError) or damaged_file(folder) is None):
                raise
            raise UserError(
                f'checkpoint {folder} was removed while it was read, since its run trains; repeat the '
                'command, or wait for the end of training'
            ) from None

    def metrics(self, step: int) -> dict[str, float]:
        """Returns the metrics of a validated checkpoint."""
        return parse_json((self.folder / str(step) / 'metrics' / 'metrics').read_text())

    def validations(self) -> dict[int, dict[str, float]]:
        """Returns the metrics of every validated checkpoint by its step."""
        validated = (step for step in self.steps() if (self.folder / str(step) / 'metrics').is_dir())
        return {step: self.metrics(step) for step in validated}

    def check(self, step: int) -> dict[str, Any]:
        """Returns the description of the run in a checkpoint, with its `best_step`, if the checkpoint is whole.

        Raises:
          UserError: If the checkpoint is missing, damaged or of another format.
        """
        folder = self.folder / str(step)
        remedy = 'restore it'
        if not folder.is_dir():
            problem = f'checkpoint {folder} is missing'
        elif not (folder / MANIFEST).exists():
            problem = f'checkpoint {folder} is saved now, or its run was killed while it was'
            remedy = 'repeat the command'
        elif file := damaged_file(folder):
            problem = f'{file} is damaged, so checkpoint {folder.name} cannot be trusted'
        else:
            run = parse_json((folder / DESCRIPTION).read_text())
            if run.pop('format', None) == FORMAT:
                return run
            raise UserError(f'checkpoint {folder} was written by another version of jitm; train it again with this one')
        intact = ', '.join(map(str, self.whole_steps()))
        alternative = f'or name a whole one with --step: {intact}' if intact else 'no other checkpoint there is whole'
        raise UserError(f'{problem}; {remedy}, {alternative}')

    def read(self, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Reads one checkpoint.

        Args:
          step: The step.

        Returns:
          The state as nested dicts of numpy arrays, and the description of the run.

        Raises:
          UserError: If it is missing, damaged or of another format.
        """
        reading = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
        with self._refusing_removed(step), held_files(self.folder / str(step)) as held, reading as reader:
            run = self.check(step)
            del run['best_step']
            restored = reader.restore(held, args=ocp.args.Composite(state=ocp.args.StandardRestore()))
        return restored['state'], run

    def __exit__(self, *_) -> None:
        if '_manager' in vars(self):
            self._manager.close()
