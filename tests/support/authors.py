"""Checkpoints in the layout of the authors' training scripts, whose networks tests/parity compares with ours."""

import functools
from pathlib import Path

import jax
import numpy as np

from jitm import configs
from jitm.commands.cli import main
from jitm.data.text.word_level import SPECIAL_WORDS, Vocabulary
from jitm.importers import systems
from jitm.importers.released import shapes_of
from jitm.importers.tensors import export
from jitm.types import Images
from tests.support.torch_pickles import Build, Call, Global, write_zip

D, W, F, M, SLOTS = 6, 5, 7, 5, 3
SIZES = {'embed_dim': D, 'word_dim': W, 'alignment_dim': M}
WORDS = (*SPECIAL_WORDS, *'abcdefgh')
SCAN = {
    'cross_attn': 'i2t',
    'agg_func': 'LogSumExp',
    'lambda_softmax': 4.0,
    'lambda_lse': 5,
    'raw_feature_norm': 'clipped_l2norm',
}
BFAN = {'focal_type': 'prob', 'lambda_softmax': 20.0, 'raw_feature_norm': 'clipped_l2norm'}
VSE = {'measure': 'cosine', 'no_imgnorm': False, 'use_abs': False}
ORDER = {'measure': 'order', 'no_imgnorm': False, 'use_abs': True}
SYSTEMS = {  # preset -> --from, options, keys of the model
    'vsepp:vsepp,f30k': ('vsepp', VSE, {'name': 'vse.VSE', 'normalize_images': True, 'text.bidirectional': False}),
    'vsepp:vse0,f30k': ('vsepp', VSE | {'no_imgnorm': True}, {'normalize_images': False, 'absolute': False}),
    'vsepp:order0,f30k': ('vsepp', ORDER, {'name': 'vse.OrderEmbedding', 'absolute': True}),
    'scan:i2t,lse,f30k': (
        'scan',
        SCAN,
        {'direction': 'i2t', 'aggregation': 'LogSumExp', 'lambda_softmax': 4.0, 'lambda_lse': 5.0},
    ),
    'bfan:prob,f30k': ('bfan', BFAN, {'focal': 'prob', 'lambda_softmax': 20.0, 'text.bidirectional': True}),
    'sgraf:sgr,f30k': ('sgraf', {}, {'reasoning.steps': 3, 'alignment_dim': M, 'image_whole.slots': SLOTS}),
    'sgraf:saf,f30k': ('sgraf', {}, {'reasoning.name': 'alignment.AttentionFiltration'}),
    'dbl:baseline,max,alone,f30k': ('dbl', {'no_simnorm': False}, {'alignment_dim': M, 'activation': 'tanh'}),
    'naaf:f30k': ('naaf', {'thres': 0.1, 'thres_safe': 0.25}, {'embed_dim': D}),
    'vsrn:f30k': ('vsrn', {}, {'graph_layers': 4, 'batch_norm': True, 'normalize_before_graph': False}),
    'vsrn:coco': ('vsrn', {}, {'batch_norm': False, 'normalize_before_graph': True}),
    'vse_infinity:gru,f30k': ('vse_infinity', {}, {'image_pooling': 'gpo', 'image.mlp': 'residual_on_input'}),
    'vse_infinity:esa,gru,f30k': (
        'esa',
        {},
        {'text_pooling': 'esa', 'image.mlp': 'residual_on_input', 'text.dropout': 0.1},
    ),
    'vse:rvse,f30k': ('rvsepp', {}, {'image_pooling': 'gpo', 'image.mlp': 'residual'}),
}


def write_vocabulary(folder: Path, words=WORDS) -> str:
    path = folder / 'vocabulary.json'
    path.write_text(Vocabulary(tuple(words)).to_json())
    return str(path)


def resized(section):
    """The config's `model` at small sizes, as the authors store it."""
    sizes = SIZES | {'slots': section.get('slots') and SLOTS, 'caption': False}
    nested = {key: resized(value) for key, value in section.items() if isinstance(value, dict)}
    return section | {key: value for key, value in sizes.items() if key in section} | nested


@functools.cache
def tensors_of(system: str, preset: str, features: int = F, words: int = len(WORDS)) -> dict[str, np.ndarray]:
    """Random tensors of a preset's model under the names of a system."""
    images = Images(np.zeros((1, SLOTS, features), np.float32), np.full(1, SLOTS, np.int32))
    shapes = shapes_of(resized(configs.load(preset).model.to_dict()), words, images)
    rng = np.random.default_rng(0)
    variables = jax.tree.map(lambda leaf: rng.normal(scale=0.5, size=leaf.shape).astype(np.float32), shapes)
    tensors = export(variables, systems.SYSTEMS[system].names)
    for name, tensor in tensors.items():
        if name.endswith('running_var'):
            tensors[name] = np.exp(tensor)
        elif 'Rs_GCN' in name and tensor.ndim == 2:
            tensors[name] = tensor[:, :, None]  # a convolution over regions
    return {name: tensor for name, tensor in tensors.items() if name.startswith('model.')}


def write_checkpoint(path: Path, tensors, options=None, write=write_zip, prefix='', **others) -> str:
    """Writes {'optimizer', 'model': a list of dicts of tensors, 'opt'}."""
    modules = {}
    for name, tensor in tensors.items():
        _, number, leaf = name.split('.', 2)
        modules.setdefault(number, {})[prefix + leaf] = tensor
    adam = {'state': {0: {'exp_avg': np.ones((2, 3), np.float32), 'step': 5}}}
    namespace = Build(Call(Global('argparse', 'Namespace'), ()), options or {})
    model = [modules[number] for number in sorted(modules)]
    return write(path, {'optimizer': adam, 'model': model, 'opt': namespace, 'Eiters': 10} | others)


def write_preset(path: Path, preset: str) -> str:
    """Writes the checkpoint of a preset with its options."""
    system, options, _ = SYSTEMS[preset]
    return write_checkpoint(path, tensors_of(system, preset), options)


def convert(system: str, path: str, out: Path, *arguments: str) -> int:
    return main(['convert', '--from', system, path, '--out', str(out), *arguments])
