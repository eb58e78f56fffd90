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
from jitm.files.outputs import OWNED, UNFINISHED
from jitm.runs.run import read_split
from jitm.serving import index as index_lib
from jitm.serving.answers import find_row
from jitm.serving.images import Entry
from jitm.serving.index import MANIFEST, Index
from jitm.types import Images


class Files:
    """A reader of small byte strings; the content b'damaged' cannot be read."""

    def __init__(self, contents, times=None):
        self.contents, self.times = contents, times or dict.fromkeys(contents, 1)
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
        self.count, self.calls, self.killed_at = 0, 0, killed_at

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


def test_killed_twenty_times_the_index_is_the_same(tmp_path, monkeypatch):
    """Killed while it encodes, while it writes a part, and while it writes the index."""
    monkeypatch.setattr(index_lib, 'IMAGES_PER_PART', 8)
    whole, killed = tmp_path / 'whole', tmp_path / 'killed'
    update(Files(files(300)), whole, Encoder())
    encoded = 0
    for n in range(20):
        encoder = Encoder(killed_at=4 + n % 3)
        with monkeypatch.context() as patch:
            if n % 4 == 3:
                patch.setattr('jitm.serving.index.np.savez', _killed)
            with pytest.raises(Killed):
                update(Files(files(300)), killed, encoder)
        (job,) = (killed / UNFINISHED).iterdir()
        (job / '.0.jitm_partial').write_bytes(b'half')
        encoded += encoder.count
    monkeypatch.setattr('jitm.serving.index.json.dumps', _killed_at_manifest())
    encoder = Encoder()
    with pytest.raises(Killed):
        update(Files(files(300)), killed, encoder)
    encoded += encoder.count
    monkeypatch.undo()
    encoder = Encoder()
    update(Files(files(300)), killed, encoder)
    assert content(killed) == content(whole)
    assert 300 < encoded + encoder.count < 300 + 22 * 3 * 8


def _killed(*arguments, **keywords):
    raise Killed


def _killed_at_manifest():
    dumps = json.dumps
    return lambda value, **keywords: _killed() if 'images' in value else dumps(value, **keywords)


def test_only_new_and_changed_images_are_encoded(tmp_path):
    folder, contents = tmp_path / 'index', files(20)
    update(Files(contents), folder, Encoder())
    before = content(folder)
    source, encoder = Files(contents), Encoder()
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


def test_files_of_somebody_else_stay_in_an_index(tmp_path, monkeypatch):
    monkeypatch.setattr(index_lib, 'IMAGES_PER_PART', 4)
    update(Files(files(9)), tmp_path, Encoder())
    names = 'vectors.npy', 'vectors-mine.npy', f'{UNFINISHED}/a.txt'
    (tmp_path / UNFINISHED).mkdir()
    for name in names:
        (tmp_path / name).write_text('mine')
    assert len(update(Files(files(20)), tmp_path, Encoder())) == 20
    assert all((tmp_path / name).read_text() == 'mine' for name in names)
    assert len(content(tmp_path)) == len(names) + 3
    (tmp_path / '.jitm').unlink()  # only what it names is known to be written by jitm
    with pytest.raises(UserError, match='is not empty and is not an index of jitm'):
        update(Files(files(21)), tmp_path, Encoder())


def damage(change):
    def apply(folder):
        path = folder / MANIFEST
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return apply


def put_a_pipe(folder):
    (path,) = folder.glob('vectors-*')
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ('apply', 'sentence'),
    [
        (
            lambda folder: (folder / MANIFEST).write_text('{'),
            'is not an index of jitm: its manifest.json is missing or damaged',
        ),
        (damage(lambda manifest: manifest | {'format': 99}), 'has format 99, this version reads 1'),
        (damage(lambda manifest: manifest | {'images': manifest['images'][1:]}), 'is damaged'),
        (damage(lambda manifest: manifest | {'vectors': 'vectors.npy'}), 'is damaged'),
        (damage(lambda manifest: manifest | {'vectors': f'../index/{manifest["vectors"]}'}), 'is damaged'),
        (put_a_pipe, 'is damaged'),
        (damage(lambda manifest: []), 'is not an index of jitm: its manifest.json is missing or damaged'),
        (damage(lambda manifest: {'name': 'my extension'}), 'is not an index of jitm: its manifest.json is missing'),
        (lambda folder: (folder / MANIFEST).unlink(), 'is not an index of jitm: its manifest.json is missing'),
    ],
)
def test_damaged_indexes_are_refused(apply, sentence, tmp_path):
    folder = tmp_path / 'index'
    update(Files(files(3)), folder, Encoder())
    apply(folder)
    with pytest.raises(UserError, match=sentence):
        Index(folder)


def test_a_flipped_bit_of_the_vectors_is_found(tmp_path):
    index = update(Files(files(3)), tmp_path, Encoder())
    (path,) = tmp_path.glob('vectors-*')
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match='is damaged'):
        index.check()
    with pytest.raises(UserError, match='is damaged'):
        update(Files(files(3)), tmp_path, Encoder())


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
