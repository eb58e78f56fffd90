import re

import chex
import jax
import numpy as np
import pytest

from jitm.errors import UserError
from jitm.importers.joint_checkpoints import UNITER_NAMES, load_uniter
from jitm.models.uniter import HEADS, UNITER
from jitm.types import Images, Texts
from tests.importers.test_pretrained import load_params
from tests.support.bert import drawn, saved

V, F, H = 11, 10, 128


def shapes_of(heads):
    images = Images(np.zeros((1, 1, F)), np.ones(1, np.int32), locations=np.zeros((1, 1, 7)))
    texts = Texts(np.ones((1, 2), np.int32), np.full(1, 2, np.int32))
    model = UNITER(V, 'tiny', dropout=0.1, dtype='float32', heads=heads)
    return jax.eval_shape(model.init, jax.random.key(0), images, texts)['params']


PARAMS = shapes_of(HEADS)


UNREAD = {  # names and shapes of tensors that only pre-training needs
    'uniter.img_embeddings.mask_embedding.weight': (2, F),
    'cls.predictions.decoder.weight': (V, H),
    'feat_regress.net.2.bias': (H,),
    'region_classifier.net.3.weight': (1601, H),
}


def tags():
    return drawn(PARAMS, UNITER_NAMES) | {name: np.zeros(shape, np.float32) for name, shape in UNREAD.items()}


def finetuned():
    return {name: x for name, x in tags().items() if not name.startswith(('disc_output', 'correction_output'))}


def published():
    """What a file after pre-training holds."""
    return {name: x for name, x in finetuned().items() if not name.startswith('rank_output')}


def load(folder, tensors, params=PARAMS):
    return load_uniter(saved(folder, tensors), params)


def test_tensors_become_parameters(tmp_path):
    tensors = tags()
    params = load(tmp_path, tensors)
    chex.assert_trees_all_equal_shapes_and_dtypes(params, PARAMS)

    def check_linear(ours, theirs):
        np.testing.assert_array_equal(ours['kernel'], tensors[f'{theirs}.weight'].T, theirs)
        np.testing.assert_array_equal(ours['bias'], tensors[f'{theirs}.bias'], theirs)

    def check_norm(ours, theirs):
        np.testing.assert_array_equal(ours['scale'], tensors[f'{theirs}.weight'], theirs)
        np.testing.assert_array_equal(ours['bias'], tensors[f'{theirs}.bias'], theirs)

    for ours, theirs in (('rank', 'rank'), ('itm', 'itm'), ('discriminate', 'disc')):
        check_linear(params[f'{ours}_head'], f'{theirs}_output')
    for ours, theirs in (('mlm', 'cls'), ('correct', 'correction_output')):
        head, theirs = params[f'{ours}_head'], f'{theirs}.predictions'
        check_linear(head['dense'], f'{theirs}.transform.dense')
        check_norm(head['norm'], f'{theirs}.transform.LayerNorm')
        np.testing.assert_array_equal(head['bias'], tensors[f'{theirs}.bias'])


def test_missing_heads_are_copies(tmp_path):
    tensors = published()
    params = load(tmp_path, tensors)
    chex.assert_trees_all_equal_shapes_and_dtypes(params, PARAMS)
    np.testing.assert_array_equal(params['rank_head']['kernel'][:, 0], tensors['itm_output.weight'][1])
    np.testing.assert_array_equal(params['rank_head']['bias'], tensors['itm_output.bias'][1:])
    chex.assert_trees_all_equal(params['discriminate_head'], params['itm_head'])
    chex.assert_trees_all_equal(params['correct_head'], params['mlm_head'])


def test_a_trained_rank_head_is_kept(tmp_path):
    """Released code looks for another name than the head's and always puts the matching head's row over it."""
    tensors = finetuned()
    params = load(tmp_path, tensors)
    np.testing.assert_array_equal(params['rank_head']['kernel'], tensors['rank_output.weight'].T)
    np.testing.assert_array_equal(params['rank_head']['bias'], tensors['rank_output.bias'])
    assert np.all(params['rank_head']['kernel'][:, 0] != tensors['itm_output.weight'][1])


def test_only_the_heads_of_the_model_are_read(tmp_path):
    few = {name: tensor for name, tensor in finetuned().items() if name.startswith(('uniter.', 'rank_output.'))}
    params = load(tmp_path, few, shapes_of(()))
    assert params.keys() == {'bert', 'regions', 'pooler', 'rank_head'}


def test_old_names(tmp_path):
    want = load(tmp_path, published())
    old = {}
    for name, tensor in published().items():
        name = re.sub(r'^uniter\.', 'bert.', re.sub(r'^itm_output\.', 'ITM.', name))
        name = re.sub(r'(LayerNorm|layer_norm)\.weight$', r'\1.gamma', name)
        old[re.sub(r'(LayerNorm|layer_norm)\.bias$', r'\1.beta', name)] = tensor
    assert {'ITM.weight', 'bert.img_embeddings.pos_layer_norm.gamma', 'cls.predictions.bias'} <= old.keys()
    chex.assert_trees_all_equal(load(tmp_path, old), want)


def test_a_file_without_any_matching_head(tmp_path):
    tensors = {name: tensor for name, tensor in published().items() if not name.startswith('itm_output')}
    with pytest.raises(UserError, match=r'lacks tensors \(rank_output\.bias, rank_output\.weight\): give'):
        load(tmp_path, tensors, shapes_of(()))


def test_tensors_of_a_larger_model_are_refused(tmp_path):
    tensors = published() | {'uniter.encoder.layer.2.output.dense.bias': np.zeros(H, np.float32)}
    message = 'has unknown tensors (uniter.encoder.layer.2.output.dense.bias): give the weights of a UNITER'
    with pytest.raises(UserError, match=re.escape(message)):
        load(tmp_path, tensors)


def test_run_is_initialized_from_weights(tmp_path):
    path = saved(tmp_path, published())
    replacements = load_params(PARAMS, uniter=path)
    np.testing.assert_array_equal(
        replacements[('regions', 'features', 'kernel')], published()['uniter.img_embeddings.img_linear.weight'].T
    )
    assert len(replacements) == len(jax.tree.leaves(PARAMS))
