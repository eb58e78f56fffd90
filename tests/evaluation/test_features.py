"""Tests of the features of image networks: their values against a formula, the files, and what is refused."""

import dataclasses
import json

import numpy as np
import pytest
from flax import linen as nn

from jitm.data import photos, precomp, scenes
from jitm.errors import UserError
from jitm.evaluation import features
from tests.models.test_matchers import make_vse


class Cells(nn.Module):
    """An image encoder whose network averages the pixels of each cell of a grid, and multiplies them by a parameter."""

    edge: int
    normalize_features: bool = False

    reads = ('pixels',)

    def setup(self):
        self.factor = self.param('factor', nn.initializers.constant(2.0), ())

    def features(self, images, train=False):
        grid = images.pixels.reshape(len(images.pixels), self.edge, 16 // self.edge, self.edge, 16 // self.edge, 3)
        return self.factor * grid.mean(axis=(2, 4)).reshape(len(images.pixels), -1, 3)

    def __call__(self, images, train=False):
        raise NotImplementedError


def make_network(edge=2, normalize=False, crops=1, dtype='float32', factor=2.0):
    model = make_vse().clone(image=Cells(edge, normalize))
    variables = {'params': {'image': {'factor': np.float32(factor)}, 'text': {'unused': np.ones(3, np.float32)}}}
    return features.Network(model, variables, crops, dtype)


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp('photos') / 'drawn'
    photos.write(scenes.load('dev', dev_images=5), folder)
    return folder


@pytest.fixture(scope='module')
def split(root):
    return photos.load('dev', root=str(root), image_size=16, short_side=20)


def cells(pixels, edge=2):
    """The means of the cells of pictures, row by row, as loops: float64 [I, R, 3]."""
    size = 16 // edge
    return np.array(
        [
            [
                picture[size * row : size * (row + 1), size * column : size * (column + 1)].astype(float).mean((0, 1))
                for row in range(edge)
                for column in range(edge)
            ]
            for picture in pixels
        ]
    )


def test_cells_are_regions_with_boxes(split, tmp_path):
    assert features.write(make_network(), split, 'dev', tmp_path)
    read = precomp.load('dev', root=str(tmp_path))
    np.testing.assert_allclose(read.regions, 2 * cells(split.pixels[:]), rtol=1e-6)
    assert read.regions.dtype == np.float32
    np.testing.assert_allclose(read.boxes[3], [[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]])
    assert (read.captions, read.image_ids) == (split.captions, split.image_ids)
    np.testing.assert_array_equal(read.image_of_text, split.image_of_text)


def test_a_global_feature_is_a_vector(split, tmp_path):
    features.write(make_network(edge=1, dtype='float16'), split, 'dev', tmp_path)
    array = np.load(tmp_path / 'dev_ims.npy')
    assert (array.shape, array.dtype) == ((5, 3), np.float16)
    np.testing.assert_allclose(array, 2 * cells(split.pixels[:], edge=1)[:, 0], rtol=1e-3)
    assert not (tmp_path / 'boxes.npy').exists()


@pytest.mark.parametrize('crops', [1, 10])
def test_features_are_averaged_over_crops_and_then_normalized(split, tmp_path, crops):
    features.write(make_network(edge=1, normalize=True, crops=crops), split, 'dev', tmp_path)
    pixels = split.pixels.crops(np.arange(5)) if crops == 10 else split.pixels[:][:, None]
    want = np.mean([cells(pixels[:, n], edge=1)[:, 0] for n in range(crops)], axis=0)
    want /= np.linalg.norm(want, axis=-1, keepdims=True)
    np.testing.assert_allclose(np.load(tmp_path / 'dev_ims.npy'), want, rtol=1e-5)


def test_images_are_encoded_in_blocks(split, tmp_path, monkeypatch):
    monkeypatch.setattr(features, 'IMAGES_PER_CALL', 2)
    features.write(make_network(), split, 'dev', tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / 'dev_ims.npy'), 2 * cells(split.pixels[:]), rtol=1e-6)


def test_any_number_of_captions_is_kept(split, tmp_path):
    changed = dataclasses.replace(split, image_of_text=np.sort(np.arange(25) % 7 % 5).astype(np.int32))
    features.write(make_network(), changed, 'dev', tmp_path)
    read = precomp.load('dev', root=str(tmp_path))
    np.testing.assert_array_equal(read.image_of_text, changed.image_of_text)
    assert read.captions == changed.captions


def test_what_is_encoded_is_not_encoded_again(split, tmp_path, monkeypatch):
    assert features.write(make_network(), split, 'dev', tmp_path)
    monkeypatch.setattr(features, 'encode', None)
    assert not features.write(make_network(), split, 'dev', tmp_path)
    others = {'factor': 3.0}, {'edge': 1}, {'normalize': True}, {'edge': 1, 'crops': 10}
    for other in (make_network(**changes) for changes in others):
        with pytest.raises(UserError, match=r'dev_ims.npy has other features than these'):
            features.write(other, split, 'dev', tmp_path)


def test_a_killed_job_encodes_its_split_again(split, tmp_path, monkeypatch):
    def killed(network, split):
        yield np.zeros((2, 4, 3), np.float32)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(features, 'encode', killed)
        with pytest.raises(KeyboardInterrupt):
            features.write(make_network(), split, 'dev', tmp_path)
    assert not (tmp_path / 'dev_ims.npy').exists()
    assert features.write(make_network(), split, 'dev', tmp_path)
    assert precomp.load('dev', root=str(tmp_path)).num_images == 5
    assert sorted(json.loads((tmp_path / 'encoded.json').read_text())) == ['dev']


def test_infinite_features_are_refused_and_not_written(split, tmp_path):
    with pytest.raises(UserError, match=r'dev-000000.png of drawn/dev has features that are not finite in float16'):
        features.write(make_network(factor=1e6, dtype='float16'), split, 'dev', tmp_path)
    assert not list(tmp_path.glob('*_ims.npy*'))


def test_models_and_images_without_pixels_are_refused(split):
    plain = dataclasses.replace(make_network(), model=make_vse())
    with pytest.raises(UserError, match='VSE as configured has no network that reads pixels'):
        features.check(plain, split)
    drawn = scenes.load('dev', dev_images=5)
    features.check(make_network(), drawn)
    with pytest.raises(UserError, match='has no files of which ten crops could be cut'):
        features.check(make_network(crops=10), drawn)
    with pytest.raises(UserError, match='returns 4 cells, which lie elsewhere in each crop: take --crops 1'):
        features.check(make_network(crops=10), split)
    with pytest.raises(UserError, match='has no pixels, but the model reads them'):
        features.check(make_network(), dataclasses.replace(drawn, pixels=None))
    with pytest.raises(UserError, match='crops is 5: take 1 or 10'):
        features.check(make_network(crops=5), split)


def test_a_damaged_description_is_named(split, tmp_path):
    (tmp_path / 'encoded.json').write_text('[')
    with pytest.raises(UserError, match=r'encoded.json is damaged'):
        features.write(make_network(), split, 'dev', tmp_path)
