"""Text encoders as folders: transformers on random weights, a published MiniLM, and errors."""

import functools
import json

import chex
import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jitm.configs import load
from jitm.data.splits import pad_texts
from jitm.data.text.token_vectors import ENTRY
from jitm.data.text.vocabularies import tokenize_split
from jitm.data.text.wordpiece import WordPiece
from jitm.encoders.text_network import of_folder, restore
from jitm.errors import UserError
from jitm.files.packages import PACKAGES, located
from jitm.importers.bert_weights import load_bert
from jitm.importers.named_folders import complete
from jitm.importers.pretrained import load_pretrained, replace
from jitm.importers.text_folders import load_dense, load_text_encoder, read_folder, read_pooling
from jitm.layers.transformer import BERT
from jitm.models.make import make_model
from jitm.types import Texts
from tests.parity.bounds import assert_within
from tests.support.text_folders import CONFIGS, write_dense, write_folder, write_modules

WORDS = ('a', 'dog', 'runs', 'on', 'the', 'beach')


def states_by_jitm(folder, texts):
    """The last hidden states by the weights of a folder."""
    size = read_folder(str(folder)).size
    vocab_size = len(load_file(folder / 'model.safetensors')['embeddings.word_embeddings.weight'])
    bert = BERT(vocab_size, size, 0.1)
    shapes = jax.eval_shape(bert.init, jax.random.key(0), texts)['params']
    return np.asarray(jax.jit(bert.apply)({'params': load_bert(str(folder), shapes, size)}, texts))


def states_by_transformers(model, ids, mask):
    import torch

    with torch.no_grad():
        return model(torch.tensor(ids).long(), torch.tensor(mask).long()).last_hidden_state.numpy()


@pytest.mark.needs('torch', 'transformers')
@pytest.mark.parametrize(
    ('kind', 'name', 'row', 'changes'),
    [
        ('bert', 'Bert', 'BERT', {'hidden_act': 'gelu_new', 'layer_norm_eps': 1e-5, 'type_vocab_size': 3}),
        ('roberta', 'Roberta', 'RoBERTa', {}),
        ('xlm-roberta', 'XLMRoberta', 'XLM-R', {}),
        ('mpnet', 'MPNet', 'MPNet', {}),
        ('distilbert', 'DistilBert', 'DistilBERT', {'sinusoidal_pos_embds': True}),
    ],
)
def test_states_are_those_of_transformers(tmp_path, kind, name, row, changes):
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = {'vocab_size': 50, 'max_position_embeddings': 160, 'initializer_range': 0.3} | CONFIGS[kind] | changes
    model = getattr(transformers, f'{name}Model')(getattr(transformers, f'{name}Config')(**sizes)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    model.save_pretrained(tmp_path)
    lengths = np.array([150, 2, 40], np.int32)  # so that distances have all buckets
    mask = np.arange(150) < lengths[:, None]
    ids = np.where(mask, np.random.default_rng(0).integers(4, 50, mask.shape), model.config.pad_token_id)
    want = states_by_transformers(model, ids, mask)[mask]
    got = states_by_jitm(tmp_path, Texts(np.where(mask, ids, 0).astype(np.int32), lengths))
    assert np.abs(want).max() > 1
    assert_within(row, got[mask], want)


def config_of(path, **text):
    config = load('vse:fc,max,scenes').to_dict()
    config['model']['text'] = {'name': 'text.BERTEncoder', 'path': path} | text
    return config


def test_a_folder_becomes_keys(tmp_path):
    path = write_folder(tmp_path / 'mpnet', WORDS)
    (tmp_path / 'mpnet' / 'sentence_bert_config.json').write_text('{"max_seq_length": 8, "do_lower_case": false}')
    config = complete(config_of(path, output_dropout=0.1))
    assert complete(config) == config
    assert config['vocabulary']['path'] == config['initialize']['bert'] == path
    text = config['model']['text']
    size = {'name': 'transformer.BERTSize', 'hidden': 16, 'layers': 2, 'heads': 2, 'mlp_dim': 32, 'max_positions': 12}
    size |= {'token_types': 0, 'deviation': 0.02, 'first_position': 2, 'activation': 'gelu', 'epsilon': 1e-5}
    assert text.pop('size') == size | {'relative_positions': True}
    assert text == {'name': 'text.BERTEncoder', 'output_dropout': 0.1, 'max_length': 8}
    assert complete(config_of(path, max_length=4))['model']['text']['max_length'] == 4


def test_a_missing_key_has_the_value_of_the_class(tmp_path):
    """It is another one than in the released files."""
    folder = tmp_path / 'roberta'
    write_folder(folder, WORDS, 'roberta')
    stated = json.loads((folder / 'config.json').read_text())
    for key in ('layer_norm_eps', 'type_vocab_size', 'max_position_embeddings'):
        del stated[key]
    (folder / 'config.json').write_text(json.dumps(stated))
    size = read_folder(str(folder)).size
    assert (size.epsilon, size.token_types, size.max_positions, size.max_length) == (1e-12, 2, 512, 510)


def test_weights_with_heads_have_a_prefix(tmp_path):
    plain = write_folder(tmp_path / 'plain', WORDS, 'distilbert')
    prefixed = write_folder(tmp_path / 'prefixed', WORDS, 'distilbert', prefix='distilbert.')
    tensors = load_file(f'{prefixed}/model.safetensors') | {'vocab_transform.weight': np.zeros(3, np.float32)}
    save_file(tensors, f'{prefixed}/model.safetensors')
    chex.assert_trees_all_equal(*(load_text_encoder(path)[1] for path in (plain, prefixed)))


POOLINGS = [
    ({'pooling_mode_cls_token': True, 'pooling_mode_mean_tokens': False, 'word_embedding_dimension': 16}, 'first'),
    ({'pooling_mode_max_tokens': True, 'include_prompt': True}, 'max'),
    ({'pooling_mode_mean_sqrt_len_tokens': True}, 'mean_sqrt'),
    ({'pooling_mode_weightedmean_tokens': True}, 'weighted_mean'),
    ({'embedding_dimension': 16, 'pooling_mode': 'mean'}, 'mean'),
    ({'pooling_mode': ['lasttoken']}, 'last'),
]


@pytest.mark.parametrize(('content', 'name'), POOLINGS)
def test_the_pooling_of_a_folder(tmp_path, content, name):
    path = write_folder(tmp_path / 'folder', WORDS, pooling=content)
    assert read_pooling(path) == (name, None, '')
    config = config_of(path)
    config['model']['text_pooling'] = 'published'
    assert complete(config)['model']['text_pooling'] == name


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        ({'pooling_mode': 'median'}, 'states the pooling median, which is not read'),
        ({'pooling_mode': 3}, "has 'pooling_mode' 3; it must be a string or a tuple or None: set"),
        ({'pooling': 'cls'}, "has 'pooling' 'cls', which jitm does not know: set 'model.text_pooling'"),
        ({}, "states the pooling none, which is not read: set 'model.text_pooling' to 'mean'"),
    ],
)
def test_poolings_that_are_not_read(tmp_path, content, message):
    path = write_folder(tmp_path / 'folder', WORDS, pooling={'pooling_mode': 'cls'})
    (tmp_path / 'folder' / '1_Pooling' / 'config.json').write_text(json.dumps(content))
    write_modules(tmp_path / 'folder', {'Transformer': '', 'Pooling': '1_Pooling'})
    with pytest.raises(UserError, match=message):
        read_pooling(path)
    assert complete(config_of(path))['model']['text_pooling'] == 'gpo'  # that of the config


@pytest.mark.slow
def test_texts_of_a_folder_with_a_dense_layer(tmp_path):
    """The formula of sentence-transformers, and after it the linear layer that all text encoders of VSE have."""
    path = write_folder(tmp_path / 'folder', WORDS, pooling={'pooling_mode': 'mean'})
    weight, bias = write_dense(tmp_path / 'folder', 'torch.nn.modules.activation.Tanh')
    config = config_of(path)
    config['model'] |= {'text_pooling': 'published', 'embed_dim': 4}
    config = complete(config)
    layer = {'name': 'pooling.Dense', 'size': 6, 'pooling': 'mean', 'activation': 'tanh', 'use_bias': True}
    assert config['model']['text']['dense'] == layer
    assert config['initialize'] | {'bert': path, 'dense': f'{path}/2_Dense'} == config['initialize']

    model = make_model(config['model'], 11)
    texts = Texts(np.array([[0, 4, 5, 6, 2], [0, 7, 2, 0, 0]], np.int32), np.array([5, 3], np.int32))
    variables = jax.jit(functools.partial(model.init, method='encode_text'))(jax.random.key(0), texts)
    loaded = load_pretrained(variables, ('',) * 11, model, **config['initialize'])
    params = replace(variables['params'], loaded['params'])
    got = jax.jit(functools.partial(model.apply, method='encode_text'))({'params': params}, texts)

    states = states_by_jitm(tmp_path / 'folder', texts).astype(np.float64)
    sentences = np.tanh(np.stack([states[0].mean(axis=0), states[1, :3].mean(axis=0)]) @ weight.T + bias)
    vectors = sentences @ params['text']['linear']['kernel'] + params['text']['linear']['bias']
    np.testing.assert_allclose(got, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), atol=2e-6)


def test_dense_layers_that_are_not_read(tmp_path):
    path = write_folder(tmp_path / 'folder', WORDS, pooling={'pooling_mode': 'mean'})
    write_dense(tmp_path / 'folder', 'torch.nn.modules.activation.Tanh', inputs=8)
    config = config_of(path)
    assert complete(config)['initialize'].get('dense') is None  # with another pooling
    config['model']['text_pooling'] = 'published'
    damage(tmp_path / 'folder', '2_Dense/config.json', {'out_features': '6'})
    with pytest.raises(UserError, match="has 'out_features' '6'; it must be an integer"):
        complete(config)
    shapes = {'linear': {'kernel': np.zeros((16, 6)), 'bias': np.zeros(6)}}
    with pytest.raises(UserError, match=r"tensor 'linear.weight' of shape \[6, 8\] where the model has \[6, 16\]"):
        load_dense(f'{path}/2_Dense', shapes)


def test_a_folder_of_an_old_version_has_its_transformer_in_another(tmp_path):
    inner = write_folder(tmp_path / '0_Transformer', WORDS)
    write_modules(tmp_path, {'Transformer': '0_Transformer'})
    assert read_pooling(str(tmp_path)).name == 'mean'
    config = complete(config_of(str(tmp_path)))
    assert config['initialize']['bert'] == config['vocabulary']['path'] == inner


def damage(folder, name, content):
    """Changes keys of a file, or writes or removes it."""
    if content is None:
        (folder / name).unlink()
    elif isinstance(content, dict):
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | content))
    else:
        (folder / name).write_text(content)


CONFIG = 'config.json'
MODELS = 'sentence_transformers.models'


@pytest.mark.parametrize(
    ('name', 'content', 'message'),
    [
        (CONFIG, {'model_type': 'gpt2'}, "has the model_type 'gpt2': give a model of one of bert, roberta, xlm"),
        (CONFIG, {'hidden_act': 'mish'}, "has 'hidden_act' 'mish'; use one of gelu, gelu_python"),
        (CONFIG, {'hidden_size': '16'}, "has 'hidden_size' '16'; it must be an integer"),
        (CONFIG, {'num_attention_heads': 3}, '16 hidden units, which are no multiple of its 3 heads'),
        (CONFIG, {'is_decoder': True}, "has 'is_decoder' True; it must be False: give another model"),
        (CONFIG, {'pad_token_id': 0}, "has 'pad_token_id' 0; it must be 1"),
        (CONFIG, {'relative_attention_num_buckets': 16}, '16; it must be 32'),
        (CONFIG, '[', 'config.json cannot be read as JSON'),
        (CONFIG, None, 'has no config.json: give a folder of Hugging Face or sentence-transformers'),
        (CONFIG, {'position_embedding_type': 'relative_key'}, "'relative_key'; it must be absolute"),
        ('model.safetensors', None, 'none of model.safetensors, .*, but config.json, tokenizer.*: give the path of'),
        ('tokenizer.json', None, 'has no tokenizer.json or vocab.txt'),
        ('sentence_bert_config.json', '{"max_seq_length": "8"}', "has 'max_seq_length' '8'; it must be"),
        ('modules.json', '[{"type": "x.Transformer", "path": ""}]', "module of the type 'x.Transformer', which is not"),
        ('modules.json', f'[{{"type": "{MODELS}.LSTM", "path": "x"}}]', 'starts with the module LSTM: give a folder'),
        ('modules.json', '[3]', "modules.json has 'modules.0' 3; it must be a dict"),
        ('modules.json', '[{}]', "modules.json has no 'modules.0.type'"),
        (
            'modules.json',
            f'[{{"type": "{MODELS}.Transformer", "path": "../x"}}]',
            "names '../x', which is not a path within its",
        ),
    ],
)
def test_damaged_folders(tmp_path, name, content, message):
    path = write_folder(tmp_path / 'folder', WORDS)
    damage(tmp_path / 'folder', name, content)
    with pytest.raises(UserError, match=message):
        load_text_encoder(path)


@pytest.mark.parametrize(
    ('section', 'changes', 'message'),
    [
        ('vocabulary', {'path': 'x'}, "'vocabulary.path' 'x' is set, but 'model.text.path' names a folder that has it"),
        ('initialize', {'bert': 'x'}, "'initialize.bert' 'x' is set, but"),
        ('text', {'size': 'base'}, "'model.text.path' and 'model.text.size' both name sizes"),
        ('text', {'name': 'text.GRUEncoder'}, "'model.text.path' is set, but 'model.text.name' is 'text.GRUEncoder'"),
        ('text', {'path': 3}, "'model.text.path' is 3; it must be a string"),
        ('text', {'path': 'gone'}, 'there is no folder gone: give'),
    ],
)
def test_keys_that_do_not_go_with_a_folder(tmp_path, section, changes, message):
    config = config_of(write_folder(tmp_path / 'folder', WORDS))
    (config['model'] if section == 'text' else config)[section] |= changes
    with pytest.raises(UserError, match=message):
        complete(config)


def test_members_and_stages_have_their_folders_replaced(tmp_path):
    path = write_folder(tmp_path / 'folder', WORDS)
    config = config_of(path)
    config['members']['anchor'] = {'rule': 'gradient', 'init_from': 'runs/x', 'model': config['model']}
    first = {key: value for key, value in config.items() if key not in ('data', 'seed', 'run', 'stages')}
    config['stages'] = {'first': first, 'top_h_texts': 0, 'top_h_images': 0, 'fine_tune': True}
    done = complete(config)
    for stage, weights in ((done, ''), (done['stages']['first'], path)):  # the second starts from the first
        assert stage['initialize']['bert'] == weights
        assert stage['members']['anchor']['model'] == stage['model']
        assert 'path' not in stage['model']['text']
    other = write_folder(tmp_path / 'other', WORDS)
    anchor = {**config['model'], 'text': {'name': 'text.BERTEncoder', 'path': other}}
    config['members']['anchor'] = {**config['members']['anchor'], 'model': anchor}
    with pytest.raises(UserError, match='all models of a run read one vocabulary: name one folder'):
        complete(config)


def test_a_folder_that_has_moved_is_named(tmp_path):
    """As of a head on the vectors of its tokens."""
    network = of_folder(write_folder(tmp_path / 'folder', WORDS), 'float32', 'highest')
    encoded_by = {ENTRY: {**network.identity, 'origin': network.origin}}
    moved = (tmp_path / 'folder').rename(tmp_path / 'moved')
    other = write_folder(tmp_path / 'x', WORDS, 'roberta')
    for place, message in ((None, 'has no config.json'), (other, r'differs from the one found \(network, parameters')):
        with pytest.raises(UserError, match=f'{message}.*; name its run directory, or its folder, with --encoder'):
            restore(encoded_by, tmp_path / 'run', place)
    assert restore(encoded_by, tmp_path / 'run', moved).identity == network.identity


MINILM = 'all-MiniLM-L6-v2'
CAPTIONS = {  # caption -> its ids
    'A dog runs on the beach.': '101 1037 3899 3216 2006 1996 3509 1012 102',
    'Two children play football in a park.': '101 2048 2336 2377 2374 1999 1037 2380 1012 102',
    'A red double-decker bus drives down a busy street, past people with umbrellas!': (
        '101 1037 2417 3313 1011 20946 3902 9297 2091 1037 5697 2395 1010 2627 2111 2007 12977 2015 999 102'
    ),
    'Café au lait, déjà-vu!': '101 7668 8740 21110 2102 1010 2139 3900 1011 24728 999 102',
    'A woman\u2019s T-shirt  says "hi" 😀 2nd floor': (
        '101 1037 2450 1521 1055 1056 1011 3797 2758 1000 7632 1000 100 3416 2723 102'
    ),
    'kitesurfing snowboarder': '101 20497 26210 16294 2290 4586 6277 2121 102',
}


@pytest.fixture(scope='module')
def minilm():
    return of_folder(MINILM, 'float32', 'highest')


@pytest.mark.needs(PACKAGES[MINILM].module)
def test_ids_of_minilm(minilm):
    assert [' '.join(map(str, minilm.vocabulary.encode(caption))) for caption in CAPTIONS] == [*CAPTIONS.values()]
    assert type(minilm.vocabulary) is WordPiece  # so that words can be masked
    assert len(minilm.vocabulary.encode('dog ' * 300)) == 256  # the file cuts at 128, the model at 256
    assert read_pooling(MINILM) == ('mean', None, '')


@pytest.mark.needs('transformers', PACKAGES[MINILM].module)
def test_states_of_minilm_are_those_of_transformers(minilm):
    import transformers

    model = transformers.AutoModel.from_pretrained(located(MINILM)).eval()
    tokens = tokenize_split(tuple(CAPTIONS), minilm.vocabulary)
    texts = pad_texts(tokens, np.arange(6), 20)
    mask = np.asarray(texts.mask)
    got = minilm.encode(tokens, np.arange(6))
    assert_within('MiniLM', got, states_by_transformers(model, texts.ids, mask)[mask])
