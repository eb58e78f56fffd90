"""Weights of UNITER, TAGS-DC and OSCAR, and the runs that they become; tests/parity compares scores and heads."""

import re

import chex
import jax
import numpy as np
import pytest
from flax import traverse_util

from jitm.commands.cli import main
from jitm.errors import UserError
from jitm.importers.joint_checkpoints import OSCAR_NAMES, UNITER_NAMES, load_oscar, load_uniter
from jitm.importers.pretrained import load_pretrained, replace
from jitm.models.oscar import OSCAR
from jitm.models.uniter import HEADS, UNITER
from jitm.runs.run import load_run
from jitm.types import Images, Texts
from tests.support.bert import drawn, saved

V, F, H = 11, 10, 128
TEXTS = Texts(np.ones((1, 2), np.int32), np.full(1, 2, np.int32))
IMAGES = Images(np.zeros((1, 1, F)), np.ones(1, np.int32), locations=np.zeros((1, 1, 7)), tags=TEXTS)


def shapes_of(make, **options):
    model = make(V, 'tiny', dropout=0.1, dtype='float32', **options)
    return jax.eval_shape(model.init, jax.random.key(0), IMAGES, TEXTS)['params']


PARAMS = shapes_of(UNITER, heads=HEADS)
OSCAR_PARAMS = shapes_of(OSCAR, image_norm=True)
UNREAD = {  # names and shapes of tensors that only pre-training needs
    'uniter.img_embeddings.mask_embedding.weight': (2, F),
    'cls.predictions.decoder.weight': (V, H),
    'feat_regress.net.2.bias': (H,),
    'region_classifier.net.3.weight': (1601, H),
}


def zeros(shapes):
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def without(tensors, *prefixes):
    return {name: x for name, x in tensors.items() if not name.startswith(prefixes)}


TAGS = drawn(PARAMS, UNITER_NAMES) | zeros(UNREAD)
FINETUNED = without(TAGS, 'disc_output', 'correction_output')
PRETRAINED = without(FINETUNED, 'rank_output')
FINETUNED_OSCAR = drawn(OSCAR_PARAMS, OSCAR_NAMES)


def test_missing_heads_are_copies(tmp_path):
    params = load_uniter(saved(tmp_path, PRETRAINED), PARAMS)
    chex.assert_trees_all_equal_shapes_and_dtypes(params, PARAMS)
    np.testing.assert_array_equal(params['rank_head']['kernel'][:, 0], PRETRAINED['itm_output.weight'][1])
    np.testing.assert_array_equal(params['rank_head']['bias'], PRETRAINED['itm_output.bias'][1:])
    chex.assert_trees_all_equal(params['discriminate_head'], params['itm_head'])
    chex.assert_trees_all_equal(params['correct_head'], params['mlm_head'])


def test_a_trained_rank_head_is_kept(tmp_path):
    """Released code looks for another name than the head's and always puts the matching head's row over it."""
    params = load_uniter(saved(tmp_path, FINETUNED), PARAMS)
    np.testing.assert_array_equal(params['rank_head']['kernel'], FINETUNED['rank_output.weight'].T)
    np.testing.assert_array_equal(params['rank_head']['bias'], FINETUNED['rank_output.bias'])


def test_only_the_heads_of_the_model_are_read(tmp_path):
    few = {name: tensor for name, tensor in FINETUNED.items() if name.startswith(('uniter.', 'rank_output.'))}
    params = load_uniter(saved(tmp_path, few), shapes_of(UNITER, heads=()))
    assert params.keys() == {'bert', 'regions', 'pooler', 'rank_head'}


def test_a_file_without_any_matching_head(tmp_path):
    path = saved(tmp_path, without(PRETRAINED, 'itm_output'))
    with pytest.raises(UserError, match=r'lacks tensors \(rank_output\.bias, rank_output\.weight\): give'):
        load_uniter(path, shapes_of(UNITER, heads=()))


@pytest.mark.parametrize(
    ('load', 'tensors', 'params', 'prefix'),
    [
        (load_uniter, PRETRAINED, PARAMS, ('uniter.', 'bert.')),
        (load_oscar, FINETUNED_OSCAR, OSCAR_PARAMS, ('bert.', '')),
    ],
)
def test_old_names(tmp_path, load, tensors, params, prefix):
    want = load(saved(tmp_path, tensors), params)
    old = {}
    for name, tensor in tensors.items():
        name = name.replace('itm_output.', 'ITM.').replace(*prefix)
        name = re.sub(r'(LayerNorm|layer_norm)\.weight$', r'\1.gamma', name)
        old[re.sub(r'(LayerNorm|layer_norm)\.bias$', r'\1.beta', name)] = tensor
    assert f'{prefix[1]}encoder.layer.1.output.LayerNorm.gamma' in old
    chex.assert_trees_all_equal(load(saved(tmp_path, old), params), want)


def load_params(params, **files):
    """The parameters that weights replace."""
    files = dict.fromkeys(('bert', 'image', 'uniter', 'oscar', 'word_vectors'), '') | files
    return load_pretrained({'params': params, 'batch_stats': {}}, (), None, **files)['params']


def test_run_is_initialized_from_weights(tmp_path):
    replacements = load_params(PARAMS, uniter=saved(tmp_path, PRETRAINED))
    np.testing.assert_array_equal(
        replacements[('regions', 'features', 'kernel')], PRETRAINED['uniter.img_embeddings.img_linear.weight'].T
    )
    assert len(replacements) == len(jax.tree.leaves(PARAMS))


def test_pretrained_weights_lack_what_fine_tuning_adds(tmp_path, caplog):
    """The old base-vg-labels files have no normalization of regions; no pre-trained file has the classifier."""
    tensors = FINETUNED_OSCAR | zeros({'cls.predictions.bias': (V,), 'bert.embeddings.position_ids': (1, 512)})
    path = saved(tmp_path, without(tensors, 'classifier', 'bert.LayerNorm'))
    replacements = load_params(OSCAR_PARAMS, oscar=path)
    assert {name[0] for name in replacements} == {'bert', 'region_features', 'pooler'}
    assert [record.args[1] for record in caplog.records] == ['region_norm', 'itm_head']
    initial = jax.tree.map(lambda leaf: np.full(leaf.shape, 7, np.float32), OSCAR_PARAMS)
    loaded = traverse_util.flatten_dict(replace(initial, replacements))
    assert np.all(loaded['itm_head', 'kernel'] == 7)
    np.testing.assert_array_equal(loaded['pooler', 'kernel'], tensors['bert.pooler.dense.weight'].T)


CHECKPOINTS = {  # --from -> tensors, heads
    'uniter': (FINETUNED, ['itm', 'mlm']),
    'tags_dc': (TAGS, ['itm', 'mlm', 'discriminate', 'correct']),
    'oscar': (FINETUNED_OSCAR, None),
}


def write_pieces(path, letters='abcdef') -> str:
    path.write_text('\n'.join(['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', *letters]))
    return str(path)


@pytest.mark.parametrize('name', CHECKPOINTS)
def test_the_run_has_the_parameters(tmp_path, name):
    tensors, heads = CHECKPOINTS[name]
    path = saved(tmp_path, tensors)
    pieces = write_pieces(tmp_path / 'vocab.txt')
    assert main(['convert', '--from', name, path, '--out', str(tmp_path / 'run'), '--vocabulary', pieces]) == 0
    run = load_run(tmp_path / 'run')
    params = run.variables['params']
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    chex.assert_trees_all_equal(params, (load_oscar if name == 'oscar' else load_uniter)(path, shapes))
    model = run.config['model']
    assert (model['size'], model.get('heads')) == ('tiny', heads)
    assert (run.feature_size, run.model.size) == (F, 'tiny')


WORDS = 'uniter.embeddings.word_embeddings.weight'
REFUSED = [  # --from, other tensors, arguments, message
    ('uniter', {WORDS: None}, (), f"has no tensor '{WORDS}' with 2 axes"),
    ('oscar', {'classifier.weight': None}, (), 'lacks classifier.weight, so that it cannot score pairs'),
    ('oscar', {'bert.pooler.dense.bias': None}, (), 'lacks tensors (bert.pooler.dense.bias)'),
    ('oscar', zeros({'classifier.2.bias': (2,)}), (), 'has unknown tensors (classifier.2.bias)'),
    ('oscar', {}, ('--config', 'uniter'), "has the model 'uniter.UNITER', not 'oscar.OSCAR'"),
    ('oscar', {}, ('--vocabulary', ''), '--vocabulary is missing'),
    ('oscar', {}, ('--vocabulary', 'SHORT'), 'has 10 word pieces, but'),
]


@pytest.mark.parametrize(('name', 'changes', 'arguments', 'message'), REFUSED)
def test_other_files_are_one_sentence(tmp_path, capsys, name, changes, arguments, message):
    tensors = {key: x for key, x in (CHECKPOINTS[name][0] | changes).items() if x is not None}
    pieces, short = write_pieces(tmp_path / 'vocab.txt'), write_pieces(tmp_path / 'short.txt', 'abcde')
    words = [short if word == 'SHORT' else word for word in arguments]
    out = ['--out', str(tmp_path / 'run'), '--vocabulary', pieces, *words]
    assert main(['convert', '--from', name, saved(tmp_path, tensors), *out]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count('\n') == 1
    assert not (tmp_path / 'run').exists()
