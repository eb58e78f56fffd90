"""Runs on photos: killed and resumed, on several devices, evaluated, and trained on what was encoded."""

import functools
import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from jitm.commands import cli
from jitm.data import precomp, scenes
from jitm.data.images import photos
from jitm.data.splits import take_images
from jitm.errors import UserError
from jitm.layers import cnn
from jitm.runs.run import load_run, read_split
from jitm.training import loop
from tests.conftest import ROOT
from tests.support import clip as published
from tests.support.configs import write_config
from tests.support.pages import commands, fences, jitm_arguments, shorten
from tests.support.runs import NETWORK, draw, make_config
from tests.support.steps import make_clip

PAGE = ROOT / 'docs' / 'photos.md'
SIZES = {'train': 8, 'dev': 6, 'test': 6}


@pytest.fixture(scope='module', autouse=True)
def few_layers():
    """A SqueezeNet of three modules instead of eight, with as many cells and features."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cnn, 'FIRES', {3: 2, 6: 2, 9: 64})
        yield


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    return draw(tmp_path_factory.mktemp('photos') / 'drawn', SIZES)


@pytest.mark.parametrize(('key', 'value'), [('drop_regions', 0.2), ('num_views', 2)])
def test_augmentation_of_regions_is_refused(root, tmp_path, key, value):
    config = make_config(root)
    config['augmentation'][key] = value
    with pytest.raises(UserError, match=f"'augmentation.{key}'.* are for models of regions"):
        loop.train_and_evaluate(config, tmp_path / 'run')
    assert not (tmp_path / 'run').exists()


@pytest.fixture(scope='module')
def finished(root, tmp_path_factory):
    """An uninterrupted run."""
    workdir = tmp_path_factory.mktemp('finished') / 'run'
    loop.train_and_evaluate(make_config(root), workdir)
    return workdir


@pytest.fixture(scope='module')
def finished_clip(root, tmp_path_factory):
    """An uninterrupted run of CLIP."""
    workdir = tmp_path_factory.mktemp('finished_clip') / 'run'
    loop.train_and_evaluate(make_clip(root), workdir)
    return workdir


@pytest.mark.slow
def test_commands_read_photos(root, finished, tmp_path, capsys):
    argv = 'eval', '--workdir', finished, '--split', 'test', '--output', tmp_path / 'eval', '--save_sims'
    assert cli.main(list(map(str, argv))) == 0, capsys.readouterr().err
    report = json.loads((tmp_path / 'eval' / 'metrics.json').read_text())
    assert np.load(tmp_path / 'eval' / 'sims.npy').shape == (6, 30)
    argv = 'mine', '--workdir', finished, '--out', tmp_path / 'mined', '--top_h_texts', 3, '--top_h_images', 3
    assert cli.main(list(map(str, argv))) == 0, capsys.readouterr().err
    argv = 'eval', '--workdir', finished, '--split', 'test', '--output', tmp_path / 'two', '--data_root', root
    assert cli.main(list(map(str, argv))) == 0, capsys.readouterr().err
    assert json.loads((tmp_path / 'two' / 'metrics.json').read_text())['metrics'] == report['metrics']


@pytest.mark.slow
def test_choices_of_photos_their_cuts_and_photos_in_the_file(root, finished_clip, tmp_path, capsys):
    names = [f'dev-00000{n}.png' for n in range(3)]
    aro = {'image_path': names[0], 'bbox_x': 4, 'bbox_y': 4, 'bbox_w': 40, 'bbox_h': 40, 'relation_name': 'above'}
    captions = 'a ring above a box', 'a box above a ring'
    aro |= dict(zip(('true_caption', 'false_caption'), captions, strict=True))
    (tmp_path / 'aro.json').write_text(json.dumps([aro, aro | {'image_path': names[1]}]))
    pictures = [{'bytes': (root / 'dev' / name).read_bytes(), 'path': None} for name in names]
    row = {'caption': captions[0], 'negative_caption': captions[1], 'type': 'Swap', 'subtype': 'Object'}
    row |= {'image': pictures[0], 'negative_image': pictures[2]}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row, row | {'type': 'Replace'}]), tmp_path / 'test.parquet')
    files = [str(tmp_path / name) for name in ('aro.json', 'test.parquet')]
    argv = ['choices', '--workdir', str(finished_clip), '--output', str(tmp_path / 'out'), *files]
    assert cli.main([*argv, '--photos', str(root / 'dev')]) == 0
    printed = capsys.readouterr().out
    assert '4 of 4 choices' in printed
    assert '| CLIP ViT-B/32 | 75.8 | 52.4 | 49.1 |' in printed  # published for BiVLC
    first = [json.loads(line)['scores'] for line in (tmp_path / 'out' / 'choices.jsonl').read_text().splitlines()]
    assert first[0] != first[2][:1]  # the same photo, cut and whole
    # Without a folder those of the split, beside those in the file; with the file alone no split.
    for words, split, want in ((argv, 'dev', first), ([*argv[:-2], files[1]], None, first[2:])):
        assert cli.main(words) == 0
        assert json.loads((tmp_path / 'out' / 'choices.json').read_text())['protocol']['split'] == split
        again = [json.loads(line)['scores'] for line in (tmp_path / 'out' / 'choices.jsonl').read_text().splitlines()]
        for one, expected in zip(again, want, strict=True):
            np.testing.assert_allclose(one, expected, atol=1e-5)


def encode(*argv):
    return cli.main(['encode', '--split', 'train', '--split', 'dev', *map(str, argv)])


@pytest.mark.slow
def test_encodings_are_what_the_run_reads_of_them(root, finished, tmp_path, capsys):
    """The rest of the model maps them to the same vectors as the pixels."""
    assert encode('--workdir', finished, '--out', tmp_path / 'encoded') == 0, capsys.readouterr().err
    assert 'drawn/train: 8 images encoded' in capsys.readouterr().out
    split = precomp.load('dev', root=str(tmp_path / 'encoded'))
    assert split.regions.shape == (6, 1, 512)
    np.testing.assert_allclose(np.linalg.norm(split.regions, axis=-1), 1, rtol=1e-5)
    run = load_run(finished)
    of_regions = run.model.clone(image=run.model.image.regions)
    params = {'image': run.variables['params']['image']['regions'], 'text': run.variables['params']['text']}
    images = take_images(split, np.arange(6), of_regions.reads)
    got = of_regions.apply({'params': params}, images, method='encode_image')
    images = take_images(read_split([run], 'dev'), np.arange(6), run.model.reads)
    np.testing.assert_allclose(got, run.model.apply(run.variables, images, method='encode_image'), atol=1e-6)
    assert encode('--workdir', finished, '--out', tmp_path / 'encoded') == 0
    assert 'drawn/train: 8 images had been encoded' in capsys.readouterr().out


@pytest.mark.slow
def test_a_clip_encodes_the_cells_of_photos(root, finished_clip, tmp_path, capsys):
    assert encode('--workdir', finished_clip, '--out', tmp_path / 'cells') == 0, capsys.readouterr().err
    split = precomp.load('dev', root=str(tmp_path / 'cells'))
    run = load_run(finished_clip)
    images = take_images(read_split([run], 'dev'), np.arange(6), run.model.reads)
    want = run.model.apply(run.variables, images, method=lambda model, images: model.image.features(images))
    assert (split.regions.shape, split.boxes.shape) == ((6, 4, 8), (6, 4, 4))
    np.testing.assert_allclose(split.regions, want, atol=1e-5)
    assert encode('--workdir', finished_clip, '--out', tmp_path / 'ten', '--crops', 10) == 2
    assert 'the network returns 4 cells: use --crops 1' in capsys.readouterr().err
    assert not (tmp_path / 'ten').exists()


@pytest.mark.slow
def test_a_config_encodes_with_initial_weights_and_ten_crops(root, tmp_path, capsys, caplog):
    config = make_config(root)
    config['model']['image']['network'] = NETWORK | {'pooled': False}
    path = write_config(tmp_path / 'config.py', config)
    assert encode('--config', path, '--out', tmp_path / 'one') == 0, capsys.readouterr().err
    assert 'the network has random parameters: set initialize.image, or give --workdir' in caplog.messages
    split = precomp.load('dev', root=str(tmp_path / 'one'))
    assert split.regions.shape[2] == 512
    assert split.captions == photos.load('dev', root=str(root), image_size=32, short_side=36).captions
    assert encode('--config', path, '--out', tmp_path / 'ten', '--crops', 10) == 0, capsys.readouterr().err
    assert not np.allclose(precomp.load('dev', root=str(tmp_path / 'ten')).regions, split.regions)


@pytest.fixture
def page(tmp_path, monkeypatch):
    """The folder in which the commands of docs/photos.md run, with pictures of scenes and a tiny CLIP as published."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scenes, 'load', functools.partial(scenes.load, train_images=8, dev_images=6, test_images=6))
    for name in ('train', 'dev'):
        photos.write(scenes.load(name), 'data/f8k_photos')
    (tmp_path / 'models').mkdir()
    published.write_published(tmp_path / 'models' / 'clip-vit-base-patch32')
    return tmp_path


@pytest.mark.slow
def test_commands_of_the_page_run(page, capsys):
    """The Python and the commands of docs/photos.md in its order, with tiny sizes and random weights."""
    (data,) = (example for example in fences(PAGE, 'python') if 'keras' not in example)  # which downloads weights
    exec(compile(data, PAGE.name, 'exec'), {})
    assert len(list(page.glob('data/drawn_photos/dev/*.png'))) == 6
    ran = []
    for command in commands(PAGE, page):
        if (arguments := jitm_arguments(command)) is not None:
            assert cli.main(shorten(arguments)) == 0, f'{command}\n{capsys.readouterr().err}'
            ran.append(arguments[0])
    scratch = ['train', 'eval', 'search', 'train', 'eval']
    features = ['encode', 'train', 'search', 'encode', 'search', 'encode', 'encode', 'train']
    assert ran == [*scratch, *features, 'convert', 'eval', 'encode', 'train']
    assert precomp.load('dev', root='data/f8k_cells_precomp').boxes.shape[:2] == (6, 36)
    assert precomp.load('dev', root='data/drawn_clip_precomp').regions.shape == (6, 4, published.WIDTH)
