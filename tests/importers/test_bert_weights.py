import json
import re
import struct
import sys

import chex
import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from jitm.errors import ArgumentError, UserError
from jitm.importers.bert_weights import NAMES, load_bert
from jitm.importers.containers import open_checkpoint
from jitm.layers.transformer import BERT, BERTSize, size_named
from jitm.types import Texts
from tests.parity.bounds import assert_within
from tests.support.bert import FFN, PARAMS, POSITIONS, H, V, published, saved, shapes_of


def test_folder_with_a_file(tmp_path):
    path = saved(tmp_path, published())
    chex.assert_trees_all_equal(load_bert(str(tmp_path), PARAMS), load_bert(path, PARAMS))


def old_names(tensors):
    """As files of pre-training have them: prefix, gamma and beta, and heads of which some share our names' ends."""
    tensors = {f'bert.{name}': tensor for name, tensor in tensors.items()}
    old = {
        re.sub(r'LayerNorm\.bias', 'LayerNorm.beta', re.sub(r'LayerNorm\.weight', 'LayerNorm.gamma', name)): tensor
        for name, tensor in tensors.items()
    }
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


@pytest.mark.parametrize('name', ['embeddings.LayerNorm.bias', 'encoder.layer.1.attention.self.value.weight'])
def test_missing_tensor(tmp_path, name):
    tensors = published()
    del tensors[name]
    path = saved(tmp_path, tensors)
    with pytest.raises(UserError, match=re.escape(f'{path} lacks tensors ({name}): give')):
        load_bert(path, PARAMS)


@pytest.mark.parametrize(
    ('name', 'shape', 'want'),
    [
        ('embeddings.word_embeddings.weight', (V + 1, H), (V, H)),
        ('embeddings.LayerNorm.weight', (1, H), (H,)),
        ('encoder.layer.0.intermediate.dense.weight', (H, FFN), (FFN, H)),
        ('encoder.layer.0.attention.self.query.weight', (H + 3, H), (H, H)),
        ('encoder.layer.0.attention.self.query.bias', (3, 2), (H,)),
        ('encoder.layer.1.attention.output.dense.weight', (H, 3, 2), (H, H)),
    ],
)
def test_tensor_of_another_shape(tmp_path, name, shape, want):
    tensors = published() | {name: np.zeros(shape, np.float32)}
    path = saved(tmp_path, {f'bert.{name}': tensor for name, tensor in tensors.items()})
    message = f"{path} has a tensor '{name}' of shape {list(shape)} where the model has {list(want)}: give"
    with pytest.raises(UserError, match=re.escape(message)):
        load_bert(path, PARAMS)


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('bert.encoder.layer.2.output.dense.bias', 'encoder.layer.2.output.dense.bias'),
        ('encoder.layer.0.attention.self.distance_embedding.weight', 'encoder.layer.0.attention.self.distance_emb'),
        ('embeddings.task_type_embeddings.weight', 'embeddings.task_type_embeddings.weight'),
        ('classifier.weight', None),
        ('embeddings.position_ids', None),
    ],
)
def test_only_heads_and_constants_are_left_over(tmp_path, name, message):
    path = saved(tmp_path, published() | {name: np.zeros(3, np.float32)})
    if message is None:
        load_bert(path, PARAMS)
    else:
        with pytest.raises(UserError, match=re.escape(f'{path} has unknown tensors ({message}')):
            load_bert(path, PARAMS)


CONFIG = {'model_type': 'bert', 'hidden_size': H, 'num_hidden_layers': 2, 'num_attention_heads': 3, 'vocab_size': V}
CONFIG |= {
    'intermediate_size': FFN,
    'hidden_act': 'gelu',
    'layer_norm_eps': 1e-12,
    'max_position_embeddings': POSITIONS,
}


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'position_embedding_type': 'absolute'}, None),
        ({'num_attention_heads': 2}, "2, but the model has 3: set its size in the config to 'L-2_H-6_A-2'"),
        ({'num_hidden_layers': 12}, "12, but the model has 2: set its size in the config to 'L-12_H-6_A-3'"),
        ({'intermediate_size': 24}, '24, but the model has 10: give another BERT'),
        ({'hidden_act': 'relu'}, "'relu', but the model has 'gelu': give another BERT"),
        ({'layer_norm_eps': 1e-5}, '1e-05, but the model has 1e-12: give another BERT'),
        (
            {'model_type': 'roberta'},
            "'roberta' with first_position 2, but the model has 0: give another",
        ),
    ],
)
def test_the_config_beside_the_weights_states_the_model(tmp_path, change, message):
    path = saved(tmp_path, published())
    (tmp_path / 'config.json').write_text(json.dumps(CONFIG | change))
    for given in (path, str(tmp_path)):
        if message is None:
            load_bert(given, PARAMS)
        else:
            with pytest.raises(UserError, match=re.escape(f'config.json has {next(iter(change))} {message}')):
                load_bert(given, PARAMS)


def test_sizes_have_names():
    assert size_named('L-6_H-384_A-12') == BERTSize(hidden=384, layers=6, heads=12, mlp_dim=1536)
    assert size_named('base') == size_named('L-12_H-768_A-12')
    for name in ('huge', 'L-6_H-384_A-7', 'L-0_H-384_A-12', 'L-6_H-384_A-12_'):
        with pytest.raises(ArgumentError, match=f"is '{name}'; use one of tiny, base, large, or such as"):
            size_named(name)


def test_missing_files(tmp_path):
    with pytest.raises(UserError, match=r'gone\.safetensors does not exist: give'):
        load_bert(str(tmp_path / 'gone.safetensors'), PARAMS)
    with pytest.raises(UserError, match=r'has none of model\.safetensors, pytorch_model\.bin, .*: give'):
        load_bert(str(tmp_path), PARAMS)


def test_damaged_safetensors(tmp_path):
    path = tmp_path / 'model.safetensors'
    save_file(published(), path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UserError, match=re.escape(f'{path} is not a complete safetensors file (')):
        load_bert(str(path), PARAMS)


def test_numpy_archive_that_takes_much_memory(tmp_path):
    path = tmp_path / 'x.npz'
    np.savez_compressed(path, a=np.zeros(10**7, np.float32))
    with pytest.raises(UserError, match=r'x.npz holds 40,000,\d+ bytes in [\d,]+, which weights do not'):
        open_checkpoint(str(path), 'BERT', NAMES.pattern())
    np.savez(path, a=np.array([{}]))
    with pytest.raises(UserError, match=re.escape(f'{path} is not a complete NumPy archive (Object arrays')):
        open_checkpoint(str(path), 'BERT', NAMES.pattern())


@pytest.mark.parametrize('dtype', ['F8_E4M3', 'F8_E5M2'])
def test_safetensors_of_a_type_that_is_not_read(tmp_path, dtype):
    header = json.dumps(
        {'embeddings.LayerNorm.weight': {'dtype': dtype, 'shape': [4], 'data_offsets': [0, 4]}}
    ).encode()
    path = tmp_path / 'model.safetensors'
    path.write_bytes(struct.pack('<Q', len(header)) + header + bytes(4))
    tensors = open_checkpoint(str(path), 'BERT', NAMES.pattern()).tensors
    with pytest.raises(
        UserError, match=rf"model.safetensors has the tensor '.*' in {dtype}, .*: convert it to float16"
    ):
        tensors['embeddings.LayerNorm.weight']()


@pytest.mark.parametrize('content', [b'', b'hello', b'PK\x03\x04'])
def test_damaged_torch_file(tmp_path, content):
    path = tmp_path / 'pytorch_model.bin'
    path.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(f'{path} is not a complete PyTorch file of weights (')):
        load_bert(str(path), PARAMS)


@pytest.mark.needs('torch', 'transformers')
@pytest.mark.parametrize('kind', ['model.safetensors', 'pytorch_model.bin', 'pretraining'])
def test_hidden_states_equal_transformers(tmp_path, kind):
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=20,
        initializer_range=0.3,
    )
    assert config.hidden_act == 'gelu'
    assert config.layer_norm_eps == 1e-12
    whole = (transformers.BertForPreTraining if kind == 'pretraining' else transformers.BertModel)(config).eval()
    for parameter in whole.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    if kind == 'pytorch_model.bin':
        torch.save(whole.state_dict(), tmp_path / kind)
    else:
        whole.save_pretrained(tmp_path)
    rng = np.random.default_rng(0)
    lengths = np.array([9, 2, 5], np.int32)
    ids = np.where(np.arange(9) < lengths[:, None], rng.integers(1, 50, (3, 9)), 0).astype(np.int32)
    mask = np.arange(9) < lengths[:, None]
    model = whole.bert if kind == 'pretraining' else whole
    with torch.no_grad():
        want = model(torch.from_numpy(ids).long(), torch.from_numpy(mask).long()).last_hidden_state.numpy()
    size = BERTSize(hidden=32, layers=2, heads=4, mlp_dim=64, max_positions=20)
    bert = BERT(50, size, dropout=0.1)
    got = np.asarray(jax.jit(bert.apply)({'params': load_bert(str(tmp_path), shapes_of(bert))}, Texts(ids, lengths)))
    assert np.abs(want[mask]).max() > 1
    assert_within('BERT', got[mask], want[mask])
