import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow_datasets as tfds

import jitm.data.tfds_builders
from jitm.data import precomp
from jitm.errors import UserError

CAPTIONS = ['Ein Süßer Hund', *(f'caption {n}' for n in range(1, 15))]


def write(root, split, shape=(3, 36, 256), dtype=np.float16, boxes=True):
    root.mkdir(exist_ok=True)
    ims = np.random.default_rng(len(split)).standard_normal(shape).astype(dtype)
    np.save(root / f'{split}_ims.npy', ims)
    (root / f'{split}_caps.txt').write_text('\n'.join(CAPTIONS), encoding='utf-8')
    (root / f'{split}_ids.txt').write_text('z\ny\nx\n', encoding='utf-8')
    if boxes:
        np.save(root / 'boxes.npy', np.sort(np.random.default_rng(1).random((36, 4), np.float32)))


def prepare(tmp_path, config):
    builder = tfds.builder(f'jitm_precomp/{config}', data_dir=tmp_path / 'tfds', file_format='array_record')
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir=tmp_path))
    return builder


def assert_same(records, split):
    assert len(records) == split.num_images
    for n, record in enumerate(records):
        assert record['image_id'].decode() == split.image_ids[n]
        np.testing.assert_array_equal(record['regions'], split.regions[n], strict=True)
        assert [caption.decode() for caption in record['captions']] == [
            split.captions[t] for t in np.flatnonzero(split.image_of_text == n)
        ]
        if split.boxes is None:
            assert 'boxes' not in record
        else:
            np.testing.assert_array_equal(record['boxes'], split.boxes[n], strict=True)


def test_records_equal_the_folder(tmp_path):
    root = tmp_path / 'f8k_precomp'
    for name in ('train', 'dev', 'testall'):
        write(root, name)
    builder = prepare(tmp_path, 'f8k')
    assert set(builder.info.splits) == {'train', 'dev', 'testall'}
    for name in builder.info.splits:
        assert_same(builder.as_data_source(split=name), precomp.load(name, root=str(root)))


@pytest.mark.parametrize('config', ['f30k', 'coco'])
def test_published_features_have_no_boxes(tmp_path, config):
    root = tmp_path / f'{config}_precomp'
    write(root, 'dev', (3, 36, 2048), np.float32, boxes=False)
    builder = prepare(tmp_path, config)
    assert_same(builder.as_data_source(split='dev'), precomp.load('dev', root=str(root)))


def test_captions_may_be_in_any_order_of_images(tmp_path):
    root = tmp_path / 'f8k_precomp'
    write(root, 'train')
    image_of_text = np.arange(15) * 2 % 3
    np.save(root / 'train_image_of_text.npy', image_of_text)
    records = prepare(tmp_path, 'f8k').as_data_source(split='train')
    assert_same(records, precomp.load('train', root=str(root)))


def test_dev_is_whole(tmp_path, monkeypatch):
    seen = []
    load = precomp.load
    monkeypatch.setattr(precomp, 'load', lambda *args, **options: seen.append(options) or load(*args, **options))
    write(tmp_path / 'f8k_precomp', 'dev')
    prepare(tmp_path, 'f8k')
    assert [options['dev_images'] for options in seen] == [None]


@pytest.mark.parametrize(
    ('shape', 'dtype', 'found'),
    [
        ((3, 36, 128), np.float16, '36 regions of 128 features in float16'),
        ((3, 10, 256), np.float16, '10 regions of 256 features in float16'),
        ((3, 36, 256), np.float32, '36 regions of 256 features in float32'),
    ],
)
def test_features_of_another_data_set(tmp_path, shape, dtype, found):
    root = tmp_path / 'f8k_precomp'
    write(root, 'train', shape, dtype, boxes=False)
    with pytest.raises(UserError) as caught:
        prepare(tmp_path, 'f8k')
    assert str(caught.value).startswith(f'{root / "train_ims.npy"} has {found}, but jitm_precomp/f8k is 36 of 256')


def test_missing_boxes(tmp_path):
    root = tmp_path / 'f8k_precomp'
    write(root, 'train', boxes=False)
    with pytest.raises(UserError) as caught:
        prepare(tmp_path, 'f8k')
    assert str(caught.value).startswith(f'{root / "train_ims.npy"} has no boxes, but')


def test_missing_folder(tmp_path):
    with pytest.raises(UserError) as caught:
        prepare(tmp_path, 'f8k')
    assert str(caught.value).startswith(f'{tmp_path / "f8k_precomp"} is not a folder')


def test_tensorflow_is_never_imported(tmp_path):
    """Runs the lines of the module docstring in a process of their own, where nothing else can have imported it."""
    (tmp_path / 'data').mkdir()
    write(tmp_path / 'data' / 'f8k_precomp', 'train')
    lines = jitm.data.tfds_builders.__doc__.split('\n\n')[1:3]
    script = textwrap.dedent('\n'.join(lines)) + "\nimport sys\nsys.exit('tensorflow' in sys.modules)\n"
    done = subprocess.run([sys.executable, '-c', script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
