"""Features that are multiplied by a number."""

import shutil

import numpy as np
import pytest

import jitm
from jitm.data.load import load_split
from jitm.data.splits import Split, take_images
from jitm.errors import UserError
from jitm.layers.vision import RegionEncoder
from jitm.models.vsrn import VSRN
from jitm.training.data import check_scale, describe_features
from jitm.training.loop import train_and_evaluate

SCENES = {'source': 'scenes.load', 'train_images': 12, 'dev_images': 4}


def test_a_model_reads_scaled_features():
    split, scaled = (load_split(SCENES | scale, 'train') for scale in ({}, {'scale': 3}))
    rows = np.array([5, 2])
    expected = take_images(split, rows)
    images = take_images(scaled, rows)
    assert images.regions.dtype == np.float32
    np.testing.assert_array_equal(images.regions, 3 * expected.regions.astype(np.float32))
    np.testing.assert_array_equal(images.counts, expected.counts)
    assert scaled.feature_deviation == pytest.approx(3 * split.feature_deviation)


def test_the_deviation_is_that_of_valid_regions():
    split = load_split(SCENES, 'train')
    valid = np.concatenate([regions[:count] for regions, count in zip(split.regions[:], split.counts, strict=True)])
    assert split.feature_deviation == pytest.approx(valid.astype(np.float64).std())
    assert describe_features(split).endswith(f'standard deviation {valid.std():.2g}')


@pytest.mark.parametrize('scale', [0, -1, 'large'])
def test_a_scale_is_positive(scale):
    with pytest.raises(UserError, match=rf"'data\.scale' is '?{scale}"):
        load_split(SCENES | {'scale': scale}, 'train')


class _Model:
    def __init__(self, scale_matters):
        self.scale_matters = scale_matters


def test_features_of_small_scale_are_warned_of():
    small = load_split(SCENES | {'scale': 1e-3}, 'train')
    models = {'target': _Model(True), 'anchor': _Model(False)}
    (warning,) = check_scale(small, models)
    factor = 1e-3 / small.feature_deviation
    assert warning.startswith(f'{small.name} has features')
    assert warning.endswith(f"of 'target' outweighs its linear layer; try data.scale={factor:.2g}")
    assert not check_scale(load_split(SCENES | {'scale': factor}, 'train'), models)


def test_constant_features_are_refused():
    constant = Split('mine/train', np.zeros((3, 2, 4), np.float32), np.full(3, 2, np.int32))
    with pytest.raises(UserError, match='mine/train has the same number as every feature of every image'):
        check_scale(constant, {})


def test_normalized_networks_depend_on_the_scale():
    depends = {mlp: RegionEncoder(8, mlp, False).scale_matters for mlp in ('none', 'plain', 'residual')}
    assert depends == {'none': False, 'plain': False, 'residual': True}
    options = dict.fromkeys(set(VSRN.__dataclass_fields__) - {'parent', 'name', 'normalize_before_graph'}, 1)
    assert VSRN(**options, normalize_before_graph=False).scale_matters
    assert not VSRN(**options, normalize_before_graph=True).scale_matters


def test_a_run_keeps_its_scale(precomp_folder, tiny_config, tmp_path):
    """Training on features and `data.scale` is training on the product, as are evaluation and encoding."""
    product = tmp_path / 'product'
    shutil.copytree(precomp_folder, product)
    for path in product.glob('*_ims.npy'):
        np.save(path, 4 * np.load(path).astype(np.float32))
    workdirs = []
    for name, data in (('scaled', {'root': str(precomp_folder), 'scale': 4.0}), ('stored', {'root': str(product)})):
        workdirs.append(tmp_path / name)
        data = {'source': 'precomp.load', 'dev_images': None} | data
        train_and_evaluate(tiny_config | {'data': data}, workdirs[-1])
    assert jitm.evaluate(workdirs[0], 'dev') == jitm.evaluate(workdirs[1], 'dev')
    scaled, stored = map(jitm.load, workdirs)
    regions = np.load(precomp_folder / 'dev_ims.npy')[:2]
    np.testing.assert_array_equal(scaled.encode_image(regions), stored.encode_image(4 * regions.astype(np.float32)))
