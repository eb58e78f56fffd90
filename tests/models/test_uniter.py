import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jitm.devices import policy
from jitm.errors import UserError
from jitm.models.uniter import HEADS
from jitm.types import Elements
from tests.support.matchers import MATCHERS, make_inputs, random_variables

LAYERS = 2  # of the tiny size


def make(heads=(), **changes):
    return MATCHERS['uniter'].clone(heads=heads, **changes)


@pytest.fixture(scope='module')
def variables():
    """Of a model with every head."""
    return random_variables(make(HEADS), *make_inputs(3, 3))


@functools.partial(jax.jit, static_argnums=0)
def encode(model, variables, images, texts):
    sides = (images, 'encode_image'), (texts, 'encode_text')
    return tuple(model.apply(variables, side, method=method) for side, method in sides)


@functools.partial(jax.jit, static_argnums=0)
def score(model, variables, images, texts):
    return model.apply(variables, images, texts)


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of four pairs, which do not divide the pairs of these tests."""
    monkeypatch.setattr(policy, 'tile_floats', lambda: 4 * 10 * 512)


def direct(model, images, texts, train=False):
    """Every pair at once, without tiles."""
    rows, columns = np.indices((len(images.mask), len(texts.mask))).reshape(2, -1)
    sides = jax.tree.map(lambda x: x[rows], images), jax.tree.map(lambda x: x[columns], texts)
    return model.score_pairs(*sides, train).reshape(len(images.mask), len(texts.mask))


@pytest.mark.slow
def test_tiles_change_neither_scores_nor_gradients(variables, small_tiles):
    model = make(dropout=0.0)
    inputs = make_inputs(images=3, texts=6)
    weights = np.random.default_rng(1).normal(size=(3, 6))

    def loss(params, similarity):
        def value(model):
            encoded = model.encode_image(inputs[0], True), model.encode_text(inputs[1], True)
            return similarity(model, *encoded)

        scores = model.apply({'params': params}, method=value, rngs={'dropout': jax.random.key(0)})
        return jnp.sum(weights * scores), scores

    grad = jax.jit(jax.grad(loss, has_aux=True), static_argnums=1)
    got, scores = grad(variables['params'], lambda model, *sides: model.similarity(*sides, train=True))
    want, all_at_once = grad(variables['params'], lambda model, *sides: direct(model, *sides, train=True))
    np.testing.assert_allclose(scores, all_at_once, atol=1e-6)
    chex.assert_trees_all_close(got, want, atol=2e-5)
    logits = score(model, variables, *inputs)
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-np.asarray(logits, np.float64))), atol=1e-5)


@pytest.mark.slow
def test_each_pair_drops_out_by_itself_in_training_only(variables, small_tiles):
    model = make()
    inputs = make_inputs(images=1, texts=1)
    same = jax.tree.map(lambda x: jnp.repeat(x, 11, axis=0), encode(model, variables, *inputs))

    @functools.partial(jax.jit, static_argnums=(0, 2))
    def scores(method, seed, train=True):
        return model.apply(variables, *same, train, method=method, rngs={'dropout': jax.random.key(seed)})

    for method in ('similarity_pairwise', 'similarity'):
        assert len(np.unique(scores(method, 0))) == scores(method, 0).size
        np.testing.assert_array_equal(scores(method, 0), scores(method, 0))
        assert np.all(scores(method, 0) != scores(method, 1))
        assert len(np.unique(scores(method, 0, train=False))) == 1


@pytest.mark.slow
def test_dropout_stands_where_it_is_published(variables):
    calls = []

    def note_dropout(call, arguments, keywords, context):
        if isinstance(context.module, nn.Dropout):
            assert context.module.rate == 0.1
            calls.append('/'.join(context.module.path))
        return call(*arguments, **keywords)

    def score_pairs(model):
        return model.score_pairs(model.encode_image(images, True), model.encode_text(texts, True), True)

    images, texts = make_inputs(3, 3)
    with nn.intercept_methods(note_dropout):
        make().apply(variables, method=score_pairs, rngs={'dropout': jax.random.key(0)})
    assert calls[0].startswith('regions/')
    assert calls[1].startswith('bert/embeddings/')
    assert [path.startswith('bert/encoder/') for path in calls[2:]] == [True] * 2 * LAYERS


@pytest.mark.slow
def test_heads_are_initialized_as_copies():
    inputs = make_inputs(3, 3)
    params = jax.jit(make(HEADS).init)(jax.random.key(0), *inputs)['params']
    itm = params['itm_head']
    rank = params['rank_head']
    np.testing.assert_array_equal(rank['kernel'][:, 0], itm['kernel'][:, 1])
    np.testing.assert_array_equal(rank['bias'][0], itm['bias'][1])
    assert np.all(itm['kernel'][:, 0] != itm['kernel'][:, 1])
    chex.assert_trees_all_equal(params['discriminate_head'], itm)
    chex.assert_trees_all_equal(params['correct_head'], params['mlm_head'])
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        kind = path[-1].key
        if kind not in ('kernel', 'embedding'):
            np.testing.assert_array_equal(leaf, 1 if kind == 'scale' else 0)
        elif leaf.size > 1000:
            np.testing.assert_allclose(np.std(leaf), 0.08, rtol=0.1)
    alone = jax.jit(make().init)(jax.random.key(0), *inputs)['params']
    assert alone.keys() == {'bert', 'regions', 'pooler', 'rank_head'}
    chex.assert_trees_all_equal(alone, {name: params[name] for name in alone})
    other = jax.jit(make().init)(jax.random.key(1), *inputs)['params']
    assert np.all(other['rank_head']['kernel'] != rank['kernel'])


def test_a_head_that_it_does_not_have_is_refused(variables):
    with pytest.raises(ValueError, match=r"heads is \('mlm',\), but 'correct' is needed: add it"):
        make(('mlm',)).apply(variables, None, None, ('correct',), method='read_pairs')


def test_images_that_it_cannot_read_are_refused():
    images, texts = make_inputs(3, 3)
    with pytest.raises(ValueError, match='UNITER reads the locations of images'):
        make().init(jax.random.key(0), images.replace(locations=None), texts)
    with pytest.raises(UserError, match=r"'augmentation.num_views' must be 1: UNITER reads one view of each image"):
        make().init(jax.random.key(0), images.replace(kept=np.ones((3, 2, 4), bool)), texts)


def test_tiles_fit_the_largest_array_of_a_pair():
    elements = [Elements(np.zeros((1, n, 128)), np.ones((1, n), bool)) for n in (36, 24)]
    assert make().floats_per_pair(*elements) == 60 * 512
    assert make(size='base').floats_per_pair(*elements) == 60 * 3072
    long = Elements(np.zeros((1, 400, 768)), np.ones((1, 400), bool))
    assert make(size='base').floats_per_pair(elements[0], long) == 12 * 436**2


@pytest.mark.slow
def test_memory_is_that_of_a_tile_whatever_the_number_of_pairs(small_tiles):
    """All 400 pairs at once would take 2 MB for their tokens alone, and 20 MB for the largest array."""
    model = make()
    inputs = make_inputs(3, 3)
    variables = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    parameters = sum(4 * leaf.size for leaf in jax.tree.leaves(variables))
    sides = [
        Elements(jax.ShapeDtypeStruct((20, n, 128), np.float32), jax.ShapeDtypeStruct((20, n), bool)) for n in (4, 6)
    ]

    def loss(variables, images, texts):
        return jnp.sum(model.apply(variables, images, texts, method='similarity'))

    for function, copies in ((loss, 1), (jax.grad(loss), 3)):
        stats = jax.jit(function).lower(variables, *sides).compile().memory_analysis()
        assert stats.temp_size_in_bytes < copies * parameters + 1e6
