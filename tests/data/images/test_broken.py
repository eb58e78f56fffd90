"""Photos that cannot be decoded: found at the start or in the batch that reads them, and left out or an error."""

import dataclasses
import logging
import os
import tarfile

import numpy as np
import pytest

from jitm.data import scenes
from jitm.data.images import photos, pixels, shards
from jitm.data.strings import Strings
from jitm.errors import UserError
from jitm.training import loop
from tests.support.photos import make_pipeline
from tests.support.runs import make_config

BROKEN = 3  # the image that cannot be decoded


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


@pytest.fixture(params=['files', 'shards'])
def root(tmp_path, request):
    """Six photos in train and three in dev, with five captions each; one of train and one of dev are damaged."""
    for name, images in (('train', 6), ('dev', 3)):
        split = scenes.load(name, **{f'{name}_images': images})
        photos.write(split, tmp_path)
        folder = tmp_path / name
        damaged = folder / f'{split.image_ids[min(BROKEN, images - 1)]}.png'
        damaged.write_bytes(damaged.read_bytes()[:200])
        if request.param == 'shards':
            pack(split, folder)
    return tmp_path


def pack(split, folder, number=0):
    """Moves the photos of a folder into an archive, with their captions."""
    with tarfile.open(folder / f'{number:05}.tar', 'w') as archive:
        for image, name in enumerate(split.image_ids):
            text = folder / f'{name}.txt'
            text.write_text('\n'.join(split.captions_of(image)))
            for file in (folder / f'{name}.png', text):
                archive.add(file, file.name)
                file.unlink()
    (folder / 'metadata.jsonl').unlink()


def load(root, split='train', **changes):
    return photos.load(split, root=str(root), image_size=16, short_side=20, **changes)


def test_a_broken_photo_is_an_error_at_the_start(root):
    with pytest.raises(UserError, match=r'train-000003\.png is'):
        load(root)


def test_photos_of_train_are_decoded_in_batches_only(root, monkeypatch):
    monkeypatch.setattr(pixels, 'check_image', lambda path: pytest.fail(f'{path} is decoded'))
    monkeypatch.setattr(pixels, 'decode', lambda path, *rest: pytest.fail(f'{path} is decoded'))
    for broken in ('stop', 'skip'):
        assert load(root, broken=broken).identity['content']


def test_a_broken_photo_stops_the_batch_that_reads_it(root):
    pipeline = make_pipeline(load(root, broken='stop'), 10)
    with pytest.raises(UserError, match=r'train-000003\.png is'):
        [*map(pipeline.batch, range(pipeline.steps_per_epoch))]


@pytest.mark.parametrize('crop', ['centre', 'random'])
def test_a_pair_with_a_broken_photo_is_replaced(root, crop, caplog):
    pipeline = make_pipeline(load(root, broken='skip', crop=crop), 10)
    again = make_pipeline(load(root, broken='skip', crop=crop), 10)
    replaced = 0
    for step in reversed(range(2 * pipeline.steps_per_epoch)):  # a batch does not depend on those before
        batch = pipeline.batch(step)
        rows = pipeline.text_index(step)
        whole = pipeline.split.image_of_text[rows] != BROKEN
        replaced += np.sum(~whole)
        np.testing.assert_array_equal(batch.text_index[whole], rows[whole])
        assert BROKEN not in batch.image_index
        np.testing.assert_array_equal(batch.image_index, pipeline.split.image_of_text[batch.text_index])
        np.testing.assert_array_equal(batch.texts.lengths, pipeline.tokens.lengths[batch.text_index])
        assert (batch.texts.lengths <= pipeline.tokens.lengths[rows]).all()
        halves = [again.batch(step, shard, 2) for shard in (0, 1)]
        for name in ('text_index', 'images.pixels'):
            parts = [_get(half, name) for half in halves]
            np.testing.assert_array_equal(np.concatenate(parts), _get(batch, name))
    assert replaced == 10
    warnings = [message for message in caplog.messages if 'left out' in message]
    assert len(warnings) == 2  # once for each pipeline
    assert warnings[0].startswith('broken photos that are left out so far: 1, the last one: ')


def _get(batch, name):
    for field in name.split('.'):
        batch = getattr(batch, field)
    return batch


def test_a_run_stops_if_most_photos_are_broken(root):
    pipeline = make_pipeline(load(root, broken='skip'), 10)
    files = [pipeline.split.pixels.files[BROKEN]] * 6
    split = dataclasses.replace(pipeline.split, pixels=dataclasses.replace(pipeline.split.pixels, files=files))
    with pytest.raises(UserError, match=r'train-000003\.png is'):
        dataclasses.replace(pipeline, split=split).batch(0)


def test_broken_photos_of_other_splits_are_left_out_at_the_start(root, caplog):
    for broken in ('check', 'stop'):
        with pytest.raises(UserError, match=r'dev-000002\.png is'):
            load(root, 'dev', broken=broken)
    split = load(root, 'dev', broken='skip')
    assert (split.num_images, split.num_texts, split.pixels[:].shape) == (2, 10, (2, 16, 16, 3))
    assert '1 of 3 photos are broken and are left out' in caplog.messages


def test_the_count_of_broken_photos_is_logged_when_it_doubles(root, caplog):
    split = load(root, broken='skip')
    with caplog.at_level(logging.WARNING):
        for number in (0, 1, 1, 2, 3, 4):
            split.pixels.leave_out([UserError(f'{number}.png is empty')])
    assert [int(message.partition(': ')[2].partition(',')[0]) for message in caplog.messages] == [1, 2, 4]


def test_sources_that_sample_for_each_pair_need_whole_photos(root, tmp_path):
    config = make_config(root, broken='skip')
    config['candidates'] = {'source': 'shortlist', 'num_extra': 2, 'num_hard': 1}
    with pytest.raises(UserError, match=r"'data.broken' is 'skip', but shortlist of the pairs .*: set it to 'stop'"):
        loop.train_and_evaluate(config, tmp_path / 'run')
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('root', ['shards'], indirect=True)
def test_a_shard_is_read_until_it_changes(root, monkeypatch):
    opened = []
    read = shards._read
    monkeypatch.setattr(shards, '_read', lambda path: opened.append(path.parent.name) or read(path))
    first = load(root, broken='skip')
    assert load(root, broken='skip').identity == first.identity
    assert opened == ['train']
    with tarfile.open(root / 'train' / '00000.tar', 'a') as archive:
        archive.addfile(tarfile.TarInfo('last.png'))
    load(root, broken='skip')
    assert opened == ['train', 'train']


@pytest.mark.parametrize('max_captions', [None, 2])
def test_captions_in_shards_are_memory_mapped(tmp_path, max_captions):
    for number, images in enumerate((2, 3)):
        part = scenes.load('train', train_images=images)
        photos.write(part, tmp_path)
        pack(part, tmp_path / 'train', number)
    whole = load(tmp_path, max_captions=max_captions)
    open_files = len(os.listdir('/dev/fd'))
    for _ in range(2):  # read, and read again from the cache
        lazy = load(tmp_path, broken='stop', max_captions=max_captions)
        assert len(os.listdir('/dev/fd')) == open_files  # there may be more shards than files may be open
        assert isinstance(lazy.captions, Strings)
        assert lazy.captions_hash == whole.captions_hash
        assert (*lazy.captions,) == whole.captions
        assert lazy.captions[-3:] == [*whole.captions[-3:]]
        np.testing.assert_array_equal(lazy.pixels[:], whole.pixels[:])
        part, same = (split.take(np.array([4, 1])) for split in (lazy, whole))
        assert (part.names, (*part.captions,)) == (same.names, same.captions)
        np.testing.assert_array_equal(part.pixels[:], same.pixels[:])
