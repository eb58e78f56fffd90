"""Prepared data sets are written here, offline and without TensorFlow."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest
import tensorflow_datasets
from PIL import Image

from jitm.commands import cli
from jitm.configs import load as load_config
from jitm.data import precomp
from jitm.data.images import tfds
from jitm.data.load import load_split
from jitm.errors import UserError
from jitm.runs.run import load_run

SPLITS = {'train': 3, 'restval': 2, 'val': 2, 'test': 1}
SMALL = {'image_size': 8, 'short_side': 8}
CAPTIONS = ['Ein Süßer Hund', *(f'caption {n}' for n in range(1, 15))]


class CocoCaptions(tensorflow_datasets.core.GeneratorBasedBuilder):
    """The features of coco_captions 1.1.0; each image has as many captions as its number, and one more."""

    VERSION = tensorflow_datasets.core.Version('1.1.0')
    url_infos = None
    folder = None
    damaged = False

    def _info(self):
        caption = {'id': np.int64, 'text': tensorflow_datasets.features.Text()}
        features = {
            'image': tensorflow_datasets.features.Image(encoding_format='jpeg'),
            'image/filename': tensorflow_datasets.features.Text(),
            'image/id': np.int64,
            'captions': tensorflow_datasets.features.Sequence(caption),
        }
        return tensorflow_datasets.core.DatasetInfo(
            builder=self, features=tensorflow_datasets.features.FeaturesDict(features), disable_shuffling=True
        )

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split, images) for split, images in SPLITS.items()}

    def _generate_examples(self, split, images):
        for n in range(images):
            path = self.folder / f'{split}_{n}.jpg'
            Image.new('RGB', (20, 16), (80 * n, 0, 0)).save(path)
            if self.damaged:
                path.write_bytes(path.read_bytes()[:300])
            texts = [{'id': k, 'text': f'Hündchen {n} {k}'} for k in range(n + 1)]
            yield n, {'image': str(path), 'image/filename': path.name, 'image/id': n, 'captions': texts}


@pytest.fixture
def prepare(tmp_path, monkeypatch):
    """Prepares the images, and returns the folder of the version."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))

    def prepare(**attributes):
        for name, value in {'folder': tmp_path, **attributes}.items():
            monkeypatch.setattr(CocoCaptions, name, value)
        builder = CocoCaptions(data_dir=tmp_path / 'tfds', file_format='array_record')
        builder.download_and_prepare()
        return str(builder.data_dir)

    return prepare


def write_precomp(root, name, shape=(3, 4, 8), dtype=np.float16, boxes=True):
    root.mkdir(parents=True, exist_ok=True)
    np.save(root / f'{name}_ims.npy', np.random.default_rng(len(name)).standard_normal(shape).astype(dtype))
    np.save(root / f'{name}_counts.npy', np.array([4, 2, 3]))
    (root / f'{name}_caps.txt').write_text('\n'.join(CAPTIONS), encoding='utf-8')
    (root / f'{name}_ids.txt').write_text('z\ny\nx\n', encoding='utf-8')
    if boxes:
        np.save(root / 'boxes.npy', np.sort(np.random.default_rng(1).random((4, 4), np.float32)))


def test_photos_of_a_prepared_data_set(prepare):
    root = prepare()
    train = tfds.load('train', root=root, **SMALL)
    assert (train.name, train.dataset) == ('coco_captions/train', 'coco')
    assert train.image_ids == ('train_0.jpg', 'train_1.jpg', 'train_2.jpg', 'restval_0.jpg', 'restval_1.jpg')
    assert train.image_of_text.tolist() == [0, 1, 1, 2, 2, 2, 3, 4, 4]
    assert train.captions[3:6] == ('Hündchen 2 0', 'Hündchen 2 1', 'Hündchen 2 2')
    assert train.pixels.shape == (5, 8, 8, 3)
    assert abs(train.pixels[[2, 4]].astype(int) - [[[[160, 0, 0]]], [[[80, 0, 0]]]]).max() < 4
    assert tfds.load('train', root=root, restval=False, max_captions=2, **SMALL).num_texts == 1 + 2 + 2
    dev = tfds.load('dev', root=root, dev_images=1, **SMALL)
    assert dev.image_ids == ('val_0.jpg',)
    assert len(dev.pixels) == dev.num_images == 1
    assert dev.identity != tfds.load('dev', root=root, **SMALL).identity


def test_photos_are_checked_once(prepare, monkeypatch):
    root = prepare()
    first = tfds.load('test', root=root, **SMALL)
    monkeypatch.setattr(tfds, '_check_photos', None)
    assert tfds.load('test', root=root, **SMALL).identity == first.identity


def test_damaged_photos_are_named(prepare):
    root = prepare(damaged=True)
    with pytest.raises(UserError, match=r'1\.1\.0, record 0 of test is not an image'):
        tfds.load('test', root=root, **SMALL)


def test_blank_captions_of_a_record_are_left_out():
    assert tfds._captions({'captions': {'text': [b' a dog ', b' ', b'']}}, 'x') == ['a dog']
    with pytest.raises(UserError, match='x has no caption: prepare the data set without it'):
        tfds._captions({'captions': [b' ']}, 'x')


def test_features_equal_those_of_the_folder(tmp_path, capfd, caplog):
    root = tmp_path / 'mine_precomp'
    for name in ('train', 'dev', 'testall'):
        write_precomp(root, name)
        (root / f'{name}_tags.jsonl').write_text('[["dog", 0.9], ["red ball", 0.1]]\n[]\n[["Süß", 1]]\n')
    encoded = dict.fromkeys(precomp.ENCODED_BY, 'known')
    (root / 'encoded.json').write_text(json.dumps({'dev': encoded}))
    (root / 'dev_txts.npy').touch()
    np.save(root / 'train_image_of_text.npy', np.repeat([0, 1, 2], [1, 10, 4]))
    folder = str(tfds.write(str(root), tmp_path / 'tfds'))
    assert 'dev_txts.npy is left out: a TensorFlow data set has no vectors of tokens' in caplog.text
    assert capfd.readouterr().err == ''  # no progress bars
    assert {path.name for path in (tmp_path / 'tfds').iterdir()} == {'.jitm', 'jitm_precomp'}
    for name in ('train', 'dev', 'testall'):
        ours = tfds.load(name, root=folder)
        theirs = precomp.load(name, root=str(root))
        assert ours.identity == theirs.identity
        assert ours.captions_hash == theirs.captions_hash
        np.testing.assert_array_equal(ours.boxes, theirs.boxes, strict=True)
        assert (ours.tags, ours.encoded_by) == (theirs.tags, encoded if name == 'dev' else None)
        np.testing.assert_array_equal(ours.counts, theirs.counts, strict=True)
        np.testing.assert_array_equal(ours.regions[[2, 0]], theirs.regions[[2, 0]], strict=True)
        np.testing.assert_array_equal(ours.regions[1], theirs.regions[1], strict=True)
    assert ours.dataset == 'mine'


def test_what_cannot_be_written(tmp_path):
    root = tmp_path / 'mine_precomp'
    with pytest.raises(UserError, match='is not a folder'):
        tfds.write(str(root), tmp_path / 'tfds')
    write_precomp(root, 'train', boxes=False)
    tfds.write(str(root), tmp_path / 'tfds')
    with pytest.raises(UserError, match=r'jitm_precomp/mine/1\.1\.0 exists already: choose a new folder'):
        tfds.write(str(root), tmp_path / 'tfds')
    with pytest.raises(UserError, match='is not empty and is not a TensorFlow data set of jitm'):
        tfds.write(str(root), root)
    write_precomp(root, 'dev', (3, 4, 9), boxes=False)
    with pytest.raises(UserError, match='splits whose features differ in size'):
        tfds.write(str(root), tmp_path / 'other')


def test_what_is_no_data_set(tmp_path, prepare):
    with pytest.raises(
        UserError, match='is not a prepared data set of images with captions: give the folder of a version'
    ):
        tfds.load('train', root=str(tmp_path))
    with pytest.raises(UserError, match=r"has no split 'testall': its splits are .*restval"):
        tfds.load('testall', root=prepare(), **SMALL)
    for key, value in (('dev_images', 0), ('image_size', -1), ('min_area', 5.0)):
        with pytest.raises(UserError, match=f"config key 'data.{key}' is {value}; it must be"):
            load_split({'source': 'tfds.load', 'root': str(tmp_path), key: value}, 'dev')


def test_a_preset_reads_the_data_set(prepare):
    data = load_config('vsepp:vsepp,vgg19,tfds').data.to_dict()
    assert load_split(data | SMALL, 'dev', prepare()).num_images == SPLITS['val']


@pytest.mark.slow
def test_a_run_on_features_equals_that_on_the_folder(tmp_path, monkeypatch):
    """In a process of its own for the conversion, where nothing else can have imported TensorFlow."""
    monkeypatch.chdir(tmp_path)
    for name in ('train', 'dev', 'test'):
        write_precomp(tmp_path / 'mine_precomp', name)
    code = (
        'import sys; from jitm.commands import cli; '
        "code = cli.main(['convert', '--to', 'tfds', 'mine_precomp', '--out', 'tfds']); "
        "sys.exit(code or 'tensorflow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == 'written      tfds/jitm_precomp/mine/1.1.0'
    changes = [f'--config.{change}' for change in ('batch_size=4', 'epochs=1', 'model.embed_dim=8')]
    results = []
    for source, root in (('precomp.load', 'mine_precomp'), ('tfds.load', 'tfds/jitm_precomp/mine/1.1.0')):
        data = (f'--config.data.source={source}', f'--config.data.root={root}', '--config.vocabulary.min_count=1')
        assert cli.main(['train', '--config', 'vsepp:f30k', '--workdir', source, *data, *changes]) == 0
        results.append(jax.tree.leaves(load_run(source).variables))
    assert cli.main(['eval', '--workdir', 'tfds.load', '--split', 'test']) == 0
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(ours, theirs)
