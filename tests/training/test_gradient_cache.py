"""The gradient of encoders in chunks is that of the whole batch, in less memory; devices_worker has several devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jitm.devices import parallel
from jitm.errors import UserError
from jitm.training.gradient_cache import encode_in_chunks
from jitm.training.members import Gradient, Member, init_members
from jitm.training.objective import make_terms
from jitm.training.setup import set_up
from jitm.training.step import TrainState
from tests.models.test_matchers import MATCHERS, WITHOUT_GRADIENT, make_inputs, perturb, random_variables
from tests.training.models import compile_step, in_batch_source, small_vse
from tests.training.test_members import pipeline  # noqa: F401

COUNT = 8
KEY = jax.random.key(7)
WEIGHTS = np.random.default_rng(1).normal(size=(COUNT, COUNT)).astype(np.float32)


def score(model, variables, images, texts):
    """The weighted sum of the scores of all pairs in training, with the dropout of `KEY`."""

    def method(matcher):
        encoded = matcher.encode_text(texts, train=True), matcher.encode_image(images, True)
        return jnp.sum(matcher.similarity(*encoded[::-1], True) * WEIGHTS)

    return model.apply(variables, method=method, rngs={'dropout': KEY})


def score_by_hand(model, variables, images, texts, rows):
    """The same for each chunk of rows with its own key, in a Python loop that keeps everything for the gradient."""
    keys = model.apply(variables, method=lambda m: [m.make_rng('dropout') for _ in range(2)], rngs={'dropout': KEY})

    def encode(method, items, key):
        parts = []
        for first in range(0, COUNT, rows):
            index = (first + np.arange(rows)) % COUNT  # the last chunk is filled up
            chunk, rngs = jax.tree.map(lambda x, i=index: x[i], items), {'dropout': jax.random.fold_in(key, first)}
            parts.append(model.apply(variables, chunk, True, method=method, rngs=rngs))
        return jax.tree.map(lambda *x: jnp.concatenate(x)[:COUNT], *parts)

    encoded = encode('encode_image', images, keys[1]), encode('encode_text', texts, keys[0])
    return jnp.sum(model.apply(variables, *encoded, True, method='similarity') * WEIGHTS)


def gradient_of(function, model, variables, *args):
    def loss(params):
        return function(model, {**variables, 'params': params}, *args)

    return jax.device_get(jax.jit(jax.value_and_grad(loss))(variables['params']))


def assert_close(one, other, tolerance):
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other), strict=True):
        name, scale = jax.tree_util.keystr(path), max(np.abs(b).max(), 1e-3)
        if not name.endswith(WITHOUT_GRADIENT):
            np.testing.assert_allclose(a / scale, b / scale, atol=tolerance, err_msg=name)


def double(tree):
    return jax.tree.map(lambda x: np.float64(x) if x.dtype == np.float32 else x, tree)


@pytest.mark.parametrize(
    ('name', 'rows', 'tolerance'),
    [('vse_fc', 3, 1e-6), ('scan_t2i', 3, 1e-6), ('clip_vit', 4, 1e-5)],  # CLIP computes in float32 in any case
)
def test_gradient_is_that_of_the_whole_batch(name, rows, tolerance):
    model, (images, texts) = MATCHERS[name], make_inputs(COUNT, COUNT)
    if name == 'vse_fc':
        rng = np.random.default_rng(0)  # two views of half of the images
        images = jax.tree.map(lambda x: x[: COUNT // 2], images)
        kept = rng.random((COUNT // 2, 2, images.regions.shape[1])) < 0.5
        images = images.replace(kept=kept | (np.arange(kept.shape[2]) == 0))
    variables = random_variables(model, images, texts)
    with jax.enable_x64(True):
        inputs = double(variables), *map(double, (images, texts))
        plain = gradient_of(score, model, *inputs)
        chunked = gradient_of(encode_in_chunks(score, rows), model, *inputs)
    assert_close(chunked, plain, tolerance)


@pytest.mark.parametrize('rows', [4, 3])
def test_dropout_is_the_same_in_both_passes(rows):
    model, (images, texts) = MATCHERS['vse_tokens'], make_inputs(COUNT, COUNT)
    with jax.enable_x64(True):
        inputs = double(random_variables(model, images, texts)), *map(double, (images, texts))
        chunked = gradient_of(encode_in_chunks(score, rows), model, *inputs)
        by_hand = gradient_of(functools.partial(score_by_hand, rows=rows), model, *inputs)
        assert_close(chunked, by_hand, 1e-6)
        assert abs(chunked[0] - score(model, *inputs)) > 1e-3


def test_the_activations_of_one_chunk_are_kept():
    model, (images, texts) = MATCHERS['clip_vit'], make_inputs(COUNT, COUNT)
    variables = random_variables(model, images, texts)
    many = [jax.tree.map(lambda x: np.repeat(x, 32, axis=0), x) for x in (images, texts)]

    def memory(rows):
        def loss(params, images, texts):
            def method(m):
                return jnp.sum(m.similarity(m.encode_image(images, True), m.encode_text(texts, True), True) ** 2)

            return model.apply({'params': params}, method=method)

        step = jax.jit(encode_in_chunks(jax.grad(loss), rows))
        return step.lower(variables['params'], *many).compile().memory_analysis().temp_size_in_bytes

    assert memory(8) < memory(64) < memory(None) / 2


@pytest.mark.parametrize('name', ['rvse_mlp', 'saf', 'vsrn_f30k', 'clip_resnet'])
def test_batch_normalization_is_not_of_a_chunk(name):
    model, inputs = MATCHERS[name], make_inputs(COUNT, COUNT)
    variables = random_variables(model, *inputs)

    def step(function, rows):
        def both(matcher):
            return matcher.encode_text(inputs[1], True), matcher.encode_image(inputs[0], True)

        apply = functools.partial(model.apply, method=both, mutable=['batch_stats'], rngs={'dropout': KEY})
        return jax.eval_shape(encode_in_chunks(apply, rows), variables)

    jax.tree.map(np.testing.assert_equal, step(score, COUNT), step(score, None))
    with pytest.raises(UserError, match=r"'encode_chunk' is 3, but \w+.encode_\w+ trains batch normalization"):
        step(score, 3)


TERM = {'weight': 1.0, 'start_epoch': 0, 'end_epoch': None, 'reduction': 'sum'}
TERMS = {
    'max': {'loss': 'ranking.max_of_hinges', 'margin': 0.2},
    'selhn': {'loss': 'ranking.selective_hard_negative', 'margin': 0.2, 'epsilon': 0.01},
    'softmax': {'loss': 'ranking.softmax_contrastive', 'temperature': 0.1},
    'boost': {'loss': 'anchored.relative_max', 'margin': 0.2},
}


def test_members_and_losses(pipeline):  # noqa: F811
    terms = {name: TERM | term for name, term in TERMS.items()}
    model = small_vse(len(pipeline.vocabulary))
    members = {
        'anchor': Member(rule=Gradient(), model=model, optimizer=optax.sgd(1.0)),
        'target': Member(rule=Gradient(), model=model, optimizer=optax.sgd(1.0), learn_from=('anchor',)),
    }
    batch = pipeline.batch(0)
    parts = {'members': members, 'terms': make_terms(terms), 'source': in_batch_source()}
    states = init_members(members, 0, batch.images, batch.texts)
    states = {name: state.replace(params=perturb(state.params)) for name, state in states.items()}
    plain, chunked = (
        compile_step(**parts, seed=0, steps_per_epoch=5, epochs=2, rows=rows)(
            TrainState(np.int32(0), jax.device_get(states), {}), batch
        )
        for rows in (None, 3)
    )
    assert plain[1].keys() == chunked[1].keys() > {f'target/terms/{name}' for name in TERMS}
    assert_close(chunked, plain, 2e-6)


def test_the_key_of_a_config(tiny_config):
    results = []
    for rows in (None, 3):
        setup = set_up(tiny_config | {'encode_chunk': rows})
        state = parallel.put_state(setup.initial_state())
        results.append(jax.device_get(setup.train_step(state, parallel.put_batch(setup.make_batch(0)))))
    (plain, _), (chunked, _) = results
    assert_close(chunked.members['target'].params, plain.members['target'].params, 1e-4)
    tiny_config['model']['image']['mlp'] = 'residual'
    with pytest.raises(UserError, match=r'VSE\.encode_image'):
        set_up(tiny_config | {'encode_chunk': 3})
