"""From a config to the parts of a run, all checked before anything is written."""

import contextlib
import dataclasses
import fcntl
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jitm import config as config_lib
from jitm import parallel
from jitm.data import candidates
from jitm.data.augmentation import Augmentation
from jitm.data.masking import MaskedWords, Masking, caption_words, find_phrases
from jitm.data.pipeline import Pipeline, check_boxes, check_lengths, tokenize_split
from jitm.data.splits import Split
from jitm.data.text import Tokens, Vocabulary
from jitm.data.vocabularies import load_vocabulary
from jitm.data.wordpiece import WordPiece
from jitm.errors import UserError, did_you_mean
from jitm.evaluation.scoring import check_dtype
from jitm.importers.pretrained import Replacements, replace
from jitm.synthesis.generator import Synthesis
from jitm.training.build.checks import (
    check_anchors,
    check_captioning,
    check_kind,
    check_source,
    check_token_terms,
    check_words,
)
from jitm.training.build.weights import load_first_weights
from jitm.training.candidates import SOURCES, InBatch, Source
from jitm.training.generated import GENERATED
from jitm.training.members import Member, copy_members, init_members, make_members
from jitm.training.objective import DIRECTIONS, make_terms
from jitm.training.optimizer import make_optimizer
from jitm.training.step import TrainState, make_train_step
from jitm.types import Batch

LOCK = '.lock'
AT_LEAST_ONE = ('epochs', 'batch_size', 'length_multiple')
OFFLINE_INPUTS = ('offline_scores', 'offline_pair_scores')
SECTIONS = {
    'run': ('log_every', 'checkpoint_every', 'prefetch', 'memory_mb'),
    'evaluation': ('split', 'member', 'every_steps', 'dtype'),
    'vocabulary': ('path', 'min_count'),
}


@dataclasses.dataclass(frozen=True)
class Setup:
    """Everything a run needs that its config decides, made without writing anything."""

    config: Mapping[str, Any]
    vocabulary: Vocabulary | WordPiece
    pipeline: Pipeline
    validation: Split
    validation_tokens: Tokens
    members: dict[str, Member]
    train_step: Callable
    schedule: Callable
    pretrained: Mapping[str, Mapping[str, Replacements]]

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.config['epochs'] * self.pipeline.steps_per_epoch

    def make_batch(self, step: int) -> Batch:
        """Makes this process' rows of a step's batch."""
        return self.pipeline.batch(step, jax.process_index(), jax.process_count())

    def initial_state(self) -> TrainState:
        """The state before the first step: drawn, with the weights that the config names in their places."""
        state = self.draw_state()
        members = dict(state.members)
        for name, pretrained in self.pretrained.items():
            begun = {key: replace(getattr(members[name], key), new) for key, new in pretrained.items()}
            members[name] = members[name].replace(**begun)
        return state.replace(members=copy_members(self.members, members))

    def draw_state(self) -> TrainState:
        """Draws the state before the first step."""
        batch = self.pipeline.batch(0, 0, self.config['batch_size'])
        init = jax.jit(lambda images, texts: init_members(self.members, self.config['seed'], images, texts))
        return TrainState(jax.numpy.zeros((), jax.numpy.int32), init(batch.images, batch.texts))


def load_offline(
    offline: Mapping[str, Any], augmentation: Augmentation, split: Split, mined_later: bool
) -> candidates.OfflineNegatives | None:
    """Reads the mined negatives that a config's `offline` names; None if it names none.

    With `mined_later` there are none yet, and lists of the right shape stand for them.

    Raises:
      UserError: if they are not of this split, or training would change the other examples.
    """
    folder, keywords = config_lib.choose(offline, 'path', where='offline')
    make = config_lib.bind(candidates.OfflineNegatives, keywords, where='offline', later=('candidates',))
    if not folder:
        return None
    if augmentation.changes:
        raise UserError("config keys 'augmentation' must leave examples as they are: mined negatives are not changed")
    if mined_later:
        shapes = (split.num_images, keywords['top_h_texts']), (split.num_texts, keywords['top_h_images'])
        return make(candidates=candidates.Candidates(*(np.zeros(np.maximum(s, 0), np.int32) for s in shapes)))
    return make(candidates=candidates.load(folder, split))


def make_source(rankings: Mapping[str, Any]) -> Source:
    """Makes what a config's `rankings` names: dict(source='in_batch', ...).

    Raises:
      UserError: if the source or an argument is unknown.
    """
    name, keywords = config_lib.choose(rankings, 'source', where='candidates')
    if name not in SOURCES:
        raise UserError(f"config key 'candidates.source' is '{name}'; take one of {', '.join(SOURCES)}")
    return config_lib.bind(SOURCES[name], keywords, where='candidates')()


def make_synthesis(config: Mapping[str, Any]) -> Synthesis | None:
    """Makes what a config's `synthesis` describes; None if no member writes sentences.

    Raises:
      UserError: if it is wrong, or sentences are not masked.
    """
    synthesis = config_lib.bind(Synthesis, config['synthesis'], where='synthesis')
    generator, copies = config['synthesis']['generator'], config['masking']['num_views']
    if not generator:
        return None
    if generator not in config['members']:
        raise UserError(
            f"config key 'synthesis.generator' is '{generator}', no member{did_you_mean(generator, config['members'])}"
        )
    if not copies:
        raise UserError(
            "config key 'masking.num_views' is 0, but config key 'synthesis' refills masked sentences: set it"
        )
    made = synthesis()
    if config['synthesis']['num_hard'] > copies * config['synthesis']['num_samples']:
        raise UserError(
            f"config key 'synthesis.num_hard' is {config['synthesis']['num_hard']}, more than the sentences there are "
            f"('masking.num_views' x 'synthesis.num_samples' = {copies * config['synthesis']['num_samples']})"
        )
    return made


def load_masked_words(config: Mapping[str, Any], split: Split, tokens: Tokens, vocabulary: Any) -> MaskedWords | None:
    """Finds the phrases that a config's `masking` masks; None if it masks nothing."""
    masking = config_lib.bind(Masking, config['masking'], where='masking')
    if not config['masking']['num_views']:
        return None
    phrases = find_phrases(split.captions, vocabulary, config_lib.load_scene_graphs(config['scene_graphs'], split))
    return MaskedWords(masking(), phrases, caption_words(tokens, split.image_of_text))


def set_up(config: Mapping[str, Any], resuming: bool = False, mined_later: bool = False) -> Setup:
    """Builds every part of a run from its config (a nested dict).

    Args:
      config: as `configs/default.py`.
      resuming: the run goes on from a checkpoint, so that the weights to start from are not read.
      mined_later: there are no mined negatives yet; everything else is checked.

    Raises:
      UserError: if a key, a name or the data are wrong.
    """
    for section, keys in SECTIONS.items():
        config_lib.check_keys(config[section], keys, where=section)
    counts = {key: config[key] for key in AT_LEAST_ONE} | {f'run.{key}': n for key, n in config['run'].items()}
    if config['evaluation']['every_steps'] is not None:
        counts['evaluation.every_steps'] = config['evaluation']['every_steps']
    for key, count in counts.items():
        if count < 1:
            raise UserError(f"config key '{key}' is {count}; it must be at least 1")
    if config['seed'] < 0:
        raise UserError(f"config key 'seed' is {config['seed']}; it must not be negative")
    check_dtype(config['evaluation']['dtype'])
    parallel.check_batch_size(config['batch_size'])
    rankings, synthesis = make_source(config['candidates']), make_synthesis(config)
    parallel.check_batch_size(rankings.num_extra, "config key 'candidates.num_extra'")
    sections = {name: config_lib.member_model(config, name) for name in config['members']}
    source, _ = config_lib.choose(config['relevance'], 'source', where='relevance')
    supplied = {
        'margins': bool(source),
        'anchor_scores': any(member.get('learn_from') for member in config['members'].values()),
        **dict.fromkeys(OFFLINE_INPUTS, bool(config['offline']['path'])),
    }
    ranked = (*DIRECTIONS, GENERATED) if synthesis else DIRECTIONS
    terms = make_terms(config['terms'], [name for name, given in supplied.items() if given], ranked)
    train = config_lib.load_split(config['data'], 'train')
    if train.num_texts < config['batch_size']:
        raise UserError(f'{train.name} has {train.num_texts} texts, fewer than batch_size {config["batch_size"]}')
    validation = config_lib.load_split(config['data'], config['evaluation']['split'])
    if train.regions.shape[2] != validation.regions.shape[2]:
        raise UserError(
            f'{train.name} has {train.regions.shape[2]} features per region and {validation.name} '
            f'{validation.regions.shape[2]}; both must come from the same extractor'
        )
    path, min_count = config['vocabulary']['path'], config['vocabulary']['min_count']
    vocabulary = load_vocabulary(path) if path else Vocabulary.build(train.captions, min_count)
    augmentation = config_lib.bind(Augmentation, config['augmentation'], where='augmentation')()
    check_words(terms, config, augmentation)
    check_source(rankings, config, train.num_texts)
    if augmentation.change_words > 0:
        check_captioning(terms)
    filled = any('mlm' in section.get('heads', ()) for section in sections.values())  # by this run, or by another
    if augmentation.change_words > 0 or config['masking']['num_views'] or filled:
        vocabulary = vocabulary.with_mask()
    models = {name: config_lib.make_model(section, len(vocabulary)) for name, section in sections.items()}
    train_tokens, validation_tokens = (tokenize_split(split.captions, vocabulary) for split in (train, validation))
    for name, model in models.items():
        check_kind(vocabulary, path, model, sections[name])
        for split, tokens in ((train, train_tokens), (validation, validation_tokens)):
            check_lengths(split, tokens, model.text_format)
            check_boxes(split, model.reads_locations)
    pipeline = Pipeline(
        train,
        train_tokens,
        vocabulary,
        config['batch_size'],
        config['seed'],
        config['length_multiple'],
        augmentation,
        config_lib.load_relevance(config['relevance'], train),
        min((model.text_format.max_length for model in models.values() if model.text_format.max_length), default=None),
        load_offline(config['offline'], augmentation, train, mined_later),
        any(model.reads_locations for model in models.values()),
        rankings.num_extra,
        load_masked_words(config, train, train_tokens, vocabulary),
    )
    optimizer, schedule = make_optimizer(config['optimizer'], pipeline.steps_per_epoch, config['epochs'])
    members = make_members(config['members'], models, optimizer)
    check_anchors(terms, members)
    training = [name for name, member in members.items() if member.trains]
    if config['evaluation']['member'] not in training:
        raise UserError(
            f"config key 'evaluation.member' is '{config['evaluation']['member']}', not one of {training}, which train"
        )
    check_token_terms(terms, members, pipeline.batch(0, 0, config['batch_size']))
    train_step = make_train_step(
        members,
        terms,
        rankings,
        seed=config['seed'],
        steps_per_epoch=pipeline.steps_per_epoch,
        epochs=config['epochs'],
        synthesis=synthesis,
    )
    setup = Setup(
        config=config,
        vocabulary=vocabulary,
        pipeline=pipeline,
        validation=validation,
        validation_tokens=validation_tokens,
        members=members,
        train_step=parallel.data_parallel(train_step),
        schedule=schedule,
        pretrained={},
    )
    drawn = jax.eval_shape(setup.draw_state)  # a model may refuse its arguments, which Flax asks it only now
    if pipeline.offline or pipeline.masked or not isinstance(rankings, InBatch):
        jax.eval_shape(train_step, drawn, pipeline.batch(0))  # a model may have no pairs, or no head that is needed
    if resuming:
        return setup
    first_weights = load_first_weights(config, members, drawn.members, vocabulary)
    return dataclasses.replace(setup, pretrained=first_weights)


def check_workdir(workdir: Path, config: Mapping[str, Any]) -> None:
    """Raises a UserError if the directory holds something else, or a run whose config differs where it matters."""
    path = workdir / 'config.json'
    if not path.exists():
        begun = {'config.json.partial', 'processes', LOCK}  # what a start that was killed at once leaves
        if workdir.exists() and (not workdir.is_dir() or {entry.name for entry in workdir.iterdir()} - begun):
            raise UserError(f'workdir {workdir} exists and is not a run of jitm; choose an empty or a new one')
        return
    try:
        changed = config_lib.differences(json.loads(path.read_text()), config)
    except ValueError:
        raise UserError(f'{path} is damaged; restore it, or choose a new workdir') from None
    if changed:
        raise UserError(
            f'workdir {workdir} holds a run with another config ({"; ".join(changed)}); '
            'choose a new workdir, or the old values'
        )


@contextlib.contextmanager
def lock(workdir: Path) -> Iterator[None]:
    """Makes the workdir and keeps other starts of the same run out of it.

    Raises:
      UserError: if another process trains there.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir / LOCK).open('w') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f'another process trains in {workdir}; wait for it, or choose a new workdir') from None
        yield
