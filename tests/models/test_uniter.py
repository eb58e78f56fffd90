import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jitm
from jitm.data import scenes
from jitm.devices import parallel
from jitm.errors import UserError
from jitm.evaluation.protocol import evaluate_runs
from jitm.models.make import model_keys
from jitm.models.uniter import HEADS, UNITER
from jitm.runs.run import load_run, read_split
from jitm.training.loop import train_and_evaluate
from jitm.types import Elements, Images, Texts
from tests.support.matchers import random_variables
from tests.support.runs import write_initial

V, F = 12, 6
LAYERS = 2  # of the tiny size


def make(heads=(), **changes):
    return UNITER(**{'vocab_size': V, 'size': 'tiny', 'dropout': 0.1, 'dtype': 'float32', 'heads': heads} | changes)


def make_inputs(images=3, texts=3):
    rng = np.random.default_rng(0)
    regions, locations = (rng.random((images, 4, size)).astype(np.float32) for size in (F, 7))
    lengths = np.array([6, 2, 4, 3, 5, 6])[:texts].astype(np.int32)
    ids = np.where(np.arange(6) < lengths[:, None], rng.integers(1, V, (texts, 6)), 0).astype(np.int32)
    return Images(regions, np.array([4, 3, 1, 2])[:images].astype(np.int32), locations=locations), Texts(ids, lengths)


@pytest.fixture(scope='module')
def variables():
    """Of a model with every head."""
    return random_variables(make(HEADS), *make_inputs())


@functools.partial(jax.jit, static_argnums=0)
def encode(model, variables, images, texts):
    sides = (images, 'encode_image'), (texts, 'encode_text')
    return tuple(model.apply(variables, side, method=method) for side, method in sides)


@functools.partial(jax.jit, static_argnums=0)
def score(model, variables, images, texts):
    return model.apply(variables, images, texts)


@pytest.mark.slow
def test_padded_slots_are_not_looked_at_even_between_text_and_image(variables):
    model, inputs = make(), make_inputs()
    images, texts = encode(model, variables, *inputs)
    for side in (images, texts):
        assert not np.any(side.vectors[~np.asarray(side.mask)])
    noisy = [side.replace(vectors=jnp.where(side.mask[..., None], side.vectors, 50.0)) for side in (images, texts)]
    states = jax.jit(lambda *sides: model.apply(variables, *sides, method='joint_states'))
    chex.assert_trees_all_close(states(*noisy), states(images, texts), atol=1e-5)


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of four pairs, which do not divide the pairs of these tests."""
    monkeypatch.setattr(parallel, 'tile_floats', lambda: 4 * 10 * 512)


def direct(model, images, texts, train=False):
    """Every pair at once, without tiles."""
    rows, columns = np.indices((len(images.mask), len(texts.mask))).reshape(2, -1)
    sides = jax.tree.map(lambda x: x[rows], images), jax.tree.map(lambda x: x[columns], texts)
    return model.score_pairs(*sides, train).reshape(len(images.mask), len(texts.mask))


@pytest.mark.slow
def test_tiles_change_neither_scores_nor_gradients(variables, small_tiles):
    model, inputs = make(dropout=0.0), make_inputs(images=3, texts=6)
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
    model, inputs = make(), make_inputs(images=1, texts=1)
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

    images, texts = make_inputs()
    with nn.intercept_methods(note_dropout):
        make().apply(variables, method=score_pairs, rngs={'dropout': jax.random.key(0)})
    assert calls[0].startswith('regions/')
    assert calls[1].startswith('bert/embeddings/')
    assert [path.startswith('bert/encoder/') for path in calls[2:]] == [True] * 2 * LAYERS


@pytest.mark.slow
def test_gradients_of_the_heads_reach_every_parameter(variables):
    model, inputs = make(HEADS), make_inputs()

    def value(model):
        images, texts = model.encode_image(inputs[0], True), model.encode_text(inputs[1], True)
        states, pooled = model.joint_states(images, texts, True)
        values = [model.apply_head(head, states, pooled, False) for head in ('rank', *HEADS)]
        return sum(jnp.sum(x * jnp.cos(jnp.arange(x.size)).reshape(x.shape)) for x in values)

    def loss(params):
        return model.apply({'params': params}, method=value, rngs={'dropout': jax.random.key(0)})

    for path, leaf in jax.tree_util.tree_leaves_with_path(jax.jit(jax.grad(loss))(variables['params'])):
        name = jax.tree_util.keystr(path)
        assert np.isfinite(leaf).all(), name
        assert np.abs(leaf).max() > 0 or name.endswith("['key']['bias']"), name


@pytest.mark.slow
def test_heads_are_initialized_as_copies():
    inputs = make_inputs()
    params = jax.jit(make(HEADS).init)(jax.random.key(0), *inputs)['params']
    itm, rank = params['itm_head'], params['rank_head']
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


@pytest.mark.parametrize(
    ('size', 'backbone', 'word_head', 'matching'),
    [
        ('base', 109_898_752, 621_124, 1_538),
        pytest.param('large', 335_695_872, 1_080_644, 2_050, marks=pytest.mark.slow),
    ],
)
def test_published_sizes_have_the_published_number_of_parameters(size, backbone, word_head, matching):
    """Less the [2, 2048] embeddings of masked regions, which only pre-training reads."""
    images = Images(np.zeros((1, 1, 2048)), np.ones(1, np.int32), locations=np.zeros((1, 1, 7)))
    texts = Texts(np.ones((1, 2), np.int32), np.full(1, 2, np.int32))
    model = make(HEADS, vocab_size=28996, size=size)
    params = jax.eval_shape(model.init, jax.random.key(0), images, texts)['params']
    counts = {name: sum(leaf.size for leaf in jax.tree.leaves(tree)) for name, tree in params.items()}
    assert counts['bert'] + counts['regions'] + counts['pooler'] == backbone - 2 * 2048
    assert counts['mlm_head'] == counts['correct_head'] == word_head
    assert counts['itm_head'] == counts['discriminate_head'] == matching
    assert counts['rank_head'] == matching // 2


@pytest.mark.slow
def test_bfloat16_is_for_embeddings_and_blocks(variables):
    model, inputs = make(HEADS, dtype='bfloat16'), make_inputs()
    shapes = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(shapes)} == {'float32'}
    encoded = encode(model, variables, *inputs)
    assert all(side.vectors.dtype == jnp.bfloat16 for side in encoded)
    got, want = score(model, variables, *inputs), score(make(), variables, *inputs)
    assert got.dtype == np.float32
    assert 0 < np.abs(got - want).max() < 0.1
    for states in model.apply(variables, *encoded, method='joint_states'):
        assert states.dtype == np.float32


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'size': 'huge'}, "'model.size' is 'huge'; use one of tiny, base, large"),
        ({'dtype': 'float64'}, "'model.dtype' is 'float64'; use one of float32, bfloat16"),
        ({'heads': ('mlm', 'rank')}, "'model.heads' is 'rank'; use one of itm, mlm, discriminate, correct"),
    ],
)
def test_wrong_arguments_are_refused(changes, message):
    with pytest.raises(UserError, match=message), model_keys():
        make(**changes).init(jax.random.key(0), *make_inputs())


def test_a_head_that_it_does_not_have_is_refused(variables):
    with pytest.raises(ValueError, match=r"heads is \('mlm',\), but 'correct' is needed: add it"):
        make(('mlm',)).apply(variables, None, None, ('correct',), method='read_pairs')


def test_images_that_it_cannot_read_are_refused():
    images, texts = make_inputs()
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
    model, inputs = make(), make_inputs()
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


@pytest.fixture
def uniter_config(tiny_config, tmp_path):
    """A tiny run on scenes with their words as word pieces: 10 steps."""
    split = scenes.load('train', train_images=16)
    words = sorted({word.strip('.,') for caption in split.captions for word in caption.lower().split()})
    (tmp_path / 'vocab.txt').write_text('\n'.join(('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *words)) + '\n')
    tiny_config['vocabulary']['path'] = str(tmp_path / 'vocab.txt')
    tiny_config['model'] = {'name': 'uniter.UNITER', 'size': 'tiny', 'dropout': 0.1, 'dtype': 'float32', 'heads': ()}
    tiny_config['augmentation'] |= {'drop_regions': 0.2, 'change_words': 0.2, 'keep_special_tokens': True}
    tiny_config['optimizer'] = {
        'name': 'adamw_with_warm_up',
        'learning_rate': 1e-3,
        'weight_decay': 0.01,
        'factors': {},
    }
    tiny_config['optimizer'] |= {'warm_up': 0.1, 'b2': 0.98, 'epsilon': 1e-6, 'clip_norm': 2.0}
    del tiny_config['terms']['later']
    return tiny_config | {'epochs': 1, 'length_multiple': 64}


@pytest.mark.filterwarnings('ignore:words that the vocabulary')
@pytest.mark.slow
def test_a_run_is_evaluated_and_scores_features_with_boxes(uniter_config, tmp_path):
    write_initial(uniter_config, tmp_path / 'run')
    run = load_run(tmp_path / 'run')
    _, sims = evaluate_runs([run], read_split([run], 'dev'), folds=1)
    assert sims.std() > 1e-4
    split = scenes.load('dev', train_images=16, dev_images=10, test_images=10)
    features, boxes = ([x[i, : split.counts[i]] for i in range(3)] for x in (split.regions, split.boxes))
    few = split.captions[:2]
    np.testing.assert_allclose(jitm.score(run, features, few, boxes), sims[:3, :2], atol=1e-5)
    np.testing.assert_allclose(jitm.score(run, features[1], few[0], boxes[1]), sims[1, 0], atol=1e-5)
    with pytest.raises(UserError, match='has a model that reads the location of regions: give their boxes'):
        jitm.score(run, features[1], few)
    shapes = rf'boxes have the shapes \[\[1, 4\]\]; these images need \[\[{split.counts[1]}, 4\]\]'
    with pytest.raises(UserError, match=shapes):
        jitm.score(run, features[1], few, boxes[1][:1])
    with pytest.raises(UserError, match='boxes must be x1 y1 x2 y2 as fractions of width and height'):
        jitm.score(run, features[1], few, boxes[1] * 40)


def test_data_without_boxes_are_refused_before_anything_is_written(uniter_config, precomp_folder, tmp_path):
    uniter_config['data'] = {'source': 'precomp.load', 'root': str(precomp_folder), 'dev_images': 1000}
    message = r'tiny_precomp/train has no boxes, .*: add train_boxes.npy or boxes.npy to its folder'
    with pytest.raises(UserError, match=message):
        train_and_evaluate(uniter_config, tmp_path / 'run')
    np.save(precomp_folder / 'train_boxes.npy', np.zeros((8, 3, 4), np.float32))
    with pytest.raises(UserError, match=r'tiny_precomp/dev has no boxes, .*: add dev_boxes.npy'):
        train_and_evaluate(uniter_config, tmp_path / 'run')
    assert not (tmp_path / 'run').exists()
