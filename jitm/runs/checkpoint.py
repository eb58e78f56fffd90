"""Checkpoints: Orbax, with a manifest of checksums, because Orbax does not notice a flipped byte.

A checkpoint holds plain nested dicts of numpy arrays, which can be read on any number of devices, and the description
of the run: its config, vocabulary and data. A checkpoint is complete if every file matches its manifest.
"""

import functools
import hashlib
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import chex
import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import serialization
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from jitm import parallel
from jitm.errors import UserError
from jitm.files import replacing

MANIFEST = 'manifest.json'
SELECTED_BY = 'rsum'
FORMAT = 4  # of the content; to be raised when older checkpoints can no longer be read


def _score(metrics: dict[str, float]) -> float:
    return metrics[SELECTED_BY]


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob('*') if path.is_file() and path.name != MANIFEST)
    digests = {}
    for path in files:
        with path.open('rb') as file:
            digests[str(path.relative_to(folder))] = hashlib.file_digest(file, 'sha256').hexdigest()
    return digests


def is_whole(folder: Path) -> bool:
    """Returns whether all files of a checkpoint match its manifest."""
    try:
        return json.loads((folder / MANIFEST).read_text()) == _digests(folder)
    except (OSError, ValueError):
        return False


class Checkpoints:
    """The checkpoints of a run, of which the two latest and the best by rsum are kept.

    Reading does not write anything; the first save creates the folder.
    """

    def __init__(self, workdir: str | Path):
        """Opens `workdir/checkpoints`, which need not exist."""
        self.folder = Path(workdir).absolute() / 'checkpoints'

    @functools.cached_property
    def _manager(self) -> ocp.CheckpointManager:
        policy = AnyPreservationPolicy(
            [LatestN(2), BestN(get_metric_fn=_score, n=1, keep_checkpoints_without_metrics=False)]
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy, best_fn=_score, enable_async_checkpointing=False
        )
        return ocp.CheckpointManager(self.folder, options=options)

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints, complete or not, in ascending order."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())

    def whole_steps(self) -> list[int]:
        """Returns the steps of all complete checkpoints, in ascending order."""
        return [step for step in self.steps() if is_whole(self.folder / str(step))]

    def save(self, state: chex.ArrayTree, step: int, run: dict[str, Any], metrics: dict[str, float] | None) -> None:
        """Writes a checkpoint atomically and returns when it is complete.

        Args:
          state: a pytree with numpy or replicated jax arrays.
          step: the step, which names the checkpoint.
          run: the config, vocabulary and data of the run, as JSON.
          metrics: of the validation at this step; None if there was none. They select the best checkpoint.
        """
        tree = jax.tree.map(np.asarray, serialization.to_state_dict(jax.device_get(state)))
        items = ocp.args.Composite(state=ocp.args.StandardSave(tree), run=ocp.args.JsonSave(run | {'format': FORMAT}))
        self._manager.save(step, args=items, metrics=metrics, force=True)
        self._manager.wait_until_finished()
        if parallel.is_primary():
            folder = self.folder / str(step)
            digests = json.dumps(_digests(folder)).encode()
            with replacing(folder / MANIFEST) as file:
                file.write(digests)
        parallel.barrier('saved')

    def remove_damaged(self) -> None:
        """Removes incomplete checkpoints with a warning; every process calls it before the first save."""
        damaged = [step for step in self.steps() if not is_whole(self.folder / str(step))]
        parallel.barrier('checked checkpoints')
        for step in damaged:
            path = self.folder / str(step)
            logging.warning('checkpoint %s is damaged or incomplete: falling back to the one before', path)
            if parallel.is_primary():
                shutil.rmtree(path)
        parallel.barrier('removed damaged checkpoints')

    def restore_latest(self, template: chex.ArrayTree) -> tuple[chex.ArrayTree, dict[str, Any]] | None:
        """Reads the latest complete checkpoint.

        Args:
          template: a pytree of the same structure and types.

        Returns:
          The state with numpy arrays and the description of the run; None if there is no complete checkpoint.
        """
        steps = self.whole_steps()
        if not steps:
            return None
        tree, run = self.read(steps[-1])
        return serialization.from_state_dict(template, tree), run

    def best_step(self) -> int | None:
        """Returns the step of the complete checkpoint with the highest rsum, the later one of ties, or None."""
        scores = {}
        for step in self.steps():
            path = self.folder / str(step) / 'metrics' / 'metrics'
            if path.exists() and is_whole(self.folder / str(step)):
                scores[step] = _score(json.loads(path.read_text()))
        return max(scores, key=lambda step: (scores[step], step), default=None)

    def read(self, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Reads one checkpoint.

        Args:
          step: the step.

        Returns:
          The state as nested dicts of numpy arrays, and the description of the run.

        Raises:
          UserError: if it is missing, damaged or of another format.
        """
        folder = self.folder / str(step)
        if not is_whole(folder):
            raise UserError(f'checkpoint {folder} is missing or damaged; choose another of steps {self.steps()}')
        with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
            items = ocp.args.Composite(state=ocp.args.StandardRestore(), run=ocp.args.JsonRestore())
            restored = reader.restore(folder, args=items)
        if restored['run'].pop('format', None) != FORMAT:
            raise UserError(f'checkpoint {folder} was written by another version of jitm; train it again with this one')
        return restored['state'], restored['run']

    def __enter__(self) -> 'Checkpoints':
        return self

    def __exit__(self, *_) -> None:
        if '_manager' in vars(self):
            self._manager.close()
