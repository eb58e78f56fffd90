import re

import numpy as np
import pytest
from flax import traverse_util

from jitm.errors import UserError
from jitm.importers.bert_weights import load_bert
from jitm.importers.cnn_weights import NAMES
from jitm.importers.pretrained import load_pretrained, load_word_vectors, replace
from tests.support.bert import PARAMS, published, saved
from tests.support.networks import (
    shapes,
    tiny_resnets,  # noqa: F401
)

WORDS = ('<pad>', 'cat', 'ice-cream', "dog's", 'black/white', 'unknown', 'A.M.')
VECTORS = 'cat 1 2.5\nicecream 3 4\nice-cream 5 6\ndogs 7 8\nblack 9 10\n. . 11 12\nAM 13 14\n'
WANT = [[np.nan] * 2, [1, 2.5], [5, 6], [7, 8], [9, 10], [np.nan] * 2, [13, 14]]

NO_FILES = {'bert': '', 'image': '', 'uniter': '', 'oscar': '', 'word_vectors': ''}


def load_params(params, **files):
    """The replaced parameters of a model without batch statistics."""
    loaded = load_pretrained({'params': params, 'batch_stats': {}}, WORDS, None, **NO_FILES | files)
    assert not loaded['batch_stats']
    return loaded['params']


def write(tmp_path, text):
    path = tmp_path / 'vectors.txt'
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize('text', [VECTORS, f'7 2\n{VECTORS}', VECTORS + 'cat 1 2.5\n'])
def test_words_and_simplified_spellings_are_found(tmp_path, text):
    np.testing.assert_array_equal(load_word_vectors(write(tmp_path, text), WORDS, 2), WANT)


def test_order_of_the_file_does_not_matter(tmp_path):
    text = ''.join(reversed(VECTORS.splitlines(keepends=True)))
    np.testing.assert_array_equal(load_word_vectors(write(tmp_path, text), WORDS, 2), WANT)


def test_truncated_file_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"has 1 numbers for 'cat', not 2: download it again"):
        load_word_vectors(write(tmp_path, 'dogs 7 8\ncat 1'), WORDS, 2)
    with pytest.raises(UserError, match='has vectors of 0 numbers'):
        load_word_vectors(write(tmp_path, ''), WORDS, 2)
    with pytest.raises(UserError, match='has no vector for any word of the vocabulary'):
        load_word_vectors(write(tmp_path, 'chat 7 8\n'), WORDS, 2)


def test_vectors_are_those_of_the_text_encoder(tmp_path):
    params = drawn() | {'captioner': drawn()['text']}
    replacements = load_params(params, word_vectors=write(tmp_path, VECTORS))
    assert replacements.keys() == {('text', 'embedding', 'embedding')}


def test_vectors_of_another_size_are_refused(tmp_path):
    with pytest.raises(UserError, match=r'has vectors of 2 numbers, but the word embeddings have 3'):
        load_word_vectors(write(tmp_path, VECTORS), WORDS, 3)
    with pytest.raises(UserError, match=r'has vectors of 2 numbers, but the word embeddings have 1'):
        load_word_vectors(write(tmp_path, VECTORS), WORDS, 1)
    with pytest.raises(UserError, match='is not a text file of words and numbers'):
        load_word_vectors(write(tmp_path, VECTORS.replace('7 8', '7 x')), WORDS, 2)
    for number in ('nan', 'inf', '1e300'):
        with pytest.raises(UserError, match=r"numbers for '.*' that are not finite: download it again"):
            load_word_vectors(write(tmp_path, VECTORS.replace('7 8', f'7 {number}')), WORDS, 2)
    with pytest.raises(UserError, match=r'gone.txt cannot be read \(No such file'):
        load_word_vectors(str(tmp_path / 'gone.txt'), WORDS, 2)


def drawn():
    table = np.arange(14, dtype=np.float32).reshape(7, 2) + 100
    return {'text': {'embedding': {'embedding': table}, 'gru': {'kernel': np.zeros(3)}}}


def test_words_without_a_vector_keep_their_initialization(tmp_path):
    params = drawn()
    replacements = load_params(params, word_vectors=write(tmp_path, VECTORS))
    got = replace(params, replacements)['text']
    table = params['text']['embedding']['embedding']
    np.testing.assert_array_equal(got['embedding']['embedding'], np.where(np.isnan(WANT), table, WANT))
    np.testing.assert_array_equal(got['gru']['kernel'], 0)


def test_nothing_is_replaced_without_files():
    params = drawn()
    assert replace(params, load_params(params)) == params


def test_bert_of_a_text_encoder_is_loaded(tmp_path):
    path = saved(tmp_path, published())
    params = {'text': {'bert': PARAMS, 'linear': {'w': 1}}}
    replacements = load_params(params, bert=path)
    want = traverse_util.flatten_dict({'text': {'bert': load_bert(path, PARAMS)}})
    assert replacements.keys() == want.keys()
    for name, leaf in want.items():
        np.testing.assert_array_equal(replacements[name], leaf)


def test_network_of_an_image_encoder_is_loaded(tmp_path):
    params, batch_stats = ({'image': {'network': tree}} for tree in shapes('resnet-10'))
    rng = np.random.default_rng(0)
    flat = traverse_util.flatten_dict({'params': params, 'batch_stats': batch_stats})
    tensors = {}
    for (_, _, _, *path), leaf in flat.items():
        shape = (leaf.shape[3], leaf.shape[2], *leaf.shape[:2]) if len(leaf.shape) == 4 else leaf.shape
        tensors[NAMES.name(tuple(path))] = rng.normal(size=shape).astype(np.float32)
    np.savez(tmp_path / 'x.npz', **tensors)
    files = NO_FILES | {'image': str(tmp_path / 'x.npz')}
    got = load_pretrained({'params': params | {'fc': {'bias': 1}}, 'batch_stats': batch_stats}, (), None, **files)
    for part, values in got.items():
        assert values.keys() == {path[1:] for path in flat if path[0] == part}
    variance = got['batch_stats']['image', 'network', 'layer2_0', 'bn1', 'variance']
    np.testing.assert_array_equal(variance, tensors['layer2.0.bn1.running_var'])


MODULES = {
    'bert': 'bert',
    'image': 'network',
    'uniter': 'regions',
    'oscar': 'region_features',
    'word_vectors': 'embedding',
}


@pytest.mark.parametrize(('key', 'module'), MODULES.items())
def test_missing_module_is_refused(key, module):
    message = f"{key} is set, but the model has no module '{module}'"
    with pytest.raises(ValueError, match=re.escape(message)):
        load_params({'text': {'w': 1}}, **{key: 'somewhere'})
