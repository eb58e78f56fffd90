"""Photos of a folder: which files are read, which are left out, and what a link may lead to."""

import dataclasses
import hashlib
import os
import types

import numpy as np
import pytest
from PIL import Image

from jitm.commands.search import _text
from jitm.data.images import image_bytes
from jitm.data.images.pixels import Photos
from jitm.data.images.transforms import Transform
from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.pages.pictures import thumbnail, uri
from jitm.pages.render import Result
from jitm.serving import answers
from jitm.serving import index as index_lib
from jitm.serving.answers import Answer
from jitm.serving.images import ImageReader, as_split, open_images, photo_files, transform_of
from jitm.serving.loaded_run import LoadedRun
from tests.support.html import Page

CONFIG = {'data': {'short_side': 10, 'interpolation': 'bicubic'}}
RUN = types.SimpleNamespace(
    workdir='run', model=types.SimpleNamespace(reads=('pixels',)), image_size=(8, 8), config=CONFIG, feature_scale=1.0
)


@pytest.fixture
def folder(tmp_path):
    """Three photos, one that is linked, a damaged one, and files that are no photos."""
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


def make_index(folder, out):
    """Makes or updates the index of a folder of photos."""
    return index_lib.update(ImageReader(open_images(folder, RUN), RUN), out, 'model', encode, 2)


def encode(images):
    return images.pixels.reshape(len(images.pixels), -1).astype(np.float32)


def test_photos_are_decoded_as_in_evaluation(folder, tmp_path):
    images = open_images(folder, RUN)
    assert images.names == ('a.JPG', 'b.png', 'cut.jpg', 'deep/c.png', 'link.png')
    index = make_index(folder, tmp_path / 'index')
    assert index.names == ['a.JPG', 'b.png', 'deep/c.png', 'link.png']
    assert list(index.unreadable) == ['cut.jpg']
    assert index.unreadable['cut.jpg'].startswith('is damaged or cut off')
    files = Photos([str(folder / name) for name in index.names], Transform(8, 10, 'bicubic', 'centre', 1.0, False))
    np.testing.assert_array_equal(index.vectors, encode(types.SimpleNamespace(pixels=files[:])))
    assert photo_files(images.take(np.array([3])), RUN) == [str(folder / 'deep' / 'c.png')]


def test_what_is_indexed_is_what_was_hashed(folder, tmp_path, monkeypatch):
    """The file is replaced while it is decoded: its old content is indexed, and the next update reads the new one."""
    for name in ('a.JPG', 'deep/c.png', 'cut.jpg', 'link.png'):  # so that one thread reads and replaces
        (folder / name).unlink()
    Image.new('RGB', (16, 12), 'red').save(folder / 'b.png')
    opened = Image.open

    def replace(file):
        image = opened(file)
        Image.new('RGB', (16, 12), 'blue').save(folder / 'b.png')
        os.utime(folder / 'b.png', (1, 1))
        return image

    monkeypatch.setattr(Image, 'open', replace)
    index = make_index(folder, tmp_path / 'index')
    monkeypatch.undo()
    assert index.vectors[0, :3].tolist() == [255, 0, 0]
    index = make_index(folder, tmp_path / 'index')
    assert index.vectors[0, :3].tolist() == [0, 0, 255]


def test_photos_that_vanish_or_appear_are_their_own_problem(folder, tmp_path, monkeypatch):
    opened = Image.open
    monkeypatch.setattr(Image, 'open', lambda file: ((folder / 'b.png').unlink(missing_ok=True), opened(file))[1])
    reader = ImageReader(open_images(folder, RUN), RUN)
    (folder / 'a.JPG').unlink()
    index = index_lib.update(reader, tmp_path / 'index', 'model', encode, 2)
    assert sorted(index.unreadable)[0] == 'a.JPG'
    assert index.unreadable['a.JPG'].startswith('cannot be read (No such file or directory)')
    assert reader.read(3)[0].checksum == hashlib.sha256((folder / 'deep' / 'c.png').read_bytes()).hexdigest()


UNREADABLE = {
    'IMG_1.HEIC': 'is not an image that Pillow can read: convert it to JPEG',
    'cut.jpg': 'is damaged or cut off',
    'dangling.jpg': 'cannot be read (No such file or directory)',
    'deep/IMG_2.CR2': 'is a RAW file of a camera: convert it to JPEG',
    'empty.jpg': 'is empty',
    'fifo.jpg': 'cannot be read (it is not a regular file)',
    'loop.jpg': 'cannot be read (Too many levels of symbolic links)',
}


def test_odd_files_are_named_and_left_out(folder, tmp_path):
    photo = (folder / 'b.png').read_bytes()
    os.mkfifo(folder / 'fifo.jpg')
    links = {'loop.jpg': 'loop.jpg', 'dangling.jpg': 'nothing.jpg', 'deep/inside.png': 'c.png'}
    links |= {'album': tmp_path, 'deep/again': folder}  # which has outside.png; photos that are listed
    for name, target in links.items():
        (folder / name).symlink_to(target)
    heic = b'\0\0\0\x18ftypheic\0\0\0\0mif1heic' + bytes(100)
    contents = {'empty.jpg': b'', 'IMG_1.HEIC': heic, 'deep/IMG_2.CR2': photo, os.fsdecode(b'\xff\x1b[31m.png'): photo}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    names = ['a.JPG', 'album/outside.png', 'b.png', 'deep/c.png', 'deep/inside.png', 'link.png', '\udcff\x1b[31m.png']
    for _ in range(2):  # the second time by the index alone
        index = make_index(folder, tmp_path / 'index')
        assert index.names == names
        assert index.unreadable.keys() == UNREADABLE.keys()
        assert all(index.unreadable[name].startswith(reason) for name, reason in UNREADABLE.items())


def test_a_photo_that_becomes_a_link_stays_in_the_index(folder, tmp_path):
    index = make_index(folder, tmp_path / 'index')
    (folder / 'b.png').rename(tmp_path / 'b.png')
    (folder / 'b.png').symlink_to(tmp_path / 'b.png')
    assert make_index(folder, index.folder).names == index.names


def test_folders_that_cannot_be_read_are_named(folder, tmp_path, monkeypatch):
    scan = os.scandir
    hidden = [str(folder / 'deep')]

    def scandir(path):
        if str(path) in hidden:
            raise PermissionError(13, 'Permission denied', str(path))
        return scan(path)

    def refuse(path, mode='rb'):
        if str(path) in hidden:
            raise PermissionError(13, 'Permission denied', str(path))
        return opened(path, mode)

    opened = image_bytes.open_file
    monkeypatch.setattr(os, 'scandir', scandir)
    monkeypatch.setattr(image_bytes, 'open_file', refuse)
    index = make_index(folder, tmp_path / 'index')
    assert index.names == ['a.JPG', 'b.png', 'link.png']
    assert index.unreadable['deep'] == 'cannot be read (Permission denied): add the file, or make it readable'
    hidden.append(str(folder))
    with pytest.raises(UserError, match=r'photos cannot be read .Permission denied.: make it readable'):
        open_images(folder, RUN)


def test_the_page_of_a_photo_shows_it(folder):
    images = open_images(folder, RUN)
    outside = str(folder.parent / 'outside.png')
    results = [Result('a.JPG', 0.5), Result('deep/c.png', 0.25)]
    paths = folder / 'a.JPG', folder / 'deep' / 'c.png', folder / 'b.png', outside
    *rest, own, other = (uri(thumbnail(path), 'jpeg') for path in paths)
    for image, picture in (('b.png', own), (outside, other)):
        shown = Page(answers.page(Answer(image, results, True, image), images, 'jitm'))
        assert (shown.texts['h1'], shown.addresses) == ([image], [picture, *rest])
        captions = Page(answers.page(Answer(image, [Result('a cat', 0.5)], False, image), images, 'jitm'))
        assert captions.addresses == [picture]
    assert Page(answers.page(Answer('a cat', results, True), images, 'jitm')).addresses == rest


def test_names_are_shown_without_what_a_terminal_or_a_browser_obeys(folder):
    name = os.fsdecode(b'\xff\x1b[31m\n\xe2\x80\xae\xc3\xbc.png')
    (folder / 'b.png').rename(folder / name)
    images = open_images(folder, RUN)
    found = Answer(name, [Result(name, 0.5)], True, name)
    assert answers.page(found, images, 'jitm').encode().count('>��[31m��ü.png</code>'.encode()) == 1
    assert _text(found) == '1    0.5000  ��[31m��ü.png'


def test_photos_take_the_transform_of_the_training_data():
    assert transform_of(RUN) == Transform(8, 10, 'bicubic', 'centre', 1.0, False)
    plain = types.SimpleNamespace(model=RUN.model, image_size=(8, 8), config={'data': {}})
    assert transform_of(plain) == Transform(8, 8, 'bilinear', 'centre', 1.0, False)


def test_an_index_is_of_one_transform():
    """Vectors depend on it; two conversions of the same weights may share the folder of an index."""

    def key_of(reads=('pixels',), feature_scale=1.0, **data):
        model = types.SimpleNamespace(reads=reads)
        config = {'data': CONFIG['data'] | data, 'evaluation': {'dtype': 'float32', 'precision': 'highest'}}
        run = types.SimpleNamespace(
            model=model, variables={}, image_size=(8, 8), config=config, feature_scale=feature_scale
        )
        return LoadedRun.model_key.func(types.SimpleNamespace(run=run))

    assert key_of() == key_of(crop='random')
    assert len({key_of(), key_of(short_side=12), key_of(interpolation='bilinear')}) == 3
    assert key_of(('regions',)) == key_of(('regions',), short_side=12) != key_of(('regions',), feature_scale=2.0)


def test_folders_without_photos_are_refused(tmp_path):
    with pytest.raises(UserError, match=r'has no image files \(.avif, .bmp, .gif,'):
        open_images(tmp_path, RUN)
    reads = types.SimpleNamespace(reads=('regions',))
    with pytest.raises(UserError, match='features of an unknown network, which cannot read the photos'):
        open_images(tmp_path, types.SimpleNamespace(workdir='run', model=reads, encoded_by=None))


def test_photos_for_a_network_take_its_transform_and_no_boxes(folder):
    reads = types.SimpleNamespace(reads=('regions', 'locations'))
    run = types.SimpleNamespace(workdir='run', model=reads, encoded_by={'image_size': [6, 6], 'short_side': 9})
    for images in ([folder / 'b.png'], open_images(folder, RUN).take(np.array([1]))):
        assert as_split(images, run).pixels[:].shape == (1, 6, 6, 3)
        with pytest.raises(UserError, match='photos are encoded with boxes of their own: leave boxes out'):
            as_split(images, run, boxes=[[[0, 0, 1, 1]]])


def test_images_of_one_id_are_named_by_their_numbers():
    split = Split('x', pixels=np.zeros((2, 4, 4, 3), np.uint8), image_ids=('a', 'b'))
    assert (split.names, dataclasses.replace(split, image_ids=('a', 'a')).names) == (('a', 'b'), ('0', '1'))
