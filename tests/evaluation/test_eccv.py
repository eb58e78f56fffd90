"""The metrics of `eccv_caption`; where the package is not installed, with a double of its documented interface."""

import sys
import types

import numpy as np
import pytest

from jitm.data.splits import Split
from jitm.errors import UserError
from jitm.evaluation import eccv

IMAGES = [30, 10, 20]
CAPTIONS = [7, 5, 1, 2, 9, 4]  # two of each image


class Double:
    """The parts of `eccv_caption.Metrics` that are used, with three images."""

    def __init__(self):
        self.coco_ids = np.array(CAPTIONS)
        self.coco_gts = {'t2i': {caption: [IMAGES[n // 2]] for n, caption in enumerate(CAPTIONS)}}

    def compute_all_metrics(self, i2t, t2i, target_metrics, Ks):
        assert 'eccv_map_at_r' in target_metrics
        self.given = i2t, t2i
        return {'eccv_map_at_r': {'i2t': 0.25, 't2i': 0.5}, f'cxc_r{Ks[0]}': {'i2t': 1.0, 't2i': 0.125}}


@pytest.fixture
def double(monkeypatch):
    module = types.ModuleType('eccv_caption')
    module.Metrics = Double
    monkeypatch.setitem(sys.modules, 'eccv_caption', module)


def make_split(image_ids, num_texts=6, order=None):
    images = len(image_ids)
    owners = np.arange(num_texts, dtype=np.int32) * images // num_texts
    regions = np.zeros((images, 1, 1), np.float32)
    counts = np.ones(images, np.int32)
    owners = owners if order is None else owners[order]
    return Split('coco_precomp/testall', regions, counts, ('a',) * num_texts, owners, tuple(image_ids))


NAMES = ('COCO_val2014_000000000030.jpg', '10', 'val2014/000000000020.jpg')


def test_ranked_ids_are_given_to_the_package(double):
    truth = eccv.GroundTruth(make_split(NAMES))
    assert (truth.image_ids, truth.caption_ids) == (IMAGES, CAPTIONS)
    sims = np.array([[6, 5, 4, 3, 2, 1], [1, 2, 2, 3, 0, 9], [1, 1, 1, 1, 1, 1]], np.float32)
    values = truth.metrics(sims)
    assert values == {
        'i2t/cxc_r1': 100.0,
        'i2t/eccv_map_at_r': 25.0,
        't2i/cxc_r1': 12.5,
        't2i/eccv_map_at_r': 50.0,
    }
    i2t, t2i = truth._metrics.given
    assert i2t == {30: CAPTIONS, 10: [4, 2, 5, 1, 7, 9], 20: CAPTIONS}
    assert (t2i[7], t2i[4]) == ([30, 10, 20], [10, 30, 20])
    assert eccv.table(values).splitlines()[2] == '| i2t | 100.0 | 25.0 |'


@pytest.mark.parametrize(
    'split',
    [
        make_split(('30', '20', '10')),
        make_split(('30', '10', 'photo')),
        make_split(NAMES, num_texts=3),
        make_split(NAMES, order=[0, 2, 1, 3, 4, 5]),
    ],
)
def test_other_images_are_refused(double, split):
    with pytest.raises(UserError, match=r'--eccv needs .*; coco_precomp/testall has other images, or another order'):
        eccv.GroundTruth(split)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, 'eccv_caption', None)
    with pytest.raises(
        UserError, match=r"^the package eccv_caption is not installed: run pip install -e '\.\[eccv\]' in jitm's clone$"
    ):
        eccv.GroundTruth(make_split(NAMES))


@pytest.mark.needs('eccv_caption')
def test_metrics_of_the_package_itself():
    import eccv_caption as package

    given = package.Metrics()
    owners = [given.coco_gts['t2i'][int(caption)][0] for caption in given.coco_ids]
    images = list(dict.fromkeys(owners))
    split = make_split([f'COCO_val2014_{image:012}.jpg' for image in images], 25_000)
    truth = eccv.GroundTruth(split)
    row, column = ({name: n for n, name in enumerate(side)} for side in (truth.image_ids, truth.caption_ids))
    sims = np.zeros((5000, 25_000), np.float32)
    for image, captions in given.eccv_gts['i2t'].items():
        sims[row[image], [column[caption] for caption in captions if caption in column]] = 2  # two are not COCO's
    for caption, matching in given.eccv_gts['t2i'].items():
        sims[[row[image] for image in matching], column[caption]] += 1
    assert truth.metrics(np.where(sims >= 2, sims, 0))['i2t/eccv_map_at_r'] == pytest.approx(100, abs=0.1)
    assert truth.metrics(np.where(sims % 2 == 1, 1, 0))['t2i/eccv_r1'] == pytest.approx(100)
    own = np.zeros_like(sims)
    own[split.image_of_text, np.arange(25_000)] = 1
    values = truth.metrics(own)
    assert values['i2t/cxc_r1'] == pytest.approx(100, abs=0.1)
    assert values['i2t/eccv_map_at_r'] < 50
