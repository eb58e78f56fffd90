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
from jitm.layers.blocks import ACTIVATIONS
from jitm.layers.pooling import Dense, make_pooling
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


def write(tmp_path, *, layers=(), settings=None, transformer=None, files=None, **encoder):
    """Writes a folder by sentence-transformers, by default with a mean after the encoder, and returns its path."""
    path = write_encoder(tmp_path / 'encoder', **encoder)
    layers = layers or [pooling()]
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
    published = read_pooling(path)
    if published.dense is None:
        vectors = make_pooling(published.name, 'pooling')(states, texts.mask)
    else:
        layer = Dense(pooling=published.name, **published.dense)
        shapes = jax.eval_shape(layer.init, jax.random.key(0), states, texts.mask)['params']
        vectors = layer.apply({'params': load_dense(published.weights, shapes)}, states, texts.mask)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


CASED = {'tokenizer': {'do_lower_case': False}}
LOWER = {'transformer': {'do_lower_case': True}}
ONLY_WORDS = {'vocab.txt': '\n'.join(word_pieces(BERT_SPECIAL)), 'tokenizer.json': None}
OF_MPNET = {'vocab.txt': '\n'.join(word_pieces((*SPECIAL, '[UNK]', '<mask>'))), 'tokenizer.json': None}
ONE_ADDED = ONLY_WORDS | {'added_tokens.json': {'past the': len(WORDS) + len(BERT_SPECIAL)}}
SPECIAL_MAP = {'tokenizer_config.json': '{}', 'special_tokens_map.json': {'cls_token': '[MASK]'}}

LAYERS = {  # after an encoder
    'mean': [pooling(), modules.Normalize()],
    'cls': [pooling('cls')],
    'max': [pooling('max'), modules.Normalize()],
    'last': [pooling('lasttoken')],
    'mean_sqrt': [pooling('mean_sqrt_len_tokens')],
    'weighted_mean': [pooling('weightedmean'), modules.Normalize()],
    'mean_sqrt_dense': [pooling('mean_sqrt_len_tokens'), dense()],
    'relu': [pooling(), dense('ReLU'), modules.Normalize()],
    'gelu': [pooling('cls'), dense('GELU', bias=False)],
    'silu': [pooling('max'), dense('SiLU')],
    'sigmoid': [pooling('weightedmean'), dense('Sigmoid')],
    'identity': [pooling(), dense('Identity', size=32)],
    'dropout': [pooling(), modules.Dropout(0.3), dense(), modules.Normalize(), modules.Normalize()],
}
ENCODERS = {  # before a mean
    'length': {'transformer': {'max_seq_length': 6}},
    'tokenizer_length': {'tokenizer': {'model_max_length': 7}},
    'prompts': {'settings': {'prompts': {'query': 'the dog '}}},
    'distilbert': {'kind': 'distilbert', 'activation': 'relu'},
    'mpnet': {'kind': 'mpnet', 'hidden_act': 'gelu_new'},
    'mpnet_words': {'kind': 'mpnet', 'files': OF_MPNET},
    'camembert': {'kind': 'camembert'},
    'roberta': {'kind': 'roberta', 'type_vocab_size': 1},
    'prefix_space': {'kind': 'roberta', 'tokenizer': {'add_prefix_space': True}},
    'more_rows': {'kind': 'xlm-roberta', 'rows': 35},
    'padded_rows': {'rows': 64 - len(WORDS) - len(BERT_SPECIAL)},
    'cased': {'tokenizer': {'do_lower_case': False}},
    'accents': {'tokenizer': {'strip_accents': False, 'tokenize_chinese_chars': False}},
    'added': {'added': ['<e>', 'past the'], 'rows': 3},
    'added_file': {'rows': 1, 'files': ONE_ADDED},
    'shards': {'shard': '20KB', 'layer_norm_eps': 1e-3, 'type_vocab_size': 3},
    'class_of_model': CASED | {'files': ONLY_WORDS | {'tokenizer_config.json': None}},
    'special_map': {'files': ONLY_WORDS | SPECIAL_MAP, 'layers': [pooling('cls')]},
    'lengths': {'files': {'sentence_roberta_config.json': {'max_seq_length': 3}}},
    'other_padding': {'tokenizer': {'pad_token': '!'}, 'pad_token_id': 3},
    'half': {'dtype': torch.float16, 'hidden_act': 'silu'},
}
READ = {name: {'layers': layers} for name, layers in LAYERS.items()} | ENCODERS


@pytest.mark.parametrize('name', READ)
def test_vectors_are_those_of_the_library(tmp_path, name):
    path = write(tmp_path, **READ[name])
    model = sentence_transformers.SentenceTransformer(path, device='cpu').to(torch.float32)
    expected = model.encode(list(CAPTIONS), normalize_embeddings=True)
    np.testing.assert_allclose(vectors_by_jitm(path), expected, atol=3e-6)


@pytest.mark.parametrize('name', bert_weights.ACTIVATIONS)
def test_activations_are_those_of_transformers(name):
    x = np.linspace(-4, 4, 33, dtype=np.float32)
    expected = transformers.activations.ACT2FN[name](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ACTIVATIONS[bert_weights.ACTIVATIONS[name]](x), expected, atol=1e-6)


TEMPLATE = [{part: {'id': name, 'type_id': 1}} for part, name in (('SpecialToken', '[CLS]'), ('Sequence', 'A'))]
TEMPLATE = {'post_processor.single': [*TEMPLATE, {'SpecialToken': {'id': '[SEP]', 'type_id': 1}}]}
FAST = {'tokenizer_class': 'PreTrainedTokenizerFast'}
LEFT = {'direction': 'Left', 'strategy': 'BatchLongest', 'pad_id': 0, 'pad_type_id': 0, 'pad_token': '[PAD]'}
CUT = {'direction': 'Left', 'max_length': 9, 'strategy': 'LongestFirst', 'stride': 0}
GAP = {word: number + (number > 9) for word, number in word_pieces(BERT_SPECIAL).items()}


OF_ROBERTA = {'kind': 'roberta'}
UNIT_WORDS = modules.Normalize(module_input_name='token_embeddings')
PROMPTS = {'prompts': {'query': 'dog: '}, 'default_prompt_name': 'query'}
REFUSED_LAYERS = {
    'residual': ([pooling(), dense(size=32, use_residual=True)], "has 'use_residual' True; it must be"),
    'output': ([pooling(), dense(module_output_name='x')], "has 'module_output_name' 'x'; use one of"),
    'words': ([dense(module_input_name='token_embeddings', size=32), pooling()], 'Transformer Dense Pooli'),
    'two': ([pooling(['cls', 'mean'])], 'states the pooling cls and mean'),
    'denses': ([pooling(), dense(), dense(inputs=24)], 'modules Transformer Pooling Dense Dense'),
    'unit_dense': ([pooling(), modules.Normalize(), dense()], 'Pooling Normalize Dense, which are'),
    'norm': ([pooling(), modules.LayerNorm(32)], 'Transformer Pooling LayerNorm'),
    'recurrent': ([modules.LSTM(32, 16), modules.Pooling(32)], 'Transformer LSTM Pooling'),
    'mish': ([pooling(), dense('Mish')], "'torch.nn.modules.activation.Mish'; use one of"),
    'unit_words': ([UNIT_WORDS, pooling()], 'Transformer Normalize Pooling'),
}
REFUSED_ENCODERS = {
    'lower': (CASED | LOWER, "'normalizer.type' 'Sequence', .* stand for 'BertNormalizer'"),
    'lower_bytes': (OF_ROBERTA | LOWER, "'Sequence', .* stand for None"),
    'prompt': ({'settings': PROMPTS}, "puts the prompt 'dog: ' before each text"),
    'left': ({'tokenizer': {'padding_side': 'left'}}, "'padding_side' 'left'; it must be right"),
    'cut': ({'tokenizer': {'truncation_side': 'left'}}, "'truncation_side' 'left'; it must"),
    'query': ({'transformer': {'query_length': 8}}, "has 'query_length' 8; it must be None"),
    'unknown': ({'rope_theta': 3.0}, "has 'rope_theta' 3.0, which jitm does not know"),
    'no_config': (
        CASED | {'files': {'tokenizer_config.json': None}},
        '.tokenizer_class, BertTokenizer, and .* stand for True',
    ),
}
BLANK = {'tokenizer_class': 'RobertaTokenizer', 'add_prefix_space': True}
REFUSED_FILES = {  # keys of files, kind of the encoder, message
    'class': ({'tokenizer_config.json': {'do_lower_case': False}}, 'bert', "'normalizer.lowercase' True, .* for False"),
    'blank': ({'tokenizer_config.json': BLANK}, 'roberta', "'pre_tokenizer.add_prefix_space' False"),
    'no_mask': (
        {'tokenizer_config.json': {'model_input_names': ['input_ids']}},
        'bert',
        "without a mask by 'model_input_names'",
    ),
    'pad': ({'tokenizer_config.json': {'pad_token': '<s>'}}, 'roberta', "'<pad>' where .* states the pad_token '<s>'"),
    'types': (
        {'tokenizer.json': TEMPLATE, 'tokenizer_config.json': FAST},
        'bert',
        r'gives tokens the types \[1, 1, 1\]',
    ),
    'splits': (
        {'tokenizer.json': {'pre_tokenizer': {'type': 'WhitespaceSplit'}}},
        'bert',
        "'pre_tokenizer.type' 'Whi",
    ),
    'long_words': (
        {'tokenizer.json': {'model.max_input_chars_per_word': 4}},
        'bert',
        "'model.max_input_chars_per_word' 4,",
    ),
    'padding': ({'tokenizer.json': {'padding': LEFT}}, 'bert', "'padding.direction' 'Left'"),
    'truncation': ({'tokenizer.json': {'truncation': CUT}}, 'bert', "'truncation.direction' 'Left'"),
    'gap': ({'tokenizer.json': {'model.vocab': GAP}}, 'bert', '20 distinct pieces with ids up to 20'),
    'adapter': ({'adapter_config.json': '{}'}, 'bert', 'has an adapter'),
    'model': ({'config.json': {'model_type': ['bert']}}, 'bert', r"has the model_type '\['bert'\]'"),
}
REFUSED = {name: ({'layers': layers}, message) for name, (layers, message) in REFUSED_LAYERS.items()}
REFUSED |= {name: ({'files': files, 'kind': kind}, message) for name, (files, kind, message) in REFUSED_FILES.items()}
REFUSED |= REFUSED_ENCODERS


@pytest.mark.parametrize('name', REFUSED)
def test_what_is_not_read_is_named(tmp_path, name):
    arguments, message = REFUSED[name]
    path = write(tmp_path, **arguments)
    with pytest.raises(UserError, match=message):  # before any state is computed
        load_text_encoder(path), read_pooling(path)
