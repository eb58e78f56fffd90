"""The gradient of encoders in chunks is that of the whole batch, in less memory; devices_worker has several devices.

In float64 both agree to 1e-12: a mistake in a formula is not hidden by rounding.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jitm.errors import UserError
from jitm.models.vse import VSE
from jitm.training import sources
from jitm.training.gradient_cache import encode_in_chunks
from jitm.training.label_estimators import CoTeaching, MovingAverage
from jitm.training.objective import token_terms
from jitm.training.setup import set_up
from jitm.training.source import View
from jitm.training.sources.generated import generate_captions
from jitm.training.sources.labels import with_labels
from jitm.training.sources.masked import mask_captions
from jitm.training.sources.mined import with_mined
from jitm.training.sources.relevance import with_relevance
from jitm.training.step import score_in_training
from jitm.types import DTYPES, Batch, Pairs, TokenPredictions
from tests.support import tags
from tests.support.matchers import (
    DIM,
    MATCHERS,
    VOCABULARY,
    WITHOUT_GRADIENT,
    make_inputs,
    make_vse,
    perturb,
    random_variables,
)
from tests.support.steps import (
    CAPTION,
    HARDEST,
    WordEncoder,
    candidates_source,
    in_batch_source,
    make_terms,
    on_one_device,
    predictions_source,
    shortlist_source,
)

COUNT = 8
ROWS = 3  # the last chunk is filled up
KEY = jax.random.key(7)
RNG = np.random.default_rng(1)
WEIGHTS = RNG.normal(size=(COUNT, COUNT)).astype(np.float32)


@pytest.fixture
def float64(monkeypatch):
    """Everything is computed in float64, also where layers and Flax ask for float32."""
    monkeypatch.setattr(jnp, 'float32', jnp.float64)
    monkeypatch.setitem(DTYPES, 'float32', jnp.float64)
    with jax.enable_x64(True):
        yield


def double(tree):
    return jax.tree.map(lambda x: np.float64(x) if x.dtype == np.float32 else x, tree)


def score(model, variables, images, texts):
    """The weighted sum of the scores of all pairs in training, with the dropout of `KEY`."""

    def method(matcher):
        encoded = matcher.encode_text(texts, train=True), matcher.encode_image(images, True)
        return jnp.sum(matcher.similarity(*encoded[::-1], True) * WEIGHTS)

    return model.apply(variables, method=method, rngs={'dropout': KEY})


def gradient_of(function, model, variables, *args):
    def loss(params):
        return function(model, {**variables, 'params': params}, *args)

    return jax.device_get(jax.jit(jax.value_and_grad(loss))(variables['params']))


def assert_close(got, want):
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(got), jax.tree.leaves(want), strict=True):
        name = jax.tree_util.keystr(path)
        scale = max(np.abs(b).max(), 1e-3)
        if not name.endswith(WITHOUT_GRADIENT):
            np.testing.assert_allclose(a / scale, b / scale, rtol=0, atol=1e-12, err_msg=name)


def score_by_hand(model, variables, images, texts):
    """The same for each chunk of rows with its own key, in a Python loop that keeps everything for the gradient."""
    keys = model.apply(variables, method=lambda m: [m.make_rng('dropout') for _ in range(2)], rngs={'dropout': KEY})

    def encode(method, items, key):
        count = len(jax.tree.leaves(items)[0])
        parts = []
        for first in range(0, count, ROWS):
            index = (first + np.arange(ROWS)) % count  # the last chunk is filled up
            chunk = jax.tree.map(lambda x, index=index: x[index], items)
            rngs = {'dropout': jax.random.fold_in(key, first)}
            parts.append(model.apply(variables, chunk, True, method=method, rngs=rngs))
        return jax.tree.map(lambda *x: jnp.concatenate(x)[:COUNT], *parts)

    encoded = encode('encode_image', images, keys[1]), encode('encode_text', texts, keys[0])
    return jnp.sum(model.apply(variables, *encoded, True, method='similarity') * WEIGHTS)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['vse_tokens', 'vse_fc', 'scan_t2i'])
def test_gradient_is_that_of_chunks_by_hand(float64, name):
    """With dropout, the same in both passes, with two views of half of the images, and with words that have a mask."""
    images, texts = make_inputs(COUNT, COUNT)
    if name == 'vse_fc':
        images = jax.tree.map(lambda x: x[: COUNT // 2], images)
        valid = np.random.default_rng(0).random((COUNT // 2, 2, images.regions.shape[1])) < 0.5
        valid[..., 0] = True
        images = images.replace(kept=valid)
    model = MATCHERS[name]
    arguments = model, *map(double, (random_variables(model, images, texts), images, texts))
    chunked = gradient_of(encode_in_chunks(score, ROWS), *arguments)
    assert_close(chunked, gradient_of(score_by_hand, *arguments))
    assert (abs(chunked[0] - score(*arguments)) > 1e-3) == (name == 'vse_tokens')


def both(function, variables, rows=ROWS):
    """The values by name of a function of variables, and their gradients: of the whole batch, and of chunks of rows."""
    results = []
    for step in (function, encode_in_chunks(function, rows)):

        def twice(params, step=step):
            return 2 * (step(variables | {'params': params}),)

        gradients, values = on_one_device(jax.jacrev(twice, has_aux=True))(variables['params'])
        results.append(jax.device_get({name: (values[name], gradients[name]) for name in values}))
    return results


def assert_same(plain, chunked):
    """Compares what `both` returns, and that each value has a gradient."""
    for name, values in plain.items():
        assert_close({name: chunked[name]}, {name: values})
        assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(values[1])) > 1e-3, name


def pairs_of(count, seed):
    return Pairs(*make_inputs(count, count, seed=seed))


BATCH = Batch(
    np.int32(0),
    *make_inputs(COUNT, COUNT),
    image_index=np.array([3, 5, 3, 8, 5, 1, 2, 3], np.int32),
    text_index=np.arange(COUNT, dtype=np.int32),
    drawn={
        'mined': (pairs_of(COUNT, 1), pairs_of(COUNT, 2)),
        'shortlist': (pairs_of(5, 3), np.array([3, 9, 8, 7, 6], np.int32)),
        'sampled': (pairs_of(COUNT, 4), RNG.random(COUNT) < 0.5),
        'perturbed': (pairs_of(COUNT, 5).texts, RNG.random(COUNT) < 0.5),
        'relevance': RNG.random((COUNT, COUNT)).astype(np.float32),
    },
)


class Captioner(VSE):
    """VSE++ that predicts words from the vector of an image."""

    def predict_tokens(self, images, texts, train=False):
        logits = jnp.sin(images[:, None] * (1 + texts.ids[..., None]))
        return {'captioning': TokenPredictions(logits, texts.ids % DIM, texts.mask)}


MODEL = make_vse(make=Captioner, text_pooling='mean').clone(text=WordEncoder(VOCABULARY))
VARIABLES = random_variables(MODEL, BATCH.images, BATCH.texts)
OTHER = {'params': perturb(VARIABLES['params'])}


IGNORED = {'same_image': 'ignored'}
SOURCES = {  # that score the encodings of a dual encoder
    'in_batch': in_batch_source(),
    'in_chunks': candidates_source({'source': 'in_chunks', 'queries': 3} | IGNORED, make_terms({'ranking': HARDEST})),
    'shortlist': shortlist_source(5, 4),
    'sampled': candidates_source({'source': 'sampled'}),
    'perturbed': candidates_source({'source': 'perturbed', 'perturbations': ('swap',)} | IGNORED),
    'queue': candidates_source({'source': 'queue', 'encoder': 'other', 'length': 5} | IGNORED),
    'predicted': predictions_source(**make_terms({'caption': CAPTION})),
    'mined': with_mined(in_batch_source(), path='', top_h_texts=1, top_h_images=1, context=None),
    'relevance': with_relevance(in_batch_source(), None),
    'labels': with_labels(in_batch_source(), MovingAverage(warm_up_epochs=0)),
    'labels of two models': with_labels(in_batch_source(), CoTeaching(warm_up_epochs=0, noisy_epoch=0)),
}


def value_of(source, model, variables, batch, other=None):
    """A scalar of all rankings and losses that a source has of a batch."""
    fixed = jax.lax.stop_gradient(variables)
    trained = {'target': (model, fixed), 'other': (model, other or fixed)}
    memory = source.init(trained, sorted(trained), batch, len(batch.image_index))
    seen = source.look(View(trained, batch, memory, jnp.int32(1)), dict.fromkeys(trained, KEY))
    rankings, of_terms, _ = score_in_training(source, model, variables, batch, seen['target'], KEY)
    numbers = [x for x in jax.tree.leaves((rankings, of_terms)) if jnp.issubdtype(x.dtype, jnp.floating)]
    return sum(jnp.sum(jnp.sin(x)) for x in numbers)


@pytest.mark.slow
def test_every_source_of_rankings(float64):
    def values_of(variables):
        return {
            name: value_of(source, MODEL, variables, double(BATCH), double(OTHER)) for name, source in SOURCES.items()
        }

    assert_same(*both(values_of, double(VARIABLES)))


def test_every_source_is_compared():
    compared = {name.split()[0] for name in SOURCES} | {'masked', 'generated'}
    assert {path.stem for path in Path(sources.__file__).parent.glob('*.py')} == compared | {'__init__'}


@pytest.mark.slow
def test_masked_and_generated_words(float64):
    words = token_terms(tags.TERMS)
    masked = {'masked': words.pop('masked')}
    read = {'masked': mask_captions(None, masked), 'generated': generate_captions(tags.SYNTHESIS, words)}
    batch = double(tags.make_batch())
    variables = double(random_variables(tags.MODEL, batch.images, batch.texts))

    def values_of(variables):
        return {name: value_of(source, tags.MODEL, variables, batch) for name, source in read.items()}

    assert_same(*both(values_of, variables, rows=1))


@pytest.mark.slow
def test_the_activations_of_one_chunk_are_kept():
    model = MATCHERS['clip_vit']
    (images, texts) = make_inputs(COUNT, COUNT)
    variables = random_variables(model, images, texts)
    many = [jax.tree.map(lambda x: np.repeat(x, 32, axis=0), x) for x in (images, texts)]

    def memory(rows):
        def loss(params, images, texts):
            def method(m):
                return jnp.sum(m.similarity(m.encode_image(images, True), m.encode_text(texts, True), True) ** 2)

            return model.apply({'params': params}, method=method)

        step = jax.jit(encode_in_chunks(jax.grad(loss), rows))
        return step.lower(variables['params'], *many).compile().memory_analysis().temp_size_in_bytes

    assert memory(8) < memory(None) / 2


@pytest.mark.slow
@pytest.mark.parametrize('name', ['rvse_mlp', 'saf', 'vsrn_f30k', 'clip_resnet'])
def test_batch_normalization_is_not_of_a_chunk(name):
    model = MATCHERS[name]
    inputs = make_inputs(COUNT, COUNT)
    variables = random_variables(model, *inputs)

    def step(function, rows):
        def both(matcher):
            return matcher.encode_text(inputs[1], True), matcher.encode_image(inputs[0], True)

        apply = functools.partial(model.apply, method=both, mutable=['batch_stats'], rngs={'dropout': KEY})
        return jax.eval_shape(encode_in_chunks(apply, rows), variables)

    jax.tree.map(np.testing.assert_equal, step(score, COUNT), step(score, None))
    with pytest.raises(UserError, match=r"'encode_chunk' is 3, but \w+.encode_\w+ trains batch normalization"):
        step(score, 3)


def test_the_key_of_a_config(tiny_config):
    tiny_config['model']['image']['mlp'] = 'residual'
    with pytest.raises(UserError, match=r'VSE\.encode_image'):
        set_up(tiny_config | {'encode_chunk': ROWS})
