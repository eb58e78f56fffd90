"""The systems whose authors' checkpoints are converted: what their code fixes, stores and shows in the tensors."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jitm.errors import UserError
from jitm.importers import key_maps
from jitm.importers.key_maps import KeyMap, Tensors

WORDS, FEATURES = 'model.1.embed.weight', 'model.0.fc.weight'
_NOT = {True: False, False: True}


class System(NamedTuple):
    """How a system was released.

    Attributes:
      title: its name.
      module: of `jitm.models`.
      names: of its tensors.
      fixed: key of the model -> its value in the authors' code.
      options: key of the model -> option of the training script, and its values -> ours; None if they are the same.
      recognize: maps the shapes of the tensors to keys of the model -> their values.
    """

    title: str
    module: str
    names: KeyMap
    fixed: Mapping[str, Any]
    options: Mapping[str, tuple[str, Mapping[Any, Any] | None]]
    recognize: Callable[['Shapes'], dict[str, Any]]


class Shapes:
    """The shapes of the tensors of a checkpoint."""

    def __init__(self, path: str, tensors: Tensors) -> None:
        """Keeps the tensors, which are read when a shape is asked for."""
        self.path, self.tensors = path, tensors

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __call__(self, name: str, axes: int) -> tuple[int, ...]:
        """Returns the shape of a tensor.

        Raises:
          UserError: if there is no such tensor, or it has another number of axes.
        """
        if name not in self.tensors:
            raise UserError(f"{self.path} lacks the tensor '{name}': give a checkpoint of the system that --from names")
        shape = self.tensors[name]().shape
        if len(shape) != axes:
            raise UserError(f"{self.path} has a tensor '{name}' of shape {list(shape)}, which needs {axes} axes")
        return shape


def _recognize_encoders(shapes: Shapes, gru: str = 'model.1.rnn') -> dict[str, Any]:
    return {
        'embed_dim': shapes(FEATURES, 2)[0],
        'image.weight_norm': 'model.0.fc.weight_g' in shapes,
        'text.word_dim': shapes(WORDS, 2)[1],
        'text.bidirectional': f'{gru}.hh_l0_reverse_0.weight' in shapes,
    }


def _recognize_sgraf(shapes: Shapes) -> dict[str, Any]:
    whole = {'name': 'alignment.SelfAttention', 'dropout': 0.4}
    steps = sum(f'model.2.SGR_module.{n}.sim_graph_w.weight' in shapes for n in range(key_maps.STEPS))
    reasoning = {'name': 'alignment.GraphReasoning', 'steps': steps}
    return _recognize_encoders(shapes, 'model.1.cap_rnn') | {
        'alignment_dim': shapes('model.2.sim_eval_w.weight', 2)[1],
        'image_whole': {**whole, 'slots': shapes('model.2.v_global_w.embedding_local.1.weight', 1)[0]},
        'text_whole': {**whole, 'slots': None},
        'reasoning': reasoning if steps else {'name': 'alignment.AttentionFiltration'},
    }


_REGIONS = {'image.name': 'vision.RegionEncoder', 'image.mlp': 'none', 'text.name': 'text.GRUEncoder'}
_ATTENTION = {'lambda_softmax': ('lambda_softmax', None), 'raw_feature_norm': ('raw_feature_norm', None)}
SYSTEMS = {
    'vsepp': System(
        'VSE++',
        'vse',
        key_maps.VSEPP,
        fixed={**_REGIONS, 'image_pooling': 'mean', 'text_pooling': 'last'},
        options={
            'name': ('measure', {'cosine': 'vse.VSE', 'order': 'vse.OrderEmbedding'}),
            'normalize_images': ('no_imgnorm', _NOT),
            'absolute': ('use_abs', None),
        },
        recognize=_recognize_encoders,
    ),
    'scan': System(
        'SCAN',
        'scan',
        key_maps.SCAN,
        fixed={**_REGIONS, 'slope': 0.1},
        options={
            **_ATTENTION,
            'direction': ('cross_attn', None),
            'aggregation': ('agg_func', None),
            'lambda_lse': ('lambda_lse', None),
        },
        recognize=_recognize_encoders,
    ),
    'bfan': System(
        'BFAN',
        'bfan',
        key_maps.SCAN,
        fixed={**_REGIONS, 'slope': 0.1},
        options={**_ATTENTION, 'focal': ('focal_type', None)},
        recognize=_recognize_encoders,
    ),
    'sgraf': System(
        'SGRAF',
        'sgraf',
        key_maps.SGRAF,
        fixed={
            **_REGIONS,
            'raw_feature_norm': 'clipped_l2norm',
            'slope': 0.1,
            'lambda_softmax': 9.0,
            'normalize_attended': True,
            'activation': 'sigmoid',
        },
        options={},
        recognize=_recognize_sgraf,
    ),
}
