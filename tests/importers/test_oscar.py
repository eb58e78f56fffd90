import re

import chex
import jax
import numpy as np
import pytest
from flax import traverse_util

from jitm.errors import UserError
from jitm.importers.oscar import load_oscar
from jitm.importers.pretrained import replace
from jitm.models.oscar import OSCAR
from jitm.types import Images, Texts
from tests.importers.test_bert import saved
from tests.importers.test_pretrained import load_params

V, F, H, FFN, LAYERS, HEADS, POSITIONS = 11, 10, 128, 512, 2, 2, 512
MODEL = OSCAR(V, 'tiny', dropout=0.1, dtype='float32', image_norm=True)


def make_inputs():
    rng = np.random.default_rng(0)
    regions, locations = (rng.random((3, 4, size)).astype(np.float32) for size in (F, 7))
    texts = [Texts(rng.integers(1, V, (3, 5)).astype(np.int32), np.array(n, np.int32)) for n in ([2, 1, 3], [5, 3, 4])]
    return Images(regions, np.array([4, 2, 3], np.int32), locations=locations, tags=texts[0]), texts[1]


PARAMS = jax.eval_shape(MODEL.init, jax.random.key(0), *make_inputs())['params']


def linear(name, outputs, inputs):
    return {f'{name}.weight': (outputs, inputs), f'{name}.bias': (outputs,)}


def norm(name):
    return {f'{name}.weight': (H,), f'{name}.bias': (H,)}


def shapes():
    """Names and shapes of a fine-tuned checkpoint."""
    embeddings = {'word': V, 'position': POSITIONS, 'token_type': 2}
    named = {f'bert.embeddings.{name}_embeddings.weight': (rows, H) for name, rows in embeddings.items()}
    named |= norm('bert.embeddings.LayerNorm') | linear('bert.img_embedding', H, F + 6) | norm('bert.LayerNorm')
    for n in range(LAYERS):
        layer = f'bert.encoder.layer.{n}'
        for name in ('self.query', 'self.key', 'self.value', 'output.dense'):
            named |= linear(f'{layer}.attention.{name}', H, H)
        named |= norm(f'{layer}.attention.output.LayerNorm') | norm(f'{layer}.output.LayerNorm')
        named |= linear(f'{layer}.intermediate.dense', FFN, H) | linear(f'{layer}.output.dense', H, FFN)
    return named | linear('bert.pooler.dense', H, H) | linear('classifier', 2, H)


def pretraining_heads():
    """Names and shapes of the tensors that only pre-training needs."""
    transform = linear('cls.predictions.transform.dense', H, H) | norm('cls.predictions.transform.LayerNorm')
    decoder = {'cls.predictions.bias': (V,), 'cls.predictions.decoder.weight': (V, H)}
    return transform | decoder | linear('cls.seq_relationship', 3, H) | {'bert.embeddings.position_ids': (1, 512)}


def draw(named):
    rng = np.random.default_rng(1)
    return {name: rng.normal(scale=0.1, size=shape).astype(np.float32) for name, shape in named.items()}


def test_pretrained_weights_lack_what_fine_tuning_adds(tmp_path, caplog):
    """The old base-vg-labels files have no normalization of regions; no pre-trained file has the classifier."""
    tensors = draw(shapes() | pretraining_heads())
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
    tensors = draw(shapes())
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
    named = {name: shape for name, shape in (shapes() | changes).items() if shape is not None}
    path = saved(tmp_path, draw(named))
    with pytest.raises(UserError, match=re.escape(message)):
        load_oscar(path, PARAMS)
