"""Tensors of a BERT, and what every importer says of tensors that do not fit; tests/parity compares states."""

import json
import re
import struct
import sys

import chex
import numpy as np
import pytest
from safetensors.numpy import save_file

from jitm.errors import ArgumentError, UserError
from jitm.importers.bert_weights import NAMES, load_bert
from jitm.importers.containers import open_checkpoint
from jitm.layers.transformer import BERTSize, size_named
from tests.support.bert import FFN, PARAMS, POSITIONS, H, V, published, saved


def test_folder_with_a_file(tmp_path):
    path = saved(tmp_path, published())
    chex.assert_trees_all_equal(load_bert(str(tmp_path), PARAMS), load_bert(path, PARAMS))


def old_names(tensors):
    """As files of pre-training have them: prefix, gamma and beta, and heads of which some share our names' ends."""
    old = {}
    for name, tensor in tensors.items():
        name = name.replace('LayerNorm.weight', 'LayerNorm.gamma').replace('LayerNorm.bias', 'LayerNorm.beta')
        old[f'bert.{name}'] = tensor
    assert 'bert.encoder.layer.1.output.LayerNorm.gamma' in old
    heads = ('cls.predictions.transform.LayerNorm.gamma', 'cls.predictions.bias', 'cls.seq_relationship.weight')
    return old | {name: np.zeros(3, np.float32) for name in heads}


def test_old_names_prefix_and_heads(tmp_path):
    want = load_bert(saved(tmp_path, published()), PARAMS)
    got = load_bert(saved(tmp_path, old_names(published())), PARAMS)
    chex.assert_trees_all_equal(got, want)


def test_half_precision_becomes_float32(tmp_path):
    tensors = published(np.float16)
    params = load_bert(saved(tmp_path, tensors), PARAMS)
    chex.assert_trees_all_equal_shapes_and_dtypes(params, PARAMS)
    words = params['embeddings']['words']['embedding']
    np.testing.assert_array_equal(words, tensors['embeddings.word_embeddings.weight'].astype(np.float32))


def test_safetensors_need_no_torch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'torch', None)
    load_bert(saved(tmp_path, published()), PARAMS)


def test_classifiers_and_constants_are_left_over(tmp_path):
    names = ('classifier.weight', 'embeddings.position_ids')
    load_bert(saved(tmp_path, published() | dict.fromkeys(names, np.zeros(3, np.float32))), PARAMS)


def other_shape(name, shape, want):
    message = f"has a tensor '{name}' of shape {list(shape)} where the model has {list(want)}: give"
    return {name: np.zeros(shape, np.float32)}, message


def unknown(name, stored=None):
    return {name: np.zeros(3, np.float32)}, f'has unknown tensors ({stored or name}): give'


BLOCK = 'encoder.layer.0.attention.self'
OTHER_TENSORS = [
    ({'embeddings.LayerNorm.bias': None}, 'lacks tensors (embeddings.LayerNorm.bias): give'),
    (
        dict.fromkeys(name for name in published() if name.startswith('encoder.')),
        'encoder.layer.0.attention.output.dense.weight, encoder.layer.0.attention.self.key.bias and 27 others): give',
    ),
    other_shape('embeddings.word_embeddings.weight', (V + 1, H), (V, H)),
    other_shape('embeddings.LayerNorm.weight', (1, H), (H,)),
    other_shape('encoder.layer.0.intermediate.dense.weight', (H, FFN), (FFN, H)),
    other_shape(f'{BLOCK}.query.weight', (H + 3, H), (H, H)),
    other_shape(f'{BLOCK}.query.bias', (3, 2), (H,)),
    other_shape('encoder.layer.1.attention.output.dense.weight', (H, 3, 2), (H, H)),
    unknown('bert.encoder.layer.2.output.dense.bias', 'encoder.layer.2.output.dense.bias'),
    unknown(f'{BLOCK}.distance_embedding.weight'),
    unknown('embeddings.task_type_embeddings.weight'),
]


@pytest.mark.parametrize(('changes', 'message'), OTHER_TENSORS)
def test_other_tensors_are_refused(tmp_path, changes, message):
    tensors = {name: x for name, x in (published() | changes).items() if x is not None}
    path = saved(tmp_path, tensors | {'classifier.weight': np.zeros(3, np.float32)})
    with pytest.raises(UserError, match=re.escape(message)) as error:
        load_bert(path, PARAMS)
    assert str(error.value).startswith(path)


CONFIG = {
    'model_type': 'bert',
    'hidden_size': H,
    'num_hidden_layers': 2,
    'num_attention_heads': 3,
    'vocab_size': V,
    'intermediate_size': FFN,
    'hidden_act': 'gelu',
    'layer_norm_eps': 1e-12,
    'max_position_embeddings': POSITIONS,
    'position_embedding_type': 'absolute',
}


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'num_attention_heads': 2}, "2, but the model has 3: set its size in the config to 'L-2_H-6_A-2'"),
        ({'num_hidden_layers': 12}, "12, but the model has 2: set its size in the config to 'L-12_H-6_A-3'"),
        ({'intermediate_size': 24}, '24, but the model has 10: give another BERT'),
        ({'hidden_act': 'relu'}, "'relu', but the model has 'gelu': give another BERT"),
        ({'layer_norm_eps': 1e-5}, '1e-05, but the model has 1e-12: give another BERT'),
        ({'model_type': 'roberta'}, "'roberta' with first_position 2, but the model has 0: give another"),
    ],
)
def test_the_config_beside_the_weights_states_the_model(tmp_path, change, message):
    path = saved(tmp_path, published())
    (tmp_path / 'config.json').write_text(json.dumps(CONFIG))
    load_bert(path, PARAMS)
    (tmp_path / 'config.json').write_text(json.dumps(CONFIG | change))
    for place in (path, str(tmp_path)):
        with pytest.raises(UserError, match=re.escape(f'config.json has {next(iter(change))} {message}')):
            load_bert(place, PARAMS)


def test_sizes_have_names():
    assert size_named('L-6_H-384_A-12') == BERTSize(hidden=384, layers=6, heads=12, mlp_dim=1536)
    assert size_named('base') == size_named('L-12_H-768_A-12')
    for name in ('huge', 'L-6_H-384_A-7', 'L-0_H-384_A-12', 'L-6_H-384_A-12_'):
        with pytest.raises(ArgumentError, match=f"is '{name}'; use one of tiny, base, large, or such as"):
            size_named(name)


def write_float8(path):
    header = {'embeddings.LayerNorm.weight': {'dtype': 'F8_E4M3', 'shape': [4], 'data_offsets': [0, 4]}}
    content = json.dumps(header).encode()
    path.write_bytes(struct.pack('<Q', len(content)) + content + bytes(4))


def cut(path):
    save_file(published(), path)
    path.write_bytes(path.read_bytes()[:-8])


def read_all(path):
    for read in open_checkpoint(path, 'BERT', NAMES.pattern()).tensors.values():
        read()


OTHER_FILES = [  # name, what writes it, message
    ('gone.safetensors', lambda path: None, r'gone\.safetensors does not exist: give'),
    ('', lambda path: None, r'has none of model\.safetensors, pytorch_model\.bin, .*: give'),
    ('x.safetensors', cut, r'x\.safetensors is not a complete safetensors file \('),
    ('x.safetensors', write_float8, r"x\.safetensors has the tensor '.*' in F8_E4M3, .*: convert it to float16"),
    (
        'x.npz',
        lambda path: np.savez_compressed(path, a=np.zeros(10**7, np.float32)),
        r'x\.npz holds 40,000,\d+ bytes in [\d,]+, which weights do not',
    ),
    ('x.npz', lambda path: np.savez(path, a=np.array([{}])), r'x\.npz is not a complete NumPy archive \(Object arrays'),
    *(
        ('x.bin', lambda path, content=content: path.write_bytes(content), 'is not a complete PyTorch file of weights')
        for content in (b'', b'hello', b'PK\x03\x04')
    ),
]


@pytest.mark.parametrize(('name', 'write', 'message'), OTHER_FILES)
def test_other_files_are_refused(tmp_path, name, write, message):
    write(tmp_path / name)
    with pytest.raises(UserError, match=message):
        read_all(str(tmp_path / name))
