"""An index is the same however often its process was killed; only new and changed images are encoded."""

import hashlib
import json
import os

import numpy as np
import pytest

import jitm
from jitm.commands import cli
from jitm.errors import UserError
from jitm.files import LOCK, locked
from jitm.files.outputs import OWNED
from jitm.runs.run import read_split
from jitm.serving import index as index_lib
from jitm.serving.answers import find_row
from jitm.serving.images import Entry
from jitm.serving.index import MANIFEST, Index
from jitm.types import Images


class Files:
    """A reader of small byte strings; the content b'damaged' cannot be read."""

    def __init__(self, contents, times=None):
        self.contents = contents
        self.times = times or dict.fromkeys(contents, 1)
        self.names = sorted(contents)
        self.was_read = []

    def stat(self, row):
        name = self.names[row]
        return len(self.contents[name]), self.times[name]

    def read(self, row):
        name = self.names[row]
        self.was_read.append(name)
        content = self.contents[name]
        entry = Entry(name, *self.stat(row), hashlib.sha256(content).hexdigest())
        return entry, 'damaged' if content == b'damaged' else Images(regions=np.array([[[*content]]], np.float32))


class Killed(BaseException):
    """Stands for the end of the process: nothing of jitm runs after it."""


class Encoder:
    """Encodes images as their bytes, counts them, and is killed at a call."""

    def __init__(self, killed_at=None):
        self.count = 0
        self.calls = 0
        self.killed_at = killed_at

    def __call__(self, images):
        self.calls += 1
        if self.calls == self.killed_at:
            raise Killed
        self.count += len(images.regions)
        return images.regions[:, 0]


def files(count):
    return {f'{n:03}.jpg': bytes([n % 256, n // 256, 7]) for n in range(count)}


def update(source, folder, encode, model='model', **keywords):
    return index_lib.update(source, folder, model, encode, 4, **keywords)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.rglob('*') if path.is_file() and path.name != LOCK}


def test_an_index_has_the_vectors_of_its_images(tmp_path):
    reports = []
    index = update(Files(files(30)), tmp_path / 'index', Encoder(), report=lambda *numbers: reports.append(numbers))
    assert index.names == sorted(files(30))
    np.testing.assert_array_equal(index.vectors, [list(files(30)[name]) for name in index.names])
    assert [hit.index for hit in index.top(np.float32([[1, 0, 0]]), 2)[0]] == [29, 28]
    assert reports[-1] == (30, 30)
    assert set(content(tmp_path / 'index')) == {
        OWNED,
        MANIFEST,
        json.loads((index.folder / MANIFEST).read_text())['vectors'],
    }


@pytest.mark.parametrize('killed_at', [4, 99])
def test_an_update_that_was_killed_continues(tmp_path, monkeypatch, killed_at):
    """Killed while it encodes, and while it writes the manifest."""
    monkeypatch.setattr(index_lib, 'IMAGES_PER_PART', 8)
    update(Files(files(30)), tmp_path / 'whole', Encoder())
    killed = Encoder(killed_at)
    with monkeypatch.context() as patch:
        patch.setattr('jitm.serving.index.json.dumps', _killed_at_manifest())
        with pytest.raises(Killed):
            update(Files(files(30)), tmp_path / 'killed', killed)
    encoder = Encoder()
    update(Files(files(30)), tmp_path / 'killed', encoder)
    assert content(tmp_path / 'killed') == content(tmp_path / 'whole')
    assert (killed.count, encoder.count) == ((12, 22) if killed_at == 4 else (30, 6))  # of parts of 8


def _killed_at_manifest():
    dumps = json.dumps

    def killed(value, **keywords):
        if isinstance(value, dict) and 'images' in value:
            raise Killed
        return dumps(value, **keywords)

    return killed


def test_only_new_and_changed_images_are_encoded(tmp_path):
    folder = tmp_path / 'index'
    contents = files(20)
    update(Files(contents), folder, Encoder())
    before = content(folder)
    source = Files(contents)
    encoder = Encoder()
    update(source, folder, encoder)
    assert (encoder.count, source.was_read, content(folder)) == (0, [], before)

    source = Files(contents, times=dict.fromkeys(contents, 2))  # touched: read, not encoded
    update(source, folder, encoder)
    assert (encoder.count, len(source.was_read)) == (0, 20)

    changed = contents | {'003.jpg': b'xyz', 'new.jpg': b'abc', 'copy.jpg': contents['007.jpg']}
    del changed['011.jpg']
    source = Files(changed, times=dict.fromkeys(changed, 2) | {'003.jpg': 3})
    index = update(source, folder, encoder)
    assert (encoder.count, sorted(source.was_read)) == (2, ['003.jpg', 'copy.jpg', 'new.jpg'])
    assert index.names == sorted(changed)
    np.testing.assert_array_equal(index.vectors, [list(changed[name]) for name in index.names])
    assert len(content(folder)) == 3


def test_images_that_cannot_be_read_are_named_and_left_out(tmp_path):
    contents = files(9) | {'004.jpg': b'damaged'}
    index = update(Files(contents), tmp_path / 'index', Encoder())
    assert index.unreadable == {'004.jpg': 'damaged'}
    assert len(index) == 8
    assert '004.jpg' not in index.names
    index = update(Files(files(9)), index.folder, Encoder())  # mended
    assert (index.unreadable, len(index)) == ({}, 9)
    with pytest.raises(UserError, match=r'none of 2 images can be read; the first is a: damaged'):
        update(Files({'a': b'damaged', 'b': b'damaged'}), tmp_path / 'other', Encoder())


def test_processes_that_index_at_once_are_refused(tmp_path):
    """One with nothing to update reads the index; its folder may be read-only."""
    folder = tmp_path / 'index'
    with locked(folder, 'busy'), pytest.raises(UserError, match='another process indexes images'):
        update(Files(files(5)), folder, Encoder())
    assert not folder.exists()
    update(Files(files(5)), folder, Encoder())
    with locked(folder, 'busy'):
        assert len(update(Files(files(5)), folder, Encoder())) == 5
        with pytest.raises(UserError, match='another process indexes images'):
            update(Files(files(6)), folder, Encoder())


def test_a_photo_of_the_index_is_found_by_its_file(tmp_path):
    """Under any path; a search with it leaves it out as it does with its name."""
    index = update(Files(files(5)), tmp_path / 'index', Encoder())
    (tmp_path / 'copy.jpg').write_bytes(files(5)['003.jpg'])
    (tmp_path / 'other.jpg').write_bytes(b'other')
    rows = [find_row(index, name) for name in ('003.jpg', str(tmp_path / 'copy.jpg'), str(tmp_path / 'other.jpg'), 'x')]
    assert rows == [3, 3, None, None]


def test_another_model_encodes_all_images_anew(tmp_path):
    update(Files(files(9)), tmp_path, Encoder())
    encoder = Encoder()
    assert update(Files(files(9)), tmp_path, encoder, model='other').model == 'other'
    assert encoder.count == 9


def test_vectors_that_are_not_finite_are_refused(tmp_path):
    with pytest.raises(UserError, match=r'the vector of 002.jpg is not finite'):
        update(
            Files(files(9)), tmp_path, lambda images: np.where(np.arange(len(images.regions))[:, None] == 2, np.nan, 1)
        )


def put_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def flip_a_bit(path):
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


NO_INDEX = 'is not an index of jitm: its manifest.json is missing or damaged'


@pytest.mark.parametrize(
    ('change', 'sentence'),
    [
        ('{', NO_INDEX),
        ({'format': 99}, 'has format 99, this version reads 1'),
        ({'images': []}, 'is damaged'),
        ({'vectors': 'vectors.npy'}, 'is damaged'),
        ({'vectors': '../index/vectors.npy'}, 'is damaged'),
        (put_a_pipe, 'is damaged'),
        (flip_a_bit, 'is damaged'),
        ('[]', NO_INDEX),
        ('{"name": "my extension"}', NO_INDEX),
        (None, NO_INDEX),
    ],
)
def test_damaged_indexes_are_refused(change, sentence, tmp_path):
    folder = tmp_path / 'index'
    update(Files(files(3)), folder, Encoder())
    manifest = folder / MANIFEST
    if isinstance(change, dict):
        change = json.dumps(json.loads(manifest.read_text()) | change)
    if callable(change):
        change(next(folder.glob('vectors-*')))
    elif change is None:
        manifest.unlink()
    else:
        manifest.write_text(change)
    with pytest.raises(UserError, match=sentence):
        Index(folder).check()
    if change is flip_a_bit:
        with pytest.raises(UserError, match='is damaged'):
            update(Files(files(3)), folder, Encoder())


@pytest.fixture(scope='module')
def run(finished):
    return jitm.load(finished)


@pytest.mark.filterwarnings('ignore:words that the vocabulary')
def test_an_index_ranks_exactly_as_the_evaluation_does(run, tmp_path):
    """The same scores to the last bit, hence the same order; by the file that `jitm eval --save_sims` writes."""
    data = run.load_data('test')
    index = run.index(data)
    assert index.folder == run.run.workdir / 'index' / 'scenes_test'
    assert index.names == list(data.image_ids)
    flags = ['--workdir', str(run.run.workdir), '--split', 'test', '--save_sims', '--output', str(tmp_path / 'eval')]
    assert cli.main(['eval', *flags]) == 0
    sims = np.load(tmp_path / 'eval' / 'sims.npy')
    for query, hits in enumerate(run.search(data.captions, index, top_k=99)):
        assert [hit.index for hit in hits] == np.argsort(-sims[:, query], kind='stable').tolist()
        assert [hit.score for hit in hits] == np.sort(sims[:, query])[::-1].tolist()
        assert [hit.name for hit in hits] == [data.image_ids[hit.index] for hit in hits]
    for query in (0, 7, 49):  # one caption alone
        hits = run.search(data.captions[query], jitm.Index(index.folder), top_k=99)
        np.testing.assert_allclose([hit.score for hit in hits], np.sort(sims[:, query])[::-1], atol=1e-6)
    assert repr(jitm.Index(index.folder)) == f'<Index of 10 images in {index.folder}>'

    split = read_split([run.run], 'test')
    path = tmp_path / 'features.npy'
    np.save(path, split.regions)
    features = run.index(path, tmp_path / 'index')
    assert features.names == list(map(str, range(10)))
    if (split.counts == split.regions.shape[1]).all():
        np.testing.assert_array_equal(features.vectors, index.vectors)


def test_wrong_images_and_indexes_are_one_sentence(run, tmp_path):
    np.save(tmp_path / 'wide.npy', np.zeros((3, 5), np.float32))
    np.save(tmp_path / 'flat.npy', np.zeros(3, np.float32))
    other = update(Files(files(3)), tmp_path / 'other', Encoder())
    for call, sentence in (
        (lambda: run.index(tmp_path / 'wide.npy'), 'wide.npy has 5 features per region'),
        (lambda: run.index(tmp_path / 'flat.npy'), r'flat.npy has shape \[3\]; give features'),
        (lambda: run.index(tmp_path / 'none.npy'), 'none.npy'),
        (lambda: run.search('a', other), 'was made by another model than'),
        (lambda: jitm.Index(tmp_path), 'is not an index'),
    ):
        with pytest.raises(UserError, match=sentence):
            call()
