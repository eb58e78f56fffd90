"""Photos of a folder: which files are read, which are left out, and what a link may lead to."""

import os
import types

import numpy as np
import pytest
from PIL import Image

from jitm.data.pixels import Photos
from jitm.data.transforms import Transform
from jitm.errors import UserError
from jitm.serving import indexing
from jitm.serving.inputs import transform_of
from jitm.serving.sources import open_source

CONFIG = {'data': {'short_side': 10, 'interpolation': 'bicubic'}}
RUN = types.SimpleNamespace(
    workdir='run', model=types.SimpleNamespace(reads=('pixels',)), image_size=(8, 8), config=CONFIG
)


@pytest.fixture
def folder(tmp_path):
    """Three photos, a damaged one, and files that are no photos."""
    root = tmp_path / 'photos'
    (root / 'deep' / '.hidden').mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in ('b.png', 'a.JPG', 'deep/c.png', 'deep/.hidden/d.png', '.e.png', '../outside.png'):
        pixels = rng.integers(0, 256, (12, 16, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(root / name, format='PNG')
    (root / 'cut.jpg').write_bytes((root / 'b.png').read_bytes()[:200])
    (root / 'notes.txt').write_text('no photo')
    os.symlink(tmp_path / 'outside.png', root / 'link.png')
    return root


def encode(images):
    return images.pixels.reshape(len(images.pixels), -1).astype(np.float32)


def test_photos_are_decoded_as_in_evaluation(folder, tmp_path):
    source = open_source(folder, RUN)
    assert source.names == ['a.JPG', 'b.png', 'cut.jpg', 'deep/c.png']
    index = indexing.update(source, tmp_path / 'index', 'model', encode, 2)
    assert index.names == ['a.JPG', 'b.png', 'deep/c.png']
    assert list(index.unreadable) == ['cut.jpg']
    assert index.unreadable['cut.jpg'].startswith('is damaged or cut off')
    files = Photos([str(folder / name) for name in index.names], Transform(8, 10, 'bicubic', 'centre', 1.0, False))
    np.testing.assert_array_equal(index.vectors, encode(types.SimpleNamespace(pixels=files[:])))
    assert source.take(['deep/c.png'], RUN) == [str(folder / 'deep' / 'c.png')]
    assert source.pictures(['b.png'])['b.png'].startswith('data:image/jpeg')


def test_only_changed_photos_are_read(folder, tmp_path, monkeypatch):
    read = []
    index = indexing.update(open_source(folder, RUN), tmp_path / 'index', 'model', encode, 2)
    os.rename(folder / 'b.png', folder / 'renamed.png')
    (folder / 'a.JPG').unlink()
    source = open_source(folder, RUN)
    original = source.read
    monkeypatch.setattr(source, 'read', lambda name: (read.append(name), original(name))[1])
    encoded = []
    update = indexing.update(source, index.folder, 'model', lambda images: encoded.append(images), 2)
    assert (sorted(read), encoded) == (['cut.jpg', 'renamed.png'], [])
    assert update.names == ['deep/c.png', 'renamed.png']


def test_photos_take_the_transform_of_the_training_data():
    assert transform_of(RUN) == Transform(8, 10, 'bicubic', 'centre', 1.0, False)
    plain = types.SimpleNamespace(image_size=(8, 8), config={'data': {}})
    assert transform_of(plain) == Transform(8, 8, 'bilinear', 'centre', 1.0, False)


def test_folders_without_photos_are_refused(tmp_path):
    with pytest.raises(UserError, match=r'has no image files \(.bmp, .gif,'):
        open_source(tmp_path, RUN)
    with pytest.raises(UserError, match='has a model of region features, which cannot read the photos'):
        open_source(tmp_path, types.SimpleNamespace(workdir='run', model=types.SimpleNamespace(reads=('regions',))))
