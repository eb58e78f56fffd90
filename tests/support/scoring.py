"""Small problems of scoring, computed at once."""

import functools
from unittest import mock

import jax
import numpy as np

from jitm.data.splits import Split, pad_texts, take_images
from jitm.data.text.word_level import join
from jitm.devices import parallel
from jitm.inference.memory import BlockShape
from jitm.inference.scoring import Scorer, ScoringOptions
from tests.support.matchers import MATCHERS, make_inputs, perturb

COMPILED = '/jax/core/compile/backend_compile_duration'


@functools.cache
def make_problem(name, images=7, texts=13, regions=(4, 6)):
    """A model, its variables, and a split with texts of 2 to 6 words."""
    _, captions = make_inputs(images, texts)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(images, *regions)).astype(np.float32)
    counts = rng.integers(1, regions[0] + 1, images).astype(np.int32)
    boxes = rng.random((images, regions[0], 4)).astype(np.float32)
    split = Split('random', features, counts, ('',) * texts, np.arange(texts) % images, ('',) * images, boxes)
    tokens = join([ids[:length] for ids, length in zip(captions.ids, captions.lengths, strict=True)])
    model = MATCHERS[name]
    pictures = take_images(split, np.arange(images), model.reads)
    variables = jax.jit(model.init)(jax.random.key(0), pictures, captions)
    variables = {**variables, 'params': perturb(variables['params'])}
    return model, variables, split, tokens


@functools.cache
def score_at_once(*arguments):
    """The scores of a problem as one block."""
    model, variables, split, tokens = make_problem(*arguments)
    texts = pad_texts(tokens, np.arange(split.num_texts), 7)
    images = take_images(split, np.arange(split.num_images), model.reads)
    return np.asarray(jax.jit(model.apply)(variables, images, texts))


def make_scorer(problem, images=3, texts=4, dtype='float32', pairs=None):
    """A scorer with a given block shape, without measuring memory: by default 12 blocks for 7 x 13 pairs."""
    with mock.patch.object(parallel, 'memory_of', return_value=0):
        scorer = Scorer(*problem, ScoringOptions(dtype, 64, 'highest'), pairs)
    scorer.shape = BlockShape(images, texts)
    return scorer


@functools.cache
def random_pairs(images=7, texts=13):
    """About half of the pairs, none of image 1 and none of images 3 to 5."""
    pairs = np.random.default_rng(2).random((images, texts)) < 0.5
    pairs[1] = False
    pairs[3:6] = False
    return pairs


def count_compilations(function):
    """Counts the compilations during a call."""
    seconds = []

    def listen(event, duration, **_):
        if event == COMPILED:
            seconds.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        function()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    return len(seconds)


# Devices. The worker saves the matrix of each problem, in blocks of the given shape.
CASES = [(('vsepp', 3, 2), (4, 4)), (('scan_t2i',), (4, 8))]
