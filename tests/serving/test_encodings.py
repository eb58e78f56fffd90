"""Photos for runs on encoded features: the network of the features is found again, and computes the same bits."""

import dataclasses
import functools
import json
import shutil
from pathlib import Path

import chex
import jax
import numpy as np
import pytest
from flax import traverse_util
from PIL import Image

import jitm
from jitm.commands import cli
from jitm.config import schema
from jitm.data import precomp
from jitm.encoders import features, networks
from jitm.errors import UserError
from jitm.pages.pictures import recorded_photos
from jitm.runs.run import load_run
from jitm.serving.explorer.explored import Explored
from jitm.serving.explorer.pages import Site
from jitm.serving.loaded_run import LoadedRun
from jitm.training.loop import train_and_evaluate
from jitm.training.setup import set_up
from tests.conftest import make_tiny_config
from tests.support import clip as published
from tests.support.cells import load, make_network
from tests.support.configs import write_config
from tests.support.html import Page
from tests.support.runs import draw
from tests.support.steps import make_clip

SIZES = {'train': 8, 'dev': 4}
SIZE = 32  # pixels


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    return draw(tmp_path_factory.mktemp('photos') / 'drawn', SIZES)


def train(data_root, workdir):
    """Trains for one epoch on encoded features."""
    config = make_tiny_config() | {'epochs': 1, 'data': {'source': 'precomp.load', 'root': str(data_root)}}
    config['terms'].pop('later')
    config['evaluation']['every_steps'] = None
    train_and_evaluate(config, workdir)
    return workdir


@pytest.fixture(
    scope='module',
    params=[(2, 1, 'float32'), pytest.param((1, 10, 'float16'), marks=pytest.mark.slow)],
    ids=['cells', 'ten crops'],
)
def encoded(request, root, tmp_path_factory):
    """A run on the features of a network, the network, and the folder of the features."""
    edge, crops, dtype = request.param
    network = make_network(edge, crops=crops, dtype=dtype)
    folder = tmp_path_factory.mktemp('encoded')
    for name in SIZES:
        features.write(network, load(root, name), name, folder / 'features')
    return train(folder / 'features', folder / 'run'), network, folder / 'features'


def with_network(run):
    """The loaded run, whose network is that of the fixture."""
    workdir, network, _ = run
    loaded = jitm.load(workdir)
    loaded.__dict__['network'] = network
    return loaded


@pytest.mark.slow
def test_photos_have_the_bits_of_their_features(root, encoded, tmp_path):
    run = with_network(encoded)
    of_features = run.index(encoded[2] / 'dev_ims.npy', tmp_path / 'of_features')
    of_photos = run.index(root / 'dev', tmp_path / 'of_photos')
    assert of_photos.names == of_features.names == sorted(f'dev-{n:06}.png' for n in range(4))
    np.testing.assert_array_equal(of_photos.vectors, of_features.vectors, strict=True)
    paths = [root / 'dev' / name for name in of_photos.names]
    regions = np.load(encoded[2] / 'dev_ims.npy').reshape(4, -1, 3)
    want = run.encode_image(list(regions.astype(np.float32)))
    for given in (paths, [str(path) for path in paths], [Image.open(path) for path in paths]):
        np.testing.assert_array_equal(run.encode_image(given), want)
    score = jitm.score(run, paths[2], 'a red ring')
    assert score == jitm.score(run, regions[2].astype(np.float32), 'a red ring')


def test_a_photo_is_a_query_of_the_explorer(root, encoded):
    run = with_network(encoded)
    data = run.load_data('dev')
    explored = Explored(run, data)
    photo = (root / 'dev' / data.image_ids[2]).read_bytes()
    images, captions = explored.rank_all(photo)
    assert images[0].index == 2  # itself
    scores = {hit.index: hit.score for hit in explored.rank_captions(2)}
    np.testing.assert_allclose([hit.score for hit in captions], [scores[hit.index] for hit in captions], rtol=1e-5)
    page = Site([explored], data, 'jitm explorer', ['--split', 'dev']).photo('a <b>.png', photo)
    assert Page(page).texts['h2'] == ['a <b>.png', str(encoded[0])]
    assert page.index(data.captions[captions[0].index]) < page.index(data.captions[captions[-1].index])
    flags = f'jitm search --workdir {encoded[0]} --split dev --top_k'
    commands = [f"{flags} 12 --image 'a <b>.png'", f"{flags} 20 --image 'a <b>.png' --find captions"]
    assert [text for text in Page(page).texts['code'] if text.startswith('jitm search')] == commands
    assert 'type="file"' in page
    assert '>no pictures: add --photos FOLDER</p>' in page
    assert 'no pictures' not in Site([explored], data, '', [], root / 'dev').photo('a', photo)
    with pytest.raises(UserError, match='the photo is not an image that Pillow can read'):
        Site([explored], data, 'jitm explorer', []).photo('a.png', b'x')


def test_the_folder_of_the_photos_is_known_as_long_as_it_has_them(root, tmp_path):
    copied = shutil.copytree(root, tmp_path / 'photos')
    split = load(copied, 'dev')
    features.write(make_network(1, crops=1, dtype='float16'), split, 'dev', tmp_path / 'features')
    assert recorded_photos(split, str(tmp_path / 'features')) == copied / 'dev'
    (copied / 'dev' / split.image_ids[3]).unlink()
    for folder in (tmp_path / 'features', tmp_path, None):
        assert recorded_photos(split, folder) is None


def test_photos_are_encoded_in_blocks_of_any_number(root, encoded, tmp_path, monkeypatch):
    run = with_network(encoded)
    whole = run.index(root / 'train', tmp_path / 'whole')
    paths = [str(root / 'train' / name) for name in whole.names]
    together = run.encode_image(paths)
    monkeypatch.setattr(networks, 'IMAGES_PER_CALL', 3)
    np.testing.assert_array_equal(run.index(root / 'train', tmp_path / 'parts').vectors, whole.vectors)
    np.testing.assert_array_equal(run.encode_image(paths), together)


def test_an_index_that_is_complete_needs_no_network(root, encoded, tmp_path):
    with_network(encoded).index(root / 'dev', tmp_path)
    assert len(jitm.load(encoded[0]).index(root / 'dev', tmp_path)) == 4


def test_the_run_records_its_network(encoded, tmp_path):
    """In its checkpoint and in an export."""
    workdir, network, folder = encoded
    entry = json.loads((folder / 'encoded.json').read_text())['train']
    run = load_run(workdir)
    assert run.encoded_by == {key: value for key, value in entry.items() if key not in ('data', 'photos')}
    assert {key: run.encoded_by[key] for key in network.identity} == network.identity
    assert cli.main(['convert', '--to', 'safetensors', str(workdir), '--out', str(tmp_path / 'exported')]) == 0
    assert load_run(tmp_path / 'exported').encoded_by == run.encoded_by


@pytest.mark.parametrize('content', ['', '[]', '{"dev": {}}', '{"dev": {"crops": 1}}', '{"train": 3}'])
def test_features_of_unknown_networks_are_read(precomp_folder, content):
    (precomp_folder / 'encoded.json').write_text(content)
    assert precomp.load('dev', root=str(precomp_folder)).encoded_by is None


@pytest.fixture(scope='module')
def clip(root, tmp_path_factory):
    """A converted CLIP, a run on the cells that it encoded, and one on those of a config."""
    folder = tmp_path_factory.mktemp('clip')
    write_config(folder / 'config.py', make_clip(root))
    weights = published.write_published(folder / 'published', SIZE)
    argv = '--from', 'clip', weights, '--out', folder / 'clip', '--config', folder / 'config.py'
    assert cli.main(['convert', *map(str, argv)]) == 0
    for name, *argv in (('trained', '--workdir', folder / 'clip'), ('initial', '--config', folder / 'config.py')):
        assert cli.main(['encode', *map(str, argv), '--out', str(folder / name)]) == 0
        train(folder / name, folder / f'run_{name}')
    return folder


@pytest.mark.slow
@pytest.mark.parametrize('name', ['trained', 'initial'])
def test_the_network_is_found_again(root, clip, name, tmp_path, capsys):
    run = jitm.load(clip / f'run_{name}')
    index = run.index(root / 'dev', tmp_path / 'api')
    of_features = run.index(clip / name / 'dev_ims.npy', tmp_path / 'of_features')
    np.testing.assert_array_equal(index.vectors, of_features.vectors)
    flags = '--workdir', clip / f'run_{name}', '--images', root / 'dev', '--index', tmp_path / 'command', '--json'
    assert cli.main(['search', *map(str, flags), 'a red ring']) == 0
    np.testing.assert_array_equal(jitm.Index(tmp_path / 'command').vectors, index.vectors)
    capsys.readouterr()
    photo = root / 'train' / 'train-000003.png'  # as a query, whether the images are photos or features
    found = []
    for images in (root / 'dev', clip / name / 'dev_ims.npy'):
        flags = '--workdir', clip / f'run_{name}', '--images', images, '--image', photo, '--json'
        assert cli.main(['search', *map(str, flags)]) == 0
        found.append(json.loads(capsys.readouterr().out)['results'])
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_config_gives_the_network_of_its_first_step(root, clip):
    config = schema.check(make_clip(root))
    network = networks.of_config(config, 'target', (32, 32), 1, 'float32', 'highest')
    member = set_up(config).initial_state().members['target']
    chex.assert_trees_all_equal(network.variables['params']['image'], jax.device_get(member.params['image']))


@pytest.mark.slow
def test_a_network_that_has_moved_is_named(root, clip, tmp_path, capsys):
    moved = shutil.copytree(clip, tmp_path / 'moved')
    run = moved / 'run_trained'
    (clip / 'clip').rename(clip / 'away')
    try:
        argv = 'search', '--workdir', run, '--images', root / 'dev', '--index', tmp_path / 'index', 'a red ring'
        assert cli.main(list(map(str, argv))) == 2
        message = capsys.readouterr().err
        assert 'run_trained was trained on features of a network that cannot be read: ' in message
        assert 'name its run directory, or its file of weights, with --encoder' in message
        assert cli.main([*map(str, argv), '--encoder', str(moved / 'clip')]) == 0
        assert len(jitm.load(run, encoder=moved / 'clip').encode_image([root / 'dev' / 'dev-000000.png'])) == 1
    finally:
        (clip / 'away').rename(clip / 'clip')


@pytest.mark.slow
@pytest.mark.parametrize(
    ('changes', 'sentence'),
    [
        ({'parameters': 'x'}, r'differs from the one found \(parameters\); name its run directory'),
        ({'network': 'x'}, r'differs from the one found \(network\); name its run directory'),
        ({'origin': {}}, 'whose record is damaged; train again on features of jitm encode'),
        ({'origin': 3}, 'whose record is damaged'),
        ({'origin': {'workdir': 'x', 'step': 0, 'member': 'target'}}, 'cannot be read: x is not a run directory'),
    ],
)
def test_another_network_is_refused(clip, changes, sentence):
    run = load_run(clip / 'run_trained')
    with pytest.raises(UserError, match=sentence):
        networks.restore(run.encoded_by | changes, run.workdir)


@pytest.mark.slow
def test_weights_that_have_moved_are_named(root, tmp_path, monkeypatch):
    """Those of `initialize.image`, here of a single parameter."""

    def load_pretrained(variables, words, model, *, bert, image, uniter, oscar, word_vectors, dense=''):
        if not Path(image).exists():
            raise UserError(f'{image} cannot be read')
        path = min(traverse_util.flatten_dict(variables['params']))
        return {'params': {path: np.load(image)}, 'batch_stats': {}}

    declared = networks.pretrained.DECLARED._replace(function=load_pretrained)
    monkeypatch.setattr(networks.pretrained, 'DECLARED', declared)
    monkeypatch.chdir(tmp_path)
    np.save('weights.npy', np.float32(3))
    config = schema.check(make_clip(root))
    config['initialize']['image'] = 'weights.npy'
    network = networks.of_config(config, 'target', (SIZE, SIZE), 1, 'float32', 'highest')
    encoded_by = {**network.identity, 'image_size': [SIZE, SIZE], 'origin': network.origin}
    monkeypatch.chdir(root)
    restore = functools.partial(networks.restore, encoded_by, Path('run'))
    assert restore().identity == network.identity
    moved = (tmp_path / 'weights.npy').rename(tmp_path / 'moved.npy')
    assert restore(moved).identity == network.identity
    with pytest.raises(UserError, match=r'weights\.npy cannot be read; name its run directory, or its file of weights'):
        restore()
    np.save(moved, np.float32(4))
    with pytest.raises(UserError, match=r'differs from the one found \(parameters\); name its run directory'):
        restore(moved)


@pytest.mark.slow
def test_the_encoder_of_pixels_is_not_read(root, clip, capsys):
    argv = 'search', '--workdir', clip / 'clip', '--images', root / 'dev', '--encoder', clip / 'clip', 'a red ring'
    assert cli.main(list(map(str, argv))) == 2
    assert '--encoder is not read without photos for a run on features' in capsys.readouterr().err


def test_features_in_other_places_have_no_network(encoded, root):
    run = load_run(encoded[0])
    unknown = LoadedRun(dataclasses.replace(run, encoded_by=None))
    for call in (lambda: unknown.index(root / 'dev'), lambda: unknown.encode_image([root / 'dev' / 'x.png'])):
        with pytest.raises(UserError, match='has a model of region features of an unknown network, which cannot read'):
            call()
