import functools

import chex
import jax
import numpy as np
import pytest

import jitm
from jitm.devices import parallel
from jitm.errors import UserError
from jitm.evaluation.protocol import evaluate_runs
from jitm.models.oscar import MAX_WORDS, OSCAR, append_tags
from jitm.runs.run import load_run, read_split
from jitm.training.setup import set_up
from jitm.types import Images, Texts
from tests.configs.settings import load
from tests.support.matchers import random_variables
from tests.support.runs import write_initial

V, F = 12, 6
END = 3


def make(**changes):
    return OSCAR(**{'vocab_size': V, 'size': 'tiny', 'dropout': 0.1, 'dtype': 'float32', 'image_norm': True} | changes)


def make_texts(lengths, width, seed):
    """Texts of random words that end with `END`."""
    rng, lengths = np.random.default_rng(seed), np.array(lengths, np.int32)
    ids = rng.integers(4, V, (len(lengths), width)).astype(np.int32)
    ids[np.arange(width) == lengths[:, None] - 1] = END
    return Texts(np.where(np.arange(width) < lengths[:, None], ids, 0), lengths)


def make_inputs():
    rng = np.random.default_rng(0)
    regions, locations = (rng.random((3, 4, size)).astype(np.float32) for size in (F, 7))
    tags = make_texts([3, 0, 2], 4, seed=1)  # the second image has no tags
    images = Images(regions, np.array([4, 3, 1], np.int32), locations=locations, tags=tags)
    return images, make_texts([6, 2, 4], 6, seed=2)


@pytest.fixture(scope='module')
def variables():
    return random_variables(make(), *make_inputs())


@functools.partial(jax.jit, static_argnums=0)
def score(model, variables, images, texts):
    return model.apply(variables, images, texts)


def joined(caption, tags):
    """A plain loop over the released order of words: the caption, then its tags, of which the last is the end."""
    room = max(0, min(len(tags), MAX_WORDS - len(caption)))
    cut = [*tags[: room - 1], tags[-1]] if room else []
    return [*caption, *cut], [0] * len(caption) + [1] * len(cut)


def test_the_score_in_training_is_the_probability_of_a_match(variables):
    model, inputs = make(dropout=0.0), make_inputs()

    def scores(model):
        encoded = model.encode_image(inputs[0], True), model.encode_text(inputs[1], True)
        evaluated = model.similarity(*encoded)
        pairs = model.read_pairs(*encoded, ('itm',))['itm']
        return model.similarity(*encoded, train=True), evaluated, model.training_scores(evaluated), pairs

    rngs = {'dropout': jax.random.key(0)}
    trained, evaluated, mapped, pairs = jax.jit(lambda v: model.apply(v, method=scores, rngs=rngs))(variables)
    np.testing.assert_allclose(trained, 1 / (1 + np.exp(-np.asarray(evaluated, np.float64))), atol=1e-6)
    np.testing.assert_allclose(mapped, trained, atol=1e-6)
    np.testing.assert_allclose(jax.nn.softmax(pairs)[:, 1], np.diag(trained), atol=1e-6)


@pytest.mark.parametrize('caption_length', [2, 40, 67, 68, 69, 70])
def test_tags_follow_the_caption_and_are_cut_to_the_maximum(caption_length):
    captions, tags = make_texts([caption_length, 5], 70, seed=3), make_texts([9, 0], 12, seed=4)
    got = append_tags(captions, tags)
    for n in range(2):
        want, _ = joined(*(side.ids[n, : side.lengths[n]].tolist() for side in (captions, tags)))
        assert got.lengths[n] == len(want) <= MAX_WORDS
        assert got.ids[n, : len(want)].tolist() == want
        assert not np.any(got.ids[n, len(want) :])
    assert got.ids[0, got.lengths[0] - 1] == END


def test_what_a_pair_reads_changes_its_score(variables):
    model, (images, texts) = make(), make_inputs()
    want = score(model, variables, images, texts)
    order = np.array([2, 0, 3, 1])
    moved = images.replace(regions=images.regions[:, order], locations=images.locations[:, order])
    np.testing.assert_allclose(score(model, variables, moved, texts)[0], want[0], atol=1e-5)
    elsewhere = images.replace(locations=images.locations + np.eye(7, dtype=np.float32)[3])
    assert np.abs(score(model, variables, elsewhere, texts) - want).min() > 1e-4
    area = images.replace(locations=images.locations + np.eye(7, dtype=np.float32)[6])
    chex.assert_trees_all_equal(score(model, variables, area, texts), want)  # UNITER's seventh number
    tagged = images.replace(tags=make_texts([3, 0, 2], 4, seed=5))
    changed = np.abs(score(model, variables, tagged, texts) - want)
    assert changed[[0, 2]].min() > 1e-4
    assert changed[1].max() == 0


def test_base_has_the_number_of_parameters_of_its_layers():
    """BERT base uncased with its pooler, 2,054 x 768 for regions and their normalization, and two classes."""
    tags = make_texts([2], 2, seed=0)
    images = Images(np.zeros((1, 1, 2048)), np.ones(1, np.int32), locations=np.zeros((1, 1, 7)), tags=tags)
    model = make(vocab_size=30522, size='base')
    params = jax.eval_shape(model.init, jax.random.key(0), images, tags)['params']
    assert params.keys() == {'bert', 'region_features', 'region_norm', 'pooler', 'itm_head'}
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert count == 109_482_240 + (2054 * 768 + 768) + 2 * 768 + (2 * 768 + 2)


@pytest.mark.parametrize('image_norm', [False, True])
def test_regions_are_normalized_or_not(image_norm):
    params = jax.eval_shape(make(image_norm=image_norm).init, jax.random.key(0), *make_inputs())['params']
    assert ('region_norm' in params) == image_norm


def test_images_without_tags_are_refused():
    images, texts = make_inputs()
    with pytest.raises(ValueError, match='OSCAR reads the tags of images'):
        make().init(jax.random.key(0), images.replace(tags=None), texts)


def tiny_oscar(workdir):
    """A config of 4 steps on scenes; `workdir` holds its run, from which DBL's anchor is initialized."""
    data = {'source': 'scenes.load', 'seed': 0, 'train_images': 8, 'dev_images': 6, 'test_images': 4}
    config = load('oscar:alone,scenes') | {'data': data, 'epochs': 1, 'batch_size': 10, 'length_multiple': 64}
    config['run'] |= {'log_every': 1}
    boosted = load('oscar:rm,base,coco')
    for member in boosted['members'].values():
        member['init_from'] = str(workdir)
    return config, config | {key: boosted[key] for key in ('members', 'terms')}


@pytest.mark.filterwarnings('ignore:words that the vocabulary')
@pytest.mark.slow
def test_a_run_is_evaluated_and_boosts_itself(tmp_path):
    config, boosted = tiny_oscar(tmp_path / 'run')
    write_initial(config, tmp_path / 'run')
    run = load_run(tmp_path / 'run')
    split = read_split([run], 'dev')
    _, sims = evaluate_runs([run], split, folds=1)
    features, boxes = ([x[i, : split.counts[i]] for i in range(3)] for x in (split.regions, split.boxes))
    few, tags = split.captions[:2], split.tags[:3]
    np.testing.assert_allclose(jitm.score(run, features, few, boxes, tags), sims[:3, :2], atol=1e-5)
    np.testing.assert_allclose(jitm.score(run, features[1], few[0], boxes[1], tags[1]), sims[1, 0], atol=1e-5)
    loaded = jitm.load(tmp_path / 'run')
    images = loaded.encode_image(loaded.load_data('dev').images[1:3])
    np.testing.assert_allclose(loaded.similarity(images, loaded.encode_text(few)), sims[1:3, :2], atol=1e-5)
    with pytest.raises(UserError, match='has a model that reads object tags: give the tags of each image'):
        jitm.score(run, features[1], few, boxes[1])
    with pytest.raises(UserError, match="tags must be 3 strings, such as 'dog person', one for each image"):
        jitm.score(run, features, few, boxes, 'dog')

    setup = set_up(boosted)
    state, batch = parallel.put_state(setup.initial_state()), parallel.put_batch(setup.make_batch(0))
    _, first = setup.train_step(state, batch)
    # The target starts as the anchor: each pair and its negative are the margin of 0.2 from what RM asks for.
    np.testing.assert_allclose(first['target/terms/relative_max'], 0.2, atol=1e-6)
    np.testing.assert_allclose(first['target/gap'], first['anchor/gap'], atol=1e-6)
