import dataclasses

import chex
import jax
import numpy as np
import pytest

from jitm.data import scenes
from jitm.data.arrays import locations as locations_of
from jitm.data.pairs import cider, masking
from jitm.data.pairs.augmentation import Augmentation
from jitm.data.pipeline import STEPS_PER_SHAPE, Pipeline, with_few_shapes
from jitm.data.profile import fits, resize
from jitm.data.splits import bucket, check_images, pad_texts, take_images
from jitm.data.text.vocabularies import tokenize_split
from jitm.data.text.word_level import Vocabulary
from jitm.errors import UserError
from jitm.training.source import Source
from jitm.training.sources import perturbed
from jitm.training.sources.masked import mask_captions
from jitm.training.sources.relevance import with_relevance
from jitm.training.sources.sampled import sampled
from tests.conftest import UNCHANGED
from tests.support.steps import candidates_source, drawing, shortlist_source

LOCATIONS = ('regions', 'locations')


@pytest.fixture(scope='module')
def pipeline():
    split = scenes.load('train', train_images=7)
    vocabulary = Vocabulary.build(split.captions, 1)
    tokens = tokenize_split(split.captions, vocabulary)
    return Pipeline(split, tokens, vocabulary, 8, 3, length_multiple=4, augmentation=Augmentation(**UNCHANGED))


def test_tokens_are_those_of_the_vocabulary(pipeline):
    vocabulary = Vocabulary.build(pipeline.split.captions, 1)
    for n, caption in enumerate(pipeline.split.captions):
        ids = pipeline.tokens.ids[pipeline.tokens.starts[n] : pipeline.tokens.starts[n + 1]]
        np.testing.assert_array_equal(ids, vocabulary.encode(caption))
        assert pipeline.tokens.lengths[n] == len(ids)


def test_an_epoch_shows_each_text_at_most_once_and_epochs_differ(pipeline):
    assert pipeline.steps_per_epoch == 35 // 8
    epochs = np.stack([pipeline.text_index(step) for step in range(12)]).reshape(3, 32)
    for epoch in epochs:
        assert len(set(epoch)) == 32
    assert not np.array_equal(epochs[0], epochs[1])
    assert len(np.unique(epochs)) == 35


def test_a_batch_is_a_pure_function_of_seed_and_step(pipeline):
    again = dataclasses.replace(pipeline)
    again.batch(5)
    for step in (0, 6, 2):
        first = pipeline.batch(step)
        second = again.batch(step)
        np.testing.assert_array_equal(first.texts.ids, second.texts.ids)
        np.testing.assert_array_equal(first.images.regions, second.images.regions)
        assert first.step == step
    other = dataclasses.replace(pipeline, seed=4)
    for step in (0, pipeline.steps_per_epoch):  # nor is another seed a later epoch
        assert not np.array_equal(other.text_index(0), pipeline.text_index(step))


def test_last_batch_holds_the_remaining_texts(pipeline):
    kept = drawing(dataclasses.replace(pipeline, drop_last=False), with_relevance(Source(None), cider.from_captions))
    assert kept.steps_per_epoch == 5
    for epoch in (0, 1):
        batches = [kept.text_index(5 * epoch + step) for step in range(5)]
        assert [len(batch) for batch in batches] == [8, 8, 8, 8, 3]
        assert sorted(np.concatenate(batches)) == list(range(35))
    np.testing.assert_array_equal(kept.text_index(3), pipeline.text_index(3))
    whole = kept.batch(9)
    shards = [kept.batch(9, shard, 3) for shard in range(3)]
    assert whole.drawn['relevance'].shape == (3, 3)
    np.testing.assert_array_equal(whole.image_index, pipeline.split.image_of_text[kept.text_index(9)])
    joined = jax.tree.map(lambda *x: np.concatenate(x), *((s.image_index, s.drawn) for s in shards))
    chex.assert_trees_all_equal(joined, (whole.image_index, whole.drawn))


@pytest.mark.parametrize(('num_devices', 'sizes'), [(2, [8, 8, 8, 8, 2]), (4, [8, 8, 8, 8])])
def test_last_batch_is_cut_to_a_multiple_of_the_devices(pipeline, num_devices, sizes):
    kept = dataclasses.replace(pipeline, drop_last=False, num_devices=num_devices)
    assert kept.steps_per_epoch == len(sizes)
    assert [len(kept.text_index(step)) for step in range(2 * len(sizes))] == 2 * sizes
    assert dataclasses.replace(kept, drop_last=True).steps_per_epoch == 4


def test_one_pair_needs_no_equal_parts_of_the_extra_pairs(pipeline):
    batch = drawing(pipeline, shortlist_source(6, 1)).one_pair()
    assert batch.drawn == {}
    assert len(batch.image_index) == len(batch.texts.ids) == len(batch.images.regions) == 1


def test_images_belong_to_their_texts(pipeline):
    batch = pipeline.batch(1)
    texts = pipeline.text_index(1)
    np.testing.assert_array_equal(batch.image_index, pipeline.split.image_of_text[texts])
    np.testing.assert_array_equal(batch.images.regions, pipeline.split.regions[batch.image_index])
    np.testing.assert_array_equal(batch.texts.lengths, pipeline.tokens.lengths[texts])


def test_shards_are_the_rows_of_the_whole_batch_padded_alike(pipeline):
    whole = pipeline.batch(2)
    shards = [pipeline.batch(2, shard, 4) for shard in range(4)]
    np.testing.assert_array_equal(np.concatenate([s.texts.ids for s in shards]), whole.texts.ids)
    np.testing.assert_array_equal(np.concatenate([s.image_index for s in shards]), whole.image_index)


def test_relevance_is_of_a_shards_images_and_all_texts(pipeline):
    assert pipeline.batch(2).drawn == {}
    relevance = cider.from_captions(pipeline.split)
    pipeline = drawing(pipeline, with_relevance(Source(None), lambda split: relevance))
    texts = pipeline.text_index(2)
    whole = pipeline.batch(2)
    np.testing.assert_array_equal(whole.drawn['relevance'], relevance.phi(whole.image_index, texts))
    assert whole.drawn['relevance'].shape == (8, 8)
    shards = [pipeline.batch(2, shard, 4).drawn['relevance'] for shard in range(4)]
    np.testing.assert_array_equal(np.concatenate(shards), whole.drawn['relevance'])


def test_lengths_are_padded_to_few_values(pipeline):
    assert [bucket(n, 4) for n in (1, 4, 5, 8, 9)] == [4, 4, 8, 8, 12]
    assert [bucket(n, 4, 10) for n in (1, 8, 9, 10)] == [4, 8, 10, 10]
    for step in range(4):
        texts = pipeline.batch(step).texts
        assert texts.ids.shape[1] % 4 == 0
        assert texts.ids.shape[1] - texts.lengths.max() < 4
        np.testing.assert_array_equal(texts.ids != 0, np.arange(texts.ids.shape[1]) < texts.lengths[:, None])
    steps = range(pipeline.steps_per_epoch)
    assert pipeline.num_shapes == len({pipeline.batch(step).texts.ids.shape for step in steps}) > 1


@pytest.fixture(scope='module')
def profiled(pipeline):
    split = scenes.load('train', train_images=30)
    tokens = tokenize_split(split.captions, pipeline.vocabulary)
    changes = {'split': split, 'tokens': tokens, 'batch_size': 64, 'num_devices': 2, 'drop_last': False}
    return dataclasses.replace(pipeline, **changes, length_multiple=2, skips_padding=True)


def test_whole_batches_that_fit_have_a_profile_and_one_length(profiled):
    plain = dataclasses.replace(profiled, skips_padding=False)
    rows = [segment.count for segment in profiled.profile.segments]
    assert rows[0] == 32
    assert rows == sorted(rows, reverse=True)
    for step in range(6):
        batch = profiled.batch(step)
        padded = plain.batch(step)
        length = padded.texts.ids.shape[1]
        np.testing.assert_array_equal(batch.texts.ids[:, :length], padded.texts.ids)
        assert not batch.texts.ids[:, length:].any()
        jax.tree.map(np.testing.assert_array_equal, batch.replace(texts=None), padded.replace(texts=None))
        whole = len(batch.text_index) == 64
        assert whole == (step % 3 < 2)
        assert batch.texts.profile == (profiled.profile if whole else None)
    assert profiled.num_shapes == 2
    assert plain.num_shapes > 2


def test_a_short_run_pads_captions_to_fewer_lengths(profiled):
    plain = dataclasses.replace(profiled, skips_padding=False, batch_size=8, length_multiple=1)
    many = plain.num_shapes
    assert many > 4
    assert with_few_shapes(plain, many * STEPS_PER_SHAPE) is plain
    for steps in (many * STEPS_PER_SHAPE - 1, 3 * STEPS_PER_SHAPE):
        few = with_few_shapes(plain, steps)
        assert few.num_shapes * STEPS_PER_SHAPE <= steps
        for multiple in range(1, few.length_multiple):
            finer = dataclasses.replace(plain, length_multiple=multiple)
            assert finer.num_shapes * STEPS_PER_SHAPE > steps
    last = with_few_shapes(plain, 10)
    assert last.num_shapes == 2  # with the smaller last batch
    batch = last.batch(0)
    np.testing.assert_array_equal(batch.texts.lengths, plain.batch(0).texts.lengths)
    assert batch.texts.ids.shape[1] % last.length_multiple == 0
    assert with_few_shapes(profiled, 1) is profiled


def test_a_batch_with_too_many_long_captions_has_no_profile(profiled):
    lengths = profiled.tokens.lengths
    assert profiled.shape(profiled.text_index(0))[1]
    longest = np.argsort(lengths)[-64:]
    assert profiled.shape(longest) == (bucket(lengths.max(), 2), None)


def test_views_of_a_pair_are_as_many_texts_more_of_the_profile(profiled):
    augmentation = Augmentation(**{**UNCHANGED, 'num_views': 2, 'change_words': 0.2})
    changes = {'augmentation': augmentation, 'vocabulary': profiled.vocabulary.with_mask()}
    texts = dataclasses.replace(profiled, **changes).batch(0).texts
    assert len(texts.ids) == 128
    plain = profiled.batch(0).texts.profile
    assert [segment.count for segment in texts.profile.segments] == [2 * segment.count for segment in plain.segments]
    assert texts.profile.tokens == 2 * plain.tokens
    assert fits(texts.profile, texts.lengths.reshape(2, 64))


def test_the_profile_is_as_long_as_texts_that_a_source_draws(profiled):
    whole = profiled.profile.length
    index = profiled.text_index(0)
    assert profiled.shape(index, whole - 1) == profiled.shape(index) == (whole, profiled.profile)
    padded = bucket(whole + 5, 2)
    assert profiled.shape(index, whole + 5) == (padded, resize(profiled.profile, padded))
    short = dataclasses.replace(profiled, max_length=whole - 1)
    assert short.shape(index) == (whole - 1, resize(profiled.profile, whole - 1))


def test_padding_fills_with_zero(pipeline):
    texts = pad_texts(pipeline.tokens, np.array([3, 0]), 40)
    assert texts.ids.shape == (2, 40)
    for row, n in zip(texts.ids, (3, 0), strict=True):
        length = pipeline.tokens.lengths[n]
        np.testing.assert_array_equal(row[:length], pipeline.tokens.ids[pipeline.tokens.starts[n] :][:length])
        assert not row[length:].any()


def test_locations_are_corners_sizes_and_area_as_fractions(pipeline):
    box = np.array([10, 20, 60, 120], np.float32) / 200
    split = dataclasses.replace(pipeline.split, boxes=np.broadcast_to(box, pipeline.split.boxes.shape))
    locations = locations_of(split.boxes[[3, 1]])
    assert locations.dtype == np.float32
    assert locations.shape == (2, split.regions.shape[1], 7)
    want = [0.05, 0.1, 0.3, 0.6, 0.25, 0.5, 0.125]
    np.testing.assert_allclose(locations, np.broadcast_to(want, locations.shape), rtol=1e-6)


def test_batches_have_locations_if_these_are_asked_for(pipeline):
    assert pipeline.batch(1).images.locations is None
    batch = dataclasses.replace(pipeline, reads=LOCATIONS).batch(1)
    np.testing.assert_array_equal(batch.images.locations, locations_of(pipeline.split.boxes[batch.image_index]))
    np.testing.assert_array_equal(batch.images.locations[..., :4], pipeline.split.boxes[batch.image_index])


def test_other_boxes_are_other_data_where_they_are_read(pipeline):
    reading = dataclasses.replace(pipeline, reads=LOCATIONS)
    moved = dataclasses.replace(pipeline.split, boxes=pipeline.split.boxes / 2)
    assert dataclasses.replace(pipeline, split=moved).identity == pipeline.identity
    assert dataclasses.replace(reading, split=moved).identity != reading.identity


def test_a_model_that_reads_locations_is_refused_without_boxes(pipeline):
    check_images(pipeline.split, LOCATIONS)
    without = dataclasses.replace(pipeline.split, name='mine/train', boxes=None)
    check_images(without, ('regions',))
    assert take_images(without, np.array([1])).locations is None
    with pytest.raises(UserError, match=r'mine/train has no boxes, .*: add train_boxes.npy or boxes.npy to its folder'):
        check_images(without, LOCATIONS)


def with_tags(pipeline):
    """The pipeline of a split whose images have the tags '', 'red', 'red red' and so on."""
    split = dataclasses.replace(
        pipeline.split, tags=tuple(' '.join(['red'] * n) for n in range(len(pipeline.split.counts)))
    )
    tokens = tokenize_split(split.captions, pipeline.vocabulary, split.tags)
    return dataclasses.replace(pipeline, split=split, tokens=tokens, reads=('regions', 'tags'))


def test_batches_have_tags_with_an_end_and_without_a_start(pipeline):
    assert pipeline.batch(1).images.tags is None
    reading = with_tags(pipeline)
    batch = reading.batch(1)
    vocabulary = pipeline.vocabulary
    tags = batch.images.tags
    assert tags.ids.shape[1] == -(-pipeline.split.num_images // 4) * 4
    for ids, length, image in zip(tags.ids, tags.lengths, batch.image_index, strict=True):
        want = vocabulary.encode(reading.split.tags[image])[1:] if image else np.zeros(0)
        np.testing.assert_array_equal(ids[:length], want)
        assert not ids[length:].any()


def test_other_tags_are_other_data_where_they_are_read(pipeline):
    reading = with_tags(pipeline)
    other = dataclasses.replace(reading.split, tags=reading.split.tags[::-1])
    assert dataclasses.replace(reading, split=other).identity != reading.identity
    assert dataclasses.replace(reading, reads=('regions',)).identity == pipeline.identity
    with pytest.raises(UserError, match=r'mine/train has no object tags, .*: add train_tags.jsonl to its folder'):
        check_images(dataclasses.replace(pipeline.split, name='mine/train', tags=None), reading.reads)


def test_batches_have_pixels_instead_of_regions_if_these_are_read(pipeline):
    batch = dataclasses.replace(pipeline, reads=('pixels',)).batch(1)
    assert batch.images.regions is None
    np.testing.assert_array_equal(batch.images.pixels, pipeline.split.pixels[batch.image_index], strict=True)
    np.testing.assert_array_equal(batch.texts.ids, pipeline.batch(1).texts.ids)


def test_a_split_of_pixels_needs_no_features(pipeline):
    split = dataclasses.replace(pipeline.split, name='mine/train', regions=None, counts=None, boxes=None)
    assert (split.num_images, split.feature_size) == (pipeline.split.num_images, None)
    reading = dataclasses.replace(pipeline, split=split, reads=('pixels',))
    assert reading.identity['pixels'] == list(split.pixels.shape)
    other = dataclasses.replace(split, pixels=split.pixels + 1)
    assert dataclasses.replace(reading, split=other).identity != reading.identity
    with pytest.raises(UserError, match='mine/train has pixels and no region features, but the model reads regions'):
        check_images(split, ('regions',))
    with pytest.raises(UserError, match='mine/train has no pixels, but the model reads them'):
        check_images(dataclasses.replace(pipeline.split, name='mine/train', pixels=None), ('pixels',))


def test_extra_pairs_depend_on_seed_and_step_alone(pipeline):
    with_extra = drawing(pipeline, shortlist_source(6, 1))
    batch = with_extra.batch(3)
    extra, extra_index = batch.drawn['shortlist']
    np.testing.assert_array_equal(batch.texts.ids[:, :4], pipeline.batch(3).texts.ids[:, :4])
    assert extra.texts.ids.shape == (6, batch.texts.ids.shape[1])
    np.testing.assert_array_equal(extra.images.regions, pipeline.split.regions[extra_index])
    texts = {tuple(row[row > 0].tolist()) for row in extra.texts.ids}
    captions = [tuple(pipeline.vocabulary.encode(caption).tolist()) for caption in pipeline.split.captions]
    assert len(texts) == 6
    assert texts <= set(captions)
    parts = [with_extra.batch(3, shard, 2) for shard in range(2)]
    np.testing.assert_array_equal(np.concatenate([part.drawn['shortlist'][1] for part in parts]), extra_index)
    assert not np.array_equal(with_extra.batch(4).drawn['shortlist'][1], extra_index)


def test_extra_pairs_are_not_in_the_batch(pipeline):
    texts = pipeline.split.num_texts
    rows = pipeline.text_index(3)
    sampler = drawing(pipeline, shortlist_source(texts - len(rows), 1)).samplers['shortlist']
    extra, _ = sampler.pick(3, rows)
    np.testing.assert_array_equal(np.sort(np.concatenate([rows, extra])), np.arange(texts))


def test_a_mismatched_pair_has_one_side_of_another_image(pipeline):
    sampling = drawing(pipeline, sampled())
    split = pipeline.split
    captions = [tuple(pipeline.vocabulary.encode(caption).tolist()) for caption in split.captions]
    replaced = []
    others = []
    for step in range(2 * sampling.steps_per_epoch):
        batch = sampling.batch(step)
        mismatched, text_replaced = batch.drawn['sampled']
        np.testing.assert_array_equal(batch.image_index, pipeline.batch(step).image_index)
        for n, image in enumerate(batch.image_index):
            words = mismatched.texts.ids[n]
            length = mismatched.texts.lengths[n]
            same_text = np.array_equal(words[:length], batch.texts.ids[n, : batch.texts.lengths[n]])
            same_image = np.array_equal(mismatched.images.regions[n], split.regions[image])
            assert (same_image, same_text) == (text_replaced[n], not text_replaced[n])
            if same_image:
                assert captions.index(tuple(words[:length].tolist())) not in np.flatnonzero(
                    split.image_of_text == image
                )
            else:
                features = mismatched.images.regions[n]
                others.append(next(i for i in range(split.num_images) if np.array_equal(split.regions[i], features)))
            replaced.append(text_replaced[n])
    assert 0.3 < np.mean(replaced) < 0.7
    assert len(set(others)) > split.num_images / 2
    whole = sampling.batch(3)
    parts = [sampling.batch(3, shard, 2) for shard in range(2)]
    joined = jax.tree.map(lambda *x: np.concatenate(x), *(part.drawn['sampled'] for part in parts))
    chex.assert_trees_all_equal(joined, whole.drawn['sampled'])


def test_batch_has_masked_captions_and_words_of_images(pipeline):
    split = pipeline.split
    vocabulary = pipeline.vocabulary.with_mask()
    source = mask_captions(masking.Masking(num_views=3, rate=0.15, mask_prob=0.8, random_prob=0.1), {})
    plain = dataclasses.replace(pipeline, vocabulary=vocabulary)
    made = drawing(dataclasses.replace(plain, load_scene_graphs=lambda split: split.caption_graphs), source)
    batch = made.batch(2)
    texts = pipeline.text_index(2)
    masked, words = batch.drawn['masked']
    assert masked.ids.shape == (8, 3, batch.texts.ids.shape[1])
    shown = np.where(masked.labelled, batch.texts.ids[:, None], masked.ids)
    np.testing.assert_array_equal(shown, np.repeat(batch.texts.ids[:, None], 3, axis=1))
    for row, text in zip(words, texts, strict=True):
        siblings = np.flatnonzero(split.image_of_text == split.image_of_text[text])
        want = np.concatenate([vocabulary.encode(split.captions[sibling]) for sibling in siblings])
        assert set(row.tolist()) - {-1} == set(want.tolist())
    parts = [made.batch(2, shard, 2).drawn['masked'][0] for shard in range(2)]
    np.testing.assert_array_equal(np.concatenate([part.ids for part in parts]), masked.ids)
    assert drawing(plain, source).identity != made.identity


def test_perturbed_captions_are_false_and_a_function_of_the_step(pipeline):
    split = pipeline.split
    vocabulary = pipeline.vocabulary
    source = candidates_source({'source': 'perturbed', 'same_image': 'ignored', 'perturbations': ('swap',)})
    made = drawing(pipeline, source)
    seen = set()
    for step in range(8):  # two epochs
        batch = made.batch(step)
        again = drawing(pipeline, source).batch(step)
        chex.assert_trees_all_equal(batch, again)
        chex.assert_trees_all_equal(batch.texts.lengths, pipeline.batch(step).texts.lengths)
        captions, is_perturbed = batch.drawn['perturbed']
        assert captions.ids.shape == batch.texts.ids.shape
        for n, text in enumerate(batch.text_index):
            ids = tuple(captions.ids[n, : captions.lengths[n]])
            swaps = {tuple(vocabulary.encode(swap.caption)) for swap in split.swaps[text]}
            assert (ids in swaps) == is_perturbed[n] == bool(swaps)
            seen.add((text, ids))
        parts = [made.batch(step, shard, 4) for shard in range(4)]
        whole = jax.tree.map(lambda *x: np.concatenate(x), *[part.drawn['perturbed'] for part in parts])
        chex.assert_trees_all_equal(whole, batch.drawn['perturbed'])
    assert len(seen) > len({text for text, _ in seen})  # another one in another epoch
    other = drawing(dataclasses.replace(pipeline, seed=4), source)
    ids = [pipeline.batch(0).drawn['perturbed'][0].ids for pipeline in (other, made)]
    assert not np.array_equal(*ids)


def test_captions_without_perturbed_ones_stand_for_themselves(pipeline):
    """Nothing to change, the same words to the model, and a caption longer than the model reads."""
    changed = {0: [], 1: [pipeline.split.captions[1].upper()], 2: ['a red ring ' * 20]}
    kinds = lambda text: changed.get(text % 4, ['a red ring']), lambda text: []
    pipeline = dataclasses.replace(pipeline, max_length=40, batch_size=35)
    made = {'perturbed': perturbed.sampler(pipeline, kinds, '')}
    batch = dataclasses.replace(pipeline, samplers=made).batch(0)
    captions, is_perturbed = batch.drawn['perturbed']
    for n, text in enumerate(batch.text_index):
        assert is_perturbed[n] == (text % 4 in (1, 3) and text != 1)
        if not is_perturbed[n]:
            np.testing.assert_array_equal(captions.ids[n], batch.texts.ids[n])


def test_kinds_of_perturbed_captions_are_sampled_alike(pipeline):
    kinds = lambda text: ['red'], lambda text: ['blue'] * 99, lambda text: []
    sampler = perturbed.sampler(pipeline, kinds, '')
    drawn = [tuple(sampler.pick(step, np.array([0]))[0][0].ids) for step in range(400)]
    assert {*drawn} == {tuple(pipeline.vocabulary.encode(word)) for word in ('red', 'blue')}
    assert abs(drawn.count(drawn[0]) - 200) < 60
