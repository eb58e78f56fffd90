"""The training loop: evaluate, save, revise the memory, next batch, step."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jitm import metrics
from jitm.config import build as config_lib
from jitm.data.pairs import noise
from jitm.devices import agreement, parallel
from jitm.errors import InterruptedRun, UserError
from jitm.files import check_local, hash_arrays
from jitm.inference.scoring import Scorer, ScoringOptions
from jitm.models.matcher import DualEncoder
from jitm.runs import own_code
from jitm.runs.checkpoint import START, Checkpoints
from jitm.runs.interrupt import StopRequest
from jitm.runs.log import read_metrics
from jitm.training.data import describe_features
from jitm.training.logs import CollapseMonitor, Logs, advise, describe_change, term_changes
from jitm.training.sections import Config, complete
from jitm.training.setup import Setup, set_up
from jitm.training.step import TrainState
from jitm.training.workdir import (
    DATA,
    check_resumable,
    check_workdir,
    claim,
    described,
    not_finite_error,
    write_config,
)
from jitm.types import Batch

SHAPES = (
    'an epoch has batches of about {} shapes, by the length of their captions and the number of their pairs; each is '
    'compiled when it comes first, so the first epoch is slow'
)
SLOW_COMPILATION = 10  # seconds; a compilation is announced if the one before took longer


def validate(setup: Setup, state: TrainState) -> dict[str, float]:
    """Evaluates retrieval on the validation split with the member `evaluation.member`.

    If it is a moving average of another member, that one is evaluated too; its metrics have its name as a prefix.
    """
    member = setup.plan.evaluation['member']
    values = _evaluate_member(setup, state, member)
    averaged = setup.members[member].copy_of
    if averaged:
        values |= {f'{averaged}/{key}': value for key, value in _evaluate_member(setup, state, averaged).items()}
    return values


def _evaluate_member(setup: Setup, state: TrainState, member: str) -> dict[str, float]:
    evaluation = setup.plan.evaluation
    options = ScoringOptions(evaluation['dtype'], setup.plan.run['memory_mb'], evaluation['precision'])
    model = setup.members[member].model
    variables = jax.device_get(state.members[member].variables)
    split = setup.data.validation
    sims = Scorer(model, variables, split, setup.data.validation_tokens, options).score_together()
    return metrics.retrieval_metrics(sims, split.image_of_text)


def _warn(*warnings: str) -> None:
    if parallel.is_primary():
        for warning in warnings:
            logging.warning(warning)


def _start(setup: Setup, checkpoints: Checkpoints, workdir: Path) -> tuple[TrainState, int | None]:
    """Restores the newest whole checkpoint, or makes the initial state.

    Returns:
      The state, and the restored step, None if there was none.
    """
    checkpoints.set_aside_damaged()
    agreement.check_same({'checkpoints': checkpoints.steps()})
    restored = checkpoints.restore_latest(jax.eval_shape(setup.random_state))
    if restored is None:
        return parallel.put_state(setup.initial_state()), None
    state, saved = restored
    check_resumable(workdir, saved, setup.description)
    return parallel.put_state(state), int(state.step)


def _set_up_everywhere(config: Config, workdir: Path, accept_changed_code: bool) -> Setup:
    """Sets up in all processes, or in none.

    Only process 0 looks into the workdir: a network file system caches for a while that a file does not exist.
    """
    agreement.check_same(described(config))
    checkpoints = Checkpoints(workdir)

    def look():
        check_workdir(workdir, config, accept_changed_code)
        return bool(checkpoints.whole_steps())

    resuming = agreement.in_first(look)

    def prepare():
        setup = set_up(config, resuming)
        shapes = jax.eval_shape(setup.random_state)
        if not resuming and parallel.is_primary() and not checkpoints.has_room(shapes, START):
            raise UserError(f'{workdir} cannot be written: No space left on device; make room, or choose another disk')
        return setup

    setup = agreement.in_all(prepare)
    read = {key: setup.description[key] for key in DATA}
    weights = hash_arrays(jax.tree.leaves(setup.weights))
    sources = own_code.hash_sources(setup.plan.own.values())
    agreement.check_same(config_lib.flatten(read | {'weights': weights, 'own_code': sources}))
    return setup


def train_and_evaluate(config: Config, workdir: str | Path, accept_changed_code: bool = False) -> dict[str, Any]:
    """Trains the run that a config describes, or resumes it.

    Args:
      config: A nested dict with every key of `configs/default.py`.
      workdir: The run directory: new, empty, or holding the same run.
      accept_changed_code: Whether the run resumes with modules of the user that have changed.

    Returns:
      A dict with three entries: `first` is the line of `metrics.jsonl` for the validation at step 0, None if there is
      no such line; `best` has the step and the metrics of the best checkpoint; `query` is a caption of the validation
      split, '' for models that `jitm search` does not take.

    Raises:
      UserError: If an argument, the data or the workdir is wrong; what is wrong in a config is found before anything
        is written.
      InterruptedRun: At SIGTERM or SIGINT, if this is called in the main thread; the state was saved.
      NotFiniteError: If the loss or a gradient was not finite; the last finite state was saved.
    """
    check_local(str(workdir), 'the workdir')
    config = complete(config)
    workdir = Path(workdir)
    setup = _set_up_everywhere(config, workdir, accept_changed_code)
    _warn(*setup.warnings)
    with claim(workdir) as process_dir, Checkpoints(workdir) as checkpoints, StopRequest() as stop:
        started = (workdir / 'config.json').exists()
        if not started:
            if parallel.is_primary():
                noise.write(setup.data.train, workdir)
            write_config(setup.plan, workdir)  # the folder is a run before its first checkpoint
        # Restore or initialize the state, and bring the files of the run in line with it.
        state, restored = _start(setup, checkpoints, workdir)
        if started and restored is None:
            _warn(f'{workdir} has no checkpoint: the run starts from its first step')
        if restored and not read_metrics(workdir):
            _warn(f'{workdir}/metrics.jsonl has no lines: the metrics before step {restored} are lost')
        write_config(setup.plan, workdir)  # keys that do not affect training may have changed since the start
        # Train.
        plan = setup.plan
        changes = term_changes(config['terms'], setup.pipeline.steps_per_epoch)
        monitor = CollapseMonitor(config_lib.trained_member(config), changes, advise(config['terms']))
        with Logs(process_dir, restored, setup.total_steps, plan.batch_size, monitor) as logs:
            if restored is None and setup.data.train.regions is not None:
                logs.say(describe_features(setup.data.train))
            loop = _Loop(setup, checkpoints, logs, stop, process_dir)
            loop.train(state, resumed=restored is not None)
        # The first validation and the best one, whose checkpoint must be whole.
        first = next((line for line in read_metrics(process_dir) if line['step'] == 0 and 'rsum' in line), None)
        best = checkpoints.best_step()
        checkpoints.check(best)
        return {'first': first, 'best': {'step': best, **checkpoints.metrics(best)}, 'query': _query(setup)}


def _query(setup: Setup) -> str:
    """Returns the shortest caption of the first image for validation; '' if the model is no dual encoder."""
    model = setup.members[setup.plan.evaluation['member']].model
    return min(setup.data.validation.captions_of(0), key=len) if isinstance(model, DualEncoder) else ''


class _Loop:
    """The loop over the steps of a run, with its outputs."""

    def __init__(self, setup: Setup, checkpoints: Checkpoints, logs: Logs, stop: StopRequest, folder: Path):
        """Stores the arguments; see `train_and_evaluate`."""
        self._setup = setup
        self._checkpoints = checkpoints
        self._logs = logs
        self._stop = stop
        self._folder = folder
        self._log_every = setup.plan.run['log_every']
        self._compiled = []
        self._announce = True

    def train(self, state: TrainState, resumed: bool) -> None:
        """Trains to the last step.

        The order is fixed: evaluate, save, revise the memory of the source, next batch, step. A resumed run skips the
        first two at its first step, since its checkpoint exists, and repeats the revision.
        """
        setup = self._setup
        start = int(state.step)
        total = setup.total_steps
        options = setup.plan.run
        every = setup.plan.evaluation['every_steps']
        terms = setup.plan.config['terms']
        _, *changes = term_changes(terms, setup.pipeline.steps_per_epoch)
        batches = parallel.prefetch(setup.make_batch, range(start, total), options['prefetch'])
        for step in range(start, total + 1):
            # Evaluate and save. Several processes agree to stop at logged steps only, since this is a collective.
            may_stop = jax.process_count() == 1 or step % self._log_every == 0
            stopping = may_stop and parallel.any_process(self._stop.requested)
            validating = step % setup.pipeline.steps_per_epoch == 0 or (every and step % every == 0)
            saving = validating or stopping or step % options['checkpoint_every'] == 0
            if saving or step % self._log_every == 0:
                self._check_finite(state, step)
            if saving and not (resumed and step == start):
                scores = self._validate(state, step) if validating else None
                self._checkpoints.save(state, step, setup.description, scores)
            if step == total:
                return
            if stopping:
                raise InterruptedRun(f'stopped and saved at step {step} of {total}; the same command resumes it')
            if setup.measure and step % setup.pipeline.steps_per_epoch == 0:
                state = self._revise(state, step)
            if step in changes:
                self._logs.say(f'step {step}: {describe_change(terms, step // setup.pipeline.steps_per_epoch)}')
            # Take the next batch and a step.
            start_of_wait = time.perf_counter()
            batch = next(batches)
            self._logs.waited(time.perf_counter() - start_of_wait)
            state, values = self._step(state, batch)
            self._logs.pace.step = step + 1
            self._log(state, step + 1, values)

    def _revise(self, state: TrainState, first_step: int) -> TrainState:
        """Revises the memory of the source before an epoch. This is deterministic, so that a resumed run repeats it."""
        setup = self._setup
        revision = setup.plan.source.revision
        steps = range(first_step, first_step + setup.pipeline.steps_per_epoch)
        if first_step // len(steps) < revision.start_epoch:
            return state
        measured = []
        with self._logs.pace.doing('evaluating the training pairs'):
            for step in steps:
                state, values = setup.measure(state, parallel.put_batch(setup.make_batch(step)))
                measured.append(jax.device_get(values))
        rows = np.concatenate([setup.pipeline.text_index(step) for step in steps])
        measured = jax.tree.map(lambda *parts: np.concatenate(parts), *measured)
        memory = revision.revise(jax.device_get(state.memory), rows, measured)
        return state.replace(memory=parallel.put_everywhere(memory))

    def _step(self, state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, Any]]:
        """Takes one training step.

        The first step of each shape of a batch compiles, which is announced unless the last one was compiled fast.
        """
        shapes = jax.tree.map(np.shape, batch)
        if shapes in self._compiled:
            return self._setup.train_step(state, batch)
        self._compiled.append(shapes)
        jax.block_until_ready(state)  # the steps before do not count as compiling
        members = ', '.join(self._setup.members)
        compiling = f'compiling the training step of {members} for captions of {batch.texts.ids.shape[-1]} tokens'
        if self._announce:
            number = len(self._compiled)
            most_shapes = max(number, self._setup.pipeline.num_shapes)
            if number == 1 < most_shapes:
                self._logs.say(SHAPES.format(most_shapes))
            self._logs.say(f'{compiling} (shape {number} of about {most_shapes}), which takes a while')
        start = time.perf_counter()
        with self._logs.pace.doing(compiling, compiles=True):
            result = jax.block_until_ready(self._setup.train_step(state, batch))
        seconds = time.perf_counter() - start
        if self._announce:
            self._logs.say(f'compiled in {seconds:.0f} s')
        self._announce = seconds > SLOW_COMPILATION
        return result

    def _check_finite(self, state: TrainState, step: int) -> None:
        """Raises a NotFiniteError if an update was skipped: if `state.step` is below `step`.

        The last finite state is saved first.
        """
        finite = int(state.step)
        if finite == step:
            return
        if finite not in self._checkpoints.steps():
            self._checkpoints.save(state, finite, self._setup.description, None)
        raise not_finite_error(self._setup, state, self._folder)

    def _validate(self, state: TrainState, step: int) -> dict[str, float]:
        start = time.perf_counter()
        split = self._setup.plan.evaluation['split']
        with self._logs.pace.doing(f'evaluating {split}'):
            scores = validate(self._setup, state)
        seconds = time.perf_counter() - start
        self._logs.validation(step, step / self._setup.pipeline.steps_per_epoch, split, scores, seconds)
        return scores

    def _log(self, state: TrainState, step: int, values: Mapping[str, Any]) -> None:
        """Logs the metrics of the step just taken, every `log_every` steps, unless its update was skipped."""
        if step % self._log_every or int(state.step) != step:
            return
        numbers = {name: float(value) for name, value in jax.device_get(values).items() if name != 'finite'}
        numbers['learning_rate'] = float(self._setup.schedule(step - 1))
        numbers |= self._setup.pipeline.constants
        epoch = step / self._setup.pipeline.steps_per_epoch
        self._logs.train(step, epoch, numbers)
