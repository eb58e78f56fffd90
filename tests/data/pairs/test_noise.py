"""Training captions that stand at other images."""

import dataclasses
import hashlib
import io
import logging

import jax
import numpy as np
import pytest

from jitm.data import scenes
from jitm.data.load import load_split
from jitm.data.pairs import noise
from jitm.errors import UserError
from jitm.training import diagnostics, setup
from jitm.training.loop import train_and_evaluate
from jitm.types import Ranking
from tests.support.steps import make_terms

SCENES = {'source': 'scenes.load', 'train_images': 12, 'dev_images': 4}


@pytest.fixture
def split():
    return scenes.load('train', train_images=12)


def five_captions(images: int):
    """A split of Flickr30K's shape, whose captions and features do not count."""
    rows = np.arange(5 * images) // 5
    split = scenes.load('train', train_images=1)
    return dataclasses.replace(
        split,
        regions=np.broadcast_to(split.regions, (images, *split.regions.shape[1:])),
        captions=('',) * len(rows),
        image_of_text=rows.astype(np.int32),
        image_ids=tuple(map(str, range(images))),
    )


@pytest.mark.parametrize(('rate', 'seed', 'digest'), [(0.2, 96, 'cdd8b019e69d'), (0.5, 34, '3633f6ff0425')])
def test_the_recipe_gives_the_published_files_of_flickr30k(rate, seed, digest):
    mixed = noise.mix(five_captions(29_000), noise_rate=rate, noise_seed=seed)
    file = io.BytesIO()
    np.save(file, mixed.image_of_text.astype(np.int64))
    assert hashlib.sha256(file.getvalue()).hexdigest().startswith(digest)
    np.testing.assert_array_equal(np.bincount(mixed.image_of_text), 5)


@pytest.mark.parametrize('of', noise.MOVED)
def test_a_share_is_moved(of):
    split = five_captions(1000)
    mixed = noise.mix(split, noise_rate=0.4, noise_seed=3, noise_of=of)
    assert mixed.clean.mean() == pytest.approx(0.6, abs=0.005)
    np.testing.assert_array_equal(mixed.original_image_of_text, split.image_of_text)
    together = mixed.image_of_text.reshape(-1, 5)
    assert (together == together[:, :1]).all() == (of == 'images')
    how = {'images': 'all captions of an image together', 'captions': 'captions one by one'}[of]
    assert f'noise that moved {how}: ' in noise.describe(mixed)
    assert f'{100 - 100 * mixed.clean.mean():.2f} % of the pairs are wrong' in noise.describe(mixed)
    again = noise.mix(split, noise_rate=0.4, noise_seed=3, noise_of=of)
    np.testing.assert_array_equal(mixed.image_of_text, again.image_of_text)


def test_both_kinds_of_files_are_read(split, tmp_path):
    of_images = np.roll(np.arange(12), 1)
    of_captions = noise.mix(split, noise_rate=0.5, noise_seed=1).image_of_text
    for array, expected in (
        (of_images, of_images[split.image_of_text]),
        (of_images[split.image_of_text], of_images[split.image_of_text]),  # L2RM's form: by caption, of images
        (of_captions, of_captions),
    ):
        np.save(tmp_path / 'noise.npy', array.astype(np.int64))
        np.testing.assert_array_equal(noise.read(split, noise_file=str(tmp_path / 'noise.npy')).image_of_text, expected)


@pytest.mark.parametrize(
    ('array', 'message'),
    [
        (
            np.zeros(7, np.int64),
            r'has shape \(7,\): it needs the image of each caption of .*, shape \(60,\) or \(12,\)',
        ),
        (np.full(12, 12), 'numbers from 12 to 12: it needs the image of .*, 0 to 11'),
        (np.zeros(12, np.int64), 'gives image 1 no caption: every image needs one'),
        (np.zeros(12), 'has dtype float64'),
    ],
)
def test_files_of_other_data_stop_with_an_error(array, message, split, tmp_path):
    np.save(tmp_path / 'noise.npy', array)
    with pytest.raises(UserError, match=message):
        noise.read(split, noise_file=str(tmp_path / 'noise.npy'))


@pytest.mark.parametrize(
    ('keys', 'message'),
    [
        ({'noise_rate': 0}, "config key 'data.noise_rate' is 0; it must be above 0"),
        ({'noise_rate': 1.5}, "config key 'data.noise_rate' is 1.5; it must be .*at most 1"),
        ({'noise_seed': 3}, "config key 'data.noise_rate' is missing"),
        ({'noise_rate': 0.5, 'noise_of': 'regions'}, "config key 'data.noise_of' is 'regions'"),
        ({'noise_rate': 0.5, 'noise_file': 'a.npy'}, "'data.noise_rate' and 'data.noise_file' both name a noise"),
        ({'noise_dropped': True}, "config key 'data.noise_dropped' is True without noise: set data.noise_rate"),
        ({'noise_file': 'missing.npy'}, 'missing.npy cannot be read'),
    ],
)
def test_wrong_keys_stop_with_an_error(keys, message):
    with pytest.raises(UserError, match=message):
        load_split(SCENES | keys, 'train', noisy=True)


def test_mixed_pairs_are_dropped():
    noisy = SCENES | {'noise_rate': 0.5}
    mixed = load_split(noisy, 'train', noisy=True)
    kept = load_split(noisy | {'noise_dropped': True}, 'train', noisy=True)
    assert noise.describe(kept).endswith(f'has noise, but no mixed pair is left: its {kept.num_texts} pairs are clean')
    assert kept.clean.all()
    rows = np.flatnonzero(mixed.clean)
    assert kept.captions == tuple(mixed.captions[row] for row in rows)
    np.testing.assert_array_equal(kept.image_of_text, mixed.original_image_of_text[rows])
    assert kept.num_images == mixed.num_images
    assert kept.caption_graphs == tuple(mixed.caption_graphs[row] for row in rows)
    assert kept.swaps == tuple(mixed.swaps[row] for row in rows)


def test_evaluation_never_sees_it():
    noisy = SCENES | {'noise_rate': 0.5}
    assert load_split(noisy, 'train', noisy=True).clean.mean() < 1
    for name in ('train', 'dev'):
        assert load_split(noisy, name).clean is None
        np.testing.assert_array_equal(load_split(noisy, name).image_of_text, load_split(SCENES, name).image_of_text)
    assert load_split(noisy, 'dev', noisy=True).clean is None


@pytest.mark.slow
def test_a_run_records_the_mixed_pairs(tiny_config, tmp_path, caplog):
    tiny_config['data'] |= {'noise_rate': 0.5}
    tiny_config['epochs'] = 1
    with caplog.at_level(logging.WARNING):
        train_and_evaluate(tiny_config, tmp_path / 'run')
    assert 'has noise that moved captions one by one' in caplog.text
    pipeline = setup.set_up(tiny_config).pipeline
    written = np.load(tmp_path / 'run' / 'noise.npy')
    np.testing.assert_array_equal(written, pipeline.split.image_of_text)
    batch = pipeline.batch(2)
    np.testing.assert_array_equal(batch.clean, pipeline.split.clean[pipeline.text_index(2)])
    np.testing.assert_array_equal(batch.image_index, written[pipeline.text_index(2)])
    read = load_split(tiny_config['data'] | {'noise_rate': 0.5}, 'train', noisy=True)
    np.testing.assert_array_equal(read.image_of_text, written)


@pytest.mark.slow
def test_diagnostics_of_noise():
    scores = np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32)
    clean = np.array([True, False, True, True, False])
    section = {'loss': 'ranking.sum_of_hinges', 'margin': 0.2, 'weight': 1.0, 'reduction': 'sum', 'start_epoch': 0}
    terms = make_terms({'ranking': section | {'end_epoch': None}})
    mask = np.eye(5, dtype=bool)
    rankings = {way: Ranking(s, mask, ~mask) for way, s in (('i2t', scores), ('t2i', np.ascontiguousarray(scores.T)))}
    found = jax.jit(lambda: diagnostics.noise_metrics(rankings, terms, 0, clean))()
    for way, ranking in rankings.items():
        # The gradient of a hinge at the score of the pair is minus the number of active negatives.
        costs = 0.2 + ranking.scores > np.diagonal(ranking.scores)[:, None]
        active = np.sum(costs & ~mask, axis=1)
        assert found[f'noise/{way}/gradient'] == pytest.approx(active[~clean].sum() / active.sum())
        own = np.diagonal(scores)
        wins = own[clean][:, None] > own[~clean]
        assert found[f'noise/{way}/separation'] == pytest.approx(wins.mean())
    found = diagnostics.noise_metrics(rankings, terms, 0, np.ones(5, bool))
    assert found['noise/i2t/separation'] == 0.5
    assert found['noise/i2t/gradient'] == 0


@pytest.mark.parametrize(
    ('data', 'name'),
    [
        ({}, ''),
        ({'noise_rate': 0.2}, '20 % of captions mixed'),
        ({'noise_rate': 0.6, 'noise_of': 'images', 'noise_seed': 3}, '60 % of images mixed'),
        ({'noise_rate': 0.125}, '12.5 % of captions mixed'),
        ({'noise_file': 'data/noise_inx_0.4.npy'}, 'the noise of data/noise_inx_0.4.npy'),
    ],
)
def test_name_of_the_noise_of_a_config(data, name):
    assert noise.name({'source': 'precomp.load'} | data) == name
