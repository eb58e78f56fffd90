"""The training run: evaluate, save, next batch, step."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from jitm import config as config_lib
from jitm import metrics, parallel
from jitm.data.vocabularies import describe_vocabulary
from jitm.errors import InterruptedRun, NotFiniteError, UserError
from jitm.evaluation.scoring import similarity_matrix
from jitm.files import replacing
from jitm.runs.checkpoint import Checkpoints
from jitm.runs.interrupt import StopRequest
from jitm.training.build.run import Setup, check_workdir, lock, set_up
from jitm.training.logs import Logs, read_metrics
from jitm.training.step import TrainState


def validate(setup: Setup, state: TrainState) -> dict[str, float]:
    """Ranks the validation split with the evaluated member."""
    member = setup.config['evaluation']['member']
    variables = jax.device_get(state.members[member])
    sims = similarity_matrix(
        setup.members[member].model,
        {'params': variables.params, 'batch_stats': variables.batch_stats},
        setup.validation,
        setup.validation_tokens,
        memory_mb=setup.config['run']['memory_mb'],
        dtype=setup.config['evaluation']['dtype'],
    )
    return metrics.retrieval_metrics(sims, setup.validation.image_of_text)


def _not_finite(setup: Setup, state: TrainState, folder: Path) -> NotFiniteError:
    """Repeats the step that the state refuses, and writes its batch and metrics."""
    step = int(state.step)
    _, values = setup.train_step(state, parallel.put_batch(setup.make_batch(step)))
    texts = setup.pipeline.text_index(step)
    split = setup.pipeline.split
    report = {
        'step': step,
        'metrics': jax.tree.map(float, jax.device_get(values)),
        'texts': texts.tolist(),
        'captions': [split.captions[t] for t in texts],
        'images': [split.image_ids[i] for i in split.image_of_text[texts]],
    }
    path = folder / f'not_finite_step_{step}.json'
    path.write_text(json.dumps(report, indent=1) + '\n')
    return NotFiniteError(
        f'the loss or a gradient was not finite at step {step}: the state before it is saved, the batch is in {path}'
    )


def _write_config(config: Mapping[str, Any], workdir: Path) -> None:
    if parallel.is_primary():
        with replacing(workdir / 'config.json') as file:
            file.write((json.dumps(config, indent=2) + '\n').encode())


def _start(setup: Setup, checkpoints: Checkpoints, workdir: Path) -> tuple[TrainState, dict[str, Any], int | None]:
    """Restores the newest whole checkpoint or draws the first state.

    Returns:
      The state, the run's description for its checkpoints, and the restored step, None if there was none.
    """
    run = {
        'config': setup.config,
        'vocabulary': describe_vocabulary(setup.vocabulary),
        'vocabulary_hash': setup.vocabulary.hash,
        'data': setup.pipeline.identity,
    }
    checkpoints.remove_damaged()
    restored = checkpoints.restore_latest(jax.eval_shape(setup.draw_state))
    if restored is None:
        return parallel.put_state(setup.initial_state()), run, None
    state, saved = restored
    compared = ('vocabulary_hash', 'data')
    changed = config_lib.differences({key: saved[key] for key in compared}, {key: run[key] for key in compared})
    if changed:
        raise UserError(
            f'the run in {workdir} was begun with other data ({"; ".join(changed)}); '
            'give it its data back, or choose a new workdir'
        )
    return parallel.put_state(state), run, int(state.step)


def _set_up_everywhere(config: Mapping[str, Any], workdir: Path) -> Setup:
    """Sets up in every process, or in none: nobody may wait for one that has given up."""
    setup = error = None
    try:
        check_workdir(workdir, config)
        setup = set_up(config, resuming=bool(Checkpoints(workdir).whole_steps()))
    except UserError as caught:
        error = caught
    if parallel.any_process(error is not None):
        raise error or UserError('another process could not start; its message says why')
    return setup


def train_and_evaluate(config: Mapping[str, Any], workdir: str | Path) -> dict[str, Any]:
    """Trains, or goes on with, the run a config describes.

    Args:
      config: a nested dict with every key of `configs/default.py`.
      workdir: the run directory: new, empty, or holding the same run.

    Returns:
      The `first` and the `best` validation, as the lines of `metrics.jsonl`.

    Raises:
      UserError: if something the user gave is wrong; nothing was written.
      InterruptedRun: if SIGTERM or SIGINT came; the state was saved.
      NotFiniteError: if the loss or a gradient was not finite; the last good state was saved.
    """
    config = json.loads(json.dumps(config))  # as it will be read from the run directory
    workdir = Path(workdir)
    setup = _set_up_everywhere(config, workdir)
    folder = workdir if parallel.is_primary() else workdir / 'processes' / str(jax.process_index())
    with lock(folder), Checkpoints(workdir) as checkpoints, StopRequest() as stop:
        if not (workdir / 'config.json').exists():
            _write_config(config, workdir)
        state, run, restored = _start(setup, checkpoints, workdir)
        _write_config(config, workdir)  # what cannot change a number may have changed
        with Logs(folder, restored, setup.total_steps, config['batch_size']) as logs:
            _train(setup, state, run, restored is not None, checkpoints, stop, logs, folder)
    validations = [line for line in read_metrics(folder) if 'rsum' in line]
    return {'first': validations[0], 'best': max(validations, key=lambda line: (line['rsum'], line['step']))}


def _train(
    setup: Setup,
    state: TrainState,
    run: dict[str, Any],
    resumed: bool,
    checkpoints: Checkpoints,
    stop: StopRequest,
    logs: Logs,
    folder: Path,
) -> None:
    config = setup.config
    start, total, per_epoch = int(state.step), setup.total_steps, setup.pipeline.steps_per_epoch
    every, evaluate_every = config['run'], config['evaluation']['every_steps'] or per_epoch
    # Processes agree on stopping, which costs a collective, only where they meet anyway.
    ask_every = 1 if jax.process_count() == 1 else every['log_every']
    batches = parallel.prefetch(setup.make_batch, range(start, total), every['prefetch'])
    # The order is fixed: evaluate, save, next batch, step. A resumed run has done the first two.
    for step in range(start, total + 1):
        asked = step % ask_every == 0 and parallel.any_process(stop.requested)
        due = step % per_epoch == 0 or step % evaluate_every == 0
        saving = due or asked or step % every['checkpoint_every'] == 0
        if (saving or step % every['log_every'] == 0) and int(state.step) != step:
            if int(state.step) not in checkpoints.steps():
                checkpoints.save(state, int(state.step), run, None)
            raise _not_finite(setup, state, folder)
        if saving and not (resumed and step == start):
            scores = None
            if due:
                began = time.perf_counter()
                scores = validate(setup, state)
                seconds = time.perf_counter() - began
                logs.validation(step, step / per_epoch, config['evaluation']['split'], scores, seconds)
            checkpoints.save(state, step, run, scores)
        if step == total:
            return
        if asked:
            raise InterruptedRun(f'stopped and saved at step {step} of {total}; the same command goes on from there')
        began = time.perf_counter()
        batch = next(batches)
        logs.waited(time.perf_counter() - began)
        state, values = setup.train_step(state, batch)
        if (step + 1) % every['log_every'] == 0 and values['finite']:
            numbers = {name: float(value) for name, value in jax.device_get(values).items() if name != 'finite'}
            numbers['learning_rate'] = float(setup.schedule(step))
            logs.train(step + 1, (step + 1) / per_epoch, numbers, config['evaluation']['member'])
