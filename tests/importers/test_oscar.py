import re

import chex
import jax
import numpy as np
import pytest
from flax import traverse_util

from jitm.errors import UserError
from jitm.importers.joint_checkpoints import OSCAR_NAMES, load_oscar
from jitm.importers.pretrained import replace
from jitm.models.oscar import OSCAR
from jitm.types import Images, Texts
from tests.importers.test_pretrained import load_params
from tests.support.bert import drawn, saved

V, F, H = 11, 10, 128
MODEL = OSCAR(V, 'tiny', dropout=0.1, dtype='float32', image_norm=True)
TEXTS = Texts(np.ones((1, 2), np.int32), np.full(1, 2, np.int32))
IMAGES = Images(np.zeros((1, 1, F)), np.ones(1, np.int32), locations=np.zeros((1, 1, 7)), tags=TEXTS)
PARAMS = jax.eval_shape(MODEL.init, jax.random.key(0), IMAGES, TEXTS)['params']


def published():
    """The tensors of a fine-tuned checkpoint."""
    return drawn(PARAMS, OSCAR_NAMES)


def zeros(shapes):
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def test_pretrained_weights_lack_what_fine_tuning_adds(tmp_path, caplog):
    """The old base-vg-labels files have no normalization of regions; no pre-trained file has the classifier."""
    tensors = published() | zeros({'cls.predictions.bias': (V,), 'bert.embeddings.position_ids': (1, 512)})
    kept = {name: value for name, value in tensors.items() if not name.startswith(('classifier', 'bert.LayerNorm'))}
    path = saved(tmp_path, kept)
    replacements = load_params(PARAMS, oscar=path)
    assert {name[0] for name in replacements} == {'bert', 'region_features', 'pooler'}
    assert [record.args[1] for record in caplog.records] == ['region_norm', 'itm_head']
    initial = jax.tree.map(lambda leaf: np.full(leaf.shape, 7, np.float32), PARAMS)
    loaded = traverse_util.flatten_dict(replace(initial, replacements))
    assert np.all(loaded['itm_head', 'kernel'] == 7)
    np.testing.assert_array_equal(loaded['pooler', 'kernel'], tensors['bert.pooler.dense.weight'].T)


def test_old_names(tmp_path):
    tensors = published()
    want = load_oscar(saved(tmp_path, tensors), PARAMS)
    old = {}
    for name, tensor in tensors.items():
        name = re.sub(r'LayerNorm\.weight$', 'LayerNorm.gamma', name.removeprefix('bert.'))
        old[re.sub(r'LayerNorm\.bias$', 'LayerNorm.beta', name)] = tensor
    chex.assert_trees_all_equal(load_oscar(saved(tmp_path, old), PARAMS), want)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (
            {'bert.encoder.layer.2.output.dense.bias': (H,)},
            'has unknown tensors (bert.encoder.layer.2.output.dense.bias): give',
        ),
        (
            {'classifier.weight': None, 'classifier.bias': None, 'classifier.0.bias': (H,), 'classifier.2.bias': (2,)},
            'has unknown tensors (classifier.0.bias, classifier.2.bias): give the weights of an OSCAR',
        ),
    ],
)
def test_other_tensors_are_refused(tmp_path, changes, message):
    kept = {name: x for name, x in published().items() if name not in changes}
    path = saved(tmp_path, kept | zeros({name: shape for name, shape in changes.items() if shape is not None}))
    with pytest.raises(UserError, match=re.escape(message)):
        load_oscar(path, PARAMS)
