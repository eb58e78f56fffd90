"""Tests of folders of image files: the formats of captions, crops in batches, and what is refused at the start."""

import csv
import dataclasses
import itertools
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tarfile

import numpy as np
import pytest
from PIL import Image

from jitm.data import scenes
from jitm.data.images import photos, pixels
from jitm.data.images.caption_files import captions_in
from jitm.data.images.pixels import Photos
from jitm.data.images.transforms import check_image
from jitm.errors import UserError
from tests.conftest import environment
from tests.support.photos import make_pipeline
from tests.support.steps import drawing, shortlist_source

SIZES = {'image_size': 16, 'short_side': 20}
CAPTIONS = {'b.png': ['a dog', 'two dogs, running'], 'a.png': ['a "red" cat']}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


@pytest.fixture
def root(tmp_path):
    """A folder of 6 pictures in train and 3 in dev, with five captions each."""
    folder = tmp_path / 'drawn'
    for name, images in (('train', 6), ('dev', 3)):
        photos.write(scenes.load(name, **{f'{name}_images': images}), folder)
    return folder


def load(root, split='train', **changes):
    return photos.load(split, root=str(root), **SIZES | changes)


def test_written_scenes_are_read_back(root):
    (root / 'dataset.txt').write_text('coco\n')
    split = load(root, 'dev', image_size=64, short_side=64)
    written = scenes.load('dev', dev_images=3)
    assert (split.name, split.dataset) == ('drawn/dev', 'coco')
    assert split.captions == written.captions
    np.testing.assert_array_equal(split.image_of_text, written.image_of_text, strict=True)
    np.testing.assert_array_equal(split.pixels[np.arange(3)], written.pixels, strict=True)
    assert split.image_ids == tuple(f'{name}.png' for name in written.image_ids)
    assert (split.regions, split.counts, split.num_images) == (None, None, 3)


def test_only_its_own_photos_are_replaced(root):
    photos.write(scenes.load('dev', dev_images=2), root)
    assert len(list((root / 'dev').glob('*.png'))) == 2
    (root / 'test').mkdir()
    (root / 'test' / 'test-000000.png').write_bytes(b'mine')
    with pytest.raises(UserError, match='test is not empty and is not a set of photos of jitm'):
        photos.write(scenes.load('test', test_images=2), root)
    assert [path.read_bytes() for path in (root / 'test').iterdir()] == [b'mine']


def test_photos_are_indexed_like_an_array(root):
    pixels = load(root).pixels
    assert (pixels.shape, pixels.dtype, len(pixels)) == ((6, 16, 16, 3), np.uint8, 6)
    whole = pixels[:]
    for index in (2, slice(1, 3), [4, 0], np.array([5, 5])):
        np.testing.assert_array_equal(pixels[index], whole[index], strict=True)
    assert pixels.crops(np.array([1, 2])).shape == (2, 10, 16, 16, 3)
    np.testing.assert_array_equal(pixels.crops(np.array([1]))[0, 4], whole[1])


def test_a_batch_is_a_function_of_seed_and_step(root):
    pipeline = make_pipeline(load(root), 8)
    again = make_pipeline(load(root), 8)
    first = pipeline.batch(1)
    np.testing.assert_array_equal(again.batch(1).images.pixels, first.images.pixels, strict=True)
    assert first.images.pixels.shape == (8, 16, 16, 3)
    assert first.images.regions is None
    halves = [pipeline.batch(1, shard, 2).images.pixels for shard in (0, 1)]
    np.testing.assert_array_equal(np.concatenate(halves), first.images.pixels)
    other_seed = dataclasses.replace(pipeline, seed=4).batch(1)
    assert not np.array_equal(other_seed.images.pixels, first.images.pixels)


def test_crops_differ_between_steps_and_between_captions_of_an_image(root):
    pipeline = make_pipeline(load(root), 8)
    seen = {}
    for step in range(2 * pipeline.steps_per_epoch):
        batch = pipeline.batch(step)
        for image, crop in zip(batch.image_index, batch.images.pixels, strict=True):
            seen.setdefault(int(image), []).append(crop.tobytes())
    for crops in seen.values():
        assert len(crops) > 5
        assert len(set(crops)) == len(crops)


def test_centre_crops_are_those_of_evaluation(root):
    pipeline = make_pipeline(load(root, crop='centre', flip=False), 8)
    batch = pipeline.batch(0)
    np.testing.assert_array_equal(batch.images.pixels, pipeline.split.pixels[batch.image_index], strict=True)


def test_extra_pairs_are_cropped_too(root):
    pipeline = drawing(make_pipeline(load(root), 8), shortlist_source(3, 1))
    (extra, index), (again, _) = (pipeline.batch(2).drawn['shortlist'] for _ in range(2))
    np.testing.assert_array_equal(again.images.pixels, extra.images.pixels)
    assert not np.array_equal(extra.images.pixels, pipeline.split.pixels[index])


def draw(folder, names=CAPTIONS):
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        Image.new('RGB', (30, 30), (50 * number, 0, 0)).save(folder / name)


def each_caption():
    for name, captions in CAPTIONS.items():
        yield from ((name, caption) for caption in captions)


def jsonl(root):
    draw(root / 'train')
    rows = [{'file_name': name, 'captions': captions} for name, captions in CAPTIONS.items()]
    (root / 'train' / 'metadata.jsonl').write_text('\n'.join(map(json.dumps, rows)) + '\n')


def jsonl_of_single_captions(root):
    draw(root / 'train')
    rows = [{'file_name': name, 'text': caption} for name, caption in each_caption()]
    (root / 'train' / 'metadata.jsonl').write_text('\n'.join(map(json.dumps, rows)))


def numbered_csv(root):
    draw(root / 'train')
    lines = ['file_name,caption_0,caption_1', 'b.png,a dog,"two dogs, running"', 'a.png,"a ""red"" cat",']
    (root / 'train' / 'metadata.csv').write_text('\r\n'.join(lines))


def kaggle(root):
    draw(root / 'Images', {**CAPTIONS, 'c.png': []})
    lines = ['image,caption', 'b.png,a dog', 'b.png,"two dogs, running"', 'c.png,not of train', 'a.png,a "red" cat']
    (root / 'captions.txt').write_text('\n'.join(lines) + '\n')
    (root / 'train.txt').write_text('a.png\nb.png\n')


def token(root):
    draw(root / 'Flicker8k_Dataset')
    lines = ['b.png#0\ta dog', 'b.png#1\ttwo dogs, running', 'c.png#0\tnot of train', 'a.png#0\ta "red" cat']
    (root / 'Flickr8k.token.txt').write_text('\n'.join(lines) + '\n')
    (root / 'Flickr8k.lemma.token.txt').write_text('b.png#0\ta dog be run .\na.png#0\ta cat be red .\n')
    (root / 'Flickr_8k.trainImages.txt').write_text('b.png\na.png\n')


def coco(root):
    draw(root / 'train2017')
    (root / 'annotations').mkdir()
    tree = {'images': [{'id': 3, 'file_name': 'b.png'}, {'id': 7, 'file_name': 'a.png'}], 'annotations': []}
    for image, caption in ((3, 'a dog'), (7, 'a "red" cat'), (3, 'two dogs, running')):
        tree['annotations'].append({'image_id': image, 'caption': caption})
    (root / 'annotations' / 'captions_train2017.json').write_text(json.dumps(tree))


def karpathy(root):
    draw(root / 'train2014', ['b.png'])
    draw(root / 'val2014', ['a.png', 'c.png'])
    rows = (('train2014', 'b.png', 'train'), ('val2014', 'a.png', 'restval'), ('val2014', 'c.png', 'val'))
    images = []
    for folder, name, split in rows:
        sentences = [{'raw': caption} for caption in CAPTIONS.get(name, ['other', 'captions'])]
        images.append({'filepath': folder, 'filename': name, 'split': split, 'sentences': sentences})
    (root / 'dataset_coco.json').write_text(json.dumps({'images': images}))


def list_of_captions(root):
    """The form of BLIP's coco_karpathy_train.json: an entry per caption, or a list."""
    draw(root / 'images')
    rows = [{'image': 'images/b.png', 'caption': one, 'image_id': 7} for one in CAPTIONS['b.png']]
    rows.append({'image': 'images/a.png', 'caption': CAPTIONS['a.png']})
    (root / 'coco_karpathy_train.json').write_text(json.dumps(rows))
    (root / 'coco_karpathy_test.json').write_text('\n'.join(map(json.dumps, rows[:1] * 2)))
    assert load(root, 'test').captions == ('a dog', 'a dog')


def karpathy_as_coco(root):
    """The form of CLIP_benchmark's coco_test_karpathy.json."""
    coco(root)
    (root / 'annotations' / 'captions_train2017.json').rename(root / 'coco_train_karpathy.json')


def annotated_csv(root):
    """The form of Flickr30k on the Hub: lists of captions in JSON, and a column of splits."""
    draw(root / 'images', {**CAPTIONS, 'c.png': []})
    with (root / 'annotations.csv').open('w', newline='') as file:
        rows = [[json.dumps(one), 'train', name, 3] for name, one in CAPTIONS.items()]
        csv.writer(file).writerows([['raw', 'split', 'filename', 'img_id'], *rows, ['["a"]', 'test', 'c.png', 4]])


def texts_beside(root):
    """The files of img2dataset."""
    for number, (name, captions) in enumerate(CAPTIONS.items()):
        folder = root / 'train' / f'{number:05}'
        draw(folder, [name])
        (root / 'train' / f'{number:05}_stats.json').write_text('{"count": 2}')
        (folder / name).with_suffix('.txt').write_text('\r\n'.join(captions) + '\n')
        (folder / name).with_suffix('.json').write_text('{"caption": "not read"}')
    draw(root / 'train', ['without.png'])


def shards(root):
    draw(root / 'all', [*CAPTIONS, 'without.png'])
    for number, name in enumerate(CAPTIONS):
        (root / 'all' / name).with_suffix('.json').write_text(json.dumps({'caption': CAPTIONS[name], 'key': name}))
        with tarfile.open(root / f'train-{number:05}.tar', 'w') as archive:
            for file in [*sorted((root / 'all').glob(f'{name[0]}.*')), root / 'all' / 'without.png']:
                archive.add(file, f'./{file.name}')
    with tarfile.open(root / 'val-00000.tar', 'w'):
        pass
    shutil.rmtree(root / 'all')


FORMATS = [jsonl, jsonl_of_single_captions, numbered_csv, kaggle, token, coco, karpathy, list_of_captions]
FORMATS += [karpathy_as_coco, annotated_csv, texts_beside, shards]


@pytest.mark.parametrize('write', FORMATS)
def test_every_format_gives_the_same_images_and_captions(write, tmp_path):
    root = tmp_path / 'mine'
    write(root)
    split = load(root)
    names = [os.path.basename(name).lower() for name in split.image_ids]
    assert names == ['b.png', 'a.png']
    assert split.captions == (*CAPTIONS['b.png'], *CAPTIONS['a.png'])
    assert split.image_of_text.tolist() == [0, 0, 1]
    assert load(root, max_captions=1).captions == ('a dog', 'a "red" cat')


def test_numbered_captions_are_in_the_order_of_their_numbers(tmp_path):
    draw(tmp_path / 'train', ['a.png'])
    header = ','.join(['caption_10', 'file_name', *(f'caption_{n}' for n in range(10))])
    row = ','.join(['dog 10', 'a.png', *(f'dog {n}' for n in range(10))])
    (tmp_path / 'train' / 'metadata.csv').write_text(f'{header}\n{row}\n')
    assert load(tmp_path).captions == tuple(f'dog {n}' for n in range(11))
    assert load(tmp_path, max_captions=3).captions == ('dog 0', 'dog 1', 'dog 2')


LISTS = {
    "['red', 'blue']": ('red', 'blue'),
    "[\"it's red\", 'blue, green']": ("it's red", 'blue, green'),
    ' ( \'red\', "blue" ) ': ('red', 'blue'),
    '[ "red", "blue" ]': ('red', 'blue'),
    '["\\ud83d\\ude00", "a\\/b"]': ('\N{GRINNING FACE}', 'a/b'),
    '(a dog)': ('(a dog)',),
}


@pytest.mark.parametrize('name', ['metadata.csv', 'metadata.jsonl'])
@pytest.mark.parametrize('text', LISTS)
def test_lists_in_a_text(text, name, tmp_path):
    draw(tmp_path / 'train', ['a.png'])
    with (tmp_path / 'train' / name).open('w', newline='') as file:
        if name.endswith('.csv'):
            csv.writer(file).writerows([['file_name', 'caption'], ['a.png', text]])
        else:
            json.dump({'file_name': 'a.png', 'caption': text}, file)
    assert load(tmp_path).captions == LISTS[text]


def test_lists_without_commas(tmp_path):
    with pytest.raises(UserError, match='without commas between them: write it as JSON'):
        captions_in({'caption': "['a dog' 'two dogs']"}, 'x')


def test_splits_of_docci_are_its_own(tmp_path):
    names = ('train', 'test', 'qual_dev')
    draw(tmp_path / 'images', [f'{split}_00000.jpg' for split in names])
    rows = [{'split': split, 'image_file': f'{split}_00000.jpg', 'description': f'A {split} photo.'} for split in names]
    (tmp_path / 'docci_descriptions.jsonlines').write_text('\n'.join(map(json.dumps, rows)) + '\n')
    (tmp_path / 'docci_metadata.jsonlines').write_text(json.dumps({'example_id': 'test', 'split': 'test'}) + '\n')
    for split in names:
        loaded = load(tmp_path, split)
        assert (loaded.image_ids, loaded.captions) == ((f'{split}_00000.jpg',), (f'A {split} photo.',))


@pytest.mark.parametrize('name', ['val', 'valid', 'validation'])
def test_other_names_of_dev(name, root):
    (root / 'dev').rename(root / name)
    assert load(root, 'dev').captions == load(root, name).captions
    two = load(root, name, dev_images=2)
    assert (two.num_images, two.num_texts, load(root, dev_images=2).num_images) == (2, 10, 6)


def test_the_folder_of_dev_that_was_asked_for_is_read(root):
    shutil.copytree(root / 'train', root / 'val')
    assert load(root, 'dev').num_images == 3
    assert load(root, 'val').num_images == 6


def test_coco_file_of_validation_is_found_once(tmp_path):
    coco(tmp_path)
    (tmp_path / 'annotations' / 'captions_train2017.json').rename(tmp_path / 'captions_validation.json')
    assert (
        load(tmp_path, 'dev').captions == load(tmp_path, 'validation').captions == (*CAPTIONS['b.png'], 'a "red" cat')
    )


def test_lemmatized_captions_are_read_if_there_are_no_others(tmp_path):
    token(tmp_path)
    (tmp_path / 'Flickr8k.token.txt').unlink()
    assert load(tmp_path).captions == ('a dog be run .', 'a cat be red .')


LINES = {  # of captions.txt -> name and caption
    'a,b.jpg,a dog, running': ('a,b.jpg', 'a dog, running'),
    '"a,b.jpg","a dog, running"': ('a,b.jpg', 'a dog, running'),
    '"a ""b"".png",a dog': ('a "b".png', 'a dog'),
    'a#b.JPEG,a dog': ('a#b.JPEG', 'a dog'),
    'a#0.png , not b.png, a dog': ('a#0.png', 'not b.png, a dog'),
    '"a" b.png,a dog': ('"a" b.png', 'a dog'),
    'a.ppm,a dog, running': ('a.ppm', 'a dog, running'),
    'a.jpg,"Stop" and "go"': ('a.jpg', '"Stop" and "go"'),
    'a,b.jpg#4,a dog #1, running #2': ('a,b.jpg', 'a dog #1, running #2'),
}


@pytest.mark.parametrize('line', LINES)
def test_names_with_commas_and_number_signs(line, tmp_path):
    name, caption = LINES[line]
    draw(tmp_path / 'Images', [name])
    (tmp_path / 'captions.txt').write_text(f'image,caption\n{line}\n')
    (tmp_path / 'train.txt').write_text(name)
    split = load(tmp_path)
    assert (split.image_ids, split.captions) == ((name,), (caption,))


def test_photos_of_a_split_may_be_in_two_folders(tmp_path):
    kaggle(tmp_path)
    (tmp_path / 'More').mkdir()
    (tmp_path / 'Images' / 'a.png').rename(tmp_path / 'More' / 'a.png')
    split = load(tmp_path)
    assert split.image_ids == ('b.png', 'a.png')
    assert split.pixels[:][:, 0, 0, 0].tolist() == [0, 50]


def test_missing_photos_are_not_replaced_by_copies(tmp_path):
    kaggle(tmp_path)
    shutil.copytree(tmp_path / 'Images', tmp_path / 'Other')
    (tmp_path / 'Images' / 'a.png').unlink()
    with pytest.raises(UserError, match=r'Images/a.png cannot be read'):
        load(tmp_path)


def test_restval_is_part_of_train_and_val_is_dev(tmp_path):
    karpathy(tmp_path)
    assert load(tmp_path, restval=False).num_images == 1
    assert load(tmp_path, 'dev').image_ids == load(tmp_path, 'val').image_ids == ('val2014/c.png',)


TABLE = {'1.jpg': ('A red .', 'One , red .'), '2, #x.jpg': ('A "big" one .',)}
TABLES = {
    'Kaggle': 'image,caption\n1.jpg,A red .\n1.jpg,"One , red ."\n"2, #x.jpg",A "big" one .\n',
    'no quotes': 'image,caption\n1.jpg,A red .\n1.jpg,One , red .\n2, #x.jpg,A "big" one .',
    'quotes': 'image,caption\n1.jpg,A red .\n1.jpg,"One , red ."\n2, #x.jpg,"A ""big"" one ."\n',
    'numbers': 'image,comment_number,comment\n1.jpg,0, A red .\n1.jpg,1, One , red .\n2, #x.jpg,0, A "big" one .\n',
    'ids': 'image,caption,id\n1.jpg,A red .,0\n1.jpg,One , red .,0\n2, #x.jpg,A "big" one .,1\n',
    'ids, quotes': 'image,caption,id\n1.jpg,A red .,0\n1.jpg,"One , red .",0\n"2, #x.jpg","A ""big"" one .",1\n',
    'bars': 'image| comment_number| comment\n1.jpg| 0| A red .\n1.jpg| 1   One , red .\n2, #x.jpg| 0| A "big" one .\n',
    'two bars': 'image|caption\n1.jpg|A red .\n1.jpg|One , red .\n2, #x.jpg|A "big" one .\n',
    'tabs': 'filepath\ttitle\n1.jpg\tA red .\n1.jpg\tOne , red .\n2, #x.jpg\tA "big" one .\n',
    'tabs, no header': '1.jpg#0\tA red .\n1.jpg#1\tOne , red .\n2, #x.jpg#0\tA "big" one .\n',
    'commas, no header': '1.jpg,A red .\n1.jpg,One , red .\n2, #x.jpg,A "big" one .\n',
    'numbers, no header': '1.jpg,0,A red .\n1.jpg,1,One , red .\n2, #x.jpg,0,A "big" one .\n',
    'semicolons': 'Image;Caption\n1.jpg;A red .\n1.jpg;One , red .\n2, #x.jpg;A "big" one .\n',
    'order': 'id,caption,image\n0,A red .,1.jpg\n0,"One , red .",1.jpg\n1,"A ""big"" one .","2, #x.jpg"\n',
    'two lines': 'image,caption\n1.jpg,A red .\n1.jpg,"One ,\nred ."\n"2, #x.jpg","A ""big"" one ."\n',
}
WRITTEN = {
    'plain': lambda text: text.encode(),
    'CRLF, BOM, blank lines': lambda text: ('\ufeff' + text.replace('\n', '\r\n') + '\r\n \r\n').encode(),
}


@pytest.mark.parametrize('name', ['captions.txt', 'results.csv', 'results_20130124.token', 'annotations/train_all.tsv'])
@pytest.mark.parametrize('written', WRITTEN)
@pytest.mark.parametrize('table', TABLES)
def test_header_and_delimiter_decide(table, written, name, tmp_path):
    draw(tmp_path / 'Images', TABLE)
    (tmp_path / 'annotations').mkdir()
    (tmp_path / name).write_bytes(WRITTEN[written](TABLES[table]))
    (tmp_path / 'train.txt').write_text('\r\n'.join(TABLE))
    split = load(tmp_path)
    assert split.image_ids == tuple(TABLE)
    assert split.captions == TABLE['1.jpg'] + TABLE['2, #x.jpg']


@pytest.mark.parametrize(
    ('table', 'message'),
    [
        ('img,description\n1.jpg,a dog\n', "captions.csv starts with 'img,description'"),
        ('1.jpg,3, red dogs\n1.jpg,red, blue\n', 'line 2 has no number of its caption, but line 1 has one'),
        ('img\tdescription\n', r"captions.csv starts with 'img\tdescription'"),
        ('image,caption,caption_0\n1.jpg,a,b\n', "line 2 has 'caption' and 'caption_0': leave one"),
        ('image,caption\n1.jpg,a dog\n'.encode('utf-16'), 'captions.csv is not UTF-8 in line 1; '),
        ('image,caption\n1.jpg,süß\n'.encode('latin-1'), 'captions.csv, line 2 is not UTF-8'),
        (
            'image_name|comment_number|comment\n1.jpg|0|a dog\n1.jpg|1 dogs\n',
            'line 3 has 2 fields, but the header has 3',
        ),
        ('image,caption\n1.jpg,"a dog\n2.jpg,a cat"\n', 'line 2 has a field with an open quote: close it'),
        ('image,caption\n1.jpg,a dog\n1.jpg\n', 'line 3 has 1 fields, but the header has 2'),
        ('image,caption,id\n1.jpg,3   dogs\n', 'line 2 has 2 fields, but the header has 3'),
    ],
)
def test_tables_that_cannot_be_read_are_named_with_the_line(table, message, tmp_path):
    draw(tmp_path / 'Images', TABLE)
    (tmp_path / 'captions.csv').write_bytes(table if isinstance(table, bytes) else table.encode())
    (tmp_path / 'train.txt').write_text('1.jpg')
    with pytest.raises(UserError, match=re.escape(message)):
        load(tmp_path)


def test_unusual_columns_are_named_in_the_config(tmp_path):
    draw(tmp_path / 'train', ['1.jpg'])
    (tmp_path / 'train' / 'my.csv').write_text('img,text,Description\n1.jpg,not read,"a dog, running"\n')
    names = {'image_column': 'img', 'caption_column': 'Description'}
    assert load(tmp_path, **names).captions == ('a dog, running',)
    with pytest.raises(
        UserError, match=r"train.my.csv starts with 'img,text,Description'; name .* of images photo, and"
    ):
        load(tmp_path, image_column='photo')


def table(root):
    draw(root / 'Images', CAPTIONS)
    lines = [f'{name},{caption}' for name, caption in each_caption()]
    (root / 'train.csv').write_text('\n'.join(['image,caption', *lines]))


@pytest.mark.parametrize('write', [table, texts_beside, shards])
def test_splits_are_sampled_from_one_folder(write, tmp_path, monkeypatch, caplog):
    names = [f'{letter}.png' for letter in 'abcdefghij']
    monkeypatch.setattr(f'{__name__}.CAPTIONS', {name: ['one', f'two of {name}'] for name in names})
    write(tmp_path)
    for old in [*tmp_path.glob('*train*'), *tmp_path.glob('val-*')]:
        old.rename(tmp_path / old.name.replace('train', 'all').replace('val', 'rest'))
    with caplog.at_level(logging.INFO, 'jitm'):
        parts = [load(tmp_path, split, held_out=0.2) for split in ('train', 'dev', 'test')]
    sampled = [message for message in caplog.messages if message.startswith('data.held_out')]
    assert sampled == 2 * ['data.held_out=0.2 samples images: 6 in train, 2 in dev, 2 in test']  # for train and test
    ids = [[*map(os.path.basename, part.image_ids)] for part in parts]
    assert [*map(len, ids)] == [6, 2, 2]
    assert sorted(itertools.chain(*ids)) == names
    assert load(tmp_path, 'val', held_out=0.2).image_ids == parts[1].image_ids
    assert load(tmp_path, 'test', held_out=0.2, held_out_seed=1).image_ids != parts[2].image_ids
    with pytest.raises(UserError, match='leaves none of 10 images'):
        load(tmp_path, 'testall', held_out=0.2)


def test_commands_print_the_sizes_of_sampled_splits(tmp_path, monkeypatch):
    monkeypatch.setattr(f'{__name__}.CAPTIONS', {f'{letter}.png': ['one'] for letter in 'abcde'})
    table(tmp_path)
    (tmp_path / 'train.csv').rename(tmp_path / 'all.csv')
    code = (
        'from jitm.commands import cli; from jitm.data.images.photos import load; '
        f"cli.main(['--version']); load('train', root={str(tmp_path)!r}, held_out=0.2)"
    )
    result = subprocess.run([sys.executable, '-c', code], env=environment(), capture_output=True, text=True)
    assert result.stderr == 'INFO: data.held_out=0.2 samples images: 3 in train, 1 in dev, 1 in test\n'


def test_splits_of_a_file_are_kept(tmp_path):
    karpathy(tmp_path)
    with pytest.raises(UserError, match=r'dataset_coco.json names the splits of its images: leave out config key data'):
        load(tmp_path, held_out=0.2)


def test_images_without_captions_are_left_out_and_counted(tmp_path, caplog):
    coco(tmp_path)
    path = tmp_path / 'annotations' / 'captions_train2017.json'
    tree = json.loads(path.read_text())
    tree['images'].insert(0, {'id': 1, 'file_name': 'missing.png'})
    path.write_text(json.dumps(tree))
    assert len(load(tmp_path).image_ids) == 2
    assert caplog.messages == ['1 of 3 images have no captions and are left out']


def rows_of(*captions):
    """Lines of JSON for a.png, b.png and c.png."""
    rows = zip(('a.png', 'b.png', 'c.png'), captions, strict=True)
    return '\n'.join(json.dumps({'file_name': name, 'caption': caption}) for name, caption in rows)


def annotations_of(*captions):
    """Two annotations of COCO for each of a.png, b.png and c.png."""
    images = [{'id': number, 'file_name': f'{name}.png'} for number, name in enumerate('abc')]
    annotations = [{'image_id': number // 2, 'caption': caption} for number, caption in enumerate(captions)]
    return json.dumps({'images': images, 'annotations': annotations})


def sentences_of(*captions):
    """Karpathy's form of a.png, b.png and c.png with lists of captions."""
    images = []
    for name, listed in zip('abc', captions, strict=True):
        sentences = [{'raw': caption} for caption in listed]
        images.append({'filename': f'{name}.png', 'split': 'train', 'sentences': sentences})
    return json.dumps({'images': images})


MISSING = {  # b.png has no caption, c.png a missing one and another
    'jsonl: null': {'train/metadata.jsonl': rows_of('a dog', None, [None, 'a cat'])},
    'jsonl: NaN': {'train/metadata.jsonl': rows_of('a dog', float('nan'), [float('nan'), 'a cat'])},
    'jsonl: blank': {'train/metadata.jsonl': rows_of('a dog', ' \t', ['', 'a cat'])},
    'jsonl: lists': {'train/metadata.jsonl': rows_of(['a dog'], [], "['a cat', None]")},
    'jsonl: no key': {
        'train/metadata.jsonl': rows_of('a dog', None, 'a cat').replace(', "caption": null', ''),
    },
    'json': {'train.json': '[' + rows_of('a dog', None, [' ', 'a cat']).replace('\n', ',') + ']'},
    'csv': {'train.csv': 'image,caption\na.png,a dog\nb.png,\nc.png,\nc.png,a cat\n'},
    'csv without quotes': {'train.csv': 'image,caption\na.png,a dog\nb.png,\nc.png, \nc.png,"a" cat\n'},
    'columns': {'train/metadata.csv': 'file_name,caption_0,caption_1\na.png,a dog,\nb.png,,\nc.png,,a cat\n'},
    'coco': {'captions_train2017.json': annotations_of('a dog', None, None, '', None, 'a cat')},
    'karpathy': {'dataset_x.json': sentences_of(['a dog'], [], ['', 'a cat'])},
    'karpathy: null': {'dataset_x.json': sentences_of(['a dog'], [None], [None, 'a cat'])},
    'txt': {'train/a.txt': 'a dog', 'train/b.txt': '', 'train/c.txt': '\n \na cat\n'},
    'no txt': {'train/a.txt': 'a dog', 'train/c.txt': 'a cat'},
    'beside': {
        **{'train/a.json': '{"caption": "a dog"}', 'train/b.json': '{"caption": null}'},
        'train/c.json': '{"caption": [NaN, "a cat"]}',
    },
}


@pytest.mark.parametrize('form', [*MISSING, 'shard'])
def test_missing_captions_are_the_same_in_all_formats(form, tmp_path, caplog):
    draw(tmp_path / 'train', ['a.png', 'b.png', 'c.png'])
    for name, text in MISSING.get(form, MISSING['beside']).items():
        (tmp_path / name).write_text(text)
    if form == 'shard':
        with tarfile.open(tmp_path / 'train.tar', 'w') as archive:
            archive.add(tmp_path / 'train', '.')
        shutil.rmtree(tmp_path / 'train')
    split = load(tmp_path)
    assert [os.path.basename(name) for name in split.image_ids] == ['a.png', 'c.png']
    assert [caption.replace('"', '') for caption in split.captions] == ['a dog', 'a cat']
    assert caplog.messages == ['1 of 3 images have no captions and are left out']


@pytest.mark.parametrize(
    ('captions', 'message'),
    [
        ((None, '', []), r'line 1 has no captions, nor has any other image: write them, or name'),
        (('a dog', 7, 'a cat'), r'line 2 has the caption 7, which is not a text'),
        (('a dog', {'en': 'a cat'}, None), r"line 2 has the caption \{'en': 'a cat'\}, which is not a text"),
        (('a dog', ['a', ['b']], None), r"line 2 has the caption \['b'\], which is not a text"),
    ],
)
def test_captions_that_are_no_texts_are_named(captions, message, tmp_path):
    draw(tmp_path / 'train', ['a.png', 'b.png', 'c.png'])
    (tmp_path / 'train' / 'metadata.jsonl').write_text(rows_of(*captions))
    with pytest.raises(UserError, match=message):
        load(tmp_path)


@pytest.mark.parametrize('packed', [True, False])
def test_suffixes_may_be_capitals(packed, tmp_path):
    folder = tmp_path / 'train'
    draw(folder, ['0.JPG', '1.jpg', '2.JPEG'])
    for name, text in (('0.TXT', 'a dog'), ('1.JSON', '{"caption": "a cat"}'), ('2.txt', 'a cow')):
        (folder / name).write_text(text)
    if packed:
        with tarfile.open(tmp_path / 'train-0.TAR', 'w') as archive:
            archive.add(folder, '.')
        shutil.rmtree(folder)
    assert load(tmp_path).captions == ('a dog', 'a cat', 'a cow')


def test_two_photos_of_one_caption_file_are_named(tmp_path):
    texts_beside(tmp_path)
    draw(tmp_path / 'train' / '00001', ['a.jpg'])
    with pytest.raises(UserError, match=r'train has 00001/a.jpg and 00001/a.png for \S+/00001/a.txt: rename one'):
        load(tmp_path)


def test_shards_without_captions_say_what_they_hold(tmp_path):
    draw(tmp_path / 'all', ['a.image.png'])
    (tmp_path / 'all' / 'a.cls').write_text('3')
    with tarfile.open(tmp_path / 'train-0.tar', 'w') as archive:
        for name in ('a.cls', 'a.image.png'):
            archive.add(tmp_path / 'all' / name, name)
    with pytest.raises(UserError, match=r'has train-0.tar/a.cls, train-0.tar/a.image.png, but photos are read with'):
        load(tmp_path)


CSV = 'image,caption\na.png,a dog\n'
PACKED = {
    'data/train-00000-of-00001.parquet': 'save its images as files, and the other columns by Dataset.to_csv',
    'train/metadata.parquet': 'save its images as files, and the other columns by Dataset.to_csv',
    'images.ZIP': 'unzip it',
    'train-0.tar.gz': 'gunzip it',
    'train-0.tgz': 'gunzip it',
    'captions.json.gz': 'gunzip it',
    'train.7z': 'unpack it',
}


@pytest.mark.parametrize('name', PACKED)
@pytest.mark.parametrize('beside', [{}, {'train.csv': CSV}])
def test_formats_that_are_not_read_are_named(name, beside, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b'')
    for other, text in beside.items():
        (tmp_path / other).write_text(text)
    problem = 'names a.png, which is not in' if beside else "no captions of the split 'train'"
    with pytest.raises(UserError, match=rf'{problem}.*; \S+/{re.escape(name)} is not read: {PACKED[name]}'):
        load(tmp_path)
    if not beside:
        with pytest.raises(
            UserError, match=rf'has no image files .*; \S+/{re.escape(name)} is not read: {PACKED[name]}'
        ):
            photos.load_folder(tmp_path, None)


def test_the_case_of_a_split_does_not_matter(tmp_path):
    draw(tmp_path / 'images', ['a.png', 'b.png'])
    (tmp_path / 'all.csv').write_text('image,caption,Split\na.png,a dog,Train\nb.png,a cat, TEST\n')
    assert (load(tmp_path).captions, load(tmp_path, 'test').captions) == (('a dog',), ('a cat',))


def test_shards_are_read_in_place(tmp_path):
    shards(tmp_path)
    split = load(tmp_path)
    assert split.image_ids == ('train-00000.tar/b.png', 'train-00001.tar/a.png')
    assert split.pixels[:][:, 0, 0, 0].tolist() == [0, 50]
    path = tmp_path / 'train-00001.tar'
    content = path.read_bytes()
    path.write_bytes(content.replace(b'IDAT', b'IDAx'))
    removed = rf'train-00001.tar/a.png is .*; `tar --delete --file={path} ./a.png` removes it from the archive'
    with pytest.raises(UserError, match=removed):
        load(tmp_path)
    path.write_bytes(content[:700])
    with pytest.raises(UserError, match=r'train-00001.tar is not a whole, uncompressed tar archive'):
        load(tmp_path)


def test_links_of_the_owner_are_followed(tmp_path):
    """The layout of the Hub's cache, and a linked folder that holds the folder itself."""
    jsonl(tmp_path / 'blobs')
    snapshot = tmp_path / 'snapshots' / 'train'
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted((tmp_path / 'blobs' / 'train').iterdir())):
        file.rename(tmp_path / 'blobs' / str(number))
        (snapshot / file.name).symlink_to(f'../../blobs/{number}')
    (snapshot / 'more').symlink_to(tmp_path / 'snapshots')
    split = load(tmp_path / 'snapshots')
    folder = photos.load_folder(snapshot, split.pixels.transform)
    assert (split.image_ids, folder.image_ids) == (('b.png', 'a.png'), ('a.png', 'b.png'))


@pytest.mark.parametrize('write', [one for one in FORMATS if one not in (texts_beside, shards)])
def test_names_in_captions_lead_to_no_other_folder(write, tmp_path):
    root = tmp_path / 'mine'
    write(root)
    draw(root, ['a.png'])
    draw(tmp_path, ['a.png'])
    for path in root.rglob('*.*'):
        if path.suffix != '.png' and path.is_file():
            path.write_text(path.read_text().replace('a.png', '../a.png'))
    with pytest.raises(UserError, match=r"names '.*\.\./a.png', which is not a path within its folder: "):
        load(root)


@pytest.mark.parametrize('write', [one for one in FORMATS if one not in (texts_beside, shards)])
def test_absolute_paths_below_the_folder_are_relative(write, tmp_path, monkeypatch):
    write(tmp_path / 'mine')
    (tmp_path / 'link').symlink_to('mine')
    monkeypatch.chdir(tmp_path)
    (photo,) = (tmp_path / 'mine').rglob('a.png')
    texts = {path: path.read_text() for path in (tmp_path / 'mine').rglob('*.*') if path.suffix != '.png'}

    def rename(name):
        for path, text in texts.items():
            path.write_text(re.sub(r'[\w/]*a\.png', str(name), text))

    rename(photo)
    for root in (tmp_path / 'mine', 'mine', 'link'):
        split = load(root)
        assert split.captions == (*CAPTIONS['b.png'], *CAPTIONS['a.png'])
        assert split.image_ids[1] == str(photo.relative_to(tmp_path / 'mine'))
    for elsewhere in (shutil.copy(photo, tmp_path), f'{tmp_path}/mine/../a.png'):
        rename(elsewhere)
        with pytest.raises(UserError, match=r"names '/\S*a.png', which is an absolute path: put or link"):
            load('mine')


def test_identity_notices_what_the_crop_leaves_out(root):
    before = load(root).identity
    path = root / 'train' / 'train-000003.png'
    with Image.open(path) as image:
        wide = Image.new('RGB', (80, 64))
        wide.paste(image, (8, 0))
    wide.save(path)
    framed = load(root, short_side=16).identity
    wide.putpixel((0, 0), (9, 9, 9))
    wide.save(path)
    after = load(root, short_side=16).identity
    assert load(root).identity != before
    assert {key for key in after if framed[key] != after[key]} == {'content'}


@pytest.fixture
def checked(monkeypatch):
    """The paths of the photos that are checked."""
    paths = []
    monkeypatch.setattr(pixels, 'check_image', lambda path: paths.append(path) or check_image(path))
    return paths


def test_files_are_checked_until_none_has_changed(root, checked):
    before = load(root).identity
    assert load(root).identity == before
    assert len(checked) == 6
    for path in (root.parent / 'cache').rglob('*'):
        if path.is_file():
            path.write_bytes(b'')  # of an earlier version, or cut off
    assert load(root).identity == before
    assert len(checked) == 12
    os.utime(root / 'train' / 'train-000003.png', (1, 1))
    load(root)
    assert len(checked) == 18


def test_files_are_checked_each_time_without_a_cache(root, checked, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(root / 'dev' / 'metadata.jsonl'))  # no folder
    load(root)
    load(root)
    assert len(checked) == 12


def test_a_file_that_is_damaged_later_is_named(root):
    split = load(root)
    (root / 'train' / 'train-000003.png').write_bytes(b'')
    with pytest.raises(UserError, match=r'train-000003.png is empty'):
        split.pixels[np.arange(6)]


def test_photos_are_equal_only_with_equal_files(root):
    shutil.copytree(root, root.parent / 'copy')
    assert isinstance(load(root).pixels, Photos)
    assert load(root.parent / 'copy').identity == load(root).identity != load(root, interpolation='bicubic').identity
