"""The parts of a training run, made from its config; nothing is written before all of them are checked."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import optax

from jitm.config.section import blame
from jitm.data.pipeline import Pipeline
from jitm.data.text.vocabularies import describe_vocabulary
from jitm.devices import parallel
from jitm.devices.recompute import device_budget, keep_within
from jitm.errors import UserError
from jitm.importers.pretrained import Replacements, replace
from jitm.models.make import model_keys
from jitm.training.data import Data, check_scale, load_data, make_models, make_pipeline
from jitm.training.gradient_cache import encode_in_chunks
from jitm.training.members import Member, copy_members, init_members
from jitm.training.objective import MissingInput
from jitm.training.plan import REMEDIES, Plan, make_plan
from jitm.training.sections import Config
from jitm.training.step import RunConstants, TrainState, train_step
from jitm.training.weights import load_weights
from jitm.types import Batch

NAMED_BEFORE = 'data.', 'terms.'  # an error of these is that of the user already


@dataclasses.dataclass(frozen=True)
class Setup:
    """The parts of a training run, built from its plan.

    Attributes:
      plan: The plan.
      data: The splits, vocabulary and tokens.
      pipeline: The training batches.
      members: The models that train together.
      init_members: The compiled function `(images, texts) -> states of the members`.
      train_step: The function `(state, batch) -> (state, metrics)`, compiled for all devices.
      measure: The function `(state, batch) -> (state, measured)` of the source's revision, compiled likewise; None
        without one.
      schedule: The learning rate by step, compiled.
      weights: The values of each member that replace randomly initialized ones.
    """

    plan: Plan
    data: Data
    pipeline: Pipeline
    members: dict[str, Member]
    init_members: Callable
    train_step: Callable
    measure: Callable | None
    schedule: optax.Schedule
    weights: Mapping[str, Mapping[str, Replacements]]

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.plan.epochs * self.pipeline.steps_per_epoch

    @property
    def warnings(self) -> tuple[str, ...]:
        """The settings and data that are allowed but suspicious."""
        models = {name: member.model for name, member in self.members.items()}
        return *self.data.warnings, *self.plan.warnings, *check_scale(self.data.train, models)

    @functools.cached_property
    def description(self) -> dict[str, Any]:
        """The description of the run for its checkpoints."""
        data = self.data
        return {
            'config': self.plan.config,
            'vocabulary': describe_vocabulary(data.vocabulary),
            'vocabulary_hash': data.vocabulary.hash,
            'data': self.pipeline.identity | {'validation': data.validation.identity},
            'steps_per_epoch': self.pipeline.steps_per_epoch,
            'encoded_by': data.train.encoded_by,
            'validation_captions': data.validation.captions_hash,
        }

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
        states = self.init_members(batch.images, batch.texts)
        models = {name: (member.model, states[name].variables) for name, member in self.members.items()}
        memory = self.plan.source.init(models, sorted(self.plan.terms), batch, self.data.train.num_texts)
        return TrainState(jax.numpy.zeros((), jax.numpy.int32), states, memory)


def set_up(config: Config, resuming: bool = False, pending: bool = False) -> Setup:
    """Makes every part of a run from its config.

    Args:
      config: A nested dict, checked by `config.schema.check`.
      resuming: Whether the run resumes from a checkpoint, so that initial weights are not read.
      pending: Whether files that an earlier stage writes do not exist yet; everything else is checked.

    Returns:
      The parts.

    Raises:
      UserError: If a key, a name or the data are wrong.
    """
    plan = make_plan(config, pending)
    data = load_data(plan)
    names = [f"'{name}'" for key, name in plan.own.items() if not key.startswith(NAMED_BEFORE)]
    with blame(' or '.join(names), bool(names)):
        # The models, their batches, and their update rules.
        models = make_models(plan, data)
        pipeline = make_pipeline(plan, data, models)
        optimizer, schedule = plan.make_optimizer(pipeline.steps_per_epoch)
        members = {name: member.with_parts(models[name], optimizer) for name, member in plan.members.items()}
        # The step. Tracing it finds missing inputs of terms and models.
        init, step, measure = compile_step(plan, members, pipeline.steps_per_epoch)
        setup = Setup(plan, data, pipeline, members, init, step, measure, jax.jit(schedule), weights={})
        shapes = trace(setup)
    # The initial weights.
    if resuming:
        return setup
    return dataclasses.replace(setup, weights=load_weights(plan, members, shapes.members, data.vocabulary))


def compile_step(
    plan: Plan, members: Mapping[str, Member], steps_per_epoch: int
) -> tuple[Callable, Callable, Callable | None]:
    """Returns `init_members`, `train_step` and `measure` of `Setup`."""
    constants = RunConstants(plan.seed, steps_per_epoch, plan.epochs)
    step = functools.partial(train_step, members=members, terms=plan.terms, source=plan.source, constants=constants)
    revision = plan.source.revision

    def measure(state, batch):
        models = {name: (member.model, state.members[name].variables) for name, member in members.items()}
        return state, revision.measure(models, sorted(plan.terms), batch)

    init = jax.jit(functools.partial(init_members, members, plan.seed))
    budget = device_budget(plan.run['activations_mb'])
    traced = [keep_within(budget, encode_in_chunks(function, plan.encode_chunk)) for function in (step, measure)]
    step, measure = (parallel.data_parallel(function, plan.precision) for function in traced)
    return init, step, measure if revision else None


@contextlib.contextmanager
def remedies() -> Iterator[None]:
    """Adds to the error of an input that a term lacks how a user supplies it."""
    try:
        yield
    except MissingInput as error:
        remedy = REMEDIES.get(error.name, 'set it, or use a source that gives it')
        raise UserError(f'{error}: {remedy}') from None


def trace(setup: Setup) -> TrainState:
    """Traces initialization and the first step without computing them, which checks the arguments of all parts.

    The first call of the step reuses this trace.

    Returns:
      The shapes of the state.
    """
    with model_keys(), remedies():
        shapes = jax.eval_shape(setup.random_state)
        parallel.trace_step(setup.train_step, shapes, parallel.split_rows(setup.make_batch(0)))
    return shapes
