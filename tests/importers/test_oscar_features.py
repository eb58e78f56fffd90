import base64
import json
import re

import numpy as np
import pytest

from jitm.commands import cli
from jitm.data import precomp
from jitm.errors import UserError
from jitm.files.outputs import OWNED
from jitm.importers.oscar_features import write
from tests.conftest import state_of
from tests.importers.torch_pickles import write_zip

F = 5
COUNTS = {'7': 2, '11': 3, '13': 1}
CAPTIONS = {7: ['a dog', 'one  dog\nruns'], 13: json.dumps(['a boat'] * 6)}


@pytest.fixture
def regions():
    rng = np.random.default_rng(0)
    numbers = {name: rng.normal(size=(count, F + 6)).astype(np.float32) for name, count in COUNTS.items()}
    for x in numbers.values():
        x[:, F:] = [0.1, 0.2, 0.5, 1, 0.4, 0.8]
    return numbers


@pytest.fixture
def released(tmp_path, regions):
    folder = tmp_path / 'released'
    folder.mkdir()
    lines = [f'{name}\t{len(x)}\t{base64.b64encode(x.tobytes()).decode()}\n' for name, x in regions.items()]
    (folder / 'features.tsv').write_text(''.join(lines))
    objects = {name: [{'class': 'dog', 'conf': 0.5, 'rect': [0, 0, 1, 1]}] * count for name, count in COUNTS.items()}
    objects['13'] = {'image_h': 4, 'image_w': 4, 'objects': objects['13']}
    (folder / 'predictions.tsv').write_text(''.join(f'{name}\t{json.dumps(x)}\n' for name, x in objects.items()))
    write_zip(folder / 'train_captions.pt', CAPTIONS)
    return folder


def test_a_split_is_read_as_it_was_released(tmp_path, released, regions):
    write(released, 'train', tmp_path / 'coco_oscar')
    split = precomp.load('train', root=str(tmp_path / 'coco_oscar'))
    assert split.captions == ('a dog', 'one dog runs', *['a boat'] * 5)
    assert (split.image_ids, split.tags) == (('7', '13'), ('dog dog', 'dog'))
    np.testing.assert_array_equal(split.image_of_text, [0, 0, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(split.counts, [2, 1])
    for row, name in enumerate(split.image_ids):
        np.testing.assert_array_equal(split.regions[row, : COUNTS[name]], regions[name][:, :F])
        np.testing.assert_array_equal(split.boxes[row, : COUNTS[name]], regions[name][:, F : F + 4])
    assert not split.regions[1, 1:].any()


def test_images_are_selected_by_their_ids(tmp_path, released):
    (tmp_path / 'keys.tsv').write_text('13\n')
    out, keys = str(tmp_path / 'out'), str(tmp_path / 'keys.tsv')
    assert cli.main(['convert', '--from=oscar_features', str(released), f'--out={out}', f'--keys={keys}']) == 0
    split = precomp.load('train', root=out)
    assert (split.image_ids, split.captions) == (('13',), ('a boat',) * 5)


@pytest.mark.parametrize(
    ('name', 'old', 'new', 'message'),
    [
        ('features.tsv', None, '', 'lacks 2 of 2 images, such as 7'),
        ('features.tsv', '7\t2\t', '7 2 ', 'line 1 has no id, number and features'),
        ('features.tsv', '7\t2\t', '7\ttwo\t', 'line 1 has no id, number and features'),
        ('features.tsv', '7\t2\t', '7\t3\t', 'has damaged features of image 7 (22 numbers for 3 regions)'),
        ('features.tsv', '7\t2\t', '7\t2\t*', 'has damaged features of image 7'),
        ('predictions.tsv', 'class', 'name', "has no objects with 'class' and 'conf' for image 7"),
        ('predictions.tsv', '7\t', '8\t', 'predictions.tsv lacks 1 of 2 images, such as 7'),
    ],
)
def test_damaged_files_are_one_sentence(tmp_path, released, name, old, new, message):
    text = (released / name).read_text()
    (released / name).write_text(text.replace(old, new) if old else new)
    with pytest.raises(UserError, match=re.escape(message)):
        write(released, 'train', tmp_path / 'out')
    assert {path.name for path in tmp_path.glob('out/*')} <= {OWNED}


def test_only_its_own_files_are_replaced(tmp_path, released):
    out = tmp_path / 'out'
    for _ in range(2):
        write(released, 'train', out)
    (out / 'dev_counts.npy').write_bytes(b'mine')
    (released / 'train_captions.pt').rename(released / 'dev_captions.pt')
    with pytest.raises(UserError, match=r'dev_counts.npy was not written by jitm'):
        write(released, 'dev', out)
    assert not (out / 'dev_ims.npy').exists()
    (out / OWNED).unlink()
    before = state_of(out)
    with pytest.raises(UserError, match='is not empty and is not a set of converted features of jitm'):
        write(released, 'test', out)
    assert state_of(out) == before


@pytest.mark.parametrize('content', [[1, 2], {}, {7: 3}, {7: '{'}, {7: []}])
def test_damaged_captions_are_one_sentence(tmp_path, released, content):
    write_zip(released / 'train_captions.pt', content)
    with pytest.raises(UserError, match=r'train_captions\.pt (must map image ids|has an image without)'):
        write(released, 'train', tmp_path / 'out')
    assert not (tmp_path / 'out').exists()


def test_missing_files_are_one_sentence(tmp_path, released):
    for name in ('features.tsv', 'predictions.tsv', 'train_captions.pt'):
        (released / name).rename(tmp_path / name)
        with pytest.raises(UserError, match=name):
            write(released, 'train', tmp_path / 'out')
        (tmp_path / name).rename(released / name)
