"""Text encoders as folders: golden values, the tiny ones of each variant and those of a published one, and errors."""

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from jitm.configs import load
from jitm.importers.bert_weights import load_bert
from jitm.importers.text_folders import complete
from jitm.layers.pooling import mean
from jitm.layers.transformer import BERT
from jitm.types import Texts
from tests.importers.text_folders import tensors_of, write_config, write_folder

GOLDEN = {  # mean-pooled states of two texts, as transformers computes them from the tensors of `waves`
    'roberta': ((-1.087220, -0.842994, -0.116917, 0.685288), (-0.699430, -1.063091, -0.913685, -0.360783)),
    'mpnet': ((1.238464, 0.575590, -0.085441, -0.474827), (0.730241, 0.073742, -0.459300, -0.636489)),
    'distilbert': ((-1.699055, -1.685056, -1.118054, -0.202074), (-1.649160, -1.621884, -1.062562, -0.174793)),
}


def waves(number, name, shape):
    values = 0.2 * np.sin(number + 0.37 * np.arange(np.prod(shape))).reshape(shape)
    return values + ('norm' in name.lower() and name.endswith('weight'))


@pytest.mark.parametrize(('kind', 'count'), [('roberta', 37), ('mpnet', 37), ('distilbert', 36)])
def test_golden_states(tmp_path, kind, count):
    size = write_config(tmp_path, kind)
    tensors = tensors_of(kind, size, 40, waves)
    assert len(tensors) == count
    save_file(tensors, tmp_path / 'model.safetensors')
    texts = Texts(np.array([[0, 7, 9, 11, 2, 1, 1], [0, 8, 6, 4, 3, 12, 2]], np.int32), np.array([5, 7], np.int32))
    bert = BERT(40, size, 0.1)
    shapes = jax.eval_shape(bert.init, jax.random.key(0), texts)['params']
    params = load_bert(str(tmp_path), shapes, size)
    pooled = jax.jit(lambda params: mean(bert.apply({'params': params}, texts), texts.mask))(params)
    np.testing.assert_allclose(pooled[:, :4], GOLDEN[kind], atol=3e-6)


WORDS = ('a', 'dog', 'runs', 'on', 'the', 'beach')


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
