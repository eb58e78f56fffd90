"""Checkpoints: Orbax, with a manifest of checksums, because Orbax does not notice a flipped byte.

A checkpoint holds plain nested dicts of numpy arrays (so it can be read on any number of devices) and the run's
description: its config, vocabulary and data. It is whole only when its manifest is there and every file agrees with it.
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
FORMAT = 4  # of what a checkpoint holds; to be raised when older ones can no longer be read


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
    """Whether a checkpoint's files are those its manifest was written for."""
    try:
        return json.loads((folder / MANIFEST).read_text()) == _digests(folder)
    except (OSError, ValueError):
        return False


class Checkpoints:
    """The checkpoints of a run: the two latest and the best by rsum are kept.

    Reading writes nothing; the folder is made by the first save.
    """

    def __init__(self, workdir: str | Path):
        """Looks at `workdir/checkpoints`."""
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
        """The steps that have a checkpoint, whole or not, in ascending order."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdecimal())

    def whole_steps(self) -> list[int]:
        """The steps that have a whole checkpoint, in ascending order."""
        return [step for step in self.steps() if is_whole(self.folder / str(step))]

    def save(self, state: chex.ArrayTree, step: int, run: dict[str, Any], metrics: dict[str, float] | None) -> None:
        """Writes a checkpoint, atomically; returns when it is whole.

        Args:
          state: any pytree with numpy or replicated jax arrays.
          step: its name.
          run: JSON, the run's config, vocabulary and data.
          metrics: of the validation at this step, if there was one; they decide which checkpoint is the best.
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
        """Removes what is not whole, with a warning; to be called before the first save, by every process."""
        damaged = [step for step in self.steps() if not is_whole(self.folder / str(step))]
        parallel.barrier('checked checkpoints')
        for step in damaged:
            path = self.folder / str(step)
            logging.warning('checkpoint %s is damaged or incomplete: falling back to the one before', path)
            if parallel.is_primary():
                shutil.rmtree(path)
        parallel.barrier('removed damaged checkpoints')

    def restore_latest(self, template: chex.ArrayTree) -> tuple[chex.ArrayTree, dict[str, Any]] | None:
        """Reads the newest whole checkpoint.

        Args:
          template: a pytree of the same structure, which gives the types.

        Returns:
          The state with numpy arrays and the run's description; None if there is no whole checkpoint.
        """
        steps = self.whole_steps()
        if not steps:
            return None
        tree, run = self.read(steps[-1])
        return serialization.from_state_dict(template, tree), run

    def best_step(self) -> int | None:
        """The whole checkpoint with the highest rsum, the later of equals; None before the first validation."""
        scores = {}
        for step in self.steps():
            path = self.folder / str(step) / 'metrics' / 'metrics'
            if path.exists() and is_whole(self.folder / str(step)):
                scores[step] = _score(json.loads(path.read_text()))
        return max(scores, key=lambda step: (scores[step], step), default=None)

    def read(self, step: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Reads one checkpoint as plain nested dicts of numpy arrays, and the run's description.

        Raises:
          UserError: if it is not there or damaged.
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
