"""Tiny folders of text encoders, as Hugging Face and sentence-transformers write them."""

import json

import jax
import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import models, pre_tokenizers, processors

from jitm.importers.bert_weights import VARIANTS, read_size
from jitm.importers.tensors import export
from jitm.layers.transformer import BERT
from jitm.types import Texts

SIZES = {'hidden_size': 16, 'num_hidden_layers': 2, 'num_attention_heads': 2, 'intermediate_size': 32}
DISTILLED = {'dim': 16, 'n_layers': 2, 'n_heads': 2, 'hidden_dim': 32}
CONFIGS = {
    'bert': SIZES,
    'roberta': SIZES | {'type_vocab_size': 1, 'layer_norm_eps': 1e-5},
    'xlm-roberta': SIZES | {'type_vocab_size': 1, 'layer_norm_eps': 1e-5},
    'mpnet': SIZES | {'layer_norm_eps': 1e-5},
    'distilbert': DISTILLED,
}
SPECIAL = ('<s>', '<pad>', '</s>', '<unk>')


def write_config(folder, kind, **changes):
    """Writes config.json, and returns its sizes."""
    config = {'model_type': kind, 'max_position_embeddings': 12} | CONFIGS[kind] | changes
    (folder / 'config.json').write_text(json.dumps(config))
    return read_size(folder / 'config.json')[1]


def tensors_of(kind, size, vocab_size):
    """Random tensors of a model."""
    rng = np.random.default_rng(0)
    texts = Texts(np.zeros((1, 2), np.int32), np.full(1, 2, np.int32))
    shapes = jax.eval_shape(BERT(vocab_size, size, 0.1).init, jax.random.key(0), texts)['params']
    params = jax.tree.map(lambda leaf: rng.normal(scale=0.3, size=leaf.shape).astype(np.float32), shapes)
    tensors = export({'params': params}, VARIANTS[kind].names)
    return {name: tensor + np.float32('orm.weight' in name) for name, tensor in tensors.items()}


def write_tokenizer(folder, words):
    """Writes a tokenizer.json of whole words, as XLM-R's; with a stored truncation and padding that are not read."""
    pieces = [(piece, 0.0) for piece in SPECIAL] + [(f'\u2581{word}', -1.0) for word in words] + [('<mask>', 0.0)]
    tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, 3, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace('\u2581', 'always')]
    )
    tokenizer.post_processor = processors.TemplateProcessing('<s> $A </s>', special_tokens=[('<s>', 0), ('</s>', 2)])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=20, pad_id=1, pad_token='<pad>')
    (folder / 'tokenizer.json').write_text(tokenizer.to_str())
    (folder / 'tokenizer_config.json').write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return len(pieces)


def write_folder(folder, words, kind='mpnet', prefix='', pooling=None, **changes):
    """Writes a whole folder with random weights, and returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = tensors_of(kind, write_config(folder, kind, **changes), write_tokenizer(folder, words))
    save_file({prefix + name: tensor for name, tensor in tensors.items()}, folder / 'model.safetensors')
    if pooling:
        write_modules(folder, {'Transformer': '', 'Pooling': '1_Pooling', 'Normalize': '2_Normalize'})
        (folder / '1_Pooling').mkdir()
        (folder / '1_Pooling' / 'config.json').write_text(json.dumps(pooling))
    return str(folder)


def write_dense(folder, activation, inputs=16, size=6):
    """Writes the folder 2_Dense of a linear layer, and returns its weights and its bias."""
    rng = np.random.default_rng(1)
    path = folder / '2_Dense'
    path.mkdir()
    weight = rng.normal(size=(size, inputs)).astype(np.float32)
    bias = rng.normal(size=size).astype(np.float32)
    config = {'in_features': inputs, 'out_features': size, 'bias': True, 'activation_function': activation}
    (path / 'config.json').write_text(json.dumps(config))
    save_file({'linear.weight': weight, 'linear.bias': bias}, path / 'model.safetensors')
    write_modules(folder, {'Transformer': '', 'Pooling': '1_Pooling', 'Dense': '2_Dense', 'Normalize': '3_Normalize'})
    return weight, bias


def write_modules(folder, paths):
    """Writes modules.json with these classes and their folders."""
    modules = [
        {'idx': n, 'name': str(n), 'path': path, 'type': f'sentence_transformers.models.{name}'}
        for n, (name, path) in enumerate(paths.items())
    ]
    (folder / 'modules.json').write_text(json.dumps(modules))
