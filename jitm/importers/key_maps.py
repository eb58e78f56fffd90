"""The authors' names of the tensors of our models, one table per system, which is read in both directions.

A checkpoint holds its modules as a list, images first, then texts, then the similarity, so that `fc.weight` of the
images is 'model.0.fc.weight'. A GRU of `torch.nn` has the rows of its three gates in one tensor; in the tables each
gate has a name of its own, which `split_gates` and `stack_gates` translate.
"""

import functools
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from jitm.importers import bert
from jitm.importers.cnn import torchvision_module
from jitm.importers.tensors import LEAVES

Tensors = dict[str, Callable[[], np.ndarray]]  # name -> reads the tensor

GATES = ('reset', 'update', 'new')  # in the order of their rows
_SIDES = {'input': 'ih', 'hidden': 'hh'}
_DIRECTIONS = {'forward': '_l0', 'backward': '_l0_reverse'}
_STACKED = re.compile(r'(.*\.)(weight|bias)_([ih]h_l0(?:_reverse)?)')
_GATE = re.compile(r'(.*\.)([ih]h_l0(?:_reverse)?)_(\d)\.(weight|bias)')


class KeyMap(NamedTuple):
    """The names of a system.

    Attributes:
      modules: module of our model -> module of theirs.
      variables: path of a variable of ours -> name of its tensor, where the modules do not give it.
      unread: tensors that have no effect on the scores.
      zeros: name of such a tensor -> another one with the same number of rows; it is written as zeros.
    """

    modules: Mapping[str, str]
    variables: Mapping[str, str] = {}
    unread: str = r'.*\.num_batches_tracked'
    zeros: Mapping[str, str] = {}

    def name(self, path: tuple[str, ...]) -> str:
        """Returns the name of the tensor of a variable; that of a gate is the one before `stack_gates`.

        Raises:
          KeyError: if the system has no such variable.
        """
        if '/'.join(path) in self.variables:
            return self.variables['/'.join(path)]
        return f'{self.modules["/".join(path[:-1])]}.{LEAVES[path[-1]]}'


def split_gates(tensors: Tensors) -> Tensors:
    """Returns the tensors with one for each gate of a GRU instead of the stacked ones."""
    split = {}
    for name, read in tensors.items():
        if match := _STACKED.fullmatch(name):
            prefix, leaf, rest = match.groups()
            split |= {f'{prefix}{rest}_{n}.{leaf}': functools.partial(part, read, n) for n in range(len(GATES))}
        else:
            split[name] = read
    return split


def part(read: Callable[[], np.ndarray], number: int) -> np.ndarray:
    """Returns the rows of one of three stacked tensors, such as the gates of a GRU."""
    tensor = read()
    if tensor.ndim == 0 or len(tensor) % len(GATES):  # which then has another shape than the model's
        return tensor
    return np.split(tensor, len(GATES))[number]


def stack_gates(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the tensors with the gates of each GRU stacked, the inverse of `split_gates`."""
    stacked, gates = {}, {}
    for name, tensor in tensors.items():
        if match := _GATE.fullmatch(name):
            prefix, rest, number, leaf = match.groups()
            gates.setdefault(f'{prefix}{leaf}_{rest}', {})[int(number)] = tensor
        else:
            stacked[name] = tensor
    return stacked | {name: np.concatenate([parts[n] for n in sorted(parts)]) for name, parts in gates.items()}


def stored_name(name: str) -> str:
    """Returns the name in a checkpoint of a tensor, which is another one for gates."""
    return _GATE.sub(r'\1\4_\2', name)


def _gru(ours: str, theirs: str) -> dict[str, str]:
    """Returns the modules of a GRU, of both directions."""
    return {
        f'{ours}/{direction}/{side}_{gate}': f'{theirs}.{_SIDES[side]}{_DIRECTIONS[direction]}_{n}'
        for direction in _DIRECTIONS
        for side in _SIDES
        for n, gate in enumerate(GATES)
    }


_IMAGES = {'image/image_fc': 'model.0.fc'}
_TEXTS = {'text/embedding': 'model.1.embed', **_gru('text/gru', 'model.1.rnn')}

NETWORK = 'model.0.cnn'  # of VSE++, whose names below are those of torchvision: VGG19 or a ResNet
BLOCKS = 36  # in a layer of a ResNet, at most
_BLOCK = (*(f'{kind}{n}' for n in (1, 2, 3) for kind in ('conv', 'bn')), 'downsample_0', 'downsample_1')
_NETWORK = (
    *(f'features_{n}' for n in range(36)),
    *('classifier_0', 'classifier_3', 'conv1', 'bn1'),
    *(f'layer{layer}_{n}/{module}' for layer in range(1, 5) for n in range(BLOCKS) for module in _BLOCK),
)
VSEPP = KeyMap(
    {
        **_IMAGES,
        **{f'image/network/{ours}': f'{NETWORK}.{torchvision_module(ours)}' for ours in _NETWORK},
        'image/regions/image_fc': 'model.0.fc',  # after a network
        **_TEXTS,
    }
)
SCAN = KeyMap(_IMAGES | _TEXTS)  # also of BFAN

STEPS = 8  # of the graph reasoning of SGR, at most; 3 as released
SGRAF = KeyMap(
    modules={
        **_IMAGES,
        'text/embedding': 'model.1.embed',
        **_gru('text/gru', 'model.1.cap_rnn'),
        'image_whole/local': 'model.2.v_global_w.embedding_local.0',
        'image_whole/local_norm': 'model.2.v_global_w.embedding_local.1',
        'image_whole/whole': 'model.2.v_global_w.embedding_global.0',
        'image_whole/whole_norm': 'model.2.v_global_w.embedding_global.1',
        'image_whole/scores': 'model.2.v_global_w.embedding_common.0',
        'text_whole/local': 'model.2.t_global_w.embedding_local.0',
        'text_whole/whole': 'model.2.t_global_w.embedding_global.0',
        'text_whole/scores': 'model.2.t_global_w.embedding_common.0',
        'local/linear': 'model.2.sim_tranloc_w',
        'whole/linear': 'model.2.sim_tranglo_w',
        'score': 'model.2.sim_eval_w',
        **{f'reasoning/graph_{n}': f'model.2.SGR_module.{n}.sim_graph_w' for n in range(STEPS)},
        'reasoning/relevance': 'model.2.SAF_module.attn_sim_w',
        'reasoning': 'model.2.SAF_module.bn',
    },
    variables={
        path: f'model.2.SGR_module.{n}.{name}'
        for n in range(STEPS)
        for path, name in (
            (f'reasoning/query_{n}', 'graph_query_w.weight'),
            (f'reasoning/query_bias_{n}', 'graph_query_w.bias'),
            (f'reasoning/key_{n}', 'graph_key_w.weight'),
        )
    },
    # The bias of a key adds a constant to all edges of a node, which the softmax cancels.
    unread=r'.*\.num_batches_tracked|.*\.graph_key_w\.bias',
    zeros={
        f'model.2.SGR_module.{n}.graph_key_w.bias': f'model.2.SGR_module.{n}.graph_key_w.weight' for n in range(STEPS)
    },
)

DBL = KeyMap(
    modules={
        **_IMAGES,
        'text/embedding': 'model.1.embed',
        **_gru('text/gru', 'model.1.cap_rnn'),
        'local/linear': 'model.2.sim_tran_w',
        'score': 'model.2.sim_eval_w',
    },
    unread=r'.*\.num_batches_tracked|model_t\..*',  # the moving average of MSS
)

NAAF = KeyMap(
    _IMAGES | _TEXTS,
    variables={'threshold': 'opt.thres', 'safe_threshold': 'opt.thres_safe'},
)

LAYERS = 8  # of the graph of VSRN, at most; 4 as released
VSRN = KeyMap(
    modules={
        'image_fc': 'model.0.fc',
        **{
            f'graph_{n}/{ours}': f'model.0.Rs_GCN_{n + 1}.{theirs}'
            for n in range(LAYERS)
            for ours, theirs in (('theta', 'theta'), ('phi', 'phi'), ('g', 'g'), ('w', 'W.0'), ('norm', 'W.1'))
        },
        **_gru('region_gru', 'model.0.img_rnn'),
        'norm': 'model.0.bn',
        **_TEXTS,
    },
    unread=r'.*\.num_batches_tracked|model\.2\..*',  # the captioner, which the files of AOQ have
)

POOLED = KeyMap(  # VSE-infinity, ESA and RVSE++
    modules={
        **_IMAGES,
        'image/image_mlp/linear_1': 'model.0.mlp.layers.0',
        'image/image_mlp/linear_2': 'model.0.mlp.layers.1',
        'image/image_mlp/norm': 'model.0.mlp.bns.0',
        **{
            key: value
            for n, side in enumerate(('image', 'text'))
            for key, value in (
                *_gru(f'{side}_pool/gru', f'model.{n}.gpool.gru').items(),
                (f'{side}_pool/linear', f'model.{n}.gpool.linear'),
                (f'{side}_pool/scores', f'model.{n}.linear1'),
            )
        },
        **_TEXTS,
        'text/linear': 'model.1.linear',
        **{
            f'text/bert/{ours.format(n)}': f'model.1.bert.{theirs.format(n)}'
            for n in range(24)
            for ours, theirs in bert.MODULES.items()
        },
    },
    # The second normalization of the MLP is stored, but never applied.
    unread=r'.*\.num_batches_tracked|.*\.mlp\.bns\.1\..*|.*\.bert\.(pooler\..*|embeddings\.position_ids)',
)
