import re
import subprocess
import sys

import numpy as np
import pytest

from jitm import files
from jitm.data import arrays, precomp
from jitm.errors import UserError
from tests.conftest import ROOT

UNPACK = '../shared/data/unpack.py'


def features(images, dtype=np.float16, shape=(3, 4)):
    return np.random.default_rng(0).standard_normal((images, *shape)).astype(dtype)


def write(root, split='train', ims=None, captions=None, ids=None, **boxes):
    """Writes a folder of three images with two captions each, or what is given."""
    ims = features(3) if ims is None else ims
    captions = [f'caption {n}' for n in range(6)] if captions is None else captions
    np.save(root / f'{split}_ims.npy', ims)
    (root / f'{split}_caps.txt').write_text('\n'.join(captions) + '\n', encoding='utf-8')
    if ids is not None:
        (root / f'{split}_ids.txt').write_text('\n'.join(ids) + '\n', encoding='utf-8')
    for name, array in boxes.items():
        np.save(root / f'{name}.npy', array)


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / 'toy_precomp'
    folder.mkdir()
    return folder


def message(root, split='train', **options):
    with pytest.raises(UserError) as caught:
        precomp.load(split, root=str(root), **options)
    return str(caught.value)


# What is read.


@pytest.mark.parametrize('dtype', [np.float16, np.float32])
def test_reads_features_captions_and_their_images(root, dtype, monkeypatch):
    ims = features(3, dtype)
    write(root, ims=ims, captions=[' Ein Süßer Hund ', 'b', 'c', 'd', 'e', 'f'])
    monkeypatch.chdir(root)
    for folder in ('.', f'{root}/'):
        split = precomp.load('train', root=folder)
        assert split.name == 'toy_precomp/train'
    np.testing.assert_array_equal(split.regions, ims)
    assert split.regions.dtype == dtype
    assert split.captions == ('Ein Süßer Hund', 'b', 'c', 'd', 'e', 'f')
    np.testing.assert_array_equal(split.image_of_text, np.array([0, 0, 1, 1, 2, 2], np.int32), strict=True)
    np.testing.assert_array_equal(split.counts, np.array([3, 3, 3], np.int32), strict=True)
    assert split.image_ids == ('0', '1', '2')
    assert split.boxes is None


def test_global_vectors_are_one_region(root):
    ims = features(3, shape=(4,))
    write(root, ims=ims)
    split = precomp.load('train', root=str(root))
    np.testing.assert_array_equal(split.regions, ims[:, None])
    assert split.counts.tolist() == [1, 1, 1]


def test_features_stay_in_the_file(root):
    for split in ('dev', 'train'):
        write(root, split, ims=np.repeat(features(3), [1, 2, 3], axis=0) if split == 'dev' else None)
        regions = precomp.load(split, root=str(root), dev_images=2).regions
        stored = getattr(regions, '_array', regions)
        assert isinstance(stored, np.memmap)
        assert stored.filename == str(root / f'{split}_ims.npy')


@pytest.mark.parametrize('ids', ['none', 'images', 'captions', 'numbers'])
@pytest.mark.parametrize('order', ['C', 'F'])
@pytest.mark.parametrize('counts', [(1, 1, 1, 1), (5, 5, 5, 5), (5, 6, 5, 1), (2, 4, 2, 10), (1, 1, 2, 1)], ids=str)
def test_images_stored_once_per_caption_are_kept_once(root, counts, order, ids):
    ims = features(4)
    ims[2, 0] = ims[1, 0]  # which differ in other regions
    texts = sum(counts)
    names = {
        'images': list('wxyz'),
        'captions': [*np.repeat(list('wxyz'), counts)],
        'numbers': [str(n) for n in range(1, texts + 1)],
    }
    stored = np.asarray(np.repeat(ims, counts, axis=0), order=order)
    write(root, 'dev', stored, [str(n) for n in range(texts)], names.get(ids))
    split = precomp.load('dev', root=str(root))
    np.testing.assert_array_equal(split.regions[np.arange(4)], ims, strict=True)
    np.testing.assert_array_equal(split.image_of_text, np.repeat(np.arange(4, dtype=np.int32), counts), strict=True)
    if ids in ('images', 'captions'):
        assert split.image_ids == tuple('wxyz')
    cut = precomp.load('dev', root=str(root), dev_images=2)
    assert (cut.num_images, cut.num_texts) == (2, counts[0] + counts[1])


@pytest.mark.parametrize(
    ('ids', 'lines'), [('aabbb', (1, 3)), ('aaaaa', (1, 4)), ('aaacb', (4, 5)), ('aaabba', (4, 6))]
)
def test_ids_and_rows_that_contradict_each_other(root, ids, lines):
    write(root, ims=np.repeat(features(2), [3, len(ids) - 3], axis=0), captions=list(ids), ids=list(ids))
    a, b = (ids[line - 1] for line in lines)
    assert message(root) == (
        f"{root / 'train_ids.txt'}, lines {lines[0]} and {lines[1]} are '{a}' and '{b}', but these captions have "
        f'{"different images" if a == b else "one image"} in {root / "train_ims.npy"}: correct one of the files'
    )


@pytest.mark.parametrize(('ids', 'counts'), [('aabcc', (2, 1, 2)), ('abbbbc', (1, 4, 1)), ('aabbcc', (2, 2, 2))])
def test_ids_of_captions_tell_the_images_of_rows_stored_once(root, ids, counts):
    write(root, ims=features(3), captions=list(ids), ids=list(ids))
    split = precomp.load('train', root=str(root))
    assert split.image_of_text.tolist() == np.repeat(range(3), counts).tolist()
    assert split.image_ids == ('a', 'b', 'c')


@pytest.mark.parametrize(
    ('ids', 'files', 'reason'),
    [
        ('abab', {}, 'their ids name 4 images one after another: put the captions of an image together'),
        ('aab', {}, "lines 1 and 2 are 'a' and 'a', but these captions have different images in"),
        ('aabbcc', {'train_image_of_text': [0, 0, 1, 2, 2, 2]}, "lines 3 and 4 are 'b' and 'b', but these captions"),
        ('aabbcc', {'train_image_of_text': [0, 0, 1, 1, 1, 2]}, "lines 3 and 5 are 'b' and 'c', but these captions"),
    ],
)
def test_ids_that_contradict_the_images_of_captions(root, ids, files, reason):
    write(root, captions=list(ids), ids=list(ids), **{name: np.array(array) for name, array in files.items()})
    assert reason in message(root)


def test_equal_images_with_captions_of_their_own_are_kept(root):
    ims = np.repeat(features(2), 2, axis=0)
    write(root, ims=ims, captions=[str(n) for n in range(8)])
    np.testing.assert_array_equal(precomp.load('train', root=str(root)).regions, ims)


@pytest.mark.parametrize(
    ('split', 'dev_images', 'kept'), [('dev', 2, 2), ('dev', 9, 3), ('dev', None, 3), ('test', 2, 3)]
)
def test_dev_is_cut_to_its_first_images(root, split, dev_images, kept):
    ims = features(3)
    write(root, split=split, ims=ims, ids=['x', 'y', 'z'], boxes=np.zeros((3, 4), np.float32))
    read = precomp.load(split, root=str(root), dev_images=dev_images)
    np.testing.assert_array_equal(read.regions, ims[:kept])
    assert read.captions == tuple(f'caption {n}' for n in range(2 * kept))
    assert read.image_of_text.tolist() == np.repeat(range(kept), 2).tolist()
    assert read.image_ids == ('x', 'y', 'z')[:kept]
    assert len(read.counts) == len(read.boxes) == kept


def test_dev_keeps_a_thousand_images_by_default(root):
    write(root, split='dev', ims=features(1014, shape=(1,)), captions=['a'] * 5070)
    split = precomp.load('dev', root=str(root))
    assert (split.num_images, split.num_texts) == (1000, 5000)


@pytest.mark.parametrize('changed', ['ims', 'counts'])
def test_identity_notices_one_changed_image_of_many(root, changed):
    arrays = {'ims': features(200), 'counts': np.full(200, 3, np.int32)}
    write(root, ims=arrays['ims'], captions=['a dog'] * 200)
    np.save(root / 'train_counts.npy', arrays['counts'])
    before = precomp.load('train', root=str(root)).identity
    assert precomp.load('train', root=str(root)).identity == before
    arrays[changed][1] = 2
    np.save(root / f'train_{changed}.npy', arrays[changed])
    after = precomp.load('train', root=str(root)).identity
    assert {key for key in before if before[key] != after[key]} == {'content'}


def test_identity_is_that_of_the_features_however_they_are_stored(root, monkeypatch):
    monkeypatch.setattr(files, 'PART_BYTES', 50)
    ims = features(7)
    captions = [f'caption {n}' for n in range(14)]
    write(root, ims=ims, captions=captions)
    write(root, 'repeated', ims=np.repeat(ims, 2, axis=0), captions=captions)
    once, repeated = (precomp.load(split, root=str(root)).identity for split in ('train', 'repeated'))
    assert once == repeated


def test_boxes_of_the_split_come_before_common_ones(root):
    own = np.sort(np.random.default_rng(1).random((3, 3, 4)))
    common = np.sort(np.random.default_rng(2).random((3, 4))).astype(np.float32)
    write(root, boxes=common)
    boxes = precomp.load('train', root=str(root)).boxes
    np.testing.assert_array_equal(boxes, np.stack([common] * 3), strict=True)
    write(root, train_boxes=own.astype(np.float16))
    boxes = precomp.load('train', root=str(root)).boxes
    np.testing.assert_array_equal(boxes, own.astype(np.float16).astype(np.float32), strict=True)


def test_splits_are_listed(root):
    write(root, split='testall')
    write(root, split='dev')
    np.save(root / 'dev_ims_bbx.npy', features(1))
    assert precomp.splits(str(root)) == ('dev', 'testall')


def test_images_may_have_different_numbers_of_captions(root):
    ids = ['x', 'y', 'x', 'z', 'x', 'z']
    write(root, split='dev', ims=features(3), ids=ids, dev_image_of_text=np.array([0, 1, 0, 2, 0, 2]))
    split = precomp.load('dev', root=str(root))
    assert split.image_of_text.tolist() == [0, 1, 0, 2, 0, 2]
    assert split.image_of_text.dtype == np.int32
    assert split.image_ids == ('x', 'y', 'z')
    two = precomp.load('dev', root=str(root), dev_images=2)
    assert two.captions == ('caption 0', 'caption 1', 'caption 2', 'caption 4')
    assert two.image_of_text.tolist() == [0, 1, 0, 0]


TILED = [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ('rows', 'ids', 'given', 'images'),
    [
        (TILED, 'abcabc', None, TILED),
        (TILED, 'abc', TILED, TILED),
        (TILED, ['a#0', 'b#0', 'c#0', 'a#1', 'b#1', 'c#1'], None, TILED),
        ([0, 0, 1, 1, 1], None, [0, 0, 1, 1, 1], [0, 0, 1, 1, 1]),
        ([0, 0, 1, 1], ['a.jpg#0', 'a.jpg#1', 'b.jpg#0', 'b.jpg#1'], None, [0, 0, 1, 1]),
        ([0, 0, 1, 1], ['771', '12', '90', '3'], None, [0, 0, 1, 1]),
        ([0, 1, 0], 'abc', None, [0, 1, 2]),
        ([0, 0], None, [1, 0], [1, 0]),
    ],
)
def test_images_of_rows_stored_for_each_caption(root, rows, ids, given, images):
    write(root, ims=features(3)[rows], captions=['a'] * len(rows), ids=ids)
    if given:
        np.save(root / 'train_image_of_text.npy', given)
    split = precomp.load('train', root=str(root))
    assert split.image_of_text.tolist() == images
    if images != [1, 0]:
        np.testing.assert_array_equal(split.regions[split.image_of_text], features(3)[rows])


@pytest.mark.parametrize(
    ('rows', 'ids', 'given', 'message'),
    [
        (TILED, None, None, 'rows 0 and 3 are equal, but would be different images: name the image of each caption in'),
        ([2, 0, 1, 0, 2], None, None, 'rows 1 and 3 are equal'),
        (TILED, '312645', None, 'rows 0 and 3 are equal'),
        ([0] * 5 + [1] * 5, None, [*range(10)], 'rows 0 and 1 are equal'),
        (TILED, None, [0, 0, 1, 0, 1, 2], r'rows 0 and 1 differ, but \S+_image_of_text.npy gives them image 0'),
        ([0, 1], None, [1, 1], 'image_of_text.npy gives image 0 no caption'),
    ],
)
def test_rows_that_do_not_tell_the_images_of_captions(root, rows, ids, given, message):
    write(root, ims=features(3)[rows], captions=['a'] * len(rows), ids=ids)
    if given:
        np.save(root / 'train_image_of_text.npy', given)
    with pytest.raises(UserError, match=message):
        precomp.load('train', root=str(root))


def test_images_may_have_different_numbers_of_regions(root):
    write(root, split='dev', train_counts=np.array([9]), dev_counts=np.array([3, 1, 2], np.int16))
    split = precomp.load('dev', root=str(root), dev_images=2)
    assert split.counts.tolist() == [3, 1]
    assert split.counts.dtype == np.int32


def write_cc152k(root, lines, split='train', ims=None):
    """Writes a split in the layout of CC152K, by default of three images."""
    np.save(root / f'{split}_ims.npy', features(3) if ims is None else ims)
    (root / f'{split}_caps.tsv').write_text(''.join(f'{line}\n' for line in lines), encoding='utf-8')


CC152K = [
    '1203\ta very typical bus station',
    '88\tsierra looked stunning in this top and this skirt while performing',
    '3000017\tinterior design of modern living room , with fireplace',
]


def test_cc152k_has_ids_and_captions_in_one_file(root):
    ims = features(3)
    write_cc152k(root, CC152K, ims=ims)
    split = precomp.load('train', root=str(root))
    np.testing.assert_array_equal(split.regions, ims)
    assert split.captions == tuple(line.split('\t')[1] for line in CC152K)
    assert split.image_ids == ('1203', '88', '3000017')
    assert split.image_of_text.tolist() == [0, 1, 2]
    assert precomp.files_of('train')[:3] == ['train_ims.npy', 'train_caps.txt', 'train_caps.tsv']


def test_other_files_come_before_that_of_cc152k(root):
    write_cc152k(root, CC152K)
    write(root, ids=['x', 'y', 'z'])
    assert precomp.load('train', root=str(root)).captions[0] == 'caption 0'
    (root / 'train_caps.txt').unlink()
    split = precomp.load('train', root=str(root))
    assert (split.captions[0], split.image_ids) == ('a very typical bus station', ('x', 'y', 'z'))


# What is refused; other files are in the table of tests/drills.


@pytest.mark.parametrize('captions', [True, False])
@pytest.mark.parametrize('name', ['train.npz', 'train36.hdf5', 'train_resnet101_faster_rcnn.tsv', 'train/7.npz'])
def test_features_in_other_formats_are_named(root, name, captions):
    if captions:
        write_cc152k(root, CC152K)
        (root / 'train_ims.npy').unlink()
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_bytes(b'')
    problem = f'{root / "train_ims.npy"} is missing' if captions else f"{root} has no split 'train': it holds no"
    text = message(root)
    assert text.startswith(problem)
    assert f'; {root / name} is not read: write its features by numpy.save as one array [images, regions, ' in text


def test_arrays_of_different_shapes_are_padded(root):
    write(root)
    np.save(root / 'train_ims.npy', np.array([np.ones((2, 3)), np.ones((1, 3))], object), allow_pickle=True)
    assert re.search(r'train_ims.npy is no .npy file, .* with arrays padded to one shape', message(root))


@pytest.mark.parametrize('value', [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('dtype', [np.float16, np.float32])
@pytest.mark.parametrize('row', [0, 4, 9])
def test_features_that_are_not_finite(root, monkeypatch, value, dtype, row):
    monkeypatch.setattr(arrays, 'CHUNK_BYTES', 100)
    ims = features(10, dtype)
    ims[row, 1, 2] = ims[9, 0, 0] = value
    write(root, ims=ims, captions=[str(n) for n in range(20)])
    assert message(root).startswith(f'{root / "train_ims.npy"}, row {row} has NaN or infinite features')


@pytest.mark.parametrize('dtype', [np.float16, np.float32])
def test_the_largest_and_smallest_numbers_are_finite(root, dtype):
    info = np.finfo(dtype)
    ims = np.array([info.max, info.min, info.tiny, -info.smallest_subnormal, 0.0, -0.0], dtype).reshape(3, 1, 2)
    write(root, ims=ims)
    np.testing.assert_array_equal(precomp.load('train', root=str(root)).regions, ims)


def test_what_is_not_kept_is_checked_too(root):
    ims = np.repeat(features(3), 2, axis=0)
    ims[4:] = np.inf
    write(root, split='dev', ims=ims)
    assert message(root, 'dev', dev_images=1).startswith(f'{root / "dev_ims.npy"}, row 4 has NaN or infinite features')


def test_everything_is_stored_as_often_as_images_and_cut_with_them(root):
    boxes = np.sort(np.random.default_rng(1).random((3, 3, 4))).astype(np.float32)
    arrays = {'dev_boxes': np.repeat(boxes, 2, axis=0), 'dev_counts': np.repeat([2, 3, 1], 2)}
    write(root, split='dev', ims=np.repeat(features(3), 2, axis=0), **arrays)
    (root / 'dev_tags.jsonl').write_text(''.join(line * 2 for line in TAGS.splitlines(keepends=True)))
    split = precomp.load('dev', root=str(root), dev_images=2)
    np.testing.assert_array_equal(split.boxes, boxes[:2])
    assert (split.counts.tolist(), split.tags) == ([2, 3], ('dog traffic light dog', 'cat bus'))


TAGS = '[["dog", 0.9], ["traffic light", 0.3], ["dog", 0.1]]\n[["cat", 0.05], ["bus", 0.01]]\n[]\n'


@pytest.mark.parametrize(
    ('score', 'tags'),
    [(0.0, ('dog traffic light dog', 'cat bus', '')), (0.2, ('dog traffic light', 'cat', '')), (2, ('dog', 'cat', ''))],
)
def test_tags_of_a_high_score_are_kept_and_at_least_one(root, score, tags):
    write(root)
    assert precomp.load('train', root=str(root)).tags is None
    (root / 'train_tags.jsonl').write_text(TAGS)
    assert precomp.load('train', root=str(root), min_tag_score=score).tags == tags


@pytest.mark.needs(UNPACK)
def test_flickr8k(tmp_path):
    subprocess.run([sys.executable, ROOT / UNPACK, tmp_path], check=True, capture_output=True)
    folder = tmp_path / 'f8k_precomp'
    assert precomp.splits(str(folder)) == ('dev', 'train')
    split = precomp.load('dev', root=str(folder))
    assert split.name == 'f8k_precomp/dev'
    assert split.regions.shape == (1000, 36, 256)
    assert split.num_texts == 5000
    assert split.captions[5] == 'a boy in a blue top is jumping off some rocks in the woods .'
    assert split.image_ids[0] == '2090545563_a4e66ec76b.jpg'
    np.testing.assert_allclose(split.boxes[7, 35], [5 / 6, 5 / 6, 1, 1], rtol=1e-6)
    assert precomp.load('train', root=str(folder)).num_images == 6000


@pytest.mark.needs(UNPACK)
def test_flickr8k_regions_have_their_counts(tmp_path):
    subprocess.run([sys.executable, ROOT / UNPACK, tmp_path, 'regions'], check=True, capture_output=True)
    split = precomp.load('train', root=str(tmp_path / 'f8k_regions_precomp'))
    assert (split.counts.min(), split.counts.max()) == (24, 36)
    assert not split.regions[np.arange(36) >= split.counts[:, None]].any()
