"""Tests of the features of image networks: their values against a formula, the files, and what is refused."""

import dataclasses
import itertools
import json
import shlex
import shutil
import types

import numpy as np
import pytest
from PIL import Image

from jitm.commands import cli, encode
from jitm.data import precomp, scenes
from jitm.data.images import photos
from jitm.encoders import features, networks
from jitm.errors import UserError
from jitm.files import LOCK, locked
from jitm.files.outputs import OWNED, UNFINISHED, OutputFolder
from jitm.serving.images import read_features
from tests.support.cells import load, make_network
from tests.support.matchers import make_vse


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp('photos') / 'drawn'
    photos.write(scenes.load('dev', dev_images=5), folder)
    photos.write(scenes.load('train', train_images=3), folder)
    photos.write(scenes.load('test', test_images=2), folder)
    return folder


@pytest.fixture(scope='module')
def split(root):
    return load(root)


def contents(folder):
    """The bytes of each file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def cells(pixels, edge=2):
    """The means of the cells of pictures, row by row, as loops: float64 [I, R, 3]."""
    size = 16 // edge
    means = []
    for picture in pixels.astype(float):
        for row, column in np.ndindex(edge, edge):
            means.append(picture[size * row :][:size, size * column :][:, :size].mean((0, 1)))
    return np.reshape(means, (len(pixels), edge**2, 3))


def test_cells_are_regions_with_boxes(split, tmp_path):
    assert features.write(make_network(), split, 'dev', tmp_path)
    read = precomp.load('dev', root=str(tmp_path))
    np.testing.assert_allclose(read.regions, 2 * cells(split.pixels[:]), rtol=1e-6)
    assert read.regions.dtype == np.float32
    np.testing.assert_allclose(read.boxes[3], [[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]])
    assert (read.captions, read.image_ids) == (split.captions, split.image_ids)
    np.testing.assert_array_equal(read.image_of_text, split.image_of_text)
    assert read.captions_hash == split.captions_hash  # so that reports compare models of both


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


def test_what_is_encoded_is_not_encoded_again(split, tmp_path, monkeypatch):
    with locked(tmp_path, 'busy'), pytest.raises(UserError, match='another process encodes photos to'):
        features.write(make_network(), split, 'dev', tmp_path)
    assert not contents(tmp_path)
    assert features.write(make_network(), split, 'dev', tmp_path)
    monkeypatch.setattr(features, 'encode', None)
    assert not features.write(make_network(), split, 'dev', tmp_path)
    with pytest.raises(UserError, match=r'dev_ims.npy has other features than these \(network\)'):
        features.write(make_network(normalize=True), split, 'dev', tmp_path)


@pytest.mark.parametrize(
    ('changes', 'data', 'differing'),
    [
        ({'edge': 4}, {}, 'network'),
        ({'factor': 3.0}, {}, 'parameters'),
        ({'edge': 1, 'crops': 10}, {}, 'network, crops'),
        ({'dtype': 'float16'}, {}, 'dtype'),
        ({}, {'image_size': 32, 'short_side': 32}, 'image_size, short_side'),
        ({}, {'interpolation': 'bicubic'}, 'interpolation'),
    ],
)
def test_a_folder_has_the_features_of_one_network(root, split, tmp_path, changes, data, differing):
    features.write(make_network(), load(root, 'train'), 'train', tmp_path)
    files = contents(tmp_path)
    with pytest.raises(UserError, match=rf'train_ims.npy has other features than these \({differing}\): choose'):
        features.write(make_network(**changes), load(root, **data), 'dev', tmp_path)
    assert contents(tmp_path) == files
    assert features.write(make_network(), split, 'dev', tmp_path)
    assert precomp.load('train', root=str(tmp_path)).regions.shape == (3, 4, 3)


def test_features_of_other_programs_are_not_mixed_with_these(root, split, tmp_path):
    features.write(make_network(), split, 'dev', tmp_path)
    np.save(tmp_path / 'train_ims.npy', np.ones((3, 4, 3), np.float32))
    files = contents(tmp_path)
    with pytest.raises(UserError, match=r'train_ims.npy was not written by jitm encode: choose another folder'):
        features.write(make_network(), load(root, 'test'), 'test', tmp_path)
    with pytest.raises(UserError, match=r'train_ims.npy was not written by jitm; move it'):
        features.write(make_network(), load(root, 'train'), 'train', tmp_path)
    assert contents(tmp_path) == files


@pytest.mark.parametrize('name', ['dev_caps.txt', 'dev_caps.tsv', 'dev_counts.npy', 'dev_tags.jsonl', 'boxes.npy'])
def test_files_that_would_be_read_with_features_are_refused(root, tmp_path, monkeypatch, capsys, name):
    """Before the first of several splits is encoded."""
    features.write(make_network(edge=1), load(root, 'test'), 'test', tmp_path)
    (tmp_path / name).write_bytes(b'mine')
    files = contents(tmp_path)
    with pytest.raises(UserError, match=f'{name} was not written by jitm; move it, or choose another folder'):
        run_command(monkeypatch, root, tmp_path, make_network(edge=1))
    assert contents(tmp_path) == files


def test_equal_neighbours_with_one_caption_each_stay_apart(split, tmp_path):
    """Without their captions' images, each would count as one image that is stored several times."""
    pixels = np.repeat(split.pixels[:2], 2, axis=0)
    rows = np.arange(4, dtype=np.int32)
    twice = dataclasses.replace(
        split, pixels=pixels, captions=split.captions[:4], image_of_text=rows, image_ids=split.image_ids[:4]
    )
    features.write(make_network(), twice, 'dev', tmp_path)
    read = precomp.load('dev', root=str(tmp_path))
    assert (read.num_images, read.captions) == (4, twice.captions)
    np.testing.assert_array_equal(read.image_of_text, rows)


def test_a_folder_without_its_features_takes_another_network(split, tmp_path):
    ragged = dataclasses.replace(split, image_of_text=np.sort(np.arange(25) % 7 % 5).astype(np.int32))
    features.write(make_network(), ragged, 'dev', tmp_path)
    (tmp_path / 'dev_ims.npy').unlink()
    assert features.write(make_network(edge=1), split, 'dev', tmp_path)
    read = precomp.load('dev', root=str(tmp_path))
    assert (read.regions.shape, read.boxes) == ((5, 1, 3), None)
    np.testing.assert_array_equal(read.image_of_text, split.image_of_text)


def test_a_photo_that_changed_is_noticed_among_many(tmp_path):
    train = tmp_path / 'many' / 'train'
    train.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for n in range(130):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).save(train / f'{n}.png')
    rows = [json.dumps({'file_name': f'{n}.png', 'captions': ['a dog']}) for n in range(130)]
    (train / 'metadata.jsonl').write_text('\n'.join(rows))
    photos_split = load(train.parent, 'train')
    copied = tmp_path / 'copied'
    assert features.write(make_network(), photos_split, 'train', tmp_path / 'out')
    shutil.copytree(train.parent, copied / 'many', copy_function=shutil.copyfile)  # with other times of change
    assert not features.write(make_network(), load(copied / 'many', 'train'), 'train', tmp_path / 'out')
    Image.new('RGB', (16, 16)).save(train / '1.png')
    after = load(train.parent, 'train')
    with pytest.raises(UserError, match=r'train_ims.npy has other features than these \(data.content\): choose'):
        features.write(make_network(), after, 'train', tmp_path / 'out')


def test_a_folder_of_an_earlier_version_is_refused(split, tmp_path):
    """Its `encoded.json` has no hash of the photos."""
    features.write(make_network(), split, 'dev', tmp_path)
    manifest = json.loads((tmp_path / 'encoded.json').read_text())
    del manifest['dev']['data']['content']
    (tmp_path / 'encoded.json').write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r'dev_ims.npy has other features than these \(data.content\): choose another'):
        features.write(make_network(), split, 'dev', tmp_path)


def stop(*arguments):
    raise KeyboardInterrupt


def stop_after(calls):
    """An `encode` that is stopped after some calls of the network."""
    encode = features.encode

    def stopped(network, split, first=0):
        yield from itertools.islice(encode(network, split, first), calls)
        stop()

    return stopped


def write_killed(monkeypatch, split, folder, **replaced):
    """Encodes a split with functions that are stopped, and checks that its features are not there."""
    with monkeypatch.context() as patch:
        for name, function in replaced.items():
            patch.setattr(features, name, function)
        with pytest.raises(KeyboardInterrupt):
            features.write(make_network(), split, 'dev', folder)
    assert not (folder / 'dev_ims.npy').exists()


def test_a_split_is_complete_only_with_its_boxes(split, tmp_path, monkeypatch):
    write_killed(monkeypatch, split, tmp_path, grid_boxes=stop)
    assert features.write(make_network(), split, 'dev', tmp_path)
    assert precomp.load('dev', root=str(tmp_path)).boxes.shape == (5, 4, 4)


def test_a_killed_job_resumes_with_the_images_that_are_left(split, tmp_path, monkeypatch):
    monkeypatch.setattr(networks, 'IMAGES_PER_CALL', 2)
    features.write(make_network(), split, 'dev', tmp_path / 'whole')
    folder = tmp_path / 'killed'
    for _ in range(2):
        write_killed(monkeypatch, split, folder, encode=stop_after(1))
    encode, calls, counts = features.encode, [], []

    def counted(network, split, first=0):
        calls.append(first)
        return encode(network, split, first)

    monkeypatch.setattr(features, 'encode', counted)
    assert features.write(make_network(), split, 'dev', folder, counts.append)
    assert (calls, counts) == ([2], [2, 2, 1])
    assert contents(folder) == contents(tmp_path / 'whole')


def test_parts_of_a_split_are_of_one_network(split, tmp_path, monkeypatch):
    """Those of another one are removed."""
    monkeypatch.setattr(networks, 'IMAGES_PER_CALL', 2)
    write_killed(monkeypatch, split, tmp_path, encode=stop_after(2))
    features.write(make_network(factor=3.0), split, 'dev', tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / 'dev_ims.npy'), 3 * cells(split.pixels[:]), rtol=1e-6)
    assert not (tmp_path / UNFINISHED).exists()


def test_parts_of_a_finished_split_are_removed(split, tmp_path, monkeypatch):
    """Its process was killed between both."""
    with monkeypatch.context() as patch:
        patch.setattr(OutputFolder, 'end_jobs', lambda self: None)
        features.write(make_network(), split, 'dev', tmp_path)
    assert not features.write(make_network(), split, 'dev', tmp_path)
    assert not (tmp_path / UNFINISHED).exists()


def test_infinite_features_are_refused_and_not_written(split, tmp_path):
    with pytest.raises(UserError, match=r'dev-000000.png of drawn/dev has features that are not finite in float16'):
        features.write(make_network(factor=1e6, dtype='float16'), split, 'dev', tmp_path)
    assert not list(tmp_path.glob('*_ims.npy*'))


def test_models_and_images_without_pixels_are_refused(split):
    with pytest.raises(UserError, match='VSE as configured has no network that reads pixels'):
        networks.check_model(make_vse())
    drawn = scenes.load('dev', dev_images=5)
    features.check(make_network(), drawn)
    for network, images, sentence in (
        (make_network(crops=10), drawn, 'has no files to cut ten crops from'),
        (make_network(crops=10), split, 'the network returns 4 cells: use --crops 1'),
        (make_network(), dataclasses.replace(drawn, pixels=None), 'has no pixels, but the model reads them'),
        (make_network(crops=5), split, 'crops is 5: use 1 or 10'),
    ):
        with pytest.raises(UserError, match=sentence):
            features.check(network, images)


def test_encoded_images_are_counted(split, tmp_path, monkeypatch):
    monkeypatch.setattr(networks, 'IMAGES_PER_CALL', 2)
    counts = []
    features.write(make_network(), split, 'dev', tmp_path, counts.append)
    assert len(counts) > 1
    assert sum(counts) == 5
    np.testing.assert_allclose(np.load(tmp_path / 'dev_ims.npy'), 2 * cells(split.pixels[:]), rtol=1e-6)


class Bar:
    """Notes what a progress bar shows."""

    def __init__(self, items=(), *, desc, total, **_):
        self.items = items
        self.shown = [desc, total, 0]

    def __iter__(self):
        for item in self.items:
            yield item
            self.update()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def update(self, count=1):
        self.shown[2] += count


def run_command(monkeypatch, root, out, network, splits=('train', 'dev'), arguments=(), **data):
    """Runs the command with a network, and returns its progress bars."""
    bars = []
    monkeypatch.setattr(encode.tqdm, 'tqdm', lambda *args, **keywords: bars.append(Bar(*args, **keywords)) or bars[-1])
    data = {'source': 'photos.load', 'root': str(root), 'image_size': 16, 'short_side': 20} | data
    run = types.SimpleNamespace(config={'data': data, 'evaluation': {'precision': 'highest'}}, image_size=(16, 16))
    monkeypatch.setattr(encode, 'load_run', lambda *_: run)
    monkeypatch.setattr(networks, 'of_run', lambda *_: network)
    values = cli.define_flags(cli.load_usage('encode'))
    values(['jitm', '--workdir', 'run', '--out', str(out), *(arguments or [f'--split={name}' for name in splits])])
    encode.main(values)
    return [bar.shown for bar in bars]


def test_the_command_shows_its_progress(root, tmp_path, monkeypatch, capsys):
    bars = run_command(monkeypatch, root, tmp_path, make_network())
    assert bars == [['drawn/train', 3, 3], ['drawn/dev', 5, 5]]
    assert 'drawn/dev: 5 images encoded' in capsys.readouterr().out
    assert [done for *_, done in run_command(monkeypatch, root, tmp_path, make_network())] == [0, 0]
    assert 'drawn/dev: 5 images had been encoded' in capsys.readouterr().out


def test_the_command_checks_all_splits_before_it_encodes_one(root, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="has no captions of the split 'tset'"):
        run_command(monkeypatch, root, tmp_path, make_network(), ('train', 'tset'))
    assert not contents(tmp_path)


def test_the_command_warns_once_of_ten_crops_that_are_alike(root, tmp_path, monkeypatch, caplog):
    run_command(monkeypatch, root, tmp_path / 'larger', make_network(edge=1, crops=10))
    run_command(monkeypatch, root, tmp_path / 'one', make_network(edge=1), short_side=16)
    assert not caplog.messages
    run_command(monkeypatch, root, tmp_path / 'alike', make_network(edge=1, crops=10), short_side=16)
    (message,) = caplog.messages
    assert "'data.short_side' and 'data.image_size' are both 16: give a larger --config.data.short_side" in message
    alike = load(root, short_side=16).pixels.crops(np.arange(1))[0]
    assert len(np.unique(alike, axis=0)) == 2


def test_a_folder_of_photos_needs_no_captions(root, tmp_path, monkeypatch, capsys):
    holiday = tmp_path / 'holiday'
    shutil.copytree(root / 'dev', holiday / 'deep')
    (holiday / 'deep' / 'metadata.jsonl').unlink()
    shutil.copy(root / 'train' / 'train-000001.png', holiday / 'a b.png')
    out = tmp_path / 'out'
    bars = run_command(monkeypatch, root, out, make_network(), arguments=['--images', str(holiday)])
    assert bars == [['checking', 6, 6], ['holiday', 6, 6]]
    assert set(contents(out)) == {OWNED, LOCK, 'boxes.npy', 'encoded.json', 'holiday_ids.txt', 'holiday_ims.npy'}
    split = read_features(out / 'holiday_ims.npy')
    assert split.image_ids == ('a b.png', *(f'deep/dev-{n:06}.png' for n in range(5)))
    features.write(make_network(), load(root), 'dev', tmp_path / 'known')
    np.testing.assert_array_equal(split.regions[1:], np.load(tmp_path / 'known' / 'dev_ims.npy'))
    output = capsys.readouterr().out
    assert f'--images {out}/holiday_ims.npy CAPTION' in output
    assert 'jitm train' not in output
    run_command(monkeypatch, root, out, make_network(), arguments=['--images', str(holiday)])
    assert 'holiday: 6 images had been encoded' in capsys.readouterr().out


def test_names_of_features_are_one_for_each_image(tmp_path):
    np.save(tmp_path / 'a_ims.npy', np.ones((2, 3), np.float32))
    for lines, ids in (('x y', ('x', 'y')), ('x x y y', ('x', 'y')), ('x x x y', ('x', 'y')), ('0 1 2 3', ('0', '2'))):
        (tmp_path / 'a_ids.txt').write_text(lines.replace(' ', '\n'))
        assert read_features(tmp_path / 'a_ims.npy').image_ids == ids
    for lines in ('x\ny\nz', 'x\ny\nx\ny', '0\n1\n2'):
        (tmp_path / 'a_ids.txt').write_text(lines)
        with pytest.raises(UserError, match=r'a_ids.txt names [34] images, but a_ims.npy has 2: give an id for each'):
            read_features(tmp_path / 'a_ims.npy')
    (tmp_path / 'a_ims.npy').rename(tmp_path / 'a.npy')
    assert read_features(tmp_path / 'a.npy').image_ids == ('0', '1')


@pytest.mark.parametrize(
    ('name', 'content', 'sentence'),
    [
        ('notes.txt', b'x', 'has no image files'),
        ('a.jpg', b'x', 'a.jpg is not an image that Pillow can read'),
        (' a.png', None, "a photo with the name ' a.png', which is not a line of plain text: rename it"),
        ('a\nb.png', None, 'which is not a line of plain text: rename it'),
    ],
)
def test_folders_with_odd_photos_are_one_sentence(root, tmp_path, monkeypatch, name, content, sentence):
    folder = tmp_path / 'holiday'
    folder.mkdir()
    (folder / name).write_bytes((root / 'dev' / 'dev-000000.png').read_bytes() if content is None else content)
    with pytest.raises(UserError, match=sentence):
        run_command(monkeypatch, root, tmp_path / 'out', make_network(), arguments=['--images', str(folder)])
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize(('edge', 'crops', 'loss'), [(2, 1, 'scan.SCAN'), (1, 1, 'vse.VSE'), (1, 10, 'vse.VSE')])
def test_the_command_prints_how_to_train(root, tmp_path, monkeypatch, capsys, edge, crops, loss):
    run_command(monkeypatch, root, tmp_path, make_network(edge, crops=crops))
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith('train ')]
    _, *words = shlex.split(line.partition(' ')[2])
    values, _ = cli._parse(cli.load_usage('train'), words[words.index('train') + 1 :])
    config = values.config
    assert (config['data']['root'], config['model']['name']) == (str(tmp_path), loss)
    run_command(monkeypatch, root, tmp_path, make_network(edge, crops=crops), ('test',))
    assert 'train ' not in capsys.readouterr().out
