"""Checkpoints in the layout of the authors' training scripts."""

from pathlib import Path

import numpy as np

from jitm.data.text.word_level import SPECIAL_WORDS, Vocabulary
from tests.importers.torch_pickles import Build, Call, Global, write_zip

D, W, F, M, SLOTS = 6, 5, 7, 5, 3
WORDS = (*SPECIAL_WORDS, *'abcdefgh')


def write_vocabulary(folder: Path, words=WORDS) -> str:
    path = folder / 'vocabulary.json'
    path.write_text(Vocabulary(tuple(words)).to_json())
    return str(path)


def write_checkpoint(path: Path, modules, options=None, write=write_zip, prefix='', **others) -> str:
    """Writes {'optimizer', 'model': a list of dicts of tensors, 'opt'}."""
    model = [{f'{prefix}{name}': x for name, x in tensors.items()} for tensors in modules]
    adam = {'state': {0: {'exp_avg': np.ones((2, 3), np.float32), 'step': 5}}}
    namespace = Build(Call(Global('argparse', 'Namespace'), ()), options or {})
    return write(path, {'optimizer': adam, 'model': model, 'opt': namespace, 'Eiters': 10} | others)


def random(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def linear(rng, name, outputs, inputs):
    return {
        f'{name}.weight': random(rng, outputs, inputs) / np.float32(np.sqrt(inputs)),
        f'{name}.bias': random(rng, outputs),
    }


def norm(rng, name, channels):
    tensors = {f'{name}.{leaf}': random(rng, channels) for leaf in ('weight', 'bias', 'running_mean')}
    variance = rng.uniform(0.5, 1.5, channels).astype(np.float32)
    return tensors | {f'{name}.running_var': variance, f'{name}.num_batches_tracked': np.array(7)}


def gru(rng, name, features, inputs, bidirectional):
    tensors = {}
    for direction in ('_l0', '_l0_reverse')[: 1 + bidirectional]:
        tensors |= {
            f'{name}.weight_ih{direction}': random(rng, 3 * features, inputs) / 2,
            f'{name}.weight_hh{direction}': random(rng, 3 * features, features) / 2,
            f'{name}.bias_ih{direction}': random(rng, 3 * features),
            f'{name}.bias_hh{direction}': random(rng, 3 * features),
        }
    return tensors


def encoders(rng, rnn='rnn', bidirectional=True):
    """The modules of images and of texts."""
    texts = {'embed.weight': random(rng, len(WORDS), W), **gru(rng, rnn, D, W, bidirectional)}
    return [linear(rng, 'fc', D, F), texts]


def sgraf(rng, reasoning):
    tensors = {}
    for side in ('v', 't'):
        for part in ('local', 'global'):
            tensors |= linear(rng, f'{side}_global_w.embedding_{part}.0', D, D)
        tensors |= linear(rng, f'{side}_global_w.embedding_common.0', 1, D)
    tensors |= norm(rng, 'v_global_w.embedding_local.1', SLOTS) | norm(rng, 'v_global_w.embedding_global.1', D)
    for name in ('sim_tranloc_w', 'sim_tranglo_w'):
        tensors |= linear(rng, name, M, D)
    tensors |= linear(rng, 'sim_eval_w', 1, M)
    if reasoning == 'SAF':
        return [
            *encoders(rng, 'cap_rnn'),
            tensors | linear(rng, 'SAF_module.attn_sim_w', 1, M) | norm(rng, 'SAF_module.bn', 1),
        ]
    for n in range(3):
        for name in ('graph_query_w', 'graph_key_w', 'sim_graph_w'):
            tensors |= linear(rng, f'SGR_module.{n}.{name}', M, M)
    return [*encoders(rng, 'cap_rnn'), tensors]


def dbl(rng):
    return [*encoders(rng, 'cap_rnn'), linear(rng, 'sim_tran_w', M, D) | linear(rng, 'sim_eval_w', 1, M)]


def imram(rng):
    tensors = {}
    for name in ('linear_t2i', 'gate_t2i', 'linear_i2t', 'gate_i2t'):
        tensors |= linear(rng, name, D, 2 * D)
    return [*encoders(rng), tensors]


def naaf(rng):
    images, texts = encoders(rng)
    return [images, {name.replace('embed.', 'embed.glove.'): x for name, x in texts.items()}]


def vsrn(rng, layers=2, batch_norm=True):
    images = linear(rng, 'fc', D, F) | gru(rng, 'img_rnn', D, D, bidirectional=False)
    for n in range(1, layers + 1):
        for name in ('g', 'theta', 'phi', 'W.0'):
            images |= linear(rng, f'Rs_GCN_{n}.{name}', D, D)
            images[f'Rs_GCN_{n}.{name}.weight'] = images[f'Rs_GCN_{n}.{name}.weight'][:, :, None]
        images |= norm(rng, f'Rs_GCN_{n}.W.1', D)
    images |= norm(rng, 'bn', D) if batch_norm else {}
    return [images, encoders(rng, bidirectional=False)[1]]


def pooled(rng, pooling, mlp_inputs):
    """VSE-infinity, ESA and RVSE++."""
    images, texts = encoders(rng)
    images |= linear(rng, 'mlp.layers.0', D // 2, mlp_inputs) | linear(rng, 'mlp.layers.1', D, D // 2)
    images |= norm(rng, 'mlp.bns.0', D // 2) | norm(rng, 'mlp.bns.1', D)
    for side in (images, texts):
        if pooling == 'esa':
            side |= linear(rng, 'linear1', D, D)
        else:
            side |= gru(rng, 'gpool.gru', 32, 32, bidirectional=True) | {'gpool.linear.weight': random(rng, 1, 32) / 10}
    return [images, texts]
