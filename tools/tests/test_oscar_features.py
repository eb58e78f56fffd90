"""The script that converts the released features of OSCAR."""

import base64
import json

import numpy as np
import pytest

from jitm.data import precomp
from jitm.errors import UserError
from tests.support.torch_pickles import write_zip
from tools.oscar_features import write

F = 5
COUNTS = {'7': 2, '11': 3, '13': 1}
CAPTIONS = {7: ['a dog', 'one  dog\nruns'], 13: json.dumps(['a boat'] * 6)}


def test_a_split_is_read_as_it_was_released(tmp_path):
    rng = np.random.default_rng(0)
    regions = {name: rng.normal(size=(count, F + 6)).astype(np.float32) for name, count in COUNTS.items()}
    for numbers in regions.values():
        numbers[:, F:] = [0.1, 0.2, 0.5, 1, 0.4, 0.8]
    lines = [f'{name}\t{len(x)}\t{base64.b64encode(x.tobytes()).decode()}\n' for name, x in regions.items()]
    (tmp_path / 'features.tsv').write_text(''.join(lines))
    objects = {name: [{'class': 'dog', 'conf': 0.5, 'rect': [0, 0, 1, 1]}] * count for name, count in COUNTS.items()}
    objects['13'] = {'image_h': 4, 'image_w': 4, 'objects': objects['13']}
    (tmp_path / 'predictions.tsv').write_text(''.join(f'{name}\t{json.dumps(x)}\n' for name, x in objects.items()))
    write_zip(tmp_path / 'train_captions.pt', CAPTIONS)

    write(tmp_path, 'train', tmp_path / 'coco_oscar')
    split = precomp.load('train', root=str(tmp_path / 'coco_oscar'))
    assert split.captions == ('a dog', 'one dog runs', *['a boat'] * 5)
    assert (split.image_ids, split.tags) == (('7', '13'), ('dog dog', 'dog'))
    np.testing.assert_array_equal(split.image_of_text, [0, 0, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(split.counts, [2, 1])
    for row, name in enumerate(split.image_ids):
        np.testing.assert_array_equal(split.regions[row, : COUNTS[name]], regions[name][:, :F])
        np.testing.assert_array_equal(split.boxes[row, : COUNTS[name]], regions[name][:, F : F + 4])
    assert not split.regions[1, 1:].any()

    (tmp_path / 'keys.tsv').write_text('13\n')
    write(tmp_path, 'train', tmp_path / 'selected', tmp_path / 'keys.tsv')
    assert precomp.load('train', root=str(tmp_path / 'selected')).image_ids == ('13',)
    (tmp_path / 'keys.tsv').write_text('13\n11\n')
    with pytest.raises(UserError, match='lacks captions, tags or features of 1 images, such as 11'):
        write(tmp_path, 'train', tmp_path / 'selected', tmp_path / 'keys.tsv')
