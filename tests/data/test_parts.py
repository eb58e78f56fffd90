"""Training on a part of the training split."""

import sys

import numpy as np
import pytest

from jitm.commands import cli
from jitm.data import precomp, scenes
from jitm.data.images import photos
from jitm.data.load import bind_data, load_split, sample_images
from jitm.data.pairs import mined_lists
from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.training import setup
from jitm.training.sections import override
from tests.support.mining import make_lists, save_lists

SCENES = {'source': 'scenes.load', 'train_images': 12, 'dev_images': 4}


def drawn_photos(root):
    photos.write(scenes.load('train', train_images=12), root)
    return photos.load('train', root=str(root), image_size=16, short_side=20)


def mixed_precomp(root):
    """Features with any number and order of captions."""
    rng = np.random.default_rng(0)
    image_of_text = rng.permutation([*range(9), 1, 1, 4])
    np.save(root / 'train_ims.npy', rng.normal(size=(9, 3, 4)).astype(np.float32))
    np.save(root / 'train_image_of_text.npy', image_of_text)
    (root / 'train_caps.txt').write_text('\n'.join(f'caption {n}' for n in range(12)))
    return precomp.load('train', root=str(root))


def small_scenes(root):
    return scenes.load('train', train_images=12)


MAKERS = {'scenes': small_scenes, 'photos': drawn_photos, 'precomp': mixed_precomp}


@pytest.mark.parametrize('source', MAKERS)
def test_a_part_has_some_images_with_all_their_captions(source, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    split = MAKERS[source](tmp_path)
    part = sample_images(split, train_share=0.5)
    row_of = {name: row for row, name in enumerate(split.image_ids)}
    rows = [row_of[name] for name in part.image_ids]
    assert rows == sorted(set(rows))
    assert part.num_images == len(rows) == round(split.num_images / 2)
    texts = [text for text in range(split.num_texts) if split.image_of_text[text] in rows]
    assert part.captions == tuple(split.captions[text] for text in texts)
    np.testing.assert_array_equal([rows[n] for n in part.image_of_text], split.image_of_text[texts])
    for name in ('regions', 'counts', 'boxes', 'pixels'):
        if (values := getattr(split, name)) is not None:
            kept = getattr(part, name)
            assert (kept.shape, kept.dtype) == ((len(rows), *values.shape[1:]), values.dtype)
            np.testing.assert_array_equal(kept[np.arange(len(rows))], values[np.array(rows)])
            np.testing.assert_array_equal(kept[1:3], values[np.array(rows[1:3])])
    for name in ('graphs', 'tags'):
        if values := getattr(split, name, None):
            assert getattr(part, name) == tuple(values[row] for row in rows)
    if source == 'scenes':
        assert part.caption_graphs == tuple(split.caption_graphs[text] for text in texts)
    whole = sample_images(split, train_share=1)
    assert whole.captions == split.captions
    assert len({one.identity['content'] for one in (split, part)}) == 2


def test_parts_of_one_seed_are_nested_and_of_two_seeds_differ():
    def ids(**part):
        return set(load_split(SCENES | part, 'train').image_ids)

    assert len(ids()) == 12
    assert ids(train_share=0.25) < ids(train_share=0.5) < ids(train_share=1.0) == ids()
    assert ids(train_share=0.5) == ids(train_share=0.5, train_seed=0) != ids(train_share=0.5, train_seed=1)
    assert len(ids(train_share=0.001)) == 1


def test_only_the_training_split_is_reduced():
    data = SCENES | {'train_share': 0.5}
    assert load_split(data, 'dev').num_images == 4
    assert bind_data(data)('train').num_images == 12


@pytest.mark.parametrize(
    ('part', 'message'),
    [
        ({'train_share': 0}, "config key 'data.train_share' is 0; it must be above 0"),
        ({'train_share': 1.5}, "config key 'data.train_share' is 1.5; it must be .*at most 1"),
        ({'train_seed': 3}, "config key 'data.train_share' is missing"),
    ],
)
def test_a_wrong_part_is_refused(part, message):
    with pytest.raises(UserError, match=message):
        load_split(SCENES | part, 'train')


def test_negatives_of_another_part_are_refused(tmp_path):
    """Also of a part of the same size, whose lists would have the same shape."""
    parts = [load_split(SCENES | {'train_share': 0.5, 'train_seed': seed}, 'train') for seed in (0, 1)]
    save_lists(tmp_path, parts[0], *make_lists(parts[0]))
    assert mined_lists.load(tmp_path, parts[0]).i2t.shape == (6, 2)
    for other in (parts[1], load_split(SCENES, 'train')):
        with pytest.raises(UserError, match='were mined from other data than scenes/train; mine them again'):
            mined_lists.load(tmp_path, other)


def test_a_run_on_a_part_has_the_vocabulary_of_all_captions(tiny_config):
    whole = setup.set_up(tiny_config)
    tiny_config['data'] |= {'train_share': 0.5}
    half = setup.set_up(tiny_config)
    assert 2 * half.data.train.num_images == whole.data.train.num_images
    assert half.data.vocabulary.hash == whole.data.vocabulary.hash
    assert half.data.validation.captions == whole.data.validation.captions
    assert half.pipeline.identity['hash'] != whole.pipeline.identity['hash']


@pytest.mark.parametrize('preset', ['vsepp:f8k', 'scan:scenes', 'clip:f8k'])
def test_a_part_is_set_on_the_command_line(preset):
    config = override(cli.read_config(preset), {'data.train_share': '0.5', 'data.train_seed': '2'})
    assert (config['data']['train_share'], config['data']['train_seed']) == (0.5, 2)
    config = override(config, {'data.source': 'scenes.load'})
    assert config['data']['train_share'] == 0.5
    with pytest.raises(UserError, match=r"'data.train_shar' is unknown, did you mean 'data.train_share'"):
        override(cli.read_config(preset), {'data.train_shar': '0.5'})


LOADER = """
import numpy as np

from jitm.data.splits import Split

def load(split, *, root, images: int = 3):
    return Split(
        name=f'{root}/{split}',
        regions=np.ones((images, 1, 4), np.float32),
        counts=np.ones(images, np.int32),
        captions=('a dog', 'two dogs', 'a cat', 'a bird'),
        image_of_text=np.array([0, 0, 1, 2], np.int32),
        image_ids=('a.jpg', 'b.jpg', 'c.jpg'),
    )

def wrong(split):
    return [split]

def nothing(split):
    pass

def broken(split):
    return {}[split]

def no_loader(path):
    return path
"""


@pytest.mark.parametrize('source', ['own_data.load', 'own_data.py:load'])
def test_own_sources_are_imported_for_own_configs_only(source, tiny_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'own_data.py').write_text(LOADER)
    data = {'source': source, 'root': 'mine', 'train_share': 0.5}
    with pytest.raises(UserError, match=r'own_data(.py)? is not in jitm: if you trust it, give --import own_data'):
        load_split(data, 'train')
    with pytest.raises(UserError, match='mine/train has 4 texts, fewer than batch_size'):
        setup.set_up(tiny_config | {'data': {'source': source, 'root': 'mine'}})
    assert load_split(data, 'train', 'other').num_images == 2  # the module has been imported
    given = {'data.source': source, 'data.images': '4', 'data.root': 'x'}
    config = override(cli.read_config('vsepp:f8k'), given)
    assert config['data'] == {'source': source, 'images': 4, 'root': 'x'}
    for name in [name for name in sys.modules if name.startswith('own_data')]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ('source', 'keys', 'message'),
    [
        ('load', {}, "config key 'data.root' is missing"),
        (
            'load',
            {'root': 'x', 'images': 4},
            "for the split 'dev' it returns a split whose image_ids or tags are not one for each of its 4 images",
        ),
        ('load', {'root': 'x', 'images': 'four'}, "'data.images' is 'four'; it must be an integer"),
        ('wrong', {}, 'it returns no jitm.data.splits.Split but list: '),
        ('nothing', {}, 'it returns no jitm.data.splits.Split but NoneType: return a Split'),
        ('broken', {}, r'it fails: KeyError in line \d+ of \S+failing.py'),
        ('no_loader', {}, 'a source a function of split, a model a class'),
        ('laod', {}, "has no 'laod', did you mean 'load'"),
    ],
)
def test_own_sources_that_fail(source, keys, message, tmp_path):
    (tmp_path / 'failing.py').write_text(LOADER)
    with pytest.raises(UserError, match=message):
        bind_data({'source': f'{tmp_path}/failing.py:{source}', **keys}, imports=True)('dev')


PROBLEMS = {
    'regions': ([[1.0]], r'whose regions are no array of float16 or float32 \[I, R, D\]'),
    'regions, none': (None, 'without images: give regions or pixels'),
    'regions, NaN': (np.full((3, 2, 4), np.nan, np.float32), 'mine, row 0 has NaN or infinite features'),
    'counts, zero': (np.array([1, 0, 2]), 'whose counts are not from 1 to 2, the number of regions'),
    'counts, none': (None, 'whose counts are not from 1 to 2'),
    'captions': (('a', ' ', 'c'), 'whose captions are not all texts, or blank'),
    'image_of_text': ([0, 1, 2], r'whose image_of_text are no array of int32 or int64 \[T\]'),
    'image_of_text, range': (np.array([0, 1, -1]), 'whose image_of_text does not give each of its 3 images a caption'),
    'image_ids': (None, 'whose image_ids or tags are not one for each of its 3 images'),
    'boxes': (np.zeros((3, 1, 4), np.float32), r'whose boxes have shape \(3, 1, 4\), but it must be \[3, 2, 4\]'),
    'tags': (('a', 'b'), 'whose image_ids or tags are not one for each of its 3 images'),
    'pixels': (np.zeros((3, 4, 4), np.uint8), 'whose pixels are no array of uint8'),
}


@pytest.mark.parametrize('name', PROBLEMS)
def test_own_splits_with_a_problem(name, tmp_path, monkeypatch):
    value, message = PROBLEMS[name]
    fields = {'regions': np.ones((3, 2, 4), np.float32), 'counts': np.array([1, 2, 2], np.int32)}
    fields |= {'captions': ('a', 'b', 'c'), 'image_of_text': np.arange(3), 'image_ids': ('x', 'y', 'z')}
    monkeypatch.setattr(
        Split, 'made', lambda: Split(name='mine', **fields | {name.split(',')[0]: value}), raising=False
    )
    (tmp_path / 'made.py').write_text(
        'from jitm.data.splits import Split\n\ndef load(split):\n    return Split.made()\n'
    )
    with pytest.raises(UserError, match=message):
        bind_data({'source': f'{tmp_path}/made.py:load'}, imports=True)('dev')


def test_data_that_have_moved_are_named_with_a_remedy(tmp_path):
    """Of a run, whose path may be relative; of a config; and at a path of --data_root."""
    data = {'source': 'precomp.load', 'root': 'data/nowhere'}
    with pytest.raises(UserError, match=r'^data/nowhere is not a folder: .*from another folder, give --data_root'):
        load_split(data, 'dev')
    with pytest.raises(UserError, match=r'^data/nowhere is not a folder: .*docs/data.md says where data are published'):
        load_split(data, 'dev', imports=True)
    with pytest.raises(UserError, match=r'/none is not a folder: .*docs/data.md says where data are published'):
        load_split(data, 'dev', f'{tmp_path}/none')
