"""The systems whose authors' checkpoints are converted: constants of their code, stored options, tensor shapes."""

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from jitm.errors import UserError
from jitm.importers import bert_weights, cnn_weights, key_maps
from jitm.importers.containers import Tensors
from jitm.importers.tensors import KeyMap, count_blocks, shape_of
from jitm.layers import cnn as networks

FEATURES = 'model.0.fc.weight'
WORDS = 'model.1.embed.weight'
PIECES = 'model.1.bert.embeddings.word_embeddings.weight'
ENCODER = 'cnn.PixelEncoder'  # reads photos by a network before the encoder of features
SIZE = 224  # pixels of the photos of VSE++
BIAS = re.compile(r'(model\.0\.Rs_GCN_\d+\.W)\.0\.bias')
_NOT = {True: False, False: True}
_REGIONS = {'image.name': 'vision.RegionEncoder', 'image.mlp': 'none', 'text.name': 'text.GRUEncoder'}


def _recognize_encoders(path: str, tensors: Tensors, gru: str = 'model.1.rnn') -> dict[str, Any]:
    return {
        'embed_dim': shape_of(path, tensors, FEATURES, 2)[0],
        'text.word_dim': shape_of(path, tensors, WORDS, 2)[1],
        'text.bidirectional': f'{gru}.weight_hh_l0_reverse' in tensors,
    }


class ReleasedSystem(NamedTuple):
    """A system as it was released.

    Attributes:
      title: The name of the system.
      module: The module of `jitm.models` with its model.
      names: The names of its tensors.
      fixed: A key of the model -> its value in the authors' code; by default that it reads features and words.
      recognize: Maps the path of a file and its tensors to keys of the model -> their values; by default the sizes of
        the encoders.
      options: A key of the model -> the option of the training script, and the option's values -> ours; None if they
        are the same.
      required: An option of the training script -> the only value that the model has.
      prepare: Maps the tensors to those that `names` names.
      photos: Whether its images may be photos, which a network reads; keys of `image` then belong to the
        encoder after the network.
      adds_mask: Whether its training appends `<mask>` to the words of the vocabulary.
    """

    title: str
    module: str
    names: KeyMap
    fixed: Mapping[str, Any] = _REGIONS
    recognize: Callable[[str, Tensors], dict[str, Any]] = _recognize_encoders
    options: Mapping[str, tuple[str, Mapping[Any, Any] | None]] = {}
    required: Mapping[str, Any] = {}
    prepare: Callable[[Tensors], Tensors] = dict
    photos: bool = False
    adds_mask: bool = False


def _fold_biases(tensors: Tensors) -> Tensors:
    """Subtracts the biases of VSRN's graph from the running means that follow, as our layers have none."""
    folded = dict(tensors)
    for name in tensors:
        if (match := BIAS.fullmatch(name)) and (mean := f'{match[1]}.1.running_mean') in tensors:
            folded[mean] = functools.partial(_difference, tensors[mean], folded.pop(name))
    return folded


def _difference(mean: Callable[[], np.ndarray], bias: Callable[[], np.ndarray]) -> np.ndarray:
    means, biases = (np.asarray(read(), np.float64) for read in (mean, bias))
    return means - biases if means.shape == biases.shape else biases[:0]  # a shape that raises an error later


def _recognize_vsrn(path: str, tensors: Tensors) -> dict[str, Any]:
    batch_norm = 'model.0.bn.weight' in tensors  # as in the released code, exactly the model of Flickr30K has it
    return {
        'embed_dim': shape_of(path, tensors, FEATURES, 2)[0],
        'word_dim': shape_of(path, tensors, WORDS, 2)[1],
        'graph_layers': sum(f'model.0.Rs_GCN_{n + 1}.g.weight' in tensors for n in range(key_maps.LAYERS)),
        'batch_norm': batch_norm,
        'normalize_before_graph': not batch_norm,
    }


def _recognize_pooled(path: str, tensors: Tensors, mlp: str, dropout: float) -> dict[str, Any]:
    """Returns the keys of a model with two pooled encoders, whose texts are read by a GRU or BERT."""
    if PIECES in tensors:
        text = {
            'name': 'text.BERTEncoder',
            'size': bert_weights.size_of(path, shape_of(path, tensors, PIECES, 2)[1]),
            'dropout': 0.1,
            'output_dropout': dropout,
            'dtype': 'float32',
            'linear_init': 'uniform',
        }
    else:
        text = {
            'name': 'text.GRUEncoder',
            'word_dim': shape_of(path, tensors, WORDS, 2)[1],
            'bidirectional': 'model.1.rnn.weight_hh_l0_reverse' in tensors,
            'dropout': dropout,
            'word_init': 'uniform',
        }
    has_mlp = 'model.0.mlp.layers.0.weight' in tensors
    return {'embed_dim': shape_of(path, tensors, FEATURES, 2)[0], 'image.mlp': mlp if has_mlp else 'none', 'text': text}


def _recognize_sgraf(path: str, tensors: Tensors) -> dict[str, Any]:
    pooling = {'name': 'alignment.SelfAttention', 'dropout': 0.4}
    steps = sum(f'model.2.SGR_module.{n}.sim_graph_w.weight' in tensors for n in range(key_maps.STEPS))
    reasoning = {'name': 'alignment.GraphReasoning', 'steps': steps}
    (slots,) = shape_of(path, tensors, 'model.2.v_global_w.embedding_local.1.weight', 1)
    return _recognize_dbl(path, tensors) | {
        'image_whole': {**pooling, 'slots': slots},
        'text_whole': {**pooling, 'slots': None},
        'reasoning': reasoning if steps else {'name': 'alignment.AttentionFiltration'},
    }


def _recognize_dbl(path: str, tensors: Tensors) -> dict[str, Any]:
    dim = shape_of(path, tensors, 'model.2.sim_eval_w.weight', 2)[1]
    return _recognize_encoders(path, tensors, 'model.1.cap_rnn') | {'alignment_dim': dim}


def recognize_network(path: str, tensors: Tensors) -> dict[str, Any] | None:
    """Returns the config of the network in a checkpoint; None if it has none that is known.

    Raises:
      UserError: If it is a ResNet of unknown depth.
    """
    sizes = {'pooled': True, 'dtype': 'float32', 'remat': False}
    if f'{key_maps.NETWORK}.features.0.weight' in tensors:
        return {'name': 'cnn.VGG19', **sizes}
    if f'{key_maps.NETWORK}.conv1.weight' not in tensors:
        return None
    layers = [f'{key_maps.NETWORK}.layer{layer}' for layer in range(1, 5)]
    blocks = tuple(count_blocks(tensors, layer) for layer in layers)
    has_bottlenecks = f'{layers[0]}.0.conv3.weight' in tensors
    for depth, blocks_of_depth in networks.RESNETS.items():
        if blocks_of_depth == blocks and (depth >= networks.BOTTLENECKS) == has_bottlenecks:
            return {'name': 'cnn.ResNet', 'depth': depth, 'train_norm': False, **sizes}
    depths = ', '.join(map(str, networks.RESNETS))
    raise UserError(f'{path} has a ResNet with {blocks} blocks: give a checkpoint with one of {depths} layers')


def regions_of(image: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the part of the config's `model.image` that encodes features, whether a network computes them or not."""
    return image['regions'] if image['name'] == ENCODER else image


def with_network(image: Mapping[str, Any], network: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the config's `model.image` with a network, or without one if it is None."""
    regions = dict(regions_of(image))
    if network is None:
        return regions
    return {'name': ENCODER, 'network': dict(network), 'normalize_features': True, 'regions': regions}


def _pooled(title: str, pooling: str, *, mlp: str, dropout: float = 0.0) -> ReleasedSystem:
    """Returns a system with two pooled encoders, whose images have this MLP if the checkpoint has one."""
    return ReleasedSystem(
        title,
        'vse',
        key_maps.POOLED,
        fixed={
            **{'image.name': 'vision.RegionEncoder', 'image.mlp': mlp, 'normalize_images': True, 'absolute': False},
            **{'image_pooling': pooling, 'text_pooling': pooling},
        },
        recognize=functools.partial(_recognize_pooled, mlp=mlp, dropout=dropout),
        adds_mask=True,
    )


SYSTEMS = {
    'vsepp': ReleasedSystem(
        'VSE++',
        'vse',
        key_maps.VSEPP,
        fixed={**_REGIONS, 'image_pooling': 'mean', 'text_pooling': 'last'},
        options={
            'name': ('measure', {'cosine': 'vse.VSE', 'order': 'vse.OrderEmbedding'}),
            'normalize_images': ('no_imgnorm', _NOT),
            'absolute': ('use_abs', None),
        },
        prepare=functools.partial(cnn_weights.prepare, prefix=f'{key_maps.NETWORK}.'),
        photos=True,
    ),
    'scan': ReleasedSystem(
        'SCAN',
        'scan',
        key_maps.SCAN,
        options={
            'lambda_softmax': ('lambda_softmax', None),
            'direction': ('cross_attn', None),
            'aggregation': ('agg_func', None),
            'lambda_lse': ('lambda_lse', None),
        },
        required={'raw_feature_norm': 'clipped_l2norm'},
    ),
    'bfan': ReleasedSystem(
        'BFAN',
        'bfan',
        key_maps.SCAN,
        options={'lambda_softmax': ('lambda_softmax', None), 'focal': ('focal_type', None)},
        required={'raw_feature_norm': 'clipped_l2norm'},
    ),
    'imram': ReleasedSystem(
        'IMRAM',
        'imram',
        key_maps.IMRAM,
        options={
            'direction': ('model_mode', {'full_IMRAM': 'both', 'text_IMRAM': 't2i', 'image_IMRAM': 'i2t'}),
            'steps': ('iteration_step', None),
            'lambda_softmax': ('lambda_softmax', None),
        },
        required={'raw_feature_norm': 'clipped_l2norm', 'no_IMRAM_norm': True},
    ),
    'sgraf': ReleasedSystem(
        'SGRAF',
        'sgraf',
        key_maps.SGRAF,
        fixed={**_REGIONS, 'lambda_softmax': 9.0, 'activation': 'sigmoid'},
        recognize=_recognize_sgraf,
    ),
    'dbl': ReleasedSystem(
        'DBL',
        'sgraf',
        key_maps.DBL,
        fixed={
            **_REGIONS,
            'lambda_softmax': 9.0,
            'activation': 'tanh',
            'image_whole': None,
            'text_whole': None,
            'reasoning.name': 'alignment.Mean',
        },
        required={'no_simnorm': False},
        recognize=_recognize_dbl,
        adds_mask=True,
    ),
    'naaf': ReleasedSystem(
        'NAAF',
        'naaf',
        key_maps.NAAF,
        fixed={**_REGIONS, 'lambda_softmax': 20.0, 'lambda_smoothing': 5.0},
    ),
    'vsrn': ReleasedSystem(
        'VSRN',
        'vsrn',
        key_maps.VSRN,
        fixed={'caption': False},  # the captioner's weights are not stored
        recognize=_recognize_vsrn,
        prepare=_fold_biases,
    ),
    'vse_infinity': _pooled('VSE-infinity', 'gpo', mlp='residual_on_input'),
    'esa': _pooled('ESA', 'esa', mlp='residual_on_input', dropout=0.1),
    'rvsepp': _pooled('RVSE++', 'gpo', mlp='residual'),
}
