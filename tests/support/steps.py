"""Small models and configs that are traced in a fraction of the time of the published ones."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jitm.config.section import build
from jitm.configs import clip
from jitm.data import scenes
from jitm.data.pairs.augmentation import Augmentation
from jitm.data.pipeline import Pipeline
from jitm.data.text.vocabularies import tokenize_split
from jitm.data.text.word_level import Vocabulary
from jitm.devices import parallel
from jitm.models.matcher import DualEncoder
from jitm.training import members as members_lib
from jitm.training import objective, plan
from jitm.training.gradient_cache import encode_in_chunks
from jitm.training.objective import terms_of
from jitm.training.sections import PARTS
from jitm.training.source import Context
from jitm.training.sources.predicted import predict_words
from jitm.training.sources.relevance import with_relevance
from jitm.training.step import RunConstants, train_step, with_anchors
from jitm.types import Batch, TextFormat
from tests.configs.settings import load
from tests.conftest import UNCHANGED
from tests.support.matchers import DIM, VOCABULARY, make_vse

ALWAYS = {'weight': 1.0, 'start_epoch': 0, 'end_epoch': None}
HARDEST = ALWAYS | {'loss': 'ranking.max_of_hinges', 'margin': 0.2, 'reduction': 'sum'}
CAPTION = ALWAYS | {'loss': 'tokens.captioning', 'reduction': 'mean'}
SCORES = np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)  # no array of jax, which starts its devices


def parts_of_step(members, terms, source, **constants):
    """The arguments of `train_step` for members that share some terms; `seed`, `steps_per_epoch` and `epochs`."""
    objectives = {name: terms_of(member.learn_from, terms) for name, member in members.items() if member.trains}
    return {'members': members, 'terms': objectives, 'source': source, 'constants': RunConstants(**constants)}


def compile_step(rows=None, **parts):
    """The training step `(state, batch) -> (state, metrics)` of some parts, for batches without an axis of devices.

    It encodes a number of rows at a time.
    """
    step = encode_in_chunks(functools.partial(train_step, **parts_of_step(**parts)), rows)
    step = parallel.data_parallel(step, 'highest')

    def take(state, batch):
        return step(parallel.put_state(state), parallel.put_batch(batch))

    take.compiled = step
    return take


def on_one_device(function):
    """Compiles a function that gathers over the devices."""

    def call(*args):
        axes = 0, *(None for _ in args)
        mapped = jax.pmap(lambda _, *a: function(*a), axis_name=parallel.AXIS, in_axes=axes, out_axes=None)
        return mapped(jnp.zeros(1), *args)

    return call


def make_terms(configs):
    """The terms of the section `terms`."""
    return objective.make_terms(configs, build({'terms': configs}, PARTS))


def make_members(configs):
    """The members of the section `members`."""
    return members_lib.make_members(configs, build({'members': configs}, PARTS))


def make_optimizer(section, epochs):
    """The function `(steps_per_epoch) -> (optimizer, schedule)` of a section `optimizer`."""
    return functools.partial(plan.make_optimizer, build({'optimizer': section}, PARTS)['optimizer'], epochs)


def candidates_source(section, terms=None):
    """The source of a section `candidates`."""
    return build({'candidates': section}, PARTS)['candidates'](context=Context(terms or {}, batch_size=1000))


def in_batch_source(same_image='negative'):
    """The source of in-batch candidates."""
    return candidates_source({'source': 'in_batch', 'same_image': same_image})


def shortlist_source(num_extra, num_hard):
    """The source of a shortlist."""
    return candidates_source({'source': 'shortlist', 'num_extra': num_extra, 'num_hard': num_hard})


def drawing(pipeline, source):
    """The batches of a pipeline with what a source draws."""
    return dataclasses.replace(pipeline, samplers=source.samplers(pipeline))


def predictions_source(**terms):
    """The source of what a model predicts itself."""
    return predict_words(terms)


class Scores(DualEncoder):
    """A matcher whose vectors of texts are given, and whose images are all of them: any matrix of scores."""

    learned: float | None = None

    @property
    def temperature(self):
        """See `Matcher.temperature`."""
        return None if self.learned is None else jnp.float32(self.learned)


def rank_in_batch(index, scores=SCORES, relevance=None, anchors=(), **options):
    """The rankings of in-batch scores."""
    drawn = {} if relevance is None else {'relevance': relevance}
    batch = Batch(np.int32(0), None, None, np.asarray(index), drawn=drawn)
    source = candidates_source({'source': 'in_batch', 'same_image': 'negative'} | options)
    source = with_relevance(source, None) if drawn else source

    def rank(scores):
        images = jnp.eye(len(scores))
        return source.score(Scores(), images, scores.T, batch, None, True)[0]

    rankings = on_one_device(rank)(scores)
    return with_anchors(rankings, [on_one_device(rank)(rows) for rows in anchors])


def make_pipeline():
    """Batches of 8 captions of 8 scenes."""
    split = scenes.load('train', train_images=8)
    vocabulary = Vocabulary.build(split.captions, 1)
    tokens = tokenize_split(split.captions, vocabulary)
    return Pipeline(split, tokens, vocabulary, 8, 0, length_multiple=32, augmentation=Augmentation(**UNCHANGED))


class WordEncoder(nn.Module):
    """A text encoder that embeds each word."""

    vocab_size: int

    text_format = TextFormat('words')

    @nn.compact
    def __call__(self, texts, train=False):
        return jnp.where(texts.mask[..., None], nn.Embed(self.vocab_size, DIM)(texts.ids), 0)


def small_vse(vocab_size=VOCABULARY, mlp='none'):
    """VSE++ without its GRU."""
    return make_vse(mlp, text_pooling='mean').clone(text=WordEncoder(vocab_size))


def tiny_tags_dc(data):
    """The config of TAGS-DC with a dynamic generator: 5 steps of 8 pairs; 3 of 8 synthetic captions are kept."""
    config = load('tags:tags_dc_single,scenes')
    config['data'] = data | {'train_images': 8}
    config['epochs'] = 1
    config['length_multiple'] = 24
    config['candidates'] |= {'num_extra': 8, 'num_hard': 3}
    config['masking']['num_views'], config['synthesis'] = 2, config['synthesis'] | {'num_samples': 4, 'num_hard': 3}
    config['members']['target']['init_from'] = ''
    config['run'] |= {'log_every': 2, 'checkpoint_every': 2}
    return config


def make_clip(root):
    """A tiny CLIP with random crops of photos, trained from scratch: two epochs of 5 steps."""
    config = clip.get_config('f8k').to_dict()
    config['data'] |= {'root': str(root), 'image_size': 32, 'short_side': 32}
    tower = {'hidden_dim': 8, 'num_layers': 1, 'num_heads': 2, 'mlp_dim': 12}
    config['model']['embed_dim'] = 8
    config['model']['image'] |= tower | {'image_size': 32}
    config['model']['text'] |= tower
    config |= {'epochs': 2, 'batch_size': 8, 'length_multiple': 32}
    config['evaluation']['every_steps'] = None
    config['run'] |= {'log_every': 1, 'checkpoint_every': 4}
    return config
