import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from jitm.data import photos, tfds_photos
from jitm.errors import UserError

SPLITS = {'train': 3, 'restval': 2, 'val': 2, 'test': 1}


class CocoCaptions(tfds.core.GeneratorBasedBuilder):
    """The features of coco_captions 1.1.0; each image has as many captions as its number, and one more."""

    VERSION = tfds.core.Version('1.1.0')
    url_infos = None
    folder = None

    def _info(self):
        caption = {'id': np.int64, 'text': tfds.features.Text()}
        features = {
            'image': tfds.features.Image(encoding_format='jpeg'),
            'image/filename': tfds.features.Text(),
            'image/id': np.int64,
            'captions': tfds.features.Sequence(caption),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {split: self._generate_examples(split, images) for split, images in SPLITS.items()}

    def _generate_examples(self, split, images):
        for n in range(images):
            path = self.folder / f'{split}_{n}.jpg'
            Image.new('RGB', (20, 16), (80 * n, 0, 0)).save(path)
            texts = [{'id': k, 'text': f'Hündchen {n} {k}'} for k in range(n + 1)]
            yield n, {'image': str(path), 'image/filename': path.name, 'image/id': n, 'captions': texts}


def test_a_prepared_data_set_becomes_a_folder_of_photos(tmp_path, monkeypatch):
    monkeypatch.setattr(CocoCaptions, 'folder', tmp_path)
    builder = CocoCaptions(data_dir=tmp_path / 'tfds', file_format='array_record')
    builder.download_and_prepare()
    tfds_photos.write(builder.data_dir, tmp_path / 'coco_photos')
    sizes = {'image_size': 8, 'short_side': 8}
    train = photos.load('train', root=str(tmp_path / 'coco_photos'), **sizes)
    assert train.num_images == SPLITS['train'] + SPLITS['restval']
    names = sorted(name for name in train.image_ids if name.startswith('train/'))
    assert names == ['train/train_0.jpg', 'train/train_1.jpg', 'train/train_2.jpg']
    row = train.image_ids.index('train/train_2.jpg')
    texts = [train.captions[text] for text in np.flatnonzero(train.image_of_text == row)]
    assert texts == ['Hündchen 2 0', 'Hündchen 2 1', 'Hündchen 2 2']
    assert abs(train.pixels[row].astype(int) - [160, 0, 0]).max() < 4
    assert photos.load('dev', root=str(tmp_path / 'coco_photos'), **sizes).num_images == SPLITS['val']


def test_only_its_own_photos_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds_photos, 'BLOCK', 2)
    records = [{'image/filename': f'{n}.jpg'.encode(), 'image': b'x', 'captions': {'text': [b'a']}} for n in range(5)]
    monkeypatch.setattr(tfds_photos, '_read', lambda prepared: {'train': records})
    for _ in range(2):
        tfds_photos.write('prepared', tmp_path / 'coco')
    assert len(list((tmp_path / 'coco' / 'train').iterdir())) == 5
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine' / tfds_photos.CAPTIONS).write_bytes(b'mine')
    with pytest.raises(UserError, match='mine is not empty and is not a set of photos of jitm'):
        tfds_photos.write('prepared', tmp_path / 'mine')
    assert [path.read_bytes() for path in (tmp_path / 'mine').iterdir()] == [b'mine']


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(UserError, match='is no prepared coco_captions'):
        tfds_photos.write(tmp_path, tmp_path / 'out')


@pytest.mark.parametrize('name', ['../evil.jpg', '/tmp/jitm_evil.jpg', '', 'a/../../evil.jpg', '\0'])
def test_names_of_records_lead_to_no_other_folder(name, tmp_path, monkeypatch):
    record = {'image/filename': name.encode(), 'image': b'', 'captions': {'text': []}}
    monkeypatch.setattr(tfds_photos, '_read', lambda prepared: {'train': [record]})
    with pytest.raises(UserError, match=r"'train' names .*, which is no path within its folder"):
        tfds_photos.write('prepared', tmp_path / 'coco' / 'photos')
    assert not list(tmp_path.rglob('*'))
