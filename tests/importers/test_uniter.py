import re

import chex
import jax
import numpy as np
import pytest

from jitm.errors import UserError
from jitm.importers.uniter import load_uniter
from jitm.models.uniter import HEADS, UNITER
from jitm.types import Images, Texts
from tests.importers.test_bert import saved
from tests.importers.test_pretrained import load_params

V, F, H, FFN, LAYERS = 11, 10, 128, 512, 2


def shapes_of(heads):
    images = Images(np.zeros((1, 1, F)), np.ones(1, np.int32), locations=np.zeros((1, 1, 7)))
    texts = Texts(np.ones((1, 2), np.int32), np.full(1, 2, np.int32))
    model = UNITER(V, 'tiny', dropout=0.1, dtype='float32', heads=heads)
    return jax.eval_shape(model.init, jax.random.key(0), images, texts)['params']


PARAMS = shapes_of(HEADS)


def linear(name, outputs, inputs):
    return {f'{name}.weight': (outputs, inputs), f'{name}.bias': (outputs,)}


def normalisation(name):
    return {f'{name}.weight': (H,), f'{name}.bias': (H,)}


def word_head(name):
    transform = f'{name}.predictions.transform'
    shapes = {f'{name}.predictions.bias': (V,), f'{name}.predictions.decoder.weight': (V, H)}
    return shapes | linear(f'{transform}.dense', H, H) | normalisation(f'{transform}.LayerNorm')


def draw(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def published():
    """What a file after pre-training holds."""
    embeddings, image = 'uniter.embeddings', 'uniter.img_embeddings'
    shapes = {
        f'{embeddings}.word_embeddings.weight': (V, H),
        f'{embeddings}.position_embeddings.weight': (512, H),
        f'{embeddings}.token_type_embeddings.weight': (2, H),
        f'{image}.mask_embedding.weight': (2, F),
        'feat_regress.weight': (H, F),
        'feat_regress.bias': (F,),
    }
    shapes |= normalisation(f'{embeddings}.LayerNorm')
    shapes |= linear(f'{image}.img_linear', H, F) | linear(f'{image}.pos_linear', H, 7)
    for name in ('img_layer_norm', 'pos_layer_norm', 'LayerNorm'):
        shapes |= normalisation(f'{image}.{name}')
    for n in range(LAYERS):
        block = f'uniter.encoder.layer.{n}'
        for name in ('self.query', 'self.key', 'self.value', 'output.dense'):
            shapes |= linear(f'{block}.attention.{name}', H, H)
        shapes |= linear(f'{block}.intermediate.dense', FFN, H) | linear(f'{block}.output.dense', H, FFN)
        shapes |= normalisation(f'{block}.attention.output.LayerNorm') | normalisation(f'{block}.output.LayerNorm')
    shapes |= linear('uniter.pooler.dense', H, H) | word_head('cls') | linear('itm_output', 2, H)
    shapes |= linear('feat_regress.net.0', H, H) | normalisation('feat_regress.net.2')
    shapes |= linear('region_classifier.net.0', H, H) | normalisation('region_classifier.net.2')
    shapes |= linear('region_classifier.net.3', 1601, H)
    return draw(shapes)


def finetuned():
    return published() | draw(linear('rank_output', 1, H), seed=1)


def tags():
    return finetuned() | draw(linear('disc_output', 2, H) | word_head('correction_output'), seed=2)


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
