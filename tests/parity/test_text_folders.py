"""Folders of text encoders that the libraries write are read as these read them, or refused."""

import functools
import json

import jax
import numpy as np
import pytest
import sentence_transformers
import torch
import transformers
from sentence_transformers.sentence_transformer import modules
from tokenizers.pre_tokenizers import ByteLevel

from jitm.errors import UserError
from jitm.importers import bert_weights
from jitm.importers.text_folders import load_dense, load_text_encoder, read_pooling
from jitm.layers.pooling import Dense, make_pooling
from jitm.layers.transformer import ACTIVATIONS
from jitm.types import Texts

pytestmark = pytest.mark.needs('torch', 'transformers', 'sentence_transformers')

WORDS = ('a', 'dog', 'Dog', 'runs', 'past', 'the', 'house', 'red', 'beach', 'café', 'cafe', '!', ',', '##s', '##e')
CAPTIONS = (
    'A dog runs past the house',
    'the red beach!',
    'Cafés, Dog dogs a a a a past the red beach house the red house',
    'an unseen café',
    'the  DOG<e>runs',
    'a',
)
SIZES = {'hidden_size': 32, 'num_hidden_layers': 2, 'num_attention_heads': 4, 'intermediate_size': 48}
DISTILLED = {'dim': 32, 'n_layers': 2, 'n_heads': 4, 'hidden_dim': 48}
POSITIONS = 40
BERT_SPECIAL = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]')
SPECIAL = ('<s>', '<pad>', '</s>', '<unk>')


def word_pieces(special):
    return {word: number for number, word in enumerate((*special, *WORDS))}


def byte_pairs():
    alphabet = sorted(ByteLevel.alphabet())
    merges = [('d', 'o'), ('do', 'g'), ('t', 'h'), ('th', 'e'), ('Ġ', 'd'), ('Ġ', 'the')]
    words = (*SPECIAL, '<mask>', *alphabet, *(''.join(pair) for pair in merges))
    vocab = {word: number for number, word in enumerate(words)}
    return {'vocab': vocab, 'merges': merges, 'model_max_length': POSITIONS - 2}


def sentence_pieces():
    letters = 'abcdefghijklmnopqrstuvwxyzDé!,\u2581'
    pieces = [(piece, 0.0) for piece in SPECIAL]
    pieces += [(f'\u2581{word}', -1.0 - number) for number, word in enumerate(WORDS)]
    pieces += [(letter, -30.0 - number) for number, letter in enumerate(letters)]
    return {'vocab': [*pieces, ('<mask>', 0.0)], 'model_max_length': POSITIONS - 2}


KINDS = {  # model_type -> prefix of the classes, the sizes, the arguments of the tokenizer
    'bert': ('Bert', SIZES, lambda: {'vocab': word_pieces(BERT_SPECIAL)}),
    'distilbert': ('DistilBert', DISTILLED, lambda: {'vocab': word_pieces(BERT_SPECIAL)}),
    'mpnet': ('MPNet', SIZES, lambda: {'vocab': word_pieces((*SPECIAL, '[UNK]', '<mask>'))}),
    'roberta': ('Roberta', SIZES | {'pad_token_id': 1}, byte_pairs),
    'xlm-roberta': ('XLMRoberta', SIZES | {'pad_token_id': 1}, sentence_pieces),
    'camembert': ('Camembert', SIZES | {'pad_token_id': 1}, sentence_pieces),
}


def write_encoder(folder, kind='bert', *, tokenizer=None, rows=0, added=(), shard='1GB', dtype=None, **config):
    """Writes a random encoder and its tokenizer by transformers, and returns the folder."""
    name, sizes, pieces = KINDS[kind]
    made = getattr(transformers, f'{name}Tokenizer')(**pieces() | (tokenizer or {}))
    made.add_tokens(list(added))
    torch.manual_seed(0)
    settings = sizes | {'max_position_embeddings': POSITIONS, 'vocab_size': len(made) + rows} | config
    model = getattr(transformers, f'{name}Model')(getattr(transformers, f'{name}Config')(**settings))
    with torch.no_grad():
        for tensor in model.parameters():  # initial biases of 0 and scales of 1 would hide a mistake
            tensor += 0.1 * torch.randn_like(tensor)
    model.to(dtype or torch.float32).save_pretrained(folder, max_shard_size=shard)
    made.save_pretrained(folder)
    return str(folder)


def change(folder, files):
    """Writes texts, changes keys of JSON, such as model.vocab, or removes a file where None."""
    for name, keys in files.items():
        file = folder / name
        if isinstance(keys, str):
            file.write_text(keys)
        elif keys is None:
            file.unlink()
        else:
            content = json.loads(file.read_text()) if file.is_file() else {}
            for key, value in keys.items():
                *path, last = key.split('.')
                functools.reduce(dict.__getitem__, path, content)[last] = value
            file.write_text(json.dumps(content))


def write(tmp_path, *layers, settings=None, transformer=None, files=None, **encoder):
    """Writes a folder by sentence-transformers with these layers after the encoder, and returns its path."""
    path = write_encoder(tmp_path / 'encoder', **encoder)
    first = modules.Transformer(path, **(transformer or {}))
    sentence_transformers.SentenceTransformer(modules=[first, *layers], **(settings or {})).save(
        str(tmp_path / 'saved')
    )
    change(tmp_path / 'saved', files or {})
    return str(tmp_path / 'saved')


def pooling(mode='mean'):
    return modules.Pooling(32, mode)


def dense(activation='Tanh', size=24, inputs=32, **arguments):
    torch.manual_seed(1)
    return modules.Dense(inputs, size, activation_function=getattr(torch.nn, activation)(), **arguments)


def vectors_by_jitm(path):
    """Unit vectors of the captions."""
    encoder, params, vocabulary = load_text_encoder(path)
    tokens = [vocabulary.encode(caption) for caption in CAPTIONS]
    lengths = np.array([len(ids) for ids in tokens], np.int32)
    texts = Texts(np.stack([np.pad(ids, (0, lengths.max() - len(ids))) for ids in tokens]), lengths)
    states = encoder.apply({'params': params}, texts, method='features')
    stated = read_pooling(path)
    if stated.dense is None:
        vectors = make_pooling(stated.name, 'pooling')(states, texts.mask)
    else:
        layer = Dense(pooling=stated.name, **stated.dense)
        shapes = jax.eval_shape(layer.init, jax.random.key(0), states, texts.mask)['params']
        vectors = layer.apply({'params': load_dense(stated.weights, shapes)}, states, texts.mask)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


CASED = {'tokenizer': {'do_lower_case': False}}
LOWER = {'transformer': {'do_lower_case': True}}
ONLY_WORDS = {'vocab.txt': '\n'.join(word_pieces(BERT_SPECIAL)), 'tokenizer.json': None}
OF_MPNET = {'vocab.txt': '\n'.join(word_pieces((*SPECIAL, '[UNK]', '<mask>'))), 'tokenizer.json': None}
ONE_ADDED = ONLY_WORDS | {'added_tokens.json': {'past the': len(WORDS) + len(BERT_SPECIAL)}}
SPECIAL_MAP = {'tokenizer_config.json': '{}', 'special_tokens_map.json': {'cls_token': '[MASK]'}}

READ = {
    'mean': lambda: ([pooling(), modules.Normalize()], {}),
    'cls': lambda: ([pooling('cls')], {}),
    'max': lambda: ([pooling('max'), modules.Normalize()], {}),
    'last': lambda: ([pooling('lasttoken')], {}),
    'mean_sqrt': lambda: ([pooling('mean_sqrt_len_tokens')], {}),
    'weighted_mean': lambda: ([pooling('weightedmean'), modules.Normalize()], {}),
    'mean_sqrt_dense': lambda: ([pooling('mean_sqrt_len_tokens'), dense()], {}),
    'relu': lambda: ([pooling(), dense('ReLU'), modules.Normalize()], {}),
    'gelu': lambda: ([pooling('cls'), dense('GELU', bias=False)], {}),
    'silu': lambda: ([pooling('max'), dense('SiLU')], {}),
    'sigmoid': lambda: ([pooling('weightedmean'), dense('Sigmoid')], {}),
    'identity': lambda: ([pooling(), dense('Identity', size=32)], {}),
    'dropout': lambda: ([pooling(), modules.Dropout(0.3), dense(), modules.Normalize(), modules.Normalize()], {}),
    'length': lambda: ([pooling()], {'transformer': {'max_seq_length': 6}}),
    'tokenizer_length': lambda: ([pooling()], {'tokenizer': {'model_max_length': 7}}),
    'prompts': lambda: ([pooling()], {'settings': {'prompts': {'query': 'the dog '}}}),
    'distilbert': lambda: ([pooling()], {'kind': 'distilbert', 'activation': 'relu'}),
    'mpnet': lambda: ([pooling(), dense()], {'kind': 'mpnet', 'hidden_act': 'gelu_new'}),
    'mpnet_words': lambda: ([pooling()], {'kind': 'mpnet', 'files': OF_MPNET}),
    'camembert': lambda: ([pooling()], {'kind': 'camembert'}),
    'roberta': lambda: ([pooling('cls')], {'kind': 'roberta', 'type_vocab_size': 1}),
    'prefix_space': lambda: ([pooling()], {'kind': 'roberta', 'tokenizer': {'add_prefix_space': True}}),
    'more_rows': lambda: ([pooling(), modules.Normalize()], {'kind': 'xlm-roberta', 'rows': 35}),
    'padded_rows': lambda: ([pooling()], {'rows': 64 - len(WORDS) - len(BERT_SPECIAL)}),
    'cased': lambda: ([pooling()], {'tokenizer': {'do_lower_case': False}}),
    'accents': lambda: ([pooling()], {'tokenizer': {'strip_accents': False, 'tokenize_chinese_chars': False}}),
    'added': lambda: ([pooling()], {'added': ['<e>', 'past the'], 'rows': 3}),
    'added_file': lambda: ([pooling()], {'rows': 1, 'files': ONE_ADDED}),
    'shards': lambda: ([pooling()], {'shard': '20KB', 'layer_norm_eps': 1e-3, 'type_vocab_size': 3}),
    'class_of_model': lambda: ([pooling()], CASED | {'files': ONLY_WORDS | {'tokenizer_config.json': None}}),
    'special_map': lambda: ([pooling('cls')], {'files': ONLY_WORDS | SPECIAL_MAP}),
    'lengths': lambda: ([pooling()], {'files': {'sentence_roberta_config.json': {'max_seq_length': 3}}}),
    'other_padding': lambda: ([pooling()], {'tokenizer': {'pad_token': '!'}, 'pad_token_id': 3}),
    'half': lambda: ([pooling()], {'dtype': torch.float16, 'hidden_act': 'silu'}),
}


@pytest.mark.parametrize('name', READ)
def test_vectors_are_those_of_the_library(tmp_path, name):
    layers, arguments = READ[name]()
    path = write(tmp_path, *layers, **arguments)
    model = sentence_transformers.SentenceTransformer(path, device='cpu').to(torch.float32)
    expected = model.encode(list(CAPTIONS), normalize_embeddings=True)
    np.testing.assert_allclose(vectors_by_jitm(path), expected, atol=3e-6)


@pytest.mark.parametrize('name', bert_weights.ACTIVATIONS)
def test_activations_are_those_of_transformers(name):
    x = np.linspace(-4, 4, 33, dtype=np.float32)
    expected = transformers.activations.ACT2FN[name](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ACTIVATIONS[bert_weights.ACTIVATIONS[name]](x), expected, atol=1e-6)


KNOWN = 'which jitm does not know'
TEMPLATE = [{part: {'id': name, 'type_id': 1}} for part, name in (('SpecialToken', '[CLS]'), ('Sequence', 'A'))]
TEMPLATE = {'post_processor.single': [*TEMPLATE, {'SpecialToken': {'id': '[SEP]', 'type_id': 1}}]}
FAST = {'tokenizer_class': 'PreTrainedTokenizerFast'}
LEFT = {'direction': 'Left', 'strategy': 'BatchLongest', 'pad_id': 0, 'pad_type_id': 0, 'pad_token': '[PAD]'}
CUT = {'direction': 'Left', 'max_length': 9, 'strategy': 'LongestFirst', 'stride': 0}
GAP = {word: number + (number > 9) for word, number in word_pieces(BERT_SPECIAL).items()}


def json_refused(message, tokenizer=(), config=(), arguments=(), **files):
    """A row of `REFUSED` with other keys in tokenizer.json and tokenizer_config.json."""
    changed = {
        'tokenizer.json': dict(tokenizer),
        'tokenizer_config.json': config if config is None else dict(config),
    } | files
    return lambda: [pooling()], {'files': changed} | dict(arguments), message


REFUSED = {
    'no_config': json_refused('.tokenizer_class, BertTokenizer, and .* stand for True', config=None, arguments=CASED),
    'class': json_refused(
        "'normalizer.lowercase' True, .*Tokenizer, .* stand for False", config={'do_lower_case': False}
    ),
    'blank': json_refused(
        "'pre_tokenizer.add_prefix_space' False",
        config={'tokenizer_class': 'RobertaTokenizer', 'add_prefix_space': True},
        arguments={'kind': 'roberta'},
    ),
    'splits': json_refused("'pre_tokenizer.type' 'Whi", {'pre_tokenizer': {'type': 'WhitespaceSplit'}}),
    'long_words': json_refused("'model.max_input_chars_per_word' 4,", {'model.max_input_chars_per_word': 4}),
    'padding': json_refused("'padding.direction' 'Left'", {'padding': LEFT}),
    'truncation': json_refused("'truncation.direction' 'Left'", {'truncation': CUT}),
    'gap': json_refused('20 distinct pieces with ids up to 20', {'model.vocab': GAP}),
    'types': json_refused(r'gives tokens the types \[1, 1, 1\]', TEMPLATE, FAST),
    'no_mask': json_refused("without a mask by 'model_input_names'", config={'model_input_names': ['input_ids']}),
    'pad': json_refused(
        "'<pad>' where .* states the pad_token '<s>'", config={'pad_token': '<s>'}, arguments={'kind': 'roberta'}
    ),
    'lower': json_refused("'normalizer.type' 'Sequence', .* stand for 'BertNormalizer'", arguments=CASED | LOWER),
    'lower_bytes': json_refused("'Sequence', .* stand for None", arguments={'kind': 'roberta'} | LOWER),
    'adapter': json_refused('has an adapter', **{'adapter_config.json': '{}'}),
    'model': json_refused(r"has the model_type '\['bert'\]'", **{'config.json': {'model_type': ['bert']}}),
    'residual': (lambda: [pooling(), dense(size=32, use_residual=True)], {}, "has 'use_residual' True; it must be"),
    'output': (lambda: [pooling(), dense(module_output_name='x')], {}, "has 'module_output_name' 'x'; use one of"),
    'words': (lambda: [dense(module_input_name='token_embeddings', size=32), pooling()], {}, 'Transformer Dense Pooli'),
    'two': (lambda: [pooling(['cls', 'mean'])], {}, 'states the pooling cls and mean'),
    'denses': (lambda: [pooling(), dense(), dense(inputs=24)], {}, 'modules Transformer Pooling Dense Dense'),
    'unit_dense': (lambda: [pooling(), modules.Normalize(), dense()], {}, 'Pooling Normalize Dense, which are'),
    'norm': (lambda: [pooling(), modules.LayerNorm(32)], {}, 'Transformer Pooling LayerNorm'),
    'recurrent': (lambda: [modules.LSTM(32, 16), modules.Pooling(32)], {}, 'Transformer LSTM Pooling'),
    'mish': (lambda: [pooling(), dense('Mish')], {}, "'torch.nn.modules.activation.Mish'; use one of"),
    'unit_words': (
        lambda: [modules.Normalize(module_input_name='token_embeddings'), pooling()],
        {},
        'Transformer Normalize Pooling',
    ),
    'prompt': (
        lambda: [pooling()],
        {'settings': {'prompts': {'query': 'dog: '}, 'default_prompt_name': 'query'}},
        "puts the prompt 'dog: ' before each text",
    ),
    'left': (lambda: [pooling()], {'tokenizer': {'padding_side': 'left'}}, "'padding_side' 'left'; it must be right"),
    'cut': (lambda: [pooling()], {'tokenizer': {'truncation_side': 'left'}}, "'truncation_side' 'left'; it must"),
    'query': (lambda: [pooling()], {'transformer': {'query_length': 8}}, "has 'query_length' 8; it must be None"),
    'unknown': (lambda: [pooling()], {'rope_theta': 3.0}, f"has 'rope_theta' 3.0, {KNOWN}"),
}


@pytest.mark.parametrize('name', REFUSED)
def test_what_is_not_read_is_named(tmp_path, name):
    layers, arguments, message = REFUSED[name]
    path = write(tmp_path, *layers(), **arguments)
    with pytest.raises(UserError, match=message):  # before any state is computed
        load_text_encoder(path), read_pooling(path)
