"""The parts of a training run, made from its config; nothing is written before all of them are checked."""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import optax

from jitm import names, parallel
from jitm.config import bind, choose, flatten
from jitm.data.augmentation import Augmentation
from jitm.data.pipeline import Pipeline
from jitm.data.splits import check_images, check_lengths
from jitm.data.vocabularies import kind_of
from jitm.errors import UserError
from jitm.importers.pretrained import Replacements, replace
from jitm.models.make import check_matcher, make_model, member_model, model_keys, own_names
from jitm.models.matcher import Matcher
from jitm.training.inputs import Data, load_data, make_pipeline
from jitm.training.labels import Labels
from jitm.training.members import Frozen, Member, copy_members, init_members, make_members
from jitm.training.objective import INPUTS, Term, ranking_terms
from jitm.training.optimizer import frozen_modules
from jitm.training.queue import Queue
from jitm.training.sources import make_labels, make_objective
from jitm.training.step import Source, TrainState, pair_hinges, terms_of, train_step
from jitm.training.weights import check_initialize, load_weights
from jitm.types import Batch

VOCABULARY_OF = {'words': "a JSON vocabulary, or '' to build one", 'word pieces': 'the vocab.txt of a BERT'}


@dataclasses.dataclass(frozen=True)
class Setup:
    """The parts of a training run, built from its config.

    Attributes:
      config: The whole config, a nested dict.
      data: The splits, vocabulary and tokens.
      pipeline: The training batches.
      members: The models that train together.
      init_members: The compiled function `(images, texts) -> states of the members`.
      train_step: The function `(state, batch) -> (state, metrics)`, compiled for all devices.
      schedule: The learning rate by step, compiled.
      pair_hinges: The function `(state, batch) -> (state, hinges of the pairs)`, compiled likewise, if labels split.
      labels: How the labels of pairs are learned; None for losses without.
      queue: What is kept of past steps; None for nothing.
      weights: The values of each member that replace randomly initialized ones.
      warnings: The settings that are allowed but suspicious.
    """

    config: Mapping[str, Any]
    data: Data
    pipeline: Pipeline
    members: dict[str, Member]
    init_members: Callable
    train_step: Callable
    schedule: optax.Schedule
    pair_hinges: Callable | None
    labels: Labels | None
    queue: Queue | None
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
        trained = sorted(name for name, member in self.members.items() if member.trains)
        members = self.init_members(batch.images, batch.texts)
        labels = self.labels.init(trained, self.data.train.num_texts) if self.labels else {}
        queue = {}
        if self.queue:
            encoder = self.queue.encoder
            queue = self.queue.init(self.members[encoder].model, members[encoder].variables, batch)
        return TrainState(jax.numpy.zeros((), jax.numpy.int32), members, labels, queue)


def set_up(config: Mapping[str, Any], resuming: bool = False, mined_later: bool = False) -> Setup:
    """Makes every part of a run from its config.

    Args:
      config: A nested dict, checked by `config.check`.
      resuming: Whether the run resumes from a checkpoint, so that initial weights are not read.
      mined_later: Whether mined negatives do not exist yet; everything else is checked.

    Returns:
      The parts.

    Raises:
      UserError: If a key, a name or the data are wrong.
    """
    # The objective, and where its inputs come from.
    terms, sources = make_objective(config)
    labels = make_labels(config['labels'])
    parallel.check_batch_size(config['batch_size'])
    parallel.check_batch_size(sum(source.num_extra for source in sources), "config key 'candidates.num_extra'")
    augmentation = bind(Augmentation, config['augmentation'], where='augmentation')()
    check_initialize(config)

    # The data.
    data = load_data(config, augmentation)
    for source in sources:
        if source.num_extra > data.train.num_texts:
            raise UserError(
                f"config key 'candidates.num_extra' is {source.num_extra}, but there are {data.train.num_texts} texts "
                'for training'
            )

    with own_models(config):
        # The models, the batches that they read, and how they train.
        models = make_models(config, data)
        pipeline = make_pipeline(
            config, data, models=models, sources=sources, augmentation=augmentation, mined_later=mined_later
        )
        optimizer, schedule = make_optimizer(config['optimizer'], pipeline.steps_per_epoch, config['epochs'])
        members = make_members(config['members'], models, optimizer, frozen_modules(config['optimizer']['factors']))
        check_members(config, members, terms)

        # The step. Its trace finds what a term or a model lacks.
        init, step = compile_step(config, members, terms, sources, pipeline.steps_per_epoch, labels)
        hinges = functools.partial(pair_hinges, members=members, sources=sources, labels=labels)
        setup = Setup(
            config=config,
            data=data,
            pipeline=pipeline,
            members=members,
            init_members=init,
            train_step=step,
            schedule=jax.jit(schedule),
            pair_hinges=parallel.data_parallel(hinges, config['precision']) if hasattr(labels, 'split') else None,
            labels=labels,
            queue=next((source.queue for source in sources if source.queue), None),
            weights={},
            warnings=(*data.warnings, *unreached_epochs(config)),
        )
        shapes = trace(setup)

    # The initial weights.
    if resuming:
        return setup
    weights = load_weights(config, members, shapes.members, data.vocabulary)
    return dataclasses.replace(setup, weights=weights)


def compile_step(
    config: Mapping[str, Any],
    members: Mapping[str, Member],
    terms: Mapping[str, Term],
    sources: Sequence[Source],
    steps_per_epoch: int,
    labels: Labels | None = None,
) -> tuple[Callable, Callable]:
    """Returns `init_members` and `train_step` of `Setup`."""
    clock = {'seed': config['seed'], 'steps_per_epoch': steps_per_epoch, 'epochs': config['epochs']}
    step = functools.partial(train_step, members=members, terms=terms, sources=sources, labels=labels, **clock)
    init = jax.jit(functools.partial(init_members, members, config['seed']))
    return init, parallel.data_parallel(step, config['precision'])


@contextlib.contextmanager
def own_models(config: Mapping[str, Any]) -> Iterator[None]:
    """Names file and line of any error within the block if a config has models that are not of jitm."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        own = [name for member in config['members'] for name in own_names(member_model(config, member))]
        if not own:
            raise
        raise UserError(f"the model '{own[0]}' fails: {names.describe(error)}") from error


def trace(setup: Setup) -> TrainState:
    """Traces initialization and the first step without computing them, which checks the arguments of all parts.

    The first call of the step reuses this trace.

    Returns:
      The shapes of the state.
    """
    with model_keys():
        shapes = jax.eval_shape(setup.random_state)
        jax.eval_shape(setup.train_step, shapes, parallel.split_rows(setup.make_batch(0)))
    return shapes


def make_models(config: Mapping[str, Any], data: Data) -> dict[str, Matcher]:
    """Makes the matcher of each member.

    Raises:
      UserError: If one is unknown, or cannot read the vocabulary, captions or images of the data.
    """
    models = {}
    for name in config['members']:
        section = member_model(config, name)
        models[name] = make_model(section, len(data.vocabulary), own=True, imports=True)
        check_matcher(models[name])
        kind, wanted = kind_of(data.vocabulary), models[name].text_format.kind
        if wanted not in (kind, None):
            key = 'text.name' if 'text' in section else 'name'
            raise UserError(
                f"config key 'vocabulary.path' is '{config['vocabulary']['path']}', which gives {kind}, but "
                f"'model.{key}' is '{flatten(section)[key]}', which reads {wanted}: give {VOCABULARY_OF[wanted]}, or "
                'change the model'
            )
        for split, tokens in ((data.train, data.train_tokens), (data.validation, data.validation_tokens)):
            check_lengths(split, tokens, models[name].text_format)
            check_images(split, models[name].reads)
    return models


def make_optimizer(
    section: Mapping[str, Any], steps_per_epoch: int, epochs: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Makes the optimizer and its learning-rate schedule: dict(name='adamw', ...), a function of `training.optimizer`.

    Raises:
      UserError: If the name or an argument is unknown, missing or out of its range.
    """
    name, keywords = choose(section, 'name', where='optimizer')
    make = names.resolve('jitm.training.optimizer', name, where='optimizer.name')
    lengths = {'steps_per_epoch': steps_per_epoch, 'total_steps': epochs * steps_per_epoch}
    lengths = {key: steps for key, steps in lengths.items() if key in inspect.signature(make).parameters}
    return bind(make, keywords, where='optimizer', later=lengths)(**lengths)


def check_members(config: Mapping[str, Any], members: Mapping[str, Member], terms: Mapping[str, Term]) -> None:
    """Raises a UserError if members do not fit the terms, or the evaluated member does not train.

    Args:
      config: The whole config.
      members: The members by name.
      terms: The objective.
    """
    trained = {name: member for name, member in members.items() if member.trains}
    if config['evaluation']['member'] not in trained:
        raise UserError(
            f"config key 'evaluation.member' is '{config['evaluation']['member']}', not one of {list(trained)}, which "
            'train'
        )
    learning = [name for name, member in members.items() if member.learn_from]
    anchored = [name for name, term in ranking_terms(terms).items() if 'anchor_scores' in term.inputs]
    if anchored and not learning:
        raise UserError(f"'terms.{anchored[0]}' needs anchor_scores: {INPUTS['anchor_scores']}")
    if not anchored:
        for name in learning:
            raise UserError(
                f"'members.{name}' has learn_from, but no term takes anchor_scores: add one of jitm.losses.anchored"
            )
    read = {config['synthesis']['generator'], config['candidates'].get('encoder')}
    read = read.union(*(member.learn_from for member in members.values()))
    for name in (name for name, member in members.items() if isinstance(member.rule, Frozen) and name not in read):
        raise UserError(
            f"config key 'members.{name}' is set but unused: it does not train, no member learns from it and it "
            'generates no captions; leave it out'
        )
    for name, member in trained.items():
        for epoch in range(config['epochs']):
            if not any(term.is_active(epoch) for term in terms_of(member, terms).values()):
                raise UserError(
                    f"no term is active in epoch {epoch} of {config['epochs']} for 'members.{name}': change the "
                    'start_epoch or end_epoch of a term'
                )


def unreached_epochs(config: Mapping[str, Any]) -> list[str]:
    """Returns a warning for each key of the terms and the labels that names an epoch after the run."""
    sections = {'labels': config['labels'], **{f'terms.{name}': term for name, term in config['terms'].items()}}
    return [
        f"config key '{where}.{key}' is {section[key]}, which a run of {config['epochs']} epochs does not reach"
        for where, section in sections.items()
        for key in ('start_epoch', 'warm_up_epochs', 'noisy_epoch')
        if section.get(key, 0) >= config['epochs']
    ]
