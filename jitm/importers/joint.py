"""Converts fine-tuned checkpoints of UNITER, TAGS-DC and OSCAR to configs and variables of our models."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import chex
import numpy as np

from jitm import config as config_lib
from jitm.data.vocabularies import load_vocabulary
from jitm.errors import UserError
from jitm.importers import bert, oscar, uniter
from jitm.importers.containers import open_checkpoint
from jitm.importers.released import ReleasedModel, shapes_of
from jitm.importers.tensors import KeyMap, shape_of
from jitm.models.oscar import BOX_NUMBERS
from jitm.types import Images, Texts


class JointSystem(NamedTuple):
    """How a system of joint encoders was released.

    Attributes:
      model: The name of our model.
      names: The names of its tensors.
      new_name: Maps the name of a tensor to its current one.
      words: The tensor of the word embeddings.
      features: The tensor of the layer that reads regions.
      boxes: The numbers of a box that this layer reads besides the features.
      heads: A key of the model's `heads` -> a tensor of the head.
      load: Reads the parameters of a file.
    """

    model: str
    names: KeyMap
    new_name: Callable[[str], str]
    words: str
    features: str
    boxes: int
    heads: Mapping[str, str]
    load: Callable[[str, chex.ArrayTree], chex.ArrayTree]


_UNITER = JointSystem(
    model='uniter.UNITER',
    names=uniter.NAMES,
    new_name=uniter.new_name,
    words='uniter.embeddings.word_embeddings.weight',
    features='uniter.img_embeddings.img_linear.weight',
    boxes=0,
    heads={
        'itm': 'itm_output.weight',
        'mlm': 'cls.predictions.bias',
        'discriminate': 'disc_output.weight',
        'correct': 'correction_output.predictions.bias',
    },
    load=uniter.load_uniter,
)
_OSCAR = JointSystem(
    model='oscar.OSCAR',
    names=oscar.NAMES,
    new_name=oscar.new_name,
    words='bert.embeddings.word_embeddings.weight',
    features='bert.img_embedding.weight',
    boxes=BOX_NUMBERS,
    heads={'itm': 'classifier.weight'},
    load=oscar.load_oscar,
)
JOINT_SYSTEMS = {'uniter': _UNITER, 'tags_dc': _UNITER, 'oscar': _OSCAR}


def load_joint(name: str, path: str, vocabulary: str | None, model: Mapping[str, Any]) -> ReleasedModel:
    """Reads a fine-tuned checkpoint.

    Args:
      name: The name of the system, a key of `JOINT_SYSTEMS`.
      path: The path of the file, see `load_uniter` and `load_oscar`.
      vocabulary: The path of BERT's vocab.txt.
      model: The config's `model`, for dropout and precision.

    Returns:
      The model, in float32.

    Raises:
      UserError: if a file is missing or damaged, tensors are missing, left over or of another shape, the checkpoint
        cannot score pairs, or the vocabulary is another one.
    """
    system = JOINT_SYSTEMS[name]
    if model['name'] != system.model:
        raise UserError(f"--config has the model '{model['name']}', not '{system.model}': give another one")
    tensors = open_checkpoint(path, name, system.names.pattern(), system.new_name).tensors
    words, hidden = shape_of(path, tensors, system.words, 2)
    features = shape_of(path, tensors, system.features, 2)[1] - system.boxes
    heads = [head for head, tensor in system.heads.items() if tensor in tensors]
    if 'itm' not in heads and 'rank_output.weight' not in tensors:
        raise UserError(f'{path} lacks {system.heads["itm"]}, so that it cannot score pairs: fine-tune it first')
    section = config_lib.to_json(model) | {'size': bert.size_of(path, hidden)}
    section |= {'heads': heads} if 'heads' in section else {}
    section |= {'image_norm': 'bert.LayerNorm.weight' in tensors} if 'image_norm' in section else {}
    if not vocabulary:
        raise UserError(f'--vocabulary is missing: give the vocab.txt of the BERT of {path}')
    pieces = load_vocabulary(vocabulary)
    if len(pieces) != words:
        raise UserError(f'{vocabulary} has {len(pieces)} word pieces, but {path} has {words}: give its own')
    params = system.load(path, shapes_of(section, len(pieces), _one_image(features))['params'])
    data = {'regions': [0, 0, features], 'dtype': 'float32', 'hash': ''}
    return ReleasedModel(section, {'params': params, 'batch_stats': {}}, pieces, vocabulary, data)


def _one_image(features: int) -> Images:
    regions, locations = (np.zeros((1, 1, size), np.float32) for size in (features, 7))
    tags = Texts(np.zeros((1, 1), np.int32), np.ones(1, np.int32))
    return Images(regions, np.ones(1, np.int32), locations=locations, tags=tags)
